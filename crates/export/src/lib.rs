//! Exports: how volumes are handed out.
//!
//! # Theory
//!
//! A volume comes here as a [`ByteVolume`](ashlar_block::ByteVolume), which takes requests of any
//! alignment; everybody who serves the same volume shares the same one, because it holds the locks
//! that keep writes of parts of a block apart. Each export has two halves:
//!
//! - a **protocol** half without I/O, which takes bytes and gives typed requests, or typed answers and
//!   gives bytes: [`nbd`]'s handshake and transmission, [`fuse`]'s requests, replies and dispatch. It
//!   never trusts what it is given: any bytes lead to an answer or to the end of that connection, with
//!   bounded memory and without a panic. The fuzz targets are here.
//! - a **server** half, driven by a reactor: it receives, starts each request as a task of its own and
//!   sends answers in the order in which they are ready. Nothing hops between threads on the way.
//!
//! A request that was started runs to its end, whatever becomes of its client: the future of a write
//! is never dropped half way. What is in flight is bounded for each client (bytes and requests), and
//! for all NBD clients together; beyond that nothing is received, which is the client's back-pressure.
//!
//! Errors reach a client as the errno of the [`Status`](ashlar_block::Status) that the volume gave.
//! Assumed of the volume: the block contract; a flush covers every write that was acknowledged before,
//! on whichever connection.

#![forbid(unsafe_code)]

pub mod fuse;
pub mod nbd;
pub mod stream;
