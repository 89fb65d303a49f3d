//! LVM2: physical volumes, volume groups and logical volumes in LVM's own formats.
//!
//! # Theory
//!
//! A physical volume has a label and metadata areas; each area is a ring of texts, with a header
//! that names the current text. The text describes the whole volume group.
//!
//! | module | what |
//! |---|---|
//! | [`ondisk`] | labels, headers and rings as bytes |
//! | [`pv`], [`format`](mod@format), [`commit`] | reads, makes and updates physical volumes |
//! | [`text`] | the syntax of the texts |
//! | [`metadata`] | the contents of a text: a volume group, checked |
//! | [`group`] | the groups on a set of physical volumes |
//! | [`alloc`] | free extents, and their allocation to new volumes |
//! | [`change`], [`moving`], [`attributes`], [`regrouping`] | changes of a group's description |
//! | [`snapshots`] | the use of a snapshot's space, and its extension by policy |
//!
//! Invariants: unchanged parts are written back byte for byte; of a group's texts, the one with the
//! highest sequence number is current, and a text with a wrong checksum is ignored.
//!
//! Ordering: a new text is durable before a header points at it, so that a crash leaves the old
//! group or the new one on each physical volume.
//!
//! Assumed of the layer below: a sector is written completely or not at all; an acknowledged flush
//! or FUA write is durable.

#![forbid(unsafe_code)]

pub mod activate;
pub mod alloc;
pub mod attributes;
pub mod change;
pub mod command;
pub mod commit;
pub mod format;
pub mod group;
mod interrupted;
pub mod metadata;
pub mod moving;
pub mod ondisk;
pub mod pv;
pub mod regrouping;
pub mod report;
pub mod sizes;
pub mod snapshots;
pub mod text;
pub mod uuid;

pub use metadata::{LogicalVolume, Metadata, PhysicalVolume, Segment, SegmentKind, VolumeGroup};
pub use pv::{PvOnDisk, ReadError, read_pv};
pub use uuid::Uuid;
