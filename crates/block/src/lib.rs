//! The block contract, which every layer, driver and export of ashlar implements or uses.
//!
//! # Theory
//!
//! A [`bio::Bio`] is one I/O. It travels down a stack of [`device::BlockDevice`]s; between any two
//! of them stands a [`gateway::Gateway`], which checks it, splits it to the lower device's limits and
//! emulates operations that the device lacks. At the bottom a [`queue::Queue`] gathers bios on the
//! submitting thread's [`plug`], merges neighbours into [`request::Request`]s and hands these to a
//! [`queue::Driver`].
//!
//! States of a bio: submitted, (split,) plugged, merged or waiting, issued, completed. It completes
//! exactly once; its future gives the status; dropping the future stops no I/O that was started.
//!
//! Ordering: bios in flight are unordered. A submitter that needs B after A awaits A first.
//! **Durability**: a write that completed is visible to every read submitted afterwards, and durable
//! only after a flush that was submitted after that completion has completed, or at once if it
//! carried FUA. See docs/internals/flush-and-fua.md.
//!
//! Ownership: data lives in a [`buffer::Buffer`]; the segments in a bio are counted references; the
//! bytes belong to the driver until completion, and until then the buffer refuses access.
//!
//! Threads: devices are shared by all reactor threads, futures and requests stay on one. Nothing
//! here blocks, sleeps, reads a clock or touches a file: the engine and the simulator provide that
//! (see [`runtime::Runtime`]), so users run the same code that the simulator tests.

#![deny(unsafe_code)]

pub mod bio;
mod bounce;
pub mod buffer;
pub mod byte_volume;
mod cache;
pub mod calendar;
pub mod canary;
pub mod clock;
pub mod device;
pub mod disk;
mod dispatch;
pub mod extent;
mod fast_zeroes;
mod flight;
mod future;
pub mod gateway;
pub mod io_max;
pub mod latency;
pub mod limiter;
pub mod limits;
pub mod merge;
pub mod patience;
pub mod percent;
pub mod plug;
pub mod presence;
pub mod queue;
pub mod rate_limit;
pub mod request;
pub mod runtime;
pub mod shard;
pub mod size;
pub mod split;
pub mod stats;
pub mod status;
pub mod sync;
pub mod text;
pub mod trace;
pub mod units;
pub mod zeroes;

pub use bio::{Bio, CopyNumber, Flags, Op, Segments};
pub use buffer::{Buffer, Segment};
pub use byte_volume::ByteVolume;
pub use device::{BlockDevice, Completion, IoFuture};
pub use disk::Disk;
pub use extent::{Extent, ExtentState, Extents, Place};
pub use future::LocalFuture;
pub use gateway::Gateway;
pub use limits::{Features, Limits};
pub use presence::Presence;
pub use queue::{Driver, Queue};
pub use request::{Request, RequestId};
pub use runtime::Runtime;
pub use status::{BioResult, Status};
pub use units::{Sector, Sectors};

/// Asserts at compile time that a struct has exactly this size and that its fields are at exactly
/// these byte offsets. Every field of an on-disk struct is listed.
#[macro_export]
macro_rules! ondisk_layout {
    ($t:ty, $size:expr, { $($field:ident: $offset:expr),+ $(,)? }) => {
        const _: () = {
            assert!(::core::mem::size_of::<$t>() == $size);
            $(assert!(::core::mem::offset_of!($t, $field) == $offset);)+
        };
    };
}
