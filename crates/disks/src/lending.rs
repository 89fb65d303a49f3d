//! The client of a daemon that lends it disks.

use std::path::Path;

use ashlar_client::client::Client;
use ashlar_control::error::Result;

use crate::decorators::Decorators;
use crate::opener::Opener;

/// Connects to the daemon at `control`, or at the default path: what it asks for and cannot open by itself, this process opens.
///
/// # Errors
/// No daemon listens there, or the user has named maps, which a running daemon does not accept.
pub fn lending_client(control: Option<&Path>) -> Result<Client> {
    Decorators::of_process().may_call()?;
    Client::connect(control, |path, access| Opener::new(access).lend(path))
}
