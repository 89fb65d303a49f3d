//! Changes of a volume group: the effects of `lvcreate`, `lvextend`, `lvremove` and `lvconvert
//! --merge` on its metadata. Nothing here touches a device: [`commit`](crate::commit) describes how
//! a changed group becomes the current one, and what must be on the devices before.
//!
//! Each change checks everything first; a refusal leaves the group unchanged. The rules are LVM's
//! (`lib/metadata/lv_manip.c`, `snapshot_manip.c`).

use ashlar_block::Sectors;
use thiserror::Error;

use crate::alloc::{AllocError, Policy, Wish};
use crate::metadata::{
    AreaVolume, Creation, LogicalVolume, LvFlag, PhysicalVolume, Segment, SegmentKind, Snapshot,
    VolumeGroup, is_valid_name,
};
use crate::uuid::Uuid;

/// Bytes of an exception in a store: two chunk numbers.
const EXCEPTION_BYTES: u64 = 16;
/// Chunk sizes of snapshots: LVM allows 4 to 512 KiB.
const CHUNKS: std::ops::RangeInclusive<u64> = 8..=1024;
/// LVM's internal names begin like this, or contain one of these parts.
const RESERVED_STARTS: [&str; 2] = ["snapshot", "pvmove"];
const RESERVED_PARTS: [&str; 13] = [
    "_cdata", "_cmeta", "_corig", "_cvol", "_imeta", "_iorig", "_mimage", "_mlog", "_rimage",
    "_rmeta", "_tdata", "_tmeta", "_vdata",
];

/// The creator of new volumes.
pub struct Author<'a> {
    /// Time and host.
    pub creation: Creation,
    /// Returns a new UUID at each call.
    pub new_uuid: &'a mut dyn FnMut() -> Uuid,
}

/// A volume to create.
#[derive(Clone, Debug)]
pub struct NewVolume {
    /// Its name; `None`: `lvol0`, or the next free number.
    pub name: Option<String>,
    /// Its size and placement; for a snapshot, those of its store.
    pub wish: Wish,
    /// Tags.
    pub tags: Vec<String>,
    /// Whether it is writable.
    pub writable: bool,
}

/// Why a group was not changed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ChangeError {
    /// This group must not be changed here.
    #[error("{0}")]
    Refused(String),
    /// An invalid name.
    #[error(
        "\"{0}\" is not a name for a logical volume: use letters, digits and . _ + -, and no leading -"
    )]
    BadName(String),
    /// An invalid name of a group.
    #[error(
        "\"{0}\" is not a name for a volume group: use letters, digits and . _ + -, and no leading -"
    )]
    BadGroupName(String),
    /// The group's maximum of physical volumes is reached.
    #[error("the volume group has {0} physical volumes, as many as it may")]
    TooManyPhysical(u32),
    /// A group has at least one physical volume.
    #[error("it is the last physical volume of volume group \"{0}\": vgremove removes the group")]
    LastPhysical(String),
    /// A logical volume has extents there.
    #[error("logical volume \"{0}\" has extents there")]
    PhysicalInUse(String),
    /// A name reserved for parts of volumes.
    #[error("\"{0}\" is a name that LVM gives to parts of volumes: choose another")]
    ReservedName(String),
    /// The volume already exists.
    #[error("logical volume \"{name}\" already exists in volume group \"{group}\"")]
    Exists {
        /// Its name.
        name: String,
        /// Its group.
        group: String,
    },
    /// The volume does not exist.
    #[error("there is no logical volume \"{name}\" in volume group \"{group}\"")]
    NotFound {
        /// The name.
        name: String,
        /// The group.
        group: String,
    },
    /// The group's maximum is reached.
    #[error("the volume group has {0} logical volumes, as many as it may")]
    TooMany(u32),
    /// The size is zero.
    #[error("a volume has at least one extent")]
    Empty,
    /// The allocation failed.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// An invalid chunk size for snapshots.
    #[error("the chunk size of a snapshot is a power of two from 4 to 512 KiB, not {} bytes", .0.bytes())]
    ChunkSize(Sectors),
    /// The store is too small even for its metadata.
    #[error("a snapshot with chunks of {} KiB needs at least {min} extents", .chunk.0 / 2)]
    SnapshotTooSmall {
        /// The chunk size.
        chunk: Sectors,
        /// The extents of three chunks.
        min: u32,
    },
    /// Its extents are being moved.
    #[error("logical volume \"{0}\" is locked: pvmove moves its extents")]
    Locked(String),
    /// No extent of a move's source is in use.
    #[error("No data to move for {0}.")]
    NothingToMove(String),
    /// The change is not possible for this volume.
    #[error("{name}: {why}")]
    NotSo {
        /// The volume.
        name: String,
        /// The reason.
        why: &'static str,
    },
}

pub(crate) type Result<T> = std::result::Result<T, ChangeError>;

impl VolumeGroup {
    /// Creates a linear or striped volume; returns its name.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub fn create(&mut self, new: &NewVolume, author: &mut Author<'_>) -> Result<String> {
        self.may_change()?;
        let name = self.new_name(new.name.as_deref())?;
        self.may_have_more(1)?;
        let segments = self.place(&new.wish)?;
        let lv = new_lv(&name, true, new, segments, author);
        self.add_lv(lv);
        Ok(name)
    }

    /// Creates a snapshot of `origin` with a store of the requested size; returns its name. The
    /// store is limited to the size that holds the whole origin.
    ///
    /// The first chunk of the new volume must be zeroed before the group is committed: this makes
    /// it an empty store.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub fn create_snapshot(
        &mut self,
        origin: &str,
        chunk: Sectors,
        new: &NewVolume,
        author: &mut Author<'_>,
    ) -> Result<String> {
        self.may_change()?;
        let name = self.new_name(new.name.as_deref())?;
        self.may_have_more(1)?;
        if !chunk.0.is_power_of_two() || !CHUNKS.contains(&chunk.0) {
            return Err(ChangeError::ChunkSize(chunk));
        }
        let of = self.find_unlocked(origin)?;
        let refuse = |why| Err(ChangeError::NotSo { name: origin.to_owned(), why });
        if self.snapshot_in(origin).is_some() {
            return refuse("snapshots of snapshots are not supported");
        }
        if self.snapshots_of(origin).any(|found| found.snapshot.merging) {
            return refuse("a snapshot is being merged into it: wait until that has ended");
        }
        if of.unsupported.is_some() || !is_plain(of) {
            return refuse("only linear and striped volumes can have snapshots");
        }
        if !self.is_seen(origin) {
            return refuse("it is a part of another volume");
        }
        let (size, extents) = (self.size(of), of.extents());
        let min = self.extents(Sectors(chunk.0 * 3)).unwrap_or(u32::MAX);
        if new.wish.extents < min {
            return Err(ChangeError::SnapshotTooSmall { chunk, min });
        }
        let mut wish = new.wish.clone();
        wish.extents = wish.extents.min(self.most_useful(size, chunk));
        let segments = self.place(&wish)?;
        let cow = new_lv(&name, false, new, segments, author);
        let snapshot = Snapshot {
            origin: origin.to_owned(),
            cow: name.clone(),
            chunk_size: chunk,
            merging: false,
        };
        let segment = Segment::new(0, extents, SegmentKind::Snapshot(snapshot));
        let ties = NewVolume { tags: Vec::new(), writable: true, ..new.clone() };
        let tie_name = self.free_name("snapshot");
        let tie = new_lv(&tie_name, true, &ties, vec![segment], author);
        // Users' volumes, including the stores of snapshots, come before the hidden snapshot volumes.
        let first_tie = self.lvs.iter().position(|lv| lv.segments.iter().any(ties_a_snapshot));
        self.lvs.insert(first_tie.unwrap_or(self.lvs.len()), cow.into());
        self.lvs.push(tie.into());
        Ok(name)
    }

    /// The extents of a store that can hold a whole origin of this size: its chunks, their
    /// metadata, a header, and one more area after the last full one.
    pub(crate) fn most_useful(&self, origin: Sectors, chunk: Sectors) -> u32 {
        let chunks = origin.0.div_ceil(chunk.0);
        let each_area = (chunk.bytes() / EXCEPTION_BYTES).max(1);
        let all = chunks + chunks.div_ceil(each_area) + 2;
        self.extents(Sectors(all.saturating_mul(chunk.0))).unwrap_or(u32::MAX)
    }

    /// Extends a volume, or the store of a snapshot; returns the number of added extents.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub fn grow(&mut self, name: &str, by: &Wish) -> Result<u32> {
        self.may_change()?;
        let lv = self.find_unlocked(name)?;
        let refuse = |why| Err(ChangeError::NotSo { name: name.to_owned(), why });
        if lv.unsupported.is_some() || !is_plain(lv) {
            return refuse("only linear and striped volumes, and snapshots, can be extended");
        }
        if self.snapshots_of(name).next().is_some() {
            return refuse("it has snapshots: an origin keeps its size");
        }
        let mut by = by.clone();
        if let Some(found) = self.snapshot_in(name) {
            if found.snapshot.merging {
                return refuse("it is being merged");
            }
            let origin = self.find(&found.snapshot.origin)?;
            let most = self.most_useful(self.size(origin), found.snapshot.chunk_size);
            by.extents = by.extents.min(most.saturating_sub(lv.extents()));
            if by.extents == 0 {
                return refuse("it has room for all of its origin already");
            }
        } else if !self.is_seen(name) {
            return refuse("it is a part of another volume");
        }
        if by.extents == 0 {
            return Err(ChangeError::Empty);
        }
        let segments = self.allocate(&by, lv.segments.last())?;
        let grown = self.lv_mut(name).map(|lv| {
            let before = lv.extents();
            lv.extend(segments);
            lv.extents() - before
        });
        Ok(grown.unwrap_or(0))
    }

    /// Reduces a volume to its first `extents`.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub fn shrink(&mut self, name: &str, extents: u32) -> Result<()> {
        self.may_change()?;
        let lv = self.find_unlocked(name)?;
        let refuse = |why| Err(ChangeError::NotSo { name: name.to_owned(), why });
        if lv.unsupported.is_some() || !is_plain(lv) {
            return refuse("only linear and striped volumes can be reduced");
        }
        if self.snapshot_in(name).is_some() {
            return refuse("the space of a snapshot cannot be reduced");
        }
        if self.snapshots_of(name).next().is_some() {
            return refuse("it has snapshots: an origin keeps its size");
        }
        if !self.is_seen(name) || self.users_of(name).next().is_some() {
            return refuse("it is a part of another volume");
        }
        if extents == 0 {
            return Err(ChangeError::Empty);
        }
        let rows =
            lv.segments.iter().find(|segment| (segment.start..segment.end()).contains(&extents));
        let stripes = rows.map_or(1, |segment| segment.areas().len().max(1));
        if rows.is_some_and(|rows| !((extents - rows.start) as usize).is_multiple_of(stripes)) {
            return refuse("its end would be within a row of stripes");
        }
        if let Some(lv) = self.lv_mut(name) {
            lv.truncate(extents);
        }
        Ok(())
    }

    /// Renames a volume.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub fn rename(&mut self, from: &str, to: &str) -> Result<()> {
        self.may_change()?;
        let lv = self.find_unlocked(from)?;
        let refuse = |why| Err(ChangeError::NotSo { name: from.to_owned(), why });
        if !self.is_seen(from) {
            return refuse("it is a part of another volume");
        }
        if lv.unsupported.is_some() || !is_plain(lv) {
            return refuse("only linear and striped volumes, and snapshots, can be renamed");
        }
        if self.is_made_into_others(from) {
            return refuse("other volumes are made of it");
        }
        if self.snapshots_of(from).any(|found| found.snapshot.merging) {
            return refuse("a snapshot is being merged into it: wait until that has ended");
        }
        let to = self.new_name(Some(to))?;
        let ties = self.lvs.iter_mut().filter(|lv| lv.segments.iter().any(ties_a_snapshot));
        for segment in ties.flat_map(|lv| &mut lv.segments) {
            if let SegmentKind::Snapshot(Snapshot { origin, cow, .. }) = &mut segment.kind {
                for name in [origin, cow].into_iter().filter(|name| *name == from) {
                    name.clone_from(&to);
                }
            }
        }
        if let Some(lv) = self.lv_mut(from) {
            lv.name = to;
        }
        Ok(())
    }

    /// Adds a physical volume.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub fn add_physical(&mut self, pv: PhysicalVolume) -> Result<()> {
        self.may_change()?;
        if self.max_pv != 0 && self.pvs.len() >= self.max_pv as usize {
            return Err(ChangeError::TooManyPhysical(self.max_pv));
        }
        self.pvs.push(pv);
        Ok(())
    }

    /// Removes the physical volume with this index, which no logical volume uses.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub fn remove_physical(&mut self, index: usize) -> Result<()> {
        self.may_change()?;
        if self.pvs.len() == 1 {
            return Err(ChangeError::LastPhysical(self.name.clone()));
        }
        let uses = |lv: &LogicalVolume| lv.pv_extents().any(|on| on.pv == index);
        if let Some(user) = self.lvs.iter().find(|lv| uses(lv)) {
            return Err(ChangeError::PhysicalInUse(user.name.clone()));
        }
        self.refuse_unknown_segments()?;
        self.pvs.remove(index);
        for segment in self.lvs.iter_mut().flat_map(|lv| &mut lv.segments) {
            for area in segment.areas_mut() {
                if let AreaVolume::Pv(at) = &mut area.on {
                    *at -= usize::from(*at > index);
                }
            }
        }
        Ok(())
    }

    /// Renames the group.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub fn rename_group(&mut self, to: &str) -> Result<()> {
        self.may_change()?;
        if !is_valid_name(to) {
            return Err(ChangeError::BadGroupName(to.to_owned()));
        }
        to.clone_into(&mut self.name);
        Ok(())
    }

    /// Removes a volume, with its snapshots; returns the names of all removed volumes. Removing a
    /// snapshot does not change its origin.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub fn remove(&mut self, name: &str) -> Result<Vec<String>> {
        self.may_change()?;
        let lv = self.find_unlocked(name)?;
        let refuse = |why| Err(ChangeError::NotSo { name: name.to_owned(), why });
        if !self.is_seen(name) {
            return refuse("it is a part of another volume");
        }
        if lv.unsupported.is_some() || !is_plain(lv) {
            return refuse("only linear and striped volumes, and snapshots, can be removed");
        }
        if self.snapshot_in(name).is_some_and(|found| found.snapshot.merging) {
            return refuse("it is being merged: data not merged yet would be lost");
        }
        let mut gone: Vec<String> = Vec::new();
        for found in self.snapshots_of(name) {
            if found.snapshot.merging {
                return refuse("a snapshot is being merged into it: wait until that has ended");
            }
            self.find_unlocked(&found.snapshot.cow)?;
            gone.push(found.snapshot.cow.clone());
        }
        if self.is_made_into_others(name) {
            return refuse("other volumes are made of it");
        }
        gone.push(name.to_owned());
        for cow in &gone {
            if let Some(tie) = self.snapshot_in(cow).map(|found| found.lv.name.clone()) {
                self.remove_lv(&tie);
            }
            self.remove_lv(cow);
        }
        Ok(gone)
    }

    /// Marks a snapshot as being merged into its origin: once this is committed, reads of the
    /// origin return the snapshot's data. Returns the name of the origin.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub fn start_merge(&mut self, name: &str) -> Result<String> {
        self.may_change()?;
        self.find_unlocked(name)?;
        let refuse = |why| Err(ChangeError::NotSo { name: name.to_owned(), why });
        let Some(found) = self.snapshot_in(name) else {
            return refuse("it is not a snapshot");
        };
        if found.snapshot.merging {
            return refuse("it is being merged already");
        }
        let (tie, origin) = (found.lv.name.clone(), found.snapshot.origin.clone());
        self.find_unlocked(&origin)?;
        if self.snapshots_of(&origin).any(|found| found.snapshot.merging) {
            return refuse("another snapshot is being merged into its origin: one at a time");
        }
        let segments = self.lv_mut(&tie).map(|lv| &mut lv.segments);
        for segment in segments.into_iter().flatten() {
            if let SegmentKind::Snapshot(snapshot) = &mut segment.kind {
                snapshot.merging = true;
            }
        }
        Ok(origin)
    }

    /// Removes the snapshot that was merged into `origin`, when nothing is left to merge; returns its name.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub fn finish_merge(&mut self, origin: &str) -> Result<String> {
        self.may_change()?;
        let merging = self.snapshots_of(origin).find(|found| found.snapshot.merging);
        let Some(found) = merging else {
            let why = "no snapshot is being merged into it";
            return Err(ChangeError::NotSo { name: origin.to_owned(), why });
        };
        let (tie, cow) = (found.lv.name.clone(), found.snapshot.cow.clone());
        self.remove_lv(&tie);
        self.remove_lv(&cow);
        Ok(cow)
    }

    pub(crate) fn may_change(&self) -> Result<()> {
        self.write_refusal().map_or(Ok(()), |why| Err(ChangeError::Refused(why)))
    }

    pub(crate) fn find(&self, name: &str) -> Result<&LogicalVolume> {
        let group = || self.name.clone();
        self.lv(name).ok_or_else(|| ChangeError::NotFound { name: name.to_owned(), group: group() })
    }

    /// A volume none of whose extents are being moved.
    fn find_unlocked(&self, name: &str) -> Result<&LogicalVolume> {
        let lv = self.find(name)?;
        match lv.flags.contains(&LvFlag::Locked) {
            true => Err(ChangeError::Locked(name.to_owned())),
            false => Ok(lv),
        }
    }

    /// Whether users see a volume with this name.
    fn is_seen(&self, name: &str) -> bool {
        self.lvs.iter().zip(self.visible()).any(|(lv, seen)| seen && lv.name == name)
    }

    /// Whether volumes are made of this one, other than its snapshots.
    fn is_made_into_others(&self, name: &str) -> bool {
        self.users_of(name).any(|user| !user.segments.iter().any(ties_a_snapshot))
    }

    fn may_have_more(&self, count: usize) -> Result<()> {
        let have = self.visible().into_iter().filter(|seen| *seen).count();
        if self.max_lv != 0 && have + count > self.max_lv as usize {
            return Err(ChangeError::TooMany(self.max_lv));
        }
        Ok(())
    }

    fn place(&self, wish: &Wish) -> Result<Vec<Segment>> {
        if wish.extents == 0 {
            return Err(ChangeError::Empty);
        }
        let mut segments = self.allocate(wish, None)?;
        let mut start = 0;
        for segment in &mut segments {
            segment.start = start;
            start += segment.count;
        }
        Ok(segments)
    }

    fn new_name(&self, name: Option<&str>) -> Result<String> {
        let Some(name) = name else { return Ok(self.free_name("lvol")) };
        if !is_valid_name(name) {
            return Err(ChangeError::BadName(name.to_owned()));
        }
        let reserved = RESERVED_STARTS.iter().any(|start| name.starts_with(start))
            || RESERVED_PARTS.iter().any(|part| name.contains(part));
        if reserved {
            return Err(ChangeError::ReservedName(name.to_owned()));
        }
        if self.lv(name).is_some() {
            return Err(ChangeError::Exists { name: name.to_owned(), group: self.name.clone() });
        }
        Ok(name.to_owned())
    }
}

/// Whether it is only on physical volumes, linear or striped.
fn is_plain(lv: &LogicalVolume) -> bool {
    lv.segments.iter().all(|segment| is_striped(segment) && segment.parts().is_empty())
}

/// Whether it is linear, striped, or without data.
pub(crate) fn is_striped(segment: &Segment) -> bool {
    match &segment.kind {
        SegmentKind::Striped(_) | SegmentKind::Error | SegmentKind::Zero => true,
        SegmentKind::Mirror(_)
        | SegmentKind::Raid(_)
        | SegmentKind::Snapshot(_)
        | SegmentKind::ThinPool(_)
        | SegmentKind::Thin(_)
        | SegmentKind::Foreign(_) => false,
    }
}

fn ties_a_snapshot(segment: &Segment) -> bool {
    matches!(segment.kind, SegmentKind::Snapshot(_))
}

fn new_lv(
    name: &str,
    visible: bool,
    new: &NewVolume,
    segments: Vec<Segment>,
    author: &mut Author<'_>,
) -> LogicalVolume {
    let mut lv = LogicalVolume::new(name, (author.new_uuid)(), visible, segments);
    lv.tags.clone_from(&new.tags);
    lv.creation = Some(author.creation.clone());
    if !new.writable {
        lv.flags.remove(&LvFlag::Write);
    }
    lv.allocation = match new.wish.policy {
        Policy::Contiguous => Some(crate::metadata::Allocation::Contiguous),
        Policy::Cling => Some(crate::metadata::Allocation::Cling),
        Policy::Normal => None,
    };
    lv
}
