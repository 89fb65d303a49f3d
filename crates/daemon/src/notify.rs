//! Reports our state to the service manager: sd_notify(3)'s protocol, one datagram.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::OnceLock;

/// The service manager's socket, if one started us.
static MANAGER: OnceLock<UnixDatagram> = OnceLock::new();

/// Connects to the service manager, if one started us: in the sandbox this is not possible.
pub(crate) fn connect() {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    match connect_to(&path) {
        Ok(socket) => {
            // A single connection is enough.
            let (Ok(()) | Err(_)) = MANAGER.set(socket);
        }
        Err(error) => tracing::warn!(%error, "cannot reach the service manager"),
    }
}

/// Sends `state` (`READY=1`) to the service manager, if one started us.
pub(crate) fn notify(state: &str) {
    if let Some(Err(error)) = MANAGER.get().map(|manager| manager.send(state.as_bytes())) {
        tracing::warn!(%error, state, "cannot tell the service manager");
    }
}

/// An address that begins with `@` is abstract.
fn connect_to(path: &OsStr) -> io::Result<UnixDatagram> {
    let address = match path.as_bytes().split_first() {
        Some((b'@', name)) => SocketAddr::from_abstract_name(name)?,
        Some(_) | None => SocketAddr::from_pathname(path)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_arrives_at_a_path_and_at_an_abstract_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        connect_to(path.as_os_str()).unwrap().send(b"READY=1").unwrap();
        let name = format!("ashlar-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let hidden = UnixDatagram::bind_addr(&address).unwrap();
        let hidden_name = format!("@{name}");
        connect_to(OsStr::new(&hidden_name)).unwrap().send(b"STOPPING=1").unwrap();
        let mut buffer = [0; 64];
        let len = socket.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..len], b"READY=1");
        let len = hidden.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..len], b"STOPPING=1");
    }
}
