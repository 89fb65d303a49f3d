//! `ashlar cleanup-helper`: ends a daemon's mount, makes and removes its sockets, controls its ublk devices, for the daemon that started it.

use std::ffi::OsString;
use std::process::ExitCode;

use ashlar_daemon::cleanup_helper::{self, CleanupTasks};
use ashlar_daemon::error::{Error, Result};
use clap::{ArgAction, Args};

/// Keep a mount and the files of sockets, for the daemon that started this process
#[derive(Args, Debug)]
pub(crate) struct Keep {
    /// The mount, its file system, and how it is ended
    #[arg(long, num_args = 3, allow_hyphen_values = true)]
    mount: Vec<OsString>,

    /// The file of a socket, its device and its inode
    #[arg(long, num_args = 3, action = ArgAction::Append, allow_hyphen_values = true)]
    file: Vec<OsString>,

    /// The pattern of sockets to make, and their mode
    #[arg(long, num_args = 2, allow_hyphen_values = true)]
    sockets: Vec<OsString>,

    /// Control the driver ublk
    #[arg(long)]
    ublk: bool,
}

impl Keep {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let tasks = CleanupTasks::of(&self.mount, &self.file, &self.sockets, self.ublk);
        cleanup_helper::run(
            &tasks.ok_or_else(|| Error::usage("only a daemon starts a cleanup helper"))?,
        )
    }
}
