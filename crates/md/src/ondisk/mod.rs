//! Linux md's on-disk metadata: bytes to structs and back, nothing else.
//!
//! No I/O happens here. A caller reads the few ranges [`probe`] asks for and gets a [`Superblock`],
//! the neutral description the rest of the crate works with; it changes fields of that and gets the
//! bytes to write from [`Superblock::encode`].
//!
//! Three layers:
//!
//! | layer | modules |
//! |---|---|
//! | the bytes on disk, sizes and offsets asserted at compile time | [`superblock_1`], [`superblock_0_90`], [`bitmap_super`], [`bad_block_log`], [`ppl`], [`reshape_backup`] |
//! | their meaning, and its validation | [`superblock`], [`fields`], [`validate`], [`defect`] |
//! | mdadm's operations on them | [`probe`], [`spec`], [`create`], [`examine`], [`brief`] |
//!
//! Invariants:
//! - A [`Superblock`] that exists has passed [`validate`]: its geometry fits its device. The same
//!   checks run before bytes are returned for writing, so every written superblock is accepted
//!   when it is read again.
//! - The block that was read is kept, and `encode` changes only known fields. Padding and fields of
//!   newer kernels survive byte for byte.
//! - Nothing here panics, loops or allocates without bound on any input.

pub mod bad_block_log;
pub mod bitmap_super;
pub mod brief;
pub mod change;
pub mod create;
pub mod create_0_90;
pub mod defect;
pub mod examine;
pub mod fields;
pub mod homehost;
pub mod ppl;
pub mod probe;
pub mod reshape_backup;
pub mod spec;
pub mod superblock;
pub mod superblock_0_90;
pub mod superblock_1;
pub mod text;
pub mod update;
pub mod validate;
pub mod words;

pub use defect::{ArrayEvents, Defect, SuperblockError};
pub use fields::{DeviceFlags, Features, Level, MAGIC, MdadmUuid, Role, Timestamp, Version};
pub use ppl::PplPlace;
pub use superblock::{BadBlockLogPlace, Reshape, Superblock};

#[cfg(test)]
mod tests;
