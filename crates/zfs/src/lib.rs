//! OpenZFS volumes (zvols) in user space.
//!
//! # Theory
//!
//! OpenZFS ships its DMU, DSL, ZIL and SPA as a user-space library, libzpool, for `zdb` and
//! `ztest`. It has no volume layer: this crate is that layer. OpenZFS is neither linked nor copied:
//! the library is loaded at run time ([`ffi`]), and its release is detected; unknown releases are
//! refused.
//!
//! An assertion in libzpool aborts the process. Therefore it is only loaded in a **worker**, a
//! separate process for each pool ([`worker`]), which the daemon controls over sockets
//! ([`protocol`], [`client`]). The daemon treats a dead worker as a host treats a pulled cable:
//! each I/O in flight ends with an error, flushed data is not lost, other volumes keep working.
//!
//! Path of a bio: [`client`] has the request queue of the volume (`use_blk_mq`), a request goes to
//! the worker as one packet, the worker's task moves the data between the daemon's segments and the
//! DMU's buffers with one copy, in one transaction, and logs it to the ZIL as the kernel's zvol
//! does; a flush commits the ZIL.
//!
//! Invariants: an acknowledged write is in an open transaction group and, unless `sync=disabled`,
//! in the ZIL's list; a flush or FUA write is acknowledged when the log blocks are on stable
//! storage. A pool has one worker, and the process that started it has locked the disks.

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
