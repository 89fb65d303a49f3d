//! Options of the NBD server.

use std::time::Duration;

use ashlar_host::config::{self, MIN_NBD_MEMORY_BYTES};
use ashlar_stack::spec::{Bytes, Mode, Spec};
use clap::Args;

/// What NBD clients may take.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct NbdOptions {
    /// Permissions of the NBD server's Unix sockets, in octal: users that may write to a socket can read
    /// and write the volumes [default: 600]
    #[arg(long, value_name = "MODE")]
    nbd_mode: Option<Mode>,

    /// NBD clients that are served at a time at each address; others are refused [default: 256]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..))]
    nbd_max_connections: Option<u16>,

    /// Close NBD connections without requests after so many seconds, 0 for never. A client with a
    /// mounted file system may have none for long [default: 0]
    #[arg(long, value_name = "SECONDS")]
    nbd_idle_timeout: Option<u32>,

    /// Memory for the requests of all NBD clients together, at least 64M: while it is short, requests
    /// wait, and clients that do not take their replies are dropped [default: a quarter of what is
    /// available, at most 1G]
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    nbd_memory: Option<Bytes>,
}

impl NbdOptions {
    /// These options, completed by those of `spec`.
    ///
    /// # Errors
    /// An option of `spec` is invalid.
    pub(crate) fn or(self, spec: &Spec) -> Result<Self, String> {
        if spec.nbd_max_connections == Some(0) {
            return Err("nbd_max_connections must not be 0".to_owned());
        }
        let theirs = spec.nbd_memory.map(enough).transpose();
        Ok(Self {
            nbd_mode: self.nbd_mode.or(spec.nbd_mode),
            nbd_max_connections: self.nbd_max_connections.or(spec.nbd_max_connections),
            nbd_idle_timeout: self.nbd_idle_timeout.or(spec.nbd_idle_timeout),
            nbd_memory: self.nbd_memory.or(theirs.map_err(|why| format!("nbd_memory: {why}"))?),
        })
    }

    /// These options, without their syntax.
    pub(crate) fn options(&self) -> config::NbdOptions {
        let idle = self.nbd_idle_timeout.filter(|seconds| *seconds > 0);
        config::NbdOptions {
            mode: self.nbd_mode.map(|mode| mode.0),
            max_connections: self.nbd_max_connections,
            idle_timeout: idle.map(|seconds| Duration::from_secs(seconds.into())),
            memory_bytes: self.nbd_memory.map(|bytes| bytes.0),
        }
    }
}

fn memory(text: &str) -> Result<Bytes, String> {
    text.parse::<Bytes>().map_err(|error| error.to_string()).and_then(enough)
}

fn enough(bytes: Bytes) -> Result<Bytes, String> {
    let least = MIN_NBD_MEMORY_BYTES >> 20;
    let is_enough = bytes.0 >= MIN_NBD_MEMORY_BYTES;
    is_enough.then_some(bytes).ok_or_else(|| format!("at least {least}M are needed"))
}
