//! `ashlar zpool create`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use ashlar_host::disks::{self, Access};
use ashlar_host::error::{Error, Result};
use ashlar_host::pools::{absolute, not_had, refused};
use ashlar_stack::assemble::Disk;
use ashlar_stack::probe::{Md, probe};
use ashlar_stack::signature::{Signature, ZFS_MEMBER};
use ashlar_stack::wipe;
use ashlar_zfs::client::{Parameters, Pool};
use ashlar_zfs::protocol::{Command, NewVdev, VdevClass, VdevKind, Wiped};
use clap::Args;

use crate::commands::zvol::property;
use crate::output;

/// Make a pool of disks
///
/// The pool's data are distributed over all disks, mirrors and raidz groups; log before a disk or
/// mirror dedicates it to the intent log. The new pool is exported: `ashlar serve` imports it.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 made, 1 failed, 2 wrong usage.

Examples:
  ashlar zpool create tank disk.img
  ashlar zpool create -o ashift=12 -O compression=lz4 tank mirror a.img b.img mirror c.img d.img
  ashlar zpool create tank raidz2 a.img b.img c.img d.img log mirror e.img f.img")]
pub(crate) struct Create {
    /// Also use disks with known contents
    #[arg(short, long)]
    force: bool,

    /// Show the resulting pool without making it
    #[arg(short = 'n', long)]
    dry_run: bool,

    /// A property of the pool, a feature as feature@NAME=disabled (may be repeated)
    #[arg(short = 'o', value_name = "PROPERTY=VALUE", value_parser = property)]
    properties: Vec<(String, String)>,

    /// A property of its root dataset, which volumes inherit (may be repeated)
    #[arg(short = 'O', value_name = "PROPERTY=VALUE", value_parser = property)]
    dataset_properties: Vec<(String, String)>,

    /// Its name
    pool: String,

    /// Disks, with mirror, raidz, raidz2, raidz3 or log before the disks that it applies to
    #[arg(value_name = "VDEV", required = true)]
    vdevs: Vec<String>,
}

/// The top-level vdevs that `words` describe.
fn parse(words: &[String]) -> Result<Vec<NewVdev>> {
    let mut vdevs: Vec<NewVdev> = Vec::new();
    let mut class = VdevClass::Normal;
    // Whether the disks that follow belong to the last vdev.
    let mut group = false;
    for word in words {
        let kind = match word.as_str() {
            "mirror" => VdevKind::Mirror,
            "raidz" | "raidz1" => VdevKind::Raidz(1),
            "raidz2" => VdevKind::Raidz(2),
            "raidz3" => VdevKind::Raidz(3),
            "log" => {
                (class, group) = (VdevClass::Log, false);
                continue;
            }
            "spare" | "cache" | "special" | "dedup" | "draid" => {
                let text = format!("invalid vdev specification: '{word}' is not supported here");
                return Err(Error::usage(text).hint("mirror, raidz, raidz2, raidz3 and log are"));
            }
            disk => {
                match vdevs.last_mut().filter(|_| group) {
                    Some(vdev) => vdev.paths.push(PathBuf::from(disk)),
                    None => vdevs.push(NewVdev {
                        kind: VdevKind::Single,
                        class,
                        paths: vec![PathBuf::from(disk)],
                    }),
                }
                continue;
            }
        };
        vdevs.push(NewVdev { kind, class, paths: Vec::new() });
        group = true;
    }
    for vdev in &vdevs {
        let (name, least) = match vdev.kind {
            VdevKind::Single => continue,
            VdevKind::Mirror => ("mirror".to_owned(), 2),
            VdevKind::Raidz(parity) => (format!("raidz{parity}"), usize::from(parity) + 1),
        };
        if vdev.paths.len() < least {
            let text =
                format!("invalid vdev specification: {name} requires at least {least} devices");
            return Err(Error::usage(text));
        }
    }
    if !vdevs.iter().any(|vdev| vdev.class == VdevClass::Normal) {
        return Err(Error::usage(
            "invalid vdev specification: at least one toplevel vdev must be specified",
        ));
    }
    Ok(vdevs)
}

/// The planned layout, as `zpool create -n` prints it.
fn layout(pool: &str, vdevs: &[NewVdev]) -> String {
    let mut text = format!("would create '{pool}' with the following layout:\n\n\t{pool}\n");
    let mut last = VdevClass::Normal;
    for vdev in vdevs {
        if vdev.class != last {
            text += "\tlogs\n";
            last = vdev.class;
        }
        let indent = match vdev.kind {
            VdevKind::Single => "\t  ",
            VdevKind::Mirror => {
                text += "\t  mirror\n";
                "\t    "
            }
            VdevKind::Raidz(parity) => {
                text += &format!("\t  raidz{parity}\n");
                "\t    "
            }
        };
        for path in &vdev.paths {
            text += &format!("{indent}{}\n", path.display());
        }
    }
    text
}

/// Refuses disks that contain anything other than a pool. The worker checks pools.
async fn refuse_used(disks: &[Disk]) -> Result<()> {
    for disk in disks {
        let contents = probe(&disk.gateway).await;
        let contents =
            contents.map_err(|status| Error::new("cannot read", disk.path.display(), status))?;
        let is_pools = |found: &Signature| found.name == ZFS_MEMBER;
        let is_free = matches!(contents.md, Md::None)
            && contents.other_md.is_empty()
            && contents.foreign.iter().all(is_pools);
        if !is_free {
            let why = format!("has {}", contents.claims().join(", "));
            return Err(Error::new("cannot create a pool of", disk.path.display(), why)
                .hint("nothing was changed; --force overwrites what is there"));
        }
    }
    Ok(())
}

/// The signatures to wipe on the disks.
async fn signatures(disks: &[Disk]) -> Result<Vec<Wiped>> {
    let mut all = Vec::new();
    for disk in disks {
        let failed = |status| Error::new("cannot read", disk.path.display(), status);
        let ranges = wipe::ranges(&disk.gateway).await.map_err(failed)?;
        all.push(Wiped { path: absolute(&disk.path)?, ranges });
    }
    Ok(all)
}

impl Create {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let mut vdevs = parse(&self.vdevs)?;
        let named: Vec<PathBuf> = vdevs.iter().flat_map(|vdev| vdev.paths.clone()).collect();
        let access = if self.dry_run { Access::Look } else { Access::Write };
        // Locked, so that no other process uses them.
        let disks = disks::open_all(&named, access)?;
        let reactor = disks::reactor()?;
        let mut wiped = Vec::new();
        if self.force {
            wiped = reactor.block_on(signatures(&disks))?;
        } else {
            reactor.block_on(refuse_used(&disks))?;
        }
        for path in vdevs.iter_mut().flat_map(|vdev| &mut vdev.paths) {
            *path = absolute(path)?;
        }
        if self.dry_run {
            output::print(&layout(&self.pool, &vdevs))?;
            return Ok(ExitCode::SUCCESS);
        }
        let create = Command::CreatePool {
            name: self.pool.clone(),
            vdevs,
            properties: BTreeMap::from_iter(self.properties),
            dataset_properties: BTreeMap::from_iter(self.dataset_properties),
            force: self.force,
            wiped,
        };
        reactor.block_on(async {
            let started =
                Pool::start(&self.pool, create, Vec::new(), Arc::<Parameters>::default()).await;
            let pool = started.map_err(|error| not_had(&error))?;
            pool.export().await.map_err(|error| refused(&error))
        })?;
        drop(disks);
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Vec<(VdevKind, VdevClass, usize)> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let vdevs = parse(&words).unwrap();
        vdevs.into_iter().map(|vdev| (vdev.kind, vdev.class, vdev.paths.len())).collect()
    }

    #[test]
    fn words_make_vdevs() {
        use VdevClass::{Log, Normal};
        use VdevKind::{Mirror, Raidz, Single};
        assert_eq!(parsed("a b"), [(Single, Normal, 1), (Single, Normal, 1)]);
        assert_eq!(parsed("mirror a b mirror c d"), [(Mirror, Normal, 2), (Mirror, Normal, 2)]);
        assert_eq!(
            parsed("raidz2 a b c log d log mirror e f"),
            [(Raidz(2), Normal, 3), (Single, Log, 1), (Mirror, Log, 2)]
        );
    }

    #[test]
    fn what_makes_no_pool_is_refused() {
        for line in ["mirror a", "raidz2 a b", "log a", "cache a", "a spare b", "mirror"] {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            assert!(parse(&words).is_err(), "{line}");
        }
    }
}
