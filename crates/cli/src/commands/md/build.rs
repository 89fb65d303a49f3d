//! `ashlar md build`: refused.

use std::ffi::OsString;
use std::process::ExitCode;

use ashlar_daemon::error::{Error, Result};
use clap::Args;

/// Refused: arrays without superblocks are not supported
///
/// What has to be known of an array after a crash, which copies differ and which member has failed,
/// is in its superblocks.
#[derive(Args, Debug)]
pub(crate) struct Build {
    /// Anything
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

impl Build {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let error = Error::plain(
            "cannot build",
            "arrays without superblocks are not supported: after a crash nothing would say which copies \
             differ, or which member has failed; nothing was changed",
        );
        Err(error
            .hint("ashlar md create makes an array with superblocks; it overwrites the devices"))
    }
}
