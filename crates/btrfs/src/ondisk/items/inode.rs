//! Inodes and their names.

use ashlar_block::ondisk_layout;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{ItemError, exact, name, prefix};

/// `struct btrfs_timespec`: a time since 1970.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Timespec {
    /// Seconds; as a signed number, times before 1970 are negative.
    pub sec: U64,
    /// Nanoseconds.
    pub nsec: U32,
}

ondisk_layout!(Timespec, 12, { sec: 0, nsec: 8 });

/// `struct btrfs_inode_item`
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct InodeItem {
    /// The transaction that created it.
    pub generation: U64,
    /// The transaction that last changed it.
    pub transid: U64,
    /// File size in bytes; for a directory, twice the total length of its names.
    pub size: U64,
    /// Bytes allocated.
    pub nbytes: U64,
    /// Unused.
    pub block_group: U64,
    /// Number of links.
    pub nlink: U32,
    /// The owner.
    pub uid: U32,
    /// The owner's group.
    pub gid: U32,
    /// Type and permissions, as in `stat`.
    pub mode: U32,
    /// Number of a device node.
    pub rdev: U64,
    /// [`InodeFlags`]
    pub flags: U64,
    /// For NFS.
    pub sequence: U64,
    /// Zero.
    pub reserved: [U64; 4],
    /// Last access.
    pub atime: Timespec,
    /// Last change of the inode.
    pub ctime: Timespec,
    /// Last change of the contents.
    pub mtime: Timespec,
    /// Creation time.
    pub otime: Timespec,
}

ondisk_layout!(InodeItem, 160, {
    generation: 0, transid: 8, size: 16, nbytes: 24, block_group: 32, nlink: 40, uid: 44, gid: 48,
    mode: 52, rdev: 56, flags: 64, sequence: 72, reserved: 80, atime: 112, ctime: 124, mtime: 136,
    otime: 148,
});

bitflags::bitflags! {
    /// Properties of an inode (`BTRFS_INODE_*`).
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct InodeFlags: u64 {
        /// Its data has no checksums.
        const NODATASUM = 1 << 0;
        /// Its data is overwritten in place.
        const NODATACOW = 1 << 1;
        /// It is read-only.
        const READONLY = 1 << 2;
        /// It is not compressed.
        const NOCOMPRESS = 1 << 3;
        /// It has preallocated space.
        const PREALLOC = 1 << 4;
        /// Writes are synchronous.
        const SYNC = 1 << 5;
        /// It cannot be changed.
        const IMMUTABLE = 1 << 6;
        /// It can only grow.
        const APPEND = 1 << 7;
        /// `dump` skips it.
        const NODUMP = 1 << 8;
        /// Accesses do not update the access time.
        const NOATIME = 1 << 9;
        /// Changes of the directory are synchronous.
        const DIRSYNC = 1 << 10;
        /// It is compressed.
        const COMPRESS = 1 << 11;
        /// In root items: the root's flags were initialized.
        const ROOT_ITEM_INIT = 1 << 31;
        /// It uses fs-verity.
        const RO_VERITY = 1 << 32;
    }
}

impl InodeItem {
    /// Parses the body of an `INODE_ITEM`.
    ///
    /// # Errors
    /// The size is wrong.
    pub fn parse(bytes: &[u8]) -> Result<&Self, ItemError> {
        exact("inode item", bytes)
    }

    /// Its flags; unnamed bits are kept.
    pub fn inode_flags(&self) -> InodeFlags {
        InodeFlags::from_bits_retain(self.flags.get())
    }
}

/// `struct btrfs_inode_ref` without its name.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DiskInodeRef {
    /// The entry's index in the directory.
    pub index: U64,
    /// Length of the name that follows.
    pub name_len: U16,
}

ondisk_layout!(DiskInodeRef, 10, { index: 0, name_len: 8 });

/// A link to an inode; the key's offset is the directory's inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InodeRef<'a> {
    /// The entry's index in the directory.
    pub index: u64,
    /// Its name.
    pub name: &'a [u8],
}

/// The links of an `INODE_REF`: several if one directory has several names for the inode.
#[derive(Clone, Debug)]
pub struct InodeRefs<'a> {
    rest: &'a [u8],
}

impl<'a> InodeRefs<'a> {
    /// The links in an item's body.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    fn take(&mut self) -> Result<InodeRef<'a>, ItemError> {
        const ITEM: &str = "inode ref";
        let (disk, rest) = prefix::<DiskInodeRef>(ITEM, std::mem::take(&mut self.rest))?;
        let (name, rest) = name(ITEM, rest, disk.name_len.get())?;
        self.rest = rest;
        Ok(InodeRef { index: disk.index.get(), name })
    }
}

impl<'a> Iterator for InodeRefs<'a> {
    type Item = Result<InodeRef<'a>, ItemError>;

    fn next(&mut self) -> Option<Self::Item> {
        (!self.rest.is_empty()).then(|| self.take())
    }
}

/// `struct btrfs_inode_extref` without its name.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DiskInodeExtref {
    /// The directory.
    pub parent_objectid: U64,
    /// The entry's index in the directory.
    pub index: U64,
    /// Length of the name that follows.
    pub name_len: U16,
}

ondisk_layout!(DiskInodeExtref, 18, { parent_objectid: 0, index: 8, name_len: 16 });

/// A link to an inode; the key's offset is a hash of directory and name (`btrfs_extref_hash`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InodeExtref<'a> {
    /// The directory.
    pub parent: u64,
    /// The entry's index in the directory.
    pub index: u64,
    /// Its name.
    pub name: &'a [u8],
}

/// The links of an `INODE_EXTREF`: several if their hashes collide.
#[derive(Clone, Debug)]
pub struct InodeExtrefs<'a> {
    rest: &'a [u8],
}

impl<'a> InodeExtrefs<'a> {
    /// The links in an item's body.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    fn take(&mut self) -> Result<InodeExtref<'a>, ItemError> {
        const ITEM: &str = "inode extref";
        let (disk, rest) = prefix::<DiskInodeExtref>(ITEM, std::mem::take(&mut self.rest))?;
        let (name, rest) = name(ITEM, rest, disk.name_len.get())?;
        self.rest = rest;
        Ok(InodeExtref { parent: disk.parent_objectid.get(), index: disk.index.get(), name })
    }
}

impl<'a> Iterator for InodeExtrefs<'a> {
    type Item = Result<InodeExtref<'a>, ItemError>;

    fn next(&mut self) -> Option<Self::Item> {
        (!self.rest.is_empty()).then(|| self.take())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{counting, join};
    use super::*;

    #[test]
    fn inodes_have_flags_and_one_size() {
        let bytes = counting::<160>();
        let item = InodeItem::parse(&bytes).unwrap();
        assert!(item.inode_flags().contains(InodeFlags::NODATASUM | InodeFlags::IMMUTABLE));
        assert!(!item.inode_flags().contains(InodeFlags::NODATACOW));
        let size = |found| Err(ItemError::Size { item: "inode item", found, wanted: 160 });
        assert_eq!(InodeItem::parse(&bytes[1..]), size(159));
        assert_eq!(InodeItem::parse(&[0; 161]), size(161));
    }

    #[test]
    fn links_follow_each_other() {
        let bytes = join(&[
            &[1, 2, 3, 4, 5, 6, 7, 8, 3, 0],
            b"one",
            &[9, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            &[10, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0xff, 0x00],
        ]);
        let refs: Result<Vec<_>, _> = InodeRefs::new(&bytes).collect();
        let wanted = [
            InodeRef { index: 0x0807_0605_0403_0201, name: b"one" },
            InodeRef { index: 9, name: b"" },
            InodeRef { index: 10, name: b"\xff\0" },
        ];
        assert_eq!(refs.unwrap(), wanted);
    }

    #[test]
    fn extended_links_follow_each_other() {
        let bytes = join(&[&counting::<16>(), &[3, 0], b"one", &[0; 16], &[1, 0], b"2"]);
        let refs: Result<Vec<_>, _> = InodeExtrefs::new(&bytes).collect();
        let (parent, index) = (0x0807_0605_0403_0201, 0x100f_0e0d_0c0b_0a09);
        let wanted = [
            InodeExtref { parent, index, name: b"one" },
            InodeExtref { parent: 0, index: 0, name: b"2" },
        ];
        assert_eq!(refs.unwrap(), wanted);
    }

    #[test]
    fn links_that_go_over_the_end_are_the_last() {
        let whole = join(&[&[1; 8], &[3, 0], b"one"]);
        for cut in 1..whole.len() {
            let all: Vec<_> = InodeRefs::new(&whole[..cut]).collect();
            assert!(matches!(all[..], [Err(ItemError::Short { .. })]), "{cut}: {all:?}");
        }
        let whole = join(&[&[1; 16], &[3, 0], b"one"]);
        for cut in 1..whole.len() {
            let all: Vec<_> = InodeExtrefs::new(&whole[..cut]).collect();
            assert!(matches!(all[..], [Err(ItemError::Short { .. })]), "{cut}: {all:?}");
        }
        let long = join(&[&[1; 8], &[0, 1], &[b'x'; 256], &[2; 8], &[0, 0]]);
        let all: Vec<_> = InodeRefs::new(&long).collect();
        assert!(matches!(all[..], [Err(ItemError::Field { value: 256, .. })]), "{all:?}");
        let long = join(&[&[1; 16], &[0xff, 0xff], &[b'x'; 300]]);
        let all: Vec<_> = InodeExtrefs::new(&long).collect();
        assert!(matches!(all[..], [Err(ItemError::Field { value: 0xffff, .. })]), "{all:?}");
    }
}
