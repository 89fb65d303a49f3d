//! On-disk structs of btrfs: bytes to values, nothing else. Layouts are those of the kernel's
//! `include/uapi/linux/btrfs_tree.h`; all numbers are little-endian and unaligned.
//!
//! No I/O happens here. Nothing here panics, loops or allocates without bound on any input.

pub mod chunk;
pub mod items;
pub mod key;
pub mod node;
pub mod superblock;
