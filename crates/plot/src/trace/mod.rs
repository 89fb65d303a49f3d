//! Events of bios, in blktrace's records and btrace's text.
//!
//! # Theory
//!
//! The block layer fires an event for each step of a bio ([`ashlar_block::trace`]). A [`Session`]
//! watches some devices: the thread that fires an event makes a [`Record`] of it and puts it into its own
//! ring ([`recorder`]). The session's owner takes the records out, in the order of time,
//! as the bytes of blktrace ([`binary`]). These bytes are sent and stored in files; they
//! yield the lines of blkparse ([`text`]) and its summary ([`summary`]).
//!
//! Invariants: a thread that does I/O never waits for the reader. A ring has a fixed size; an event that
//! finds it full is lost and counted, and leaves a gap in the numbers of its device and thread, which
//! readers of the records can see. Records of one thread are in the order of its clock.
//!
//! Ordering: rings have one writer and one reader each, and share nothing else. Between threads the
//! clock decides: records are taken up to a time that all threads have passed.
//!
//! Assumed: a clock that is the same on all threads and never runs backwards.

pub mod binary;
pub mod categories;
pub mod record;
pub mod recorder;
pub mod session;
pub mod summary;
pub mod text;

pub use categories::Categories;
pub use record::{Payload, Record};
pub use recorder::{Recorder, ThreadIdentity};
pub use session::{Host, Session};
pub use summary::Summary;
