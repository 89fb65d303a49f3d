//! Directory entries and extended attributes, which share a format.

use ashlar_block::ondisk_layout;
use zerocopy::byteorder::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{ItemError, exact, name, prefix, take};
use crate::ondisk::key::{DiskKey, Key};

/// `struct btrfs_dir_item` without its name and data.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DiskDirItem {
    /// Target: an inode of this tree, or another tree.
    pub location: DiskKey,
    /// The transaction that created it.
    pub transid: U64,
    /// Length of the data after the name.
    pub data_len: U16,
    /// Length of the name that follows.
    pub name_len: U16,
    /// [`FileType`]
    pub kind: u8,
}

ondisk_layout!(DiskDirItem, 30, {
    location: 0, transid: 17, data_len: 25, name_len: 27, kind: 29,
});

/// Type of an entry (`BTRFS_FT_*`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FileType {
    /// 0: not recorded.
    Unknown,
    /// 1: a file.
    Regular,
    /// 2: a directory, or the root of a subvolume.
    Directory,
    /// 3: a character device.
    CharacterDevice,
    /// 4: a block device.
    BlockDevice,
    /// 5: a pipe.
    Fifo,
    /// 6: a socket.
    Socket,
    /// 7: a symbolic link.
    Symlink,
    /// 8: an extended attribute.
    Xattr,
}

impl FileType {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 9] = [
        Self::Unknown,
        Self::Regular,
        Self::Directory,
        Self::CharacterDevice,
        Self::BlockDevice,
        Self::Fifo,
        Self::Socket,
        Self::Symlink,
        Self::Xattr,
    ];

    /// The type with this number.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Its name in `btrfs inspect-internal dump-tree`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "UNKNOWN",
            Self::Regular => "FILE",
            Self::Directory => "DIR",
            Self::CharacterDevice => "CHRDEV",
            Self::BlockDevice => "BLKDEV",
            Self::Fifo => "FIFO",
            Self::Socket => "SOCK",
            Self::Symlink => "SYMLINK",
            Self::Xattr => "XATTR",
        }
    }
}

/// A directory entry or an extended attribute.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirEntry<'a> {
    /// Target: `(inode INODE_ITEM 0)`, or `(tree ROOT_ITEM -1)`; zero for an attribute.
    pub location: Key,
    /// The transaction that created it.
    pub transid: u64,
    /// Type.
    pub kind: FileType,
    /// Its name.
    pub name: &'a [u8],
    /// The value of an attribute; empty for an entry.
    pub data: &'a [u8],
}

/// The entries of a `DIR_ITEM`, a `DIR_INDEX` or an `XATTR_ITEM`: several if their names have the
/// same [hash](super::name_hash).
#[derive(Clone, Debug)]
pub struct DirEntries<'a> {
    rest: &'a [u8],
}

impl<'a> DirEntries<'a> {
    /// The entries in an item's body.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    fn take(&mut self) -> Result<DirEntry<'a>, ItemError> {
        const ITEM: &str = "directory item";
        let (disk, rest) = prefix::<DiskDirItem>(ITEM, std::mem::take(&mut self.rest))?;
        let wrong = |field, value| Err(ItemError::Field { item: ITEM, field, value });
        let Some(kind) = FileType::from_number(disk.kind) else {
            return wrong("type", disk.kind.into());
        };
        let data_len = disk.data_len.get();
        if kind != FileType::Xattr && data_len != 0 {
            return wrong("length of data", data_len.into());
        }
        let (name, rest) = name(ITEM, rest, disk.name_len.get())?;
        let (data, rest) = take(ITEM, rest, data_len.into())?;
        self.rest = rest;
        let (location, transid) = (Key::from(&disk.location), disk.transid.get());
        Ok(DirEntry { location, transid, kind, name, data })
    }
}

impl<'a> Iterator for DirEntries<'a> {
    type Item = Result<DirEntry<'a>, ItemError>;

    fn next(&mut self) -> Option<Self::Item> {
        (!self.rest.is_empty()).then(|| self.take())
    }
}

/// `struct btrfs_dir_log_item`: in log trees, the end of a range of logged entries.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DirLogItem {
    /// The last index, or hash, in the range.
    pub end: U64,
}

ondisk_layout!(DirLogItem, 8, { end: 0 });

impl DirLogItem {
    /// Parses the body of a `DIR_LOG_ITEM` or `DIR_LOG_INDEX`.
    ///
    /// # Errors
    /// The size is wrong.
    pub fn parse(bytes: &[u8]) -> Result<&Self, ItemError> {
        exact("directory log item", bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{counting, join};
    use super::*;

    #[test]
    fn entries_follow_each_other() {
        let bytes = join(&[
            &counting::<25>(),
            &[2, 0, 3, 0, 8],
            b"one",
            b"\xfe\xff",
            &counting::<25>(),
            &[0, 0, 1, 0, 2],
            b"2",
        ]);
        let entries: Result<Vec<_>, _> = DirEntries::new(&bytes).collect();
        let location = Key::new(0x0807_0605_0403_0201, 9, 0x1110_0f0e_0d0c_0b0a);
        let transid = 0x1918_1716_1514_1312;
        let wanted = [
            DirEntry { location, transid, kind: FileType::Xattr, name: b"one", data: b"\xfe\xff" },
            DirEntry { location, transid, kind: FileType::Directory, name: b"2", data: b"" },
        ];
        assert_eq!(entries.unwrap(), wanted);
    }

    #[test]
    fn entries_that_cannot_be_are_the_last() {
        let entry = |data_len: u16, name_len: u16, kind: u8, rest: &[u8]| {
            join(&[&[7; 25], &data_len.to_le_bytes(), &name_len.to_le_bytes(), &[kind], rest])
        };
        let whole = entry(3, 2, 8, b"nnddd");
        assert_eq!(DirEntries::new(&whole).filter(Result::is_ok).count(), 1);
        for cut in 1..whole.len() {
            let all: Vec<_> = DirEntries::new(&whole[..cut]).collect();
            assert!(matches!(all[..], [Err(ItemError::Short { .. })]), "{cut}: {all:?}");
        }
        let field = |bytes: &[u8]| match DirEntries::new(bytes).collect::<Vec<_>>()[..] {
            [Err(ItemError::Field { field, value, .. })] => (field, value),
            ref other => panic!("{other:?}"),
        };
        assert_eq!(field(&entry(0, 2, 9, b"nn")), ("type", 9));
        assert_eq!(field(&entry(1, 2, 1, b"nnd")), ("length of data", 1));
        assert_eq!(field(&entry(0, 256, 1, &[b'x'; 300])), ("length of a name", 256));
    }

    #[test]
    fn types_have_their_numbers() {
        for (number, kind) in FileType::ALL.into_iter().enumerate() {
            assert_eq!(FileType::from_number(number as u8), Some(kind));
            assert_eq!(kind as usize, number);
        }
        assert_eq!(FileType::from_number(9), None);
    }

    #[test]
    fn a_log_item_is_one_number() {
        assert_eq!(DirLogItem::parse(&counting::<8>()).unwrap().end, 0x0807_0605_0403_0201);
        assert!(DirLogItem::parse(&[0; 9]).is_err());
    }
}
