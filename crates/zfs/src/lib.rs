//! OpenZFS volumes (zvols) in user space.
//!
//! # Theory
//!
//! OpenZFS ships its DMU, DSL, ZIL and SPA as a user-space library, libzpool, on which `zdb` and `ztest` run. It has no volume
//! layer: this crate is that layer. Nothing of OpenZFS is linked or copied: the library is opened at run time ([`ffi`]), its
//! release is recognised, and an unknown one is refused.
//!
//! An assertion inside libzpool ends the process. Therefore it is only ever loaded in a **worker**, a process of its own for each
//! pool ([`worker`]), which the daemon talks to over sockets ([`protocol`], [`client`]). A dead worker is to the daemon what a
//! pulled cable is to a host: each I/O in flight ends with an error, nothing that was flushed is lost, other volumes live on.
//!
//! Path of a bio: [`client`] has the request queue of the volume (`use_blk_mq`), a request goes to the worker as one packet, the
//! worker's task moves the data between the daemon's segments and the DMU's buffers with one copy, in one transaction, and logs it to
//! the ZIL as the kernel's zvol does; a flush commits the ZIL.
//!
//! Invariants: a write that was answered is in an open transaction group and, unless `sync=disabled`, in the ZIL's list; a flush
//! or FUA write is answered when the log blocks are on stable storage. A pool has one worker, and the disks are locked by
//! whoever started it.

#![deny(unsafe_code)]

pub mod client;
pub mod control;
mod dataset;
#[allow(unsafe_code, reason = "libzpool is C")]
pub mod ffi;
pub mod ondisk;
mod pool;
mod property;
pub mod protocol;
mod refusal;
pub mod worker;
pub mod zvol;
