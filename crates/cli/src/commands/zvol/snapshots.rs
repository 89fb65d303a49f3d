//! `ashlar zvol snapshot`, `clone`, `rollback` and `promote`.

use std::collections::BTreeMap;
use std::process::ExitCode;

use ashlar_commands::pools::{ImportMode, pool_of, pool_of_snapshot};
use ashlar_daemon::error::{Error, Result};
use ashlar_zfs::protocol::Command;
use clap::Args;

use super::property;
use crate::commands::zpool::place::PoolArgs;

/// Take snapshots of volumes, all at the same time
///
/// The snapshot of a served volume contains all earlier writes.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar zvol snapshot tank/vol@before
  ashlar zvol snapshot -r tank@before
  ashlar zvol snapshot tank/a@monday tank/b@monday")]
pub(crate) struct Snapshot {
    /// Also of everything below, at the same time
    #[arg(short = 'r')]
    recursive: bool,

    /// Their names: POOL/VOLUME@SNAPSHOT, all in one pool
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,

    #[command(flatten)]
    place: PoolArgs,
}

impl Snapshot {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let pool = self.names.first().map_or("", |name| pool_of(name)).to_owned();
        if self.names.iter().any(|name| pool_of(name) != pool) {
            return Err(Error::usage("snapshots that are taken at one time are in one pool"));
        }
        if !self.recursive {
            return self.place.change(&pool, Command::Snapshot { names: self.names });
        }
        self.place.with(Some(&pool), ImportMode::WRITE, |session| {
            let mut names: Vec<String> = Vec::new();
            for name in &self.names {
                pool_of_snapshot(name)?;
                let (root, snapshot) = name.split_once('@').unwrap_or((name, ""));
                let datasets = session.datasets(root)?;
                let below = datasets.iter().filter(|dataset| dataset.kind != "snapshot");
                names.extend(below.map(|dataset| format!("{}@{snapshot}", dataset.name)));
            }
            session.run(&pool, Command::Snapshot { names })
        })?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Make a volume from a snapshot
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar zvol clone tank/vol@before tank/try
  ashlar zvol clone -o compression=off tank/vol@before tank/try")]
pub(crate) struct Clone {
    /// A property (may be repeated)
    #[arg(short = 'o', value_name = "PROPERTY=VALUE", value_parser = property)]
    properties: Vec<(String, String)>,

    /// The snapshot
    snapshot: String,

    /// The new volume
    name: String,

    #[command(flatten)]
    place: PoolArgs,
}

impl Clone {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let clone = Command::Clone {
            snapshot: self.snapshot.clone(),
            name: self.name,
            properties: BTreeMap::from_iter(self.properties),
        };
        self.place.change(&self.snapshot, clone)
    }
}

/// Roll a volume back to a snapshot
///
/// Later writes are lost.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar zvol rollback tank/vol@before
  ashlar zvol rollback -r tank/vol@older")]
pub(crate) struct Rollback {
    /// Destroy newer snapshots
    #[arg(short = 'r')]
    recursive: bool,

    /// The snapshot
    snapshot: String,

    #[command(flatten)]
    place: PoolArgs,
}

impl Rollback {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let pool = Some(pool_of_snapshot(&self.snapshot)?);
        self.place.with(pool, ImportMode::WRITE, |session| {
            session.roll_back(&self.snapshot, self.recursive)
        })?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Make a clone the owner of the data that it shares with its origin
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar zvol promote tank/try")]
pub(crate) struct Promote {
    /// The clone
    name: String,

    #[command(flatten)]
    place: PoolArgs,
}

impl Promote {
    pub(crate) fn run(self) -> Result<ExitCode> {
        self.place.change(&self.name, Command::Promote { name: self.name.clone() })
    }
}
