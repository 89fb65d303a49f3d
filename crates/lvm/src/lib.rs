//! LVM2: physical volumes, volume groups and logical volumes in LVM's own formats.
//!
//! # Theory
//!
//! A physical volume has a label and metadata areas; each area is a ring of texts, and a header that says
//! which text is the current one. The text describes the whole volume group.
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
