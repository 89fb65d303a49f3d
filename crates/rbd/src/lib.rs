//! RBD: images of Ceph clusters as disks.
//!
//! # Theory
//!
//! Ceph's own library librbd does the work, loaded at run time ([`ffi`] alone knows its interface), so that the program runs
//! where Ceph is not installed. All images of a cluster share one connection ([`cluster`]): it has some ten threads.
//!
//! A request becomes one asynchronous operation of librbd. librbd ends it on a thread of its own, which hands the result to
//! the reactor that submitted the request; no thread waits. The operation, not the request, owns the memory: a reactor
//! that ends forgets its requests, but librbd still has them.
//!
//! librbd does what a kernel's driver would: it sends operations again when OSDs die or come back, in an order that keeps older
//! writes from overtaking newer ones. So a request fails only if the cluster refuses it, or answers nothing for too long. Three
//! times bound that. At its deadline (60 s) a request ends for its submitter, and stays overdue. After `rados_osd_op_timeout`
//! (120 s) librbd gives it up. Opening ends after 75 s.
//!
//! A writer takes the image's exclusive lock and does not share it. The cluster refuses all requests of a client that
//! has lost its lock (it is *fenced*), also those on their way: the disk is gone then, and stays so until it is opened again, with
//! another connection. A client that dies keeps its lock until the cluster misses it, for half a minute; so images are
//! closed before the process ends ([`closing`]).

#![deny(unsafe_code)]

mod closing;
mod cluster;
mod disk;
mod error;
#[allow(unsafe_code)]
mod ffi;
mod uri;

pub use disk::{RbdDisk, RbdDriver, open};
pub use error::OpenError;
pub use ffi::LoadError;
pub use uri::{Access, Identity, Uri, UriError, is_uri};
