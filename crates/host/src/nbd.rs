//! The listeners for NBD clients.

use std::io;
use std::net::ToSocketAddrs;

use ashlar_engine::net::Listener;
use ashlar_stack::spec::Listen;

/// Listens at `address`, with `mode` if it is a Unix socket. Warns about an address that other machines may reach.
///
/// # Errors
/// Those of bind(2); a host that has no address.
pub(crate) fn bind(address: &Listen, mode: u32, read_only: bool) -> io::Result<Listener> {
    let host = match address {
        Listen::Unix(path) => return Listener::bind_unix(path, mode),
        Listen::Tcp(host) => host,
    };
    let first = host.to_socket_addrs()?.next();
    let listener = Listener::bind_tcp(first.ok_or(io::ErrorKind::AddrNotAvailable)?)?;
    let bound = listener.local_addr()?;
    if !bound.ip().to_canonical().is_loopback() {
        let may = if read_only { "read" } else { "read and write" };
        tracing::warn!(
            address = %bound,
            "every machine that reaches this address can {may} the volumes: there is neither \
             authentication nor encryption"
        );
    }
    Ok(listener)
}
