//! `ashlar zvol set`, `inherit`, `rename` and `destroy`.

use std::process::ExitCode;

use ashlar_commands::pools::{ImportMode, only_pool_of, pool_of, pool_of_snapshot};
use ashlar_daemon::error::{Error, Result};
use ashlar_zfs::protocol::{Command, Dataset};
use clap::Args;

use super::property;
use crate::commands::zpool::place::PoolArgs;
use crate::output;

/// Set properties of volumes
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar zvol set volsize=20G tank/vol
  ashlar zvol set compression=zstd sync=always tank/a tank/b
  ashlar zvol set snapdev=visible tank/vol")]
pub(crate) struct Set {
    /// Properties, followed by volumes
    #[arg(value_name = "PROPERTY=VALUE|NAME", required = true, num_args = 2..)]
    words: Vec<String>,

    #[command(flatten)]
    place: PoolArgs,
}

impl Set {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let first = self.words.iter().position(|word| !word.contains('='));
        let (settings, names) = self.words.split_at(first.unwrap_or(self.words.len()));
        if settings.is_empty() || names.is_empty() {
            return Err(Error::usage("PROPERTY=VALUE and a volume are needed"));
        }
        let settings: std::result::Result<Vec<_>, String> =
            settings.iter().map(|text| property(text)).collect();
        let settings = settings.map_err(Error::usage)?;
        let only = only_pool_of(names);
        self.place.with(only, ImportMode::WRITE, |session| {
            for dataset in names {
                for (name, value) in settings.clone() {
                    let set = Command::SetProperty { dataset: dataset.clone(), name, value };
                    session.run(pool_of(dataset), set)?;
                }
            }
            Ok(ExitCode::SUCCESS)
        })
    }
}

/// Let volumes inherit a property from their parents
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar zvol inherit compression tank/vol")]
pub(crate) struct Inherit {
    /// The property
    property: String,

    /// The volumes
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,

    #[command(flatten)]
    place: PoolArgs,
}

impl Inherit {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let only = only_pool_of(&self.names);
        self.place.with(only, ImportMode::WRITE, |session| {
            for dataset in &self.names {
                let (dataset, name) = (dataset.clone(), self.property.clone());
                let pool = pool_of(&dataset).to_owned();
                session.run(&pool, Command::Inherit { dataset, name })?;
            }
            Ok(ExitCode::SUCCESS)
        })
    }
}

/// Rename a volume or snapshot
///
/// A volume that is in use is not renamed.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar zvol rename tank/vol tank/old
  ashlar zvol rename tank/vol@a tank/vol@b")]
pub(crate) struct Rename {
    /// Of a snapshot: rename those of its name of everything below its volume, too, one after the other
    #[arg(short = 'r')]
    recursive: bool,

    /// The current name
    from: String,

    /// The new name
    to: String,

    #[command(flatten)]
    place: PoolArgs,
}

impl Rename {
    pub(crate) fn run(self) -> Result<ExitCode> {
        // A snapshot's new name may be given as the part after the @.
        let to = match (self.from.split_once('@'), self.to.strip_prefix('@')) {
            (Some((volume, _)), Some(snapshot)) => format!("{volume}@{snapshot}"),
            (_, Some(_)) | (_, None) => self.to.clone(),
        };
        if self.recursive {
            return self.rename_all(&to);
        }
        self.place.change(&self.from, Command::Rename { from: self.from.clone(), to })
    }

    /// Renames the snapshots of this name at and below a volume. Nothing is renamed if one of the new names is in use.
    fn rename_all(&self, to: &str) -> Result<ExitCode> {
        let pool = pool_of_snapshot(&self.from)?;
        let (volume, old) = self.from.split_once('@').unwrap_or((self.from.as_str(), ""));
        let new = match to.split_once('@') {
            Some((of, new)) if of == volume => new,
            Some(_) | None => {
                return Err(Error::usage("a snapshot stays one of its volume").hint("@NAME"));
            }
        };
        self.place.with(Some(pool), ImportMode::WRITE, |session| {
            let found = session.datasets(volume)?;
            let names = |wanted: &str| -> Vec<String> {
                let of = |dataset: &Dataset| {
                    let (of, name) = dataset.name.split_once('@')?;
                    (name == wanted).then(|| of.to_owned())
                };
                found.iter().filter_map(of).collect()
            };
            let volumes = names(old);
            let used = names(new);
            if let Some(of) = volumes.iter().find(|of| used.contains(of)) {
                let text = format!("cannot rename to '{of}@{new}': dataset already exists");
                return Err(Error::failed(text));
            }
            if volumes.is_empty() {
                let text = format!("cannot open '{}': dataset does not exist", self.from);
                return Err(Error::failed(text));
            }
            volumes.iter().try_for_each(|of| {
                let (from, to) = (format!("{of}@{old}"), format!("{of}@{new}"));
                session.run(pool, Command::Rename { from, to })
            })
        })?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Destroy a volume or snapshot
///
/// A volume that is in use is not destroyed.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar zvol destroy tank/vol@before
  ashlar zvol destroy -nv -r tank/vol
  ashlar zvol destroy -r tank/vol")]
pub(crate) struct Destroy {
    /// Also everything below it: snapshots; of a snapshot, those of its name below its volume
    #[arg(short = 'r')]
    recursive: bool,

    /// Destroy nothing, and print what would be destroyed
    #[arg(short = 'n', long)]
    dry_run: bool,

    /// Its name
    name: String,

    #[command(flatten)]
    place: PoolArgs,
}

impl Destroy {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let Self { name, recursive, dry_run, place } = self;
        let (volume, is_snapshot) = (name.split('@').next().unwrap_or(&name), name.contains('@'));
        let is_single = !(recursive && is_snapshot);
        if is_single && !dry_run {
            return place.change(&name.clone(), Command::Destroy { name, recursive });
        }
        let pool = pool_of(&name);
        let refused = |why: &str| Error::failed(format_args!("cannot destroy '{name}': {why}"));
        if pool == name {
            return Err(
                refused("operation does not apply to pools").hint("type ashlar zpool destroy")
            );
        }
        // A snapshot is among those of its volume; with -r, it stands for those of this name below the volume, too.
        let end = &name[volume.len()..];
        let is_meant = |dataset: &Dataset| match recursive {
            true => dataset.name.ends_with(end),
            false => !is_snapshot || dataset.name == name,
        };
        let mode = if dry_run { ImportMode::READ } else { ImportMode::WRITE };
        let found = place.with(Some(pool), mode, |session| {
            let mut found = session.datasets(volume)?;
            found.retain(is_meant);
            if found.is_empty() {
                return Err(refused(
                    "could not find any snapshots to destroy; check snapshot names.",
                ));
            }
            for dataset in found.iter().filter(|_| !dry_run) {
                let name = dataset.name.clone();
                session.run(pool, Command::Destroy { name, recursive: false })?;
            }
            Ok(found)
        })?;
        if !dry_run {
            return Ok(ExitCode::SUCCESS);
        }
        let names: Vec<&str> = found.iter().map(|dataset| dataset.name.as_str()).collect();
        if let (false, [_, below @ ..]) = (recursive, &names[..])
            && !below.is_empty()
        {
            let why = format!("it has {}", below.join(", "));
            return Err(refused(&why).hint("destroy these too (-r)"));
        }
        let lines = names.iter().map(|name| format!("would destroy {name}\n"));
        output::print(&lines.collect::<String>())?;
        Ok(ExitCode::SUCCESS)
    }
}
