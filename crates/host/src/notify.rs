//! Reports our state to the service manager: sd_notify(3)'s protocol, one datagram.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Sends `state` (`READY=1`) to the service manager, if one started us.
pub(crate) fn notify(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = send(&path, state) {
        tracing::warn!(%error, state, "cannot tell the service manager");
    }
}

/// An address that begins with `@` is abstract.
fn send(path: &OsStr, state: &str) -> io::Result<()> {
    let address = match path.as_bytes().split_first() {
        Some((b'@', name)) => SocketAddr::from_abstract_name(name)?,
        Some(_) | None => SocketAddr::from_pathname(path)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_arrives_at_a_path_and_at_an_abstract_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str(), "READY=1").unwrap();
        let name = format!("ashlar-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let hidden = UnixDatagram::bind_addr(&address).unwrap();
        send(OsStr::new(&format!("@{name}")), "STOPPING=1").unwrap();
        let mut buffer = [0; 64];
        let len = socket.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..len], b"READY=1");
        let len = hidden.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..len], b"STOPPING=1");
    }
}
