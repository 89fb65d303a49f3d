//! The NBD server: volumes over a socket, after the NBD protocol document.
//!
//! Two layers. Below is the protocol as functions from bytes to bytes, with no I/O: [`handshake`]
//! (a table of states) with a file for each option, [`transmission`] (a table of commands),
//! [`reply_simple`], [`reply_structured`], [`block_status`].
//!
//! Spoken: fixed newstyle, structured replies, `base:allocation`, all commands of the document
//! except the experimental ones. Not spoken: TLS and extended headers, which are refused as
//! unsupported so that clients go on without.

pub mod block_status;
pub mod errno;
pub mod handshake;
pub mod info;
mod opt_abort;
mod opt_export_name;
mod opt_go;
mod opt_list;
mod opt_meta_context;
mod opt_structured_reply;
mod option;
pub mod reply_simple;
pub mod reply_structured;
pub mod transmission;
pub mod wire;
