//! Exports: how clients reach volumes.
//!
//! # Theory
//!
//! A volume arrives here as a [`ByteVolume`](ashlar_block::ByteVolume), which takes requests of any alignment. All
//! servers of a volume must share the same one, because it holds the locks that serialize writes of parts of a block.
//! Each export has two halves:
//!
//! - a **protocol** half without I/O, which turns bytes into typed requests and typed answers into bytes: [`nbd`]'s
//!   handshake and transmission, [`fuse`]'s requests, replies and dispatch. It never trusts its input: any bytes lead
//!   to an answer or to the end of that connection, with bounded memory and without a panic. The fuzz targets are here.
//! - a **server** half, driven by a reactor: it receives, starts each request as a task and sends answers in the order
//!   in which they are ready. A request stays on one thread.
//!
//! A request that was started runs to its end, even if its client is gone: the future of a write is never dropped half
//! way. The bytes and requests in flight are bounded for each client, and for all NBD clients together; above the bound
//! the server stops receiving, which is back-pressure for the client.
//!
//! Errors reach a client as the errno of the [`Status`](ashlar_block::Status) that the volume returned. Assumptions
//! about the volume: the block contract; a flush covers every write that was acknowledged before, on any connection.

#![forbid(unsafe_code)]

pub mod fuse;
pub mod nbd;
pub mod stream;
