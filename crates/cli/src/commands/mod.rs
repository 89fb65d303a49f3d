//! The subcommands: a file for each, with its arguments and the function that runs it.

pub(crate) mod btrfs;
pub(crate) mod cleanup_helper;
pub(crate) mod completions;
pub(crate) mod get;
pub(crate) mod jobs;
pub(crate) mod lvm;
pub(crate) mod man;
pub(crate) mod md;
pub(crate) mod scan;
pub(crate) mod serve;
pub(crate) mod set;
pub(crate) mod status;
pub(crate) mod stop;
#[cfg(feature = "top")]
pub(crate) mod top;
pub(crate) mod trace;
mod verbs;
pub(crate) mod zpool;
pub(crate) mod zvol;

use std::io::{self, BufRead, IsTerminal};
use std::path::PathBuf;

use ashlar_client::client::Client;
use ashlar_daemon::error::{Error, Result};
use ashlar_disks as disks;
use clap::Args;

use crate::help::GLOBAL;
use crate::output;

/// Which daemon to talk to.
#[derive(Args, Debug)]
pub(crate) struct Daemon {
    /// The daemon's control socket [default: for root /run/ashlar.sock; for others ashlar.sock in
    /// $XDG_RUNTIME_DIR, or else in /run/user/UID or /tmp/ashlar-UID]
    #[arg(long, value_name = "PATH", help_heading = GLOBAL)]
    control: Option<PathBuf>,
}

impl Daemon {
    /// Whether the user chose one.
    pub(crate) const fn is_named(&self) -> bool {
        self.control.is_some()
    }

    /// Connects to the daemon if `paths` are names of its volumes: the user chose a daemon, or they are not files and a
    /// daemon listens.
    ///
    /// # Errors
    /// The daemon that the user chose does not listen.
    pub(crate) fn serving(&self, paths: &[PathBuf]) -> Result<Option<(Client, Vec<String>)>> {
        if !self.is_named() && paths.iter().any(|path| disks::may_exist(path)) {
            return Ok(None);
        }
        let names = paths.iter().map(|path| path.display().to_string()).collect();
        match self.connect() {
            Err(error) if self.is_named() => Err(error),
            client => Ok(client.ok().map(|client| (client, names))),
        }
    }

    /// Connects to the daemon.
    ///
    /// # Errors
    /// No daemon listens.
    pub(crate) fn connect(&self) -> Result<Client> {
        disks::lending_client(self.control.as_deref())
    }
}

/// Asks the user; fails without a terminal.
///
/// # Errors
/// Nobody is there to answer.
fn confirm(question: &str, yes: bool) -> Result<bool> {
    if yes {
        return Ok(true);
    }
    if !io::stdin().is_terminal() {
        return Err(Error::failed(format_args!("{question} Nobody is there to answer"))
            .hint("-y answers with yes"));
    }
    let failed = |error| Error::plain("cannot ask", error);
    output::to_stderr(&format!("{question} [y/n]: "));
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).map_err(failed)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
