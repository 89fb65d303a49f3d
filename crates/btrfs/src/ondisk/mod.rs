//! On-disk structs of btrfs: bytes to values, nothing else. Layouts are those of the kernel's
//! `include/uapi/linux/btrfs_tree.h`; all numbers are little-endian and unaligned.
//!
//! No I/O happens here. Nothing here panics, loops or allocates without bound on any input.

pub mod chunk;
pub mod items;
pub mod key;
pub mod node;
pub mod superblock;

/// Asserts at compile time that a struct has exactly this size and that its fields are at exactly
/// these byte offsets. Every field of an on-disk struct is listed.
macro_rules! ondisk_layout {
    ($t:ty, $size:expr, { $($field:ident: $offset:expr),+ $(,)? }) => {
        const _: () = {
            assert!(core::mem::size_of::<$t>() == $size);
            $(assert!(core::mem::offset_of!($t, $field) == $offset);)+
        };
    };
}
pub(crate) use ondisk_layout;
