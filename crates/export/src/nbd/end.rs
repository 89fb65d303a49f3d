//! How a connection ends.

use std::io;

use thiserror::Error;

use super::handshake::Event;

/// How a connection ended normally.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The client sent `DISC`.
    Disc,
    /// The client closed its side between two messages.
    Closed,
    /// The client sent `ABORT` during the handshake, or named an export that does not exist.
    Negotiation,
    /// The server was told to stop.
    Stopped,
}

/// Why a connection was dropped.
#[derive(Debug, Error)]
pub enum Disconnect {
    /// The connection failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The stream ended within a message.
    #[error("connection closed in the middle of a message")]
    Truncated,
    /// The client took too long to choose an export.
    #[error("handshake took too long")]
    Impatient,
    /// The handshake was aborted.
    #[error("handshake broken off: {0:?}")]
    Handshake(Event),
    /// There is no TLS with the client: it sent something else, or one side does not accept the other.
    #[error("{0}")]
    Insecure(String),
    /// Sessions of TLS have all the memory that they may have.
    #[error("the memory for NBD clients is enough for {0} with TLS: use a larger --nbd-memory")]
    TooManySecure(usize),
    /// Plain text came after `STARTTLS`, where somebody between both sides could have put it.
    #[error("plain text after STARTTLS, before the TLS handshake")]
    Injected,
    /// The client chose an export that is no longer offered.
    #[error("the export was withdrawn during the handshake")]
    Withdrawn,
    /// A message that is not a request.
    #[error("not a request: wrong magic")]
    BadMagic,
    /// A write of more than the maximum payload.
    #[error("write of {0} bytes exceeds the maximum payload")]
    Oversized(u32),
    /// No memory for the receive buffer.
    #[error("out of memory")]
    NoMemory,
    /// The connection was idle for longer than the listener allows.
    #[error("idle for too long")]
    Idle,
    /// Others waited for memory held by replies that the client did not take, or by a payload that it did not send.
    #[error("too slow while memory is short")]
    Slow,
    /// Newer connections needed its place in the handshake.
    #[error("too many connections in the handshake")]
    Crowded,
}
