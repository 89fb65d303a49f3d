//! LVM2: physical volumes, volume groups and logical volumes in LVM's own formats.
//!
//! # Theory
//!
//! A physical volume has a label and metadata areas; each area is a ring of texts, and a header that says
//! which text is the current one. The text describes the whole volume group.
//!
//! | module | what |
//! |---|---|
//! | [`ondisk`] | labels, headers and rings as bytes |
//! | [`pv`], [`format`](mod@format), [`commit`] | reads, makes and updates physical volumes |
//! | [`text`] | the language of the texts |
//! | [`metadata`] | what a text says: a volume group, checked |
//! | [`group`] | the groups that a set of physical volumes has |
//! | [`alloc`] | free extents, and which of them a new volume gets |
//!
//! Invariants: what was read and not changed is written back byte for byte; of a group the text with
//! the highest sequence number counts, and one whose checksum is wrong does not exist.
//!
//! Ordering: a new text is durable before a header points at it, so that a crash leaves the old
//! group or the new one on each physical volume.
//!
//! Assumed of the layer below: a sector is written whole or not at all; a flush or FUA write that was
//! acknowledged is durable.

#![forbid(unsafe_code)]

pub mod activate;
pub mod alloc;
pub mod change;
pub mod commit;
pub mod format;
pub mod group;
pub mod metadata;
pub mod ondisk;
pub mod pv;
pub mod report;
pub mod text;
pub mod uuid;

pub use metadata::{LogicalVolume, Metadata, PhysicalVolume, Segment, SegmentKind, VolumeGroup};
pub use pv::{PvOnDisk, ReadError, read_pv};
pub use uuid::Uuid;
