//! New pools.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ashlar_disks::{Access, Opener};
use ashlar_stack::assemble::Disk;
use ashlar_stack::probe::{Md, probe};
use ashlar_stack::signature::{Signature, ZFS_MEMBER};
use ashlar_stack::wipe;
use ashlar_zfs::client::{Parameters, Pool};
use ashlar_zfs::protocol::{Command, DiskWipe, NewVdev, VdevClass, VdevKind};

use super::{not_had, refused};
use crate::error::{Error, Result};

/// The vdevs of a new pool.
#[derive(Clone, Debug)]
pub struct PoolLayout {
    vdevs: Vec<NewVdev>,
}

impl PoolLayout {
    /// The layout that `words` describe: disks, with mirror, raidz, raidz2, raidz3 or log before those that it applies
    /// to.
    ///
    /// # Errors
    /// They describe no pool.
    pub fn parse(words: &[String]) -> Result<Self> {
        let layout = Self::parse_more(words)?;
        if !layout.vdevs.iter().any(|vdev| vdev.class == VdevClass::Normal) {
            return Err(Error::usage(
                "invalid vdev specification: at least one toplevel vdev must be specified",
            ));
        }
        Ok(layout)
    }

    /// As [`Self::parse`], for vdevs that are added to a pool: these may be logs only.
    ///
    /// # Errors
    /// They describe no vdevs.
    pub fn parse_more(words: &[String]) -> Result<Self> {
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
                    let text =
                        format!("invalid vdev specification: '{word}' is not supported here");
                    return Err(
                        Error::usage(text).hint("mirror, raidz, raidz2, raidz3 and log are")
                    );
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
        Ok(Self { vdevs })
    }

    /// One disk.
    pub fn single(path: PathBuf) -> Self {
        let (kind, class) = (VdevKind::Single, VdevClass::Normal);
        Self { vdevs: vec![NewVdev { kind, class, paths: vec![path] }] }
    }

    /// The layout of `pool`, as `zpool create -n` prints it.
    pub fn describe(&self, pool: &str) -> String {
        let mut text = format!("would create '{pool}' with the following layout:\n\n\t{pool}\n");
        let mut last = VdevClass::Normal;
        for vdev in &self.vdevs {
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

    /// The disks.
    fn paths(&self) -> Vec<PathBuf> {
        self.vdevs.iter().flat_map(|vdev| vdev.paths.clone()).collect()
    }
}

/// Disks that a pool can be given: they are open and locked, and nothing was written.
pub struct NewDisks {
    layout: PoolLayout,
    disks: Vec<Disk>,
    wiped: Vec<DiskWipe>,
    force: bool,
}

/// A pool that can be made: its disks are open, and nothing was written.
pub struct NewPool(NewDisks);

/// The properties of a new pool.
#[derive(Clone, Debug, Default)]
pub struct NewPoolProperties {
    /// Those of the pool.
    pub pool: BTreeMap<String, String>,
    /// Those of its root dataset, which volumes inherit.
    pub dataset: BTreeMap<String, String>,
}

impl NewDisks {
    /// Opens the disks of `layout`; with `force` those that are not empty, too.
    ///
    /// # Errors
    /// A disk cannot be opened or read, or is not empty.
    pub async fn open(mut layout: PoolLayout, access: Access, force: bool) -> Result<Self> {
        // Locked, so that no other process uses them.
        let disks = Opener::new(access).all(&layout.paths())?;
        let mut wiped = Vec::new();
        if force {
            wiped = signatures(&disks).await?;
        } else {
            refuse_used(&disks).await?;
        }
        for path in layout.vdevs.iter_mut().flat_map(|vdev| &mut vdev.paths) {
            *path = absolute(path)?;
        }
        Ok(Self { layout, disks, wiped, force })
    }

    /// The command that adds them to a pool.
    pub fn add(&self) -> Command {
        let (vdevs, wiped) = (self.layout.vdevs.clone(), self.wiped.clone());
        Command::AddVdevs { vdevs, force: self.force, wiped }
    }

    /// The command that attaches the one disk to `leaf` of a pool, or replaces that by it.
    ///
    /// # Errors
    /// It is not one disk.
    pub fn attach(&self, leaf: String, replace: bool) -> Result<Command> {
        let [path] = &self.layout.paths()[..] else {
            return Err(Error::usage("one disk is attached at a time"));
        };
        let (path, wiped, force) = (path.clone(), self.wiped.clone(), self.force);
        Ok(Command::AttachDisk { leaf, path, replace, force, wiped })
    }
}

impl NewPool {
    /// As [`NewDisks::open`].
    ///
    /// # Errors
    /// As there.
    pub async fn open(layout: PoolLayout, access: Access, force: bool) -> Result<Self> {
        NewDisks::open(layout, access, force).await.map(Self)
    }

    /// The layout, with absolute paths.
    pub fn layout(&self) -> &PoolLayout {
        &self.0.layout
    }

    /// Makes the pool `name`, and exports it.
    ///
    /// # Errors
    /// The worker refuses.
    pub async fn create(self, name: String, properties: NewPoolProperties) -> Result<()> {
        let create = Command::CreatePool {
            name: name.clone(),
            vdevs: self.0.layout.vdevs,
            properties: properties.pool,
            dataset_properties: properties.dataset,
            force: self.0.force,
            wiped: self.0.wiped,
        };
        let started =
            Pool::start(&name, create, Vec::new(), Arc::<Parameters>::default(), None).await;
        let pool = started.map_err(|error| not_had(&error))?;
        let exported = pool.export().await.map_err(|error| refused(&error));
        drop(self.0.disks);
        exported
    }
}

/// The absolute path of a disk for a pool.
///
/// # Errors
/// It does not exist, or is on the network.
pub fn absolute(path: &Path) -> Result<PathBuf> {
    super::refuse_network(path)?;
    std::fs::canonicalize(path).map_err(|error| Error::new("cannot open", path.display(), error))
}

/// Refuses disks that contain anything other than a pool. The worker checks pools.
async fn refuse_used(disks: &[Disk]) -> Result<()> {
    for disk in disks {
        if let Some(why) = foreign(disk).await? {
            return Err(Error::new("cannot use for a pool", disk.path.display(), why)
                .hint("nothing was changed; --force overwrites what is there"));
        }
    }
    Ok(())
}

/// What a disk contains, unless that is nothing but a pool.
///
/// # Errors
/// It cannot be read.
pub(super) async fn foreign(disk: &Disk) -> Result<Option<String>> {
    let contents = probe(&disk.gateway).await;
    let contents =
        contents.map_err(|status| Error::new("cannot read", disk.path.display(), status))?;
    let is_pools = |found: &Signature| found.name == ZFS_MEMBER;
    let is_free = matches!(contents.md, Md::None)
        && contents.other_md.is_empty()
        && contents.foreign.iter().all(is_pools);
    Ok((!is_free).then(|| format!("has {}", contents.claims().join(", "))))
}

/// The signatures to wipe on the disks.
async fn signatures(disks: &[Disk]) -> Result<Vec<DiskWipe>> {
    let mut all = Vec::new();
    for disk in disks {
        let failed = |status| Error::new("cannot read", disk.path.display(), status);
        let ranges = wipe::ranges(&disk.gateway).await.map_err(failed)?;
        all.push(DiskWipe { path: absolute(&disk.path)?, ranges });
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Vec<(VdevKind, VdevClass, usize)> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let vdevs = PoolLayout::parse(&words).unwrap().vdevs;
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
            assert!(PoolLayout::parse(&words).is_err(), "{line}");
        }
    }
}
