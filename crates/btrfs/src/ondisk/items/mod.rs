//! Bodies of items. If the meaning of an item depends on its key, the key is a parameter.
//!
//! Values borrow from the leaf. Items with several entries are read by iterators, which end after
//! the first error. Names are arbitrary bytes, not text.

mod csum;
mod device;
mod dir;
mod extent;
mod file_extent;
mod hash;
mod inode;
mod quota;
mod root;
mod space;
mod stripe;

use thiserror::Error;
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

pub use csum::CsumItem;
pub use device::{BalanceArgs, BalanceItem, DevStats};
pub use dir::{DirEntries, DirEntry, DirLogItem, DiskDirItem, FileType};
pub use extent::{
    BackRef, BackRefs, DiskExtentDataRef, DiskExtentItem, DiskInlineRef, DiskSharedDataRef,
    DiskTreeBlockInfo, ExtentFlags, ExtentItem, keyed_ref,
};
pub use file_extent::{
    Compression, DataExtent, DiskFileExtent, DiskFileExtentData, FileExtent, FileExtentBody,
};
pub use hash::name_hash;
pub use inode::{
    DiskInodeExtref, DiskInodeRef, InodeExtref, InodeExtrefs, InodeFlags, InodeItem, InodeRef,
    InodeRefs, Timespec,
};
pub use quota::{QgroupInfoItem, QgroupLimitItem, QgroupStatusItem};
pub use root::{DiskRootItem, DiskRootItemTail, DiskRootRef, RootFlags, RootItem, RootRef};
pub use space::{
    BlockGroup, DevExtent, DiskBlockGroupItem, FREE_SPACE_BITMAP_SIZE, FreeRanges, FreeSpaceBitmap,
    FreeSpaceHeader, FreeSpaceInfo,
};
pub use stripe::{RaidStride, raid_stripe, uuid_subvolumes};

/// Maximum length of a name in bytes (`BTRFS_NAME_LEN`, and `XATTR_NAME_MAX`).
pub const NAME_LEN_MAX: usize = 255;

/// What is wrong with an item.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ItemError {
    /// The size is wrong for this type.
    #[error("the {item} has {found} bytes, wanted {wanted}")]
    Size {
        /// The item.
        item: &'static str,
        /// Actual size in bytes.
        found: usize,
        /// Expected size in bytes.
        wanted: usize,
    },
    /// The contents exceed the item.
    #[error("the {item} is cut off: {found} bytes are left, wanted {wanted}")]
    Short {
        /// The item.
        item: &'static str,
        /// Bytes left.
        found: usize,
        /// Minimum bytes expected.
        wanted: usize,
    },
    /// An impossible value.
    #[error("the {item} has an impossible {field}: {value}")]
    Field {
        /// The item.
        item: &'static str,
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// The back reference format before Linux 2.6.31; kernels refuse it too.
    #[error("back references of the old form (v0) are not supported")]
    V0,
}

/// The whole item as `T`.
fn exact<'a, T>(item: &'static str, bytes: &'a [u8]) -> Result<&'a T, ItemError>
where
    T: FromBytes + Immutable + KnownLayout + Unaligned,
{
    let (found, wanted) = (bytes.len(), size_of::<T>());
    T::ref_from_bytes(bytes).map_err(|_| ItemError::Size { item, found, wanted })
}

/// The start of the item as `T`, and the rest.
fn prefix<'a, T>(item: &'static str, bytes: &'a [u8]) -> Result<(&'a T, &'a [u8]), ItemError>
where
    T: FromBytes + Immutable + KnownLayout + Unaligned,
{
    let (found, wanted) = (bytes.len(), size_of::<T>());
    T::ref_from_prefix(bytes).map_err(|_| ItemError::Short { item, found, wanted })
}

/// The first `len` bytes, and the rest.
fn take<'a>(
    item: &'static str,
    bytes: &'a [u8],
    len: usize,
) -> Result<(&'a [u8], &'a [u8]), ItemError> {
    let found = bytes.len();
    bytes.split_at_checked(len).ok_or(ItemError::Short { item, found, wanted: len })
}

/// A name of `len` bytes, and the rest.
fn name<'a>(
    item: &'static str,
    bytes: &'a [u8],
    len: u16,
) -> Result<(&'a [u8], &'a [u8]), ItemError> {
    if usize::from(len) > NAME_LEN_MAX {
        return Err(ItemError::Field { item, field: "length of a name", value: len.into() });
    }
    take(item, bytes, len.into())
}

/// The item as an array of `T` and nothing else.
fn array<'a, T>(item: &'static str, bytes: &'a [u8]) -> Result<&'a [T], ItemError>
where
    T: FromBytes + Immutable + KnownLayout + Unaligned,
{
    let found = bytes.len();
    let wanted = found.next_multiple_of(size_of::<T>()).max(size_of::<T>());
    match <[T]>::ref_from_bytes(bytes) {
        Ok(array) if !array.is_empty() => Ok(array),
        Ok(_) | Err(_) => Err(ItemError::Size { item, found, wanted }),
    }
}

#[cfg(test)]
mod testing {
    /// `N` bytes, each different from those near it: 1, 2, 3 and so on.
    pub(super) fn counting<const N: usize>() -> [u8; N] {
        std::array::from_fn(|index| (index + 1) as u8)
    }

    /// Concatenates the parts.
    pub(super) fn join(parts: &[&[u8]]) -> Vec<u8> {
        parts.concat()
    }
}
