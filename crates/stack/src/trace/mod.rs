//! What happens to bios, as blktrace records and btrace prints it.
//!
//! # Theory
//!
//! The block layer fires an event for each step of a bio ([`ashlar_block::trace`]). A [`Session`]
//! watches some devices: on the thread that fired it an event becomes a [`Record`] and goes into that
//! thread's ring ([`recorder`]). Whoever owns the session takes the records out, in the order of time,
//! as the bytes of blktrace ([`binary`]). These are what is sent and what is kept in files; from them
//! come the lines of blkparse ([`text`]) and its summary ([`summary`]).
//!
//! Invariants: a thread that does I/O never waits for the reader. A ring has a fixed size; an event that
//! finds it full is lost and counted, and leaves a gap in the numbers of its device and thread, from
//! which readers of the records see it. Records of one thread are in the order of its clock.
//!
//! Ordering: rings have one writer and one reader each, and share nothing else. Between threads the
//! clock decides: records are taken up to a moment that has passed on all of them.
//!
//! Assumed: a clock that is the same on all threads and never goes back.

pub mod binary;
pub mod categories;
pub mod record;
pub mod recorder;
pub mod session;
pub mod summary;
pub mod text;

pub use categories::Categories;
pub use record::{Payload, Record};
pub use recorder::{Recorder, Who};
pub use session::{Host, Session};
pub use summary::Summary;
