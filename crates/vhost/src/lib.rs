//! vhost-user-blk: volumes as disks of virtual machines.
//!
//! # Theory
//!
//! A **front end** (QEMU, cloud-hypervisor, libblkio) connects to a Unix socket. It sends the files that hold its guest's memory, where
//! in this memory the guest has its virtqueues, and two event descriptors for each of them. From then on the guest's driver and this
//! process share the queues, and no data and no request pass the socket.
//!
//! Layers, each of which knows only those above it in this list:
//!
//! - bytes: `wire` (messages), `ring` and `chain` (descriptors), `request` (virtio-blk), `blk` (what the device is), `inflight`, `fault`;
//! - `memory`: the guest's memory, mapped, and its parts as segments of bios. Nothing is copied here. The one place with `unsafe`;
//! - `vring`: a queue, one task on a reactor; `event` has its descriptors;
//! - `session`: a connection; `listen`: all connections of a socket.
//!
//! **Nothing waits**: all descriptors are used through a reactor's ring, and no connection has a thread.
//!
//! **Trust.** The guest is not trusted: each address is checked before it becomes a segment, each loop is bounded, and what breaks the
//! rules ends the connection. The guest may change its memory while an I/O is in flight; see
//! [`ForeignMemory`](ashlar_block::buffer::ForeignMemory). The front end is trusted not to shorten its memory ([`Unsealed`]); otherwise it
//! is treated as the guest.
//!
//! **Restart.** A front end keeps the inflight region. A successor of this process finds there what its guest waits for, and executes
//! it again: each request is completed once, and was executed at least once.
//!
//! **Order.** None between requests in flight. A flush is passed on when it is taken from its ring, so it covers every write that was
//! completed before, on any queue. A driver that does not negotiate flushes gets durable writes.

#![deny(unsafe_code)]

mod blk;
mod chain;
mod config;
mod event;
mod export;
mod fault;
mod features;
mod inflight;
mod listen;
mod memory;
mod request;
mod ring;
mod session;
#[cfg(feature = "testing")]
pub mod testing;
mod violation;
mod vring;
mod wire;

pub use config::Config;
pub use export::Export;
pub use listen::listen;
pub use memory::Unsealed;
