//! Roots of trees, and how subvolumes are nested.

use ashlar_block::ondisk_layout;
use uuid::Uuid;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::inode::{InodeItem, Timespec};
use super::{ItemError, NAME_LEN_MAX, prefix};
use crate::ondisk::key::{DiskKey, Key};
use crate::ondisk::node::MAX_LEVEL;
use crate::units::Logical;

/// `struct btrfs_root_item` before Linux 3.6, and the start of the newer one.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DiskRootItem {
    /// An inode item for the subvolume.
    pub inode: InodeItem,
    /// The transaction that wrote the root's block.
    pub generation: U64,
    /// The root directory; zero if the tree has no files.
    pub root_dirid: U64,
    /// Address of the root's block.
    pub bytenr: U64,
    /// Unused.
    pub byte_limit: U64,
    /// Bytes of the tree's blocks.
    pub bytes_used: U64,
    /// The transaction of its last snapshot.
    pub last_snapshot: U64,
    /// [`RootFlags`]
    pub flags: U64,
    /// 1, or 0 while the subvolume is being removed.
    pub refs: U32,
    /// Progress of a removal: all items below this key are gone.
    pub drop_progress: DiskKey,
    /// The level of that key.
    pub drop_level: u8,
    /// The level of the root's block.
    pub level: u8,
}

ondisk_layout!(DiskRootItem, 239, {
    inode: 0, generation: 160, root_dirid: 168, bytenr: 176, byte_limit: 184, bytes_used: 192,
    last_snapshot: 200, flags: 208, refs: 216, drop_progress: 220, drop_level: 237, level: 238,
});

/// The fields that Linux 3.6 added to `struct btrfs_root_item`.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DiskRootItemTail {
    /// `generation` again: if it differs, an old kernel wrote the item, and these fields are stale.
    pub generation_v2: U64,
    /// The subvolume's identity.
    pub uuid: [u8; 16],
    /// Identity of the subvolume that it is a snapshot of.
    pub parent_uuid: [u8; 16],
    /// Identity of the sent subvolume that it was received from.
    pub received_uuid: [u8; 16],
    /// The transaction that last changed an inode.
    pub ctransid: U64,
    /// The transaction that created it.
    pub otransid: U64,
    /// The transaction in which it was sent, on the sender's side.
    pub stransid: U64,
    /// The transaction in which it was received.
    pub rtransid: U64,
    /// Time of the last inode change.
    pub ctime: Timespec,
    /// Creation time.
    pub otime: Timespec,
    /// Time it was sent.
    pub stime: Timespec,
    /// Time it was received.
    pub rtime: Timespec,
    /// Zero.
    pub reserved: [U64; 8],
}

ondisk_layout!(DiskRootItemTail, 200, {
    generation_v2: 0, uuid: 8, parent_uuid: 24, received_uuid: 40, ctransid: 56, otransid: 64,
    stransid: 72, rtransid: 80, ctime: 88, otime: 100, stime: 112, rtime: 124, reserved: 136,
});

bitflags::bitflags! {
    /// State of a subvolume (`BTRFS_ROOT_SUBVOL_*`).
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct RootFlags: u64 {
        /// It is read-only.
        const RDONLY = 1 << 0;
        /// It is being removed.
        const DEAD = 1 << 48;
    }
}

/// The root of a tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RootItem<'a> {
    /// The part that all kernels write.
    pub disk: &'a DiskRootItem,
    /// The part that newer kernels added; also `None` if stale.
    pub tail: Option<&'a DiskRootItemTail>,
}

impl<'a> RootItem<'a> {
    /// Parses the body of a `ROOT_ITEM`.
    ///
    /// # Errors
    /// Its size is neither the old nor the new one, or its level is invalid.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ItemError> {
        const ITEM: &str = "root item";
        let wanted = size_of::<DiskRootItem>() + size_of::<DiskRootItemTail>();
        let size = Err(ItemError::Size { item: ITEM, found: bytes.len(), wanted });
        let (disk, rest) = prefix::<DiskRootItem>(ITEM, bytes)?;
        let tail = match DiskRootItemTail::ref_from_bytes(rest) {
            Ok(tail) => (tail.generation_v2 == disk.generation).then_some(tail),
            Err(_) if rest.is_empty() => None,
            Err(_) => return size,
        };
        let wrong = |field, value| Err(ItemError::Field { item: ITEM, field, value });
        if disk.level >= MAX_LEVEL {
            return wrong("level", disk.level.into());
        }
        if disk.drop_level >= MAX_LEVEL {
            return wrong("drop_level", disk.drop_level.into());
        }
        Ok(Self { disk, tail })
    }

    /// Address of the root's block.
    pub fn at(&self) -> Logical {
        Logical(self.disk.bytenr.get())
    }

    /// State of the subvolume; unnamed bits are kept.
    pub fn flags(&self) -> RootFlags {
        RootFlags::from_bits_retain(self.disk.flags.get())
    }

    /// Progress of a removal.
    pub fn drop_progress(&self) -> Key {
        Key::from(&self.disk.drop_progress)
    }

    /// The subvolume's identity, if any.
    pub fn uuid(&self) -> Option<Uuid> {
        self.tail.map(|tail| Uuid::from_bytes(tail.uuid)).filter(|uuid| !uuid.is_nil())
    }

    /// Identity of the subvolume that it is a snapshot of.
    pub fn parent_uuid(&self) -> Option<Uuid> {
        self.tail.map(|tail| Uuid::from_bytes(tail.parent_uuid)).filter(|uuid| !uuid.is_nil())
    }

    /// Identity of the sent subvolume that it was received from.
    pub fn received_uuid(&self) -> Option<Uuid> {
        self.tail.map(|tail| Uuid::from_bytes(tail.received_uuid)).filter(|uuid| !uuid.is_nil())
    }
}

/// `struct btrfs_root_ref` without its name.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DiskRootRef {
    /// The directory.
    pub dirid: U64,
    /// The entry's index in the directory.
    pub sequence: U64,
    /// Length of the name that follows.
    pub name_len: U16,
}

ondisk_layout!(DiskRootRef, 18, { dirid: 0, sequence: 8, name_len: 16 });

/// A subvolume nested in another. The key of a `ROOT_REF` is `(outer ROOT_REF inner)`, that of a
/// `ROOT_BACKREF` is `(inner ROOT_BACKREF outer)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RootRef<'a> {
    /// The directory, in the outer subvolume.
    pub dirid: u64,
    /// The entry's index in the directory.
    pub sequence: u64,
    /// Its name.
    pub name: &'a [u8],
}

impl<'a> RootRef<'a> {
    /// Parses the body of a `ROOT_REF` or `ROOT_BACKREF`.
    ///
    /// # Errors
    /// Its size does not match the length of its name.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ItemError> {
        const ITEM: &str = "root ref";
        let (disk, name) = prefix::<DiskRootRef>(ITEM, bytes)?;
        let len = usize::from(disk.name_len.get());
        if len > NAME_LEN_MAX {
            let value = len as u64;
            return Err(ItemError::Field { item: ITEM, field: "length of a name", value });
        }
        if name.len() != len {
            let wanted = size_of::<DiskRootRef>() + len;
            return Err(ItemError::Size { item: ITEM, found: bytes.len(), wanted });
        }
        Ok(Self { dirid: disk.dirid.get(), sequence: disk.sequence.get(), name })
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{counting, join};
    use super::*;

    /// A root item of the new form, with valid levels and a matching second generation.
    fn new_form() -> [u8; 439] {
        let mut bytes = counting::<439>();
        (bytes[237], bytes[238]) = (5, 7);
        bytes.copy_within(160..168, 239);
        bytes
    }

    #[test]
    fn a_root_gives_its_place_its_progress_and_its_identities() {
        let bytes = new_form();
        let root = RootItem::parse(&bytes).unwrap();
        let item = root.disk;
        assert_eq!(root.at(), Logical(0xb8b7_b6b5_b4b3_b2b1));
        assert_eq!(root.drop_progress(), Key::from(&item.drop_progress));
        assert_eq!((item.drop_level, item.level), (5, 7));
        assert!(root.flags().contains(RootFlags::RDONLY | RootFlags::DEAD));
        let item = root.tail.unwrap();
        assert_eq!(root.uuid(), Some(Uuid::from_bytes(item.uuid)));
        assert_eq!(root.parent_uuid(), Some(Uuid::from_bytes(item.parent_uuid)));
        assert_eq!(root.received_uuid(), Some(Uuid::from_bytes(item.received_uuid)));
    }

    #[test]
    fn roots_of_the_old_form_have_no_tail() {
        let bytes = new_form();
        assert_eq!(RootItem::parse(&bytes[..239]).unwrap().tail, None);
        let mut stale = bytes;
        stale[239] ^= 1;
        let root = RootItem::parse(&stale).unwrap();
        assert_eq!((root.tail, root.uuid()), (None, None));
    }

    #[test]
    fn roots_that_cannot_be_are_refused() {
        let bytes = new_form();
        for len in (0..bytes.len()).filter(|len| *len != 239) {
            assert!(RootItem::parse(&bytes[..len]).is_err(), "{len}");
        }
        assert!(RootItem::parse(&join(&[&bytes, &[0]])).is_err());
        for level in [237, 238] {
            let mut bytes = bytes;
            bytes[level] = MAX_LEVEL;
            let error = RootItem::parse(&bytes).unwrap_err();
            assert!(matches!(error, ItemError::Field { value: 8, .. }), "{error}");
        }
    }

    #[test]
    fn a_subvolume_has_one_name() {
        let bytes = join(&[&counting::<16>(), &[3, 0], b"sub"]);
        let (dirid, sequence) = (0x0807_0605_0403_0201, 0x100f_0e0d_0c0b_0a09);
        let wanted = RootRef { dirid, sequence, name: b"sub" };
        assert_eq!(RootRef::parse(&bytes), Ok(wanted));
        for len in 0..bytes.len() {
            assert!(RootRef::parse(&bytes[..len]).is_err(), "{len}");
        }
        assert!(RootRef::parse(&join(&[&bytes, b"x"])).is_err());
        let long = join(&[&[0; 16], &[0, 1], &[b'x'; 256]]);
        assert!(matches!(RootRef::parse(&long), Err(ItemError::Field { value: 256, .. })));
    }
}
