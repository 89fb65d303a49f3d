//! TLS of a connection, for both sides: OpenSSL makes and reads the records, the reactor's socket carries them.
//!
//! A [`Channel`] is a stream that is plain until [`Channel::secure`] has done a TLS handshake over it. No socket is given to the library: it
//! reads what was received and writes what is to be sent in memory ([`records`]), so that no call blocks a reactor, and a session, which is
//! bytes only, can go to another thread with its connection.
//!
//! A peer is known by a certificate of a CA, or by a key that both sides have (PSK). The files have the names and formats of QEMU, nbdkit and
//! libnbd: [`credentials`]. TLS 1.2 and 1.3 only, with ciphers that keep past sessions secret if a key becomes known later; no session is resumed,
//! and none is renegotiated.
//!
//! Whether a connection needs TLS is decided by the two negotiations ([`handshake`](crate::handshake), and that of the server). Neither takes a
//! byte that arrived in plain text before the handshake for one that arrived after it.

mod channel;
mod credentials;
mod keys;
mod records;
mod server;

pub use channel::{Channel, SecureError, TlsSession};
pub use credentials::{ClientTls, Credentials, TlsError};
pub use records::SESSION_BYTES;
pub use server::ServerTls;

#[cfg(test)]
mod tests;
