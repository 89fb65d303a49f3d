//! The NBD server: volumes over a socket, as in the NBD protocol document.
//!
//! Two layers. Below is the protocol as functions from bytes to bytes, without I/O: [`handshake`] (a state table) with
//! a file for each option, [`transmission`] (a command table), [`reply_simple`], [`reply_structured`],
//! [`block_status`]. Above is [`server::serve`], which runs one connection over any [`Stream`](ashlar_nbd::stream::Stream)
//! and the volumes of [`export::Exports`].
//!
//! States of a connection: handshake, transmission, draining (nothing is received, requests in flight end and
//! are answered), closed. Ordering: none between requests in flight, as in the protocol; a client that needs an order
//! waits for replies. A flush is passed on when it is started, so it covers every write that was answered before the
//! flush was received, on any connection: this, and no cache above the volume, is what CAN_MULTI_CONN promises.
//! Assumption about the layer below: a volume fills a read's memory entirely when it reports success, because buffers
//! are reused and their old contents must not reach a client.
//!
//! Clients are not trusted. Their use of resources is bounded: requests, memory ([`admission`], [`budget`]),
//! connections and time ([`listen`], which watches all of its connections), lines of the log. Above a bound a client
//! waits, is refused or is dropped, and the others continue.
//!
//! Supported: fixed newstyle, structured replies, `base:allocation` and `ashlar:changed`, all commands of the document except the
//! experimental ones, and TLS ([`ashlar_nbd::tls`]). Not supported: extended headers, which are refused as unsupported so that clients
//! continue without them.

pub mod admission;
pub mod block_status;
pub mod budget;
pub mod clients;
mod config;
pub mod context;
mod end;
pub mod errno;
mod execute;
pub mod export;
pub mod handshake;
pub mod info;
mod input;
pub mod listen;
mod opt_abort;
mod opt_export_name;
mod opt_go;
mod opt_list;
mod opt_meta_context;
mod opt_starttls;
mod opt_structured_reply;
mod option;
pub mod peer;
mod peers;
pub mod placement;
pub mod reply_simple;
pub mod reply_structured;
pub mod server;
#[cfg(test)]
mod testing;
mod throttle;
pub mod transmission;
pub mod transmit;
pub use ashlar_nbd::{tls, wire};
