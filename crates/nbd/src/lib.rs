//! NBD, the network block device protocol: its numbers, for both sides, and exports of other servers as disks.
//!
//! # Theory
//!
//! A disk has one connection, on a reactor and a thread of its own ([`link`]), because a server need not promise that a
//! flush of one connection covers the writes of another. Threads that submit requests hand them over, and complete them.
//!
//! A connection that breaks takes the acknowledged and unflushed writes with it: the server may have crashed. So all
//! requests in flight fail as those of a device that is gone, which counts as a loss of its cache, and if none was in
//! flight, the next flush fails. No request is sent a second time: a write that arrives after its successor would
//! overwrite it. The link connects again by itself, and then the disk answers again.
//!
//! A request that reaches its deadline cannot be cancelled: the server may execute it later. So the link takes a new connection,
//! and sends nothing more on the old one, which the server closes once it has executed or dropped what it got. Until then the
//! request is overdue, and the block layer lets no later change overtake it. Only the connection that has sent the request is left: requests of
//! former connections become late one after the other, and say nothing of the present one. What was not sent when a connection is left can never be
//! executed, and fails at once, as does a request that reaches its deadline before it is sent. (A server that is cut off counts as one that
//! has closed once TCP ends the connection; nothing tells whether it will still execute what it got.)
//!
//! Connections, sessions and the link are generic over byte streams, tasks and threads ([`network`]): the module `simulation`
//! runs them on virtual time, with servers that hang and restart, and a process that stands still.
//!
//! The server is not trusted with memory: replies must fit their requests, messages are bounded.

#![forbid(unsafe_code)]

mod canary;
mod connection;
mod departure;
mod disk;
mod handshake;
mod input;
mod lanes;
mod link;
mod network;
mod session;
#[cfg(test)]
mod simulation;
pub mod stream;
pub mod tls;
mod uri;
pub mod wire;

pub use disk::{NbdDisk, open};
pub use handshake::{ConnectError, ExportInfo};
pub use uri::{Address, TlsParameters, Uri, UriError, is_uri};
