//! Roots of trees, and subvolumes.

use std::sync::Arc;

use uuid::Uuid;

use crate::error::TreeError;
use crate::ondisk::items::{DevStats, ItemError, RootFlags, RootItem, RootRef};
use crate::ondisk::key::{Key, item, objectid};
use crate::path::{Path, Root};
use crate::readahead::Reada;
use crate::units::{DevId, Logical};
use crate::volume::FileSystem;

/// A subvolume or snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Subvolume {
    /// Its number; 5 is the top-level subvolume.
    pub id: u64,
    /// Its tree.
    pub root: Root,
    /// Where it is; `None` for the first one, and for those being removed.
    pub place: Option<Place>,
    /// Its root directory.
    pub root_dirid: u64,
    /// State.
    pub flags: RootFlags,
    /// Its identity.
    pub uuid: Option<Uuid>,
    /// Identity of the subvolume that it is a snapshot of.
    pub parent_uuid: Option<Uuid>,
    /// Identity of the sent subvolume that it was received from.
    pub received_uuid: Option<Uuid>,
    /// The transaction that created it; 0 if created before Linux 3.6.
    pub made_in: u64,
    /// Creation time in seconds since 1970; 0 if created before Linux 3.6.
    pub made_at: i64,
    /// The transaction in which it was sent, on the sender's side; 0 if it was not received.
    pub sent_in: u64,
    /// Time it was sent, in seconds since 1970; 0 if it was not received.
    pub sent_at: i64,
    /// The transaction in which it was received, or 0.
    pub received_in: u64,
    /// Time it was received, in seconds since 1970, or 0.
    pub received_at: i64,
}

/// Location of a subvolume in another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// The outer subvolume.
    pub outer: u64,
    /// The directory there.
    pub dirid: u64,
    /// Its name there.
    pub name: Vec<u8>,
}

/// Whether the tree with this number can contain files.
pub const fn is_subvolume(id: u64) -> bool {
    id == objectid::FS_TREE || (id >= objectid::FIRST_FREE && id <= objectid::LAST_FREE)
}

/// An invalid item of `tree`.
pub(crate) fn damaged(tree: u64, key: Key, why: &ItemError) -> TreeError {
    TreeError::Item { tree, key, why: why.to_string() }
}

impl FileSystem {
    /// Root of the log's tree of roots; `None` if there is no log.
    ///
    /// The log holds what `fsync` wrote since the last commit; it belongs to the transaction after that commit.
    pub fn log_root(&self) -> Option<Root> {
        let superblock = self.superblock();
        let at = Logical(superblock.log_root.get());
        let generation = superblock.generation.get().saturating_add(1);
        let level = superblock.log_root_level;
        (at.0 != 0).then_some(Root { id: objectid::TREE_LOG, at, generation, level })
    }

    /// The tree with this number; `None` if it does not exist.
    ///
    /// If there are several roots with the number (only relocation trees), the last one.
    ///
    /// # Errors
    /// The tree of roots is damaged.
    pub async fn root(self: &Arc<Self>, id: u64) -> Result<Option<Root>, TreeError> {
        match id {
            objectid::ROOT_TREE => return Ok(Some(self.tree_root())),
            objectid::CHUNK_TREE => return Ok(Some(self.chunk_root())),
            objectid::TREE_LOG => return Ok(self.log_root()),
            _ => {}
        }
        let tree = self.tree_root();
        let mut path = Path::new(self, tree);
        if !path.search_back(Key::new(id, item::ROOT_ITEM, u64::MAX)).await? {
            return Ok(None);
        }
        match path.item() {
            Some((key, data)) if (key.objectid, key.kind) == (id, item::ROOT_ITEM) => {
                let found = RootItem::parse(data).map_err(|why| damaged(tree.id, key, &why))?;
                Ok(Some(root_of(key, &found)))
            }
            Some(_) | None => Ok(None),
        }
    }

    /// The tree with this number.
    ///
    /// # Errors
    /// There is no such tree, or as for [`Self::root`].
    pub async fn need_root(self: &Arc<Self>, id: u64) -> Result<Root, TreeError> {
        self.root(id).await?.ok_or(TreeError::NoTree(id))
    }

    /// All trees in the tree of roots, in order, each with its key.
    ///
    /// # Errors
    /// The tree of roots is damaged.
    pub async fn roots(self: &Arc<Self>) -> Result<Vec<(Key, Root)>, TreeError> {
        let tree = self.tree_root();
        let mut path = Path::new(self, tree).with_reada(Reada::Forward);
        let mut all = Vec::new();
        let mut more = path.search(Key::MIN).await?;
        while more {
            if let Some((key, data)) = path.item()
                && key.kind == item::ROOT_ITEM
            {
                let found = RootItem::parse(data).map_err(|why| damaged(tree.id, key, &why))?;
                all.push((key, root_of(key, &found)));
            }
            more = path.next().await?;
        }
        Ok(all)
    }

    /// All subvolumes and snapshots, ordered by number.
    ///
    /// # Errors
    /// The tree of roots is damaged.
    pub async fn subvolumes(self: &Arc<Self>) -> Result<Vec<Subvolume>, TreeError> {
        let tree = self.tree_root();
        let mut path = Path::new(self, tree).with_reada(Reada::Forward);
        let mut all: Vec<Subvolume> = Vec::new();
        let mut more = path.search(Key::new(objectid::FS_TREE, 0, 0)).await?;
        while more {
            if let Some((key, data)) = path.item()
                && is_subvolume(key.objectid)
            {
                match key.kind {
                    item::ROOT_ITEM => {
                        let found = RootItem::parse(data);
                        let found = found.map_err(|why| damaged(tree.id, key, &why))?;
                        all.push(subvolume(key, &found));
                    }
                    item::ROOT_BACKREF => {
                        let place = RootRef::parse(data);
                        let place = place.map_err(|why| damaged(tree.id, key, &why))?;
                        let (outer, dirid) = (key.offset, place.dirid);
                        let place = Place { outer, dirid, name: place.name.to_vec() };
                        if let Some(of) = all.last_mut().filter(|of| of.id == key.objectid) {
                            of.place = Some(place);
                        }
                    }
                    _ => {}
                }
            }
            more = path.next().await?;
        }
        Ok(all)
    }

    /// The subvolume whose tree begins at `at`, if there is one.
    ///
    /// # Errors
    /// A tree is damaged.
    pub async fn subvolume_at(
        self: &Arc<Self>,
        at: Logical,
    ) -> Result<Option<Subvolume>, TreeError> {
        let mut all = self.subvolumes().await?.into_iter();
        Ok(all.find(|subvolume| subvolume.root.at == at))
    }

    /// The subvolume with this number; `None` if it does not exist.
    ///
    /// # Errors
    /// The tree of roots is damaged.
    pub async fn subvolume(self: &Arc<Self>, id: u64) -> Result<Option<Subvolume>, TreeError> {
        let tree = self.tree_root();
        let mut path = Path::new(self, tree);
        let mut found = None;
        let mut more = is_subvolume(id) && path.search(Key::new(id, item::ROOT_ITEM, 0)).await?;
        while more {
            let Some((key, data)) = path.item().filter(|(key, _)| key.objectid == id) else {
                break;
            };
            match key.kind {
                item::ROOT_ITEM => {
                    let root = RootItem::parse(data).map_err(|why| damaged(tree.id, key, &why))?;
                    found = Some(subvolume(key, &root));
                }
                item::ROOT_BACKREF => {
                    let place = RootRef::parse(data).map_err(|why| damaged(tree.id, key, &why))?;
                    let (outer, dirid) = (key.offset, place.dirid);
                    let place = Place { outer, dirid, name: place.name.to_vec() };
                    if let Some(found) = &mut found {
                        found.place = Some(place);
                    }
                    break;
                }
                _ => {}
            }
            more = path.next().await?;
        }
        Ok(found)
    }

    /// The errors counted on a device; zero if none are stored.
    ///
    /// # Errors
    /// The device tree is damaged.
    pub async fn device_stats(self: &Arc<Self>, devid: DevId) -> Result<DevStats, TreeError> {
        let tree = self.need_root(objectid::DEV_TREE).await?;
        let key = Key::new(objectid::DEV_STATS, item::PERSISTENT_ITEM, devid.0);
        let mut path = Path::new(self, tree);
        if !path.search(key).await? || path.key() != Some(key) {
            return Ok(DevStats::default());
        }
        let Some((_, data)) = path.item() else { return Ok(DevStats::default()) };
        DevStats::parse(data).map_err(|why| damaged(tree.id, key, &why))
    }
}

pub(crate) fn root_of(key: Key, item: &RootItem<'_>) -> Root {
    let (generation, level) = (item.disk.generation.get(), item.disk.level);
    Root { id: key.objectid, at: item.at(), generation, level }
}

fn subvolume(key: Key, item: &RootItem<'_>) -> Subvolume {
    Subvolume {
        id: key.objectid,
        root: root_of(key, item),
        place: None,
        root_dirid: item.disk.root_dirid.get(),
        flags: item.flags(),
        uuid: item.uuid(),
        parent_uuid: item.parent_uuid(),
        received_uuid: item.received_uuid(),
        made_in: item.tail.map_or(0, |tail| tail.otransid.get()),
        made_at: item.tail.map_or(0, |tail| tail.otime.sec.get() as i64),
        sent_in: item.tail.map_or(0, |tail| tail.stransid.get()),
        sent_at: item.tail.map_or(0, |tail| tail.stime.sec.get() as i64),
        received_in: item.tail.map_or(0, |tail| tail.rtransid.get()),
        received_at: item.tail.map_or(0, |tail| tail.rtime.sec.get() as i64),
    }
}
