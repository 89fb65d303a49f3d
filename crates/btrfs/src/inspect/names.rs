//! Names of objects, items and trees.

use std::fmt;

use crate::ondisk::key::{Key, item, objectid};

/// The older type of checksum item.
const CSUM_ITEM: u8 = 120;
/// Back references before Linux 2.6.31.
const EXTENT_REF_V0: u8 = 180;

/// The name of an item type, if any.
fn kind_name(kind: u8) -> Option<&'static str> {
    Some(match kind {
        item::INODE_ITEM => "INODE_ITEM",
        item::INODE_REF => "INODE_REF",
        item::INODE_EXTREF => "INODE_EXTREF",
        item::XATTR_ITEM => "XATTR_ITEM",
        item::VERITY_DESC_ITEM => "VERITY_DESC_ITEM",
        item::VERITY_MERKLE_ITEM => "VERITY_MERKLE_ITEM",
        item::ORPHAN_ITEM => "ORPHAN_ITEM",
        item::DIR_LOG_ITEM => "DIR_LOG_ITEM",
        item::DIR_LOG_INDEX => "DIR_LOG_INDEX",
        item::DIR_ITEM => "DIR_ITEM",
        item::DIR_INDEX => "DIR_INDEX",
        item::EXTENT_DATA => "EXTENT_DATA",
        CSUM_ITEM => "CSUM_ITEM",
        item::EXTENT_CSUM => "EXTENT_CSUM",
        item::ROOT_ITEM => "ROOT_ITEM",
        item::ROOT_BACKREF => "ROOT_BACKREF",
        item::ROOT_REF => "ROOT_REF",
        item::EXTENT_ITEM => "EXTENT_ITEM",
        item::METADATA_ITEM => "METADATA_ITEM",
        item::EXTENT_OWNER_REF => "EXTENT_OWNER_REF",
        item::TREE_BLOCK_REF => "TREE_BLOCK_REF",
        item::EXTENT_DATA_REF => "EXTENT_DATA_REF",
        EXTENT_REF_V0 => "EXTENT_REF_V0",
        item::SHARED_BLOCK_REF => "SHARED_BLOCK_REF",
        item::SHARED_DATA_REF => "SHARED_DATA_REF",
        item::BLOCK_GROUP_ITEM => "BLOCK_GROUP_ITEM",
        item::FREE_SPACE_INFO => "FREE_SPACE_INFO",
        item::FREE_SPACE_EXTENT => "FREE_SPACE_EXTENT",
        item::FREE_SPACE_BITMAP => "FREE_SPACE_BITMAP",
        item::DEV_EXTENT => "DEV_EXTENT",
        item::DEV_ITEM => "DEV_ITEM",
        item::CHUNK_ITEM => "CHUNK_ITEM",
        item::RAID_STRIPE => "RAID_STRIPE",
        item::QGROUP_STATUS => "QGROUP_STATUS",
        item::QGROUP_INFO => "QGROUP_INFO",
        item::QGROUP_LIMIT => "QGROUP_LIMIT",
        item::QGROUP_RELATION => "QGROUP_RELATION",
        item::TEMPORARY_ITEM => "TEMPORARY_ITEM",
        item::PERSISTENT_ITEM => "PERSISTENT_ITEM",
        item::DEV_REPLACE => "DEV_REPLACE",
        item::UUID_SUBVOL => "UUID_KEY_SUBVOL",
        item::UUID_RECEIVED_SUBVOL => "UUID_KEY_RECEIVED_SUBVOL",
        item::STRING_ITEM => "STRING_ITEM",
        _ => return None,
    })
}

/// The name of an object whose name does not depend on the item type.
fn object_name(id: u64) -> Option<&'static str> {
    Some(match id {
        objectid::ROOT_TREE => "ROOT_TREE",
        objectid::EXTENT_TREE => "EXTENT_TREE",
        objectid::CHUNK_TREE => "CHUNK_TREE",
        objectid::DEV_TREE => "DEV_TREE",
        objectid::FS_TREE => "FS_TREE",
        objectid::ROOT_TREE_DIR => "ROOT_TREE_DIR",
        objectid::CSUM_TREE => "CSUM_TREE",
        objectid::QUOTA_TREE => "QUOTA_TREE",
        objectid::UUID_TREE => "UUID_TREE",
        objectid::FREE_SPACE_TREE => "FREE_SPACE_TREE",
        objectid::BLOCK_GROUP_TREE => "BLOCK_GROUP_TREE",
        objectid::RAID_STRIPE_TREE => "RAID_STRIPE_TREE",
        objectid::BALANCE => "BALANCE",
        objectid::ORPHAN => "ORPHAN",
        objectid::TREE_LOG => "TREE_LOG",
        TREE_LOG_FIXUP => "LOG_FIXUP",
        objectid::TREE_RELOC => "TREE_RELOC",
        objectid::DATA_RELOC_TREE => "DATA_RELOC_TREE",
        objectid::EXTENT_CSUM => "EXTENT_CSUM",
        objectid::FREE_SPACE => "FREE_SPACE",
        objectid::FREE_INO => "FREE_INO",
        MULTIPLE => "MULTIPLE",
        u64::MAX => "-1",
        _ => return None,
    })
}

/// Log trees being fixed up (`BTRFS_TREE_LOG_FIXUP_OBJECTID`).
const TREE_LOG_FIXUP: u64 = -7_i64 as u64;
/// `BTRFS_MULTIPLE_OBJECTIDS`
const MULTIPLE: u64 = -255_i64 as u64;

/// Name of an object; it depends on the item type, 0 if there is no item.
pub fn object(id: u64, kind: u8) -> impl fmt::Display {
    fmt::from_fn(move |f| match kind {
        item::PERSISTENT_ITEM if id == objectid::DEV_STATS => f.write_str("DEV_STATS"),
        item::PERSISTENT_ITEM | item::DEV_EXTENT => write!(f, "{id}"),
        item::QGROUP_RELATION => write!(f, "{}", qgroup(id)),
        item::UUID_SUBVOL | item::UUID_RECEIVED_SUBVOL => write!(f, "0x{id:016x}"),
        item::DEV_ITEM if id == objectid::DEV_ITEMS => f.write_str("DEV_ITEMS"),
        item::CHUNK_ITEM if id == objectid::FIRST_CHUNK_TREE => f.write_str("FIRST_CHUNK_TREE"),
        _ => match object_name(id) {
            Some(name) => f.write_str(name),
            None => write!(f, "{id}"),
        },
    })
}

/// A quota group: its level, and its number or its subvolume's.
fn qgroup(id: u64) -> impl fmt::Display {
    fmt::from_fn(move |f| write!(f, "{}/{}", id >> 48, id & ((1 << 48) - 1)))
}

/// `key (OBJECT TYPE OFFSET)`
pub fn key(key: Key) -> impl fmt::Display {
    fmt::from_fn(move |f| {
        let Key { objectid: id, kind, offset } = key;
        write!(f, "key ({} ", object(id, kind))?;
        match kind_name(kind) {
            _ if kind == 0 && id == objectid::FREE_SPACE => f.write_str("UNTYPED")?,
            Some(name) => f.write_str(name)?,
            None => write!(f, "UNKNOWN.{kind}")?,
        }
        match kind {
            item::QGROUP_RELATION | item::QGROUP_INFO | item::QGROUP_LIMIT => {
                write!(f, " {})", qgroup(offset))
            }
            item::UUID_SUBVOL | item::UUID_RECEIVED_SUBVOL => write!(f, " 0x{offset:016x})"),
            // The tree being relocated.
            item::ROOT_ITEM if id == objectid::TREE_RELOC => {
                write!(f, " {})", object(offset, kind))
            }
            item::ROOT_ITEM => write!(f, " {offset})"),
            _ if offset == u64::MAX => f.write_str(" -1)"),
            _ => write!(f, " {offset})"),
        }
    })
}

/// Title printed before the key of tree `id`.
pub(crate) fn tree_title(id: u64) -> &'static str {
    match id {
        objectid::ROOT_TREE => "root",
        objectid::EXTENT_TREE => "extent",
        objectid::CHUNK_TREE => "chunk",
        objectid::DEV_TREE => "device",
        objectid::FS_TREE => "fs",
        objectid::ROOT_TREE_DIR => "directory",
        objectid::CSUM_TREE => "checksum",
        objectid::ORPHAN => "orphan",
        objectid::TREE_LOG => "log",
        TREE_LOG_FIXUP => "log fixup",
        objectid::TREE_RELOC => "reloc",
        objectid::DATA_RELOC_TREE => "data reloc",
        objectid::EXTENT_CSUM => "extent checksum",
        objectid::QUOTA_TREE => "quota",
        objectid::UUID_TREE => "uuid",
        objectid::FREE_SPACE_TREE => "free space",
        MULTIPLE => "multiple",
        objectid::BLOCK_GROUP_TREE => "block group",
        objectid::RAID_STRIPE_TREE => "raid stripe",
        _ => "file",
    }
}

/// Parses a user's tree id: a number, or a name such as `extent`, `EXTENT_TREE` or
/// `BTRFS_EXTENT_TREE_OBJECTID`; `None` if it is neither.
pub fn tree_id(text: &str) -> Option<u64> {
    if let Some(hex) = text.strip_prefix("0x") {
        return u64::from_str_radix(hex, 16).ok();
    }
    if let Ok(id) = text.parse::<u64>() {
        return Some(id);
    }
    if let Ok(id) = text.parse::<i64>() {
        return Some(id as u64);
    }
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("BTRFS_").unwrap_or(&upper);
    let name = name.strip_suffix("_OBJECTID").unwrap_or(name);
    let name = name.strip_suffix("_TREE").unwrap_or(name);
    Some(match name {
        "ROOT" => objectid::ROOT_TREE,
        "EXTENT" => objectid::EXTENT_TREE,
        "CHUNK" => objectid::CHUNK_TREE,
        "DEVICE" | "DEV" => objectid::DEV_TREE,
        "FS" => objectid::FS_TREE,
        "CSUM" | "CHECKSUM" => objectid::CSUM_TREE,
        "QUOTA" => objectid::QUOTA_TREE,
        "UUID" => objectid::UUID_TREE,
        "FREE_SPACE" => objectid::FREE_SPACE_TREE,
        "BLOCK_GROUP" => objectid::BLOCK_GROUP_TREE,
        "RAID_STRIPE" => objectid::RAID_STRIPE_TREE,
        "TREE_LOG" | "LOG" => objectid::TREE_LOG,
        "TREE_RELOC" => objectid::TREE_RELOC,
        "DATA_RELOC" => objectid::DATA_RELOC_TREE,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_are_known_by_number_and_name() {
        for text in ["2", "0x2", "extent", "EXTENT_TREE", "BTRFS_EXTENT_TREE_OBJECTID"] {
            assert_eq!(tree_id(text), Some(2), "{text}");
        }
        assert_eq!(tree_id("-9"), Some(objectid::DATA_RELOC_TREE));
        assert_eq!(tree_id("nothing"), None);
        assert_eq!(tree_id(""), None);
    }

    #[test]
    fn keys_that_no_golden_image_has() {
        let of = |id, kind, offset| key(Key::new(id, kind, offset)).to_string();
        assert_eq!(of(1, item::QGROUP_INFO, 1 << 48 | 5), "key (ROOT_TREE QGROUP_INFO 1/5)");
        assert_eq!(of(0, item::QGROUP_RELATION, 257), "key (0/0 QGROUP_RELATION 0/257)");
        let reloc = of(objectid::TREE_RELOC, item::ROOT_ITEM, 5);
        assert_eq!(reloc, "key (TREE_RELOC ROOT_ITEM FS_TREE)");
        assert_eq!(of(objectid::FREE_SPACE, 0, 7), "key (FREE_SPACE UNTYPED 7)");
        assert_eq!(of(300, 77, u64::MAX), "key (300 UNKNOWN.77 -1)");
    }
}
