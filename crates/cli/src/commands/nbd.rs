//! Options of the NBD server.

use ashlar_host::config::nbd_memory;
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
    #[arg(long, value_name = "SIZE", value_parser = nbd_memory)]
    nbd_memory: Option<Bytes>,
}

impl NbdOptions {
    /// `spec` with these options.
    pub(crate) fn with(self, spec: Spec) -> Spec {
        Spec {
            nbd_mode: self.nbd_mode,
            nbd_max_connections: self.nbd_max_connections,
            nbd_idle_timeout: self.nbd_idle_timeout,
            nbd_memory: self.nbd_memory,
            ..spec
        }
    }
}
