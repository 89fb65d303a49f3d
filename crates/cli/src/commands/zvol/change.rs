//! `ashlar zvol set`, `inherit`, `rename` and `destroy`.

use std::process::ExitCode;

use ashlar_host::error::{Error, Result};
use ashlar_host::pools::{ImportMode, only_pool_of, pool_of};
use ashlar_zfs::protocol::Command;
use clap::Args;

use super::property;
use crate::commands::zpool::place::PoolArgs;
use crate::output;

/// Set properties of volumes
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 done, 1 failed, 2 wrong usage.

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
Exit codes: 0 done, 1 failed, 2 wrong usage.

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
Exit codes: 0 done, 1 failed, 2 wrong usage.

Examples:
  ashlar zvol rename tank/vol tank/old
  ashlar zvol rename tank/vol@a tank/vol@b")]
pub(crate) struct Rename {
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
        self.place.change(&self.from, Command::Rename { from: self.from.clone(), to })
    }
}

/// Destroy a volume or snapshot
///
/// A volume that is in use is not destroyed.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 done, 1 failed, 2 wrong usage.

Examples:
  ashlar zvol destroy tank/vol@before
  ashlar zvol destroy -nv -r tank/vol
  ashlar zvol destroy -r tank/vol")]
pub(crate) struct Destroy {
    /// Also everything below it: snapshots
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
        if !dry_run {
            return place.change(&name.clone(), Command::Destroy { name, recursive });
        }
        let pool = pool_of(&name);
        let refused = |why: &str| Error::failed(format_args!("cannot destroy '{name}': {why}"));
        if pool == name {
            return Err(
                refused("operation does not apply to pools").hint("type ashlar zpool destroy")
            );
        }
        let found = place.with(Some(pool), ImportMode::READ, |session| session.datasets(&name))?;
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
