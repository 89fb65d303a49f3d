//! Every item of every golden image through the parser of its type: nothing that a kernel wrote is
//! refused, and what items say about each other is true.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::{Rig, items, names};
use ashlar_btrfs::csum::ChecksumKind;
use ashlar_btrfs::ondisk::items::{
    BackRef, BalanceItem, BlockGroup, CsumItem, DevExtent, DevStats, DirEntries, DirLogItem,
    ExtentItem, FileExtent, FreeSpaceBitmap, FreeSpaceHeader, FreeSpaceInfo, InodeExtrefs,
    InodeItem, InodeRefs, ItemError, QgroupInfoItem, QgroupLimitItem, RootItem, RootRef, keyed_ref,
    name_hash, raid_stripe, uuid_subvolumes,
};
use ashlar_btrfs::ondisk::key::{Key, item, objectid};

/// Per extent: number of references according to its item, and number of references found.
type References = BTreeMap<u64, (u64, u64)>;

struct Reader {
    sectorsize: u32,
    csum: ChecksumKind,
    references: References,
    /// Free ranges of block groups: number recorded, and number found.
    free: BTreeMap<u64, (u64, u64)>,
    /// End of the last free range: a range that crosses the end of a bitmap counts once.
    free_end: Option<u64>,
    kinds: BTreeSet<u8>,
}

impl Reader {
    fn back_ref(&mut self, key: Key, back_ref: BackRef) {
        self.references.entry(key.objectid).or_default().1 += back_ref.count();
    }

    fn free_range(&mut self, start: u64, end: u64) {
        assert!(start < end);
        if self.free_end != Some(start) {
            self.free.range_mut(..=start).next_back().expect("a group before it").1.1 += 1;
        }
        self.free_end = Some(end);
    }

    fn read(&mut self, key: Key, data: &[u8]) -> Result<(), ItemError> {
        self.kinds.insert(key.kind);
        match key.kind {
            item::INODE_ITEM => InodeItem::parse(data).map(drop),
            item::INODE_REF => InodeRefs::new(data).try_for_each(|link| link.map(drop)),
            item::INODE_EXTREF => InodeExtrefs::new(data).try_for_each(|link| link.map(drop)),
            item::DIR_ITEM | item::XATTR_ITEM => DirEntries::new(data).try_for_each(|entry| {
                assert_eq!(name_hash(entry?.name), key.offset, "{key}");
                Ok(())
            }),
            item::DIR_INDEX => DirEntries::new(data).try_for_each(|entry| entry.map(drop)),
            item::DIR_LOG_ITEM | item::DIR_LOG_INDEX => DirLogItem::parse(data).map(drop),
            item::ORPHAN_ITEM | item::QGROUP_RELATION => {
                assert_eq!(data, b"", "{key}");
                Ok(())
            }
            item::EXTENT_DATA => FileExtent::parse(data, self.sectorsize).map(drop),
            item::EXTENT_CSUM => {
                assert_eq!(key.objectid, objectid::EXTENT_CSUM);
                CsumItem::parse(key, data, self.csum, self.sectorsize).map(drop)
            }
            item::ROOT_ITEM => RootItem::parse(data).map(drop),
            item::ROOT_REF | item::ROOT_BACKREF => RootRef::parse(data).map(drop),
            item::EXTENT_ITEM | item::METADATA_ITEM => {
                let extent = ExtentItem::parse(key, data)?;
                self.references.entry(key.objectid).or_default().0 = extent.refs;
                extent.inline.into_iter().try_for_each(|back_ref| {
                    self.back_ref(key, back_ref?);
                    Ok(())
                })
            }
            item::BLOCK_GROUP_ITEM => BlockGroup::parse(key, data).map(drop),
            item::FREE_SPACE_INFO => {
                let info = FreeSpaceInfo::parse(data)?;
                self.free.insert(key.objectid, (info.extent_count.get().into(), 0));
                self.free_end = None;
                Ok(())
            }
            item::FREE_SPACE_BITMAP => {
                let bitmap = FreeSpaceBitmap::parse(key, data, self.sectorsize)?;
                bitmap.ranges().for_each(|run| self.free_range(run.start.0, run.end.0));
                Ok(())
            }
            item::FREE_SPACE_EXTENT => {
                assert_eq!(data, b"", "{key}");
                self.free_range(key.objectid, key.objectid + key.offset);
                Ok(())
            }
            item::DEV_EXTENT => DevExtent::parse(key, data).map(drop),
            item::QGROUP_INFO => QgroupInfoItem::parse(data).map(drop),
            item::QGROUP_LIMIT => QgroupLimitItem::parse(data).map(drop),
            item::RAID_STRIPE => raid_stripe(data).map(drop),
            item::TEMPORARY_ITEM if key.objectid == objectid::BALANCE => {
                BalanceItem::parse(data).map(drop)
            }
            item::PERSISTENT_ITEM if key.objectid == objectid::DEV_STATS => {
                DevStats::parse(data).map(drop)
            }
            item::UUID_SUBVOL | item::UUID_RECEIVED_SUBVOL => uuid_subvolumes(data).map(drop),
            // The free space cache has an item of type 0.
            0 if key.objectid == objectid::FREE_SPACE => FreeSpaceHeader::parse(data).map(drop),
            // These have other parsers, or none.
            item::DEV_ITEM | item::CHUNK_ITEM | item::QGROUP_STATUS => Ok(()),
            item::VERITY_DESC_ITEM | item::VERITY_MERKLE_ITEM | item::DEV_REPLACE => Ok(()),
            kind => match keyed_ref(key, data) {
                Some(back_ref) => {
                    self.back_ref(key, back_ref?);
                    Ok(())
                }
                None => panic!("an item of the unknown type {kind}: {key}"),
            },
        }
    }
}

#[test]
fn every_item_of_every_image_is_read() {
    let mut kinds = BTreeSet::new();
    for name in names() {
        let rig = Rig::golden(&name);
        let fs = rig.open();
        let csum = fs.identity().csum;
        let mut reader = Reader {
            sectorsize: fs.sectorsize(),
            csum,
            references: BTreeMap::new(),
            free: BTreeMap::new(),
            free_end: None,
            kinds: BTreeSet::new(),
        };
        rig.run(async {
            let roots = fs.roots().await.expect("the tree of roots is sound");
            let first = [fs.tree_root(), fs.chunk_root()];
            for root in first.into_iter().chain(roots.into_iter().map(|(_, root)| root)) {
                let all = items(&fs, root).await;
                for (_, _, key, data) in &all {
                    let read = reader.read(*key, data);
                    read.unwrap_or_else(|error| panic!("{name}: {key}: {error}"));
                }
            }
        });
        assert!(reader.references.len() > 5, "{name}: too few extents");
        for (at, (counted, found)) in reader.references {
            assert_eq!(found, counted, "{name}: references to the extent at {at}");
        }
        for (at, (counted, found)) in reader.free {
            assert_eq!(found, counted, "{name}: free ranges of the group at {at}");
        }
        kinds.append(&mut reader.kinds);
    }
    let wanted = [
        item::INODE_ITEM,
        item::INODE_REF,
        item::XATTR_ITEM,
        item::DIR_ITEM,
        item::EXTENT_DATA,
        item::EXTENT_CSUM,
        item::ROOT_ITEM,
        item::ROOT_REF,
        item::EXTENT_ITEM,
        item::METADATA_ITEM,
        item::EXTENT_DATA_REF,
        item::BLOCK_GROUP_ITEM,
        item::FREE_SPACE_INFO,
        item::FREE_SPACE_EXTENT,
        item::DEV_EXTENT,
        item::PERSISTENT_ITEM,
        item::UUID_SUBVOL,
    ];
    let missing: Vec<_> = wanted.into_iter().filter(|kind| !kinds.contains(kind)).collect();
    assert!(missing.is_empty(), "no image has items of the types {missing:?}; they have {kinds:?}");
}
