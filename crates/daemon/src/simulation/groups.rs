//! A volume group on some of the disks: the data of its volumes, and the answers that the clients got about them.
//!
//! The description on the disks is read when a call has been answered. Its differences from the previous one must be what the
//! call asked for, or what the daemon does by itself, such as ending a merge. After a kill or a power cut, unanswered calls may
//! have taken effect or not.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use ashlar_block::{Flags, Sectors};
use ashlar_lvm::alloc::Wish;
use ashlar_lvm::change::{Author, NewVolume};
use ashlar_lvm::commit::{Member, commit};
use ashlar_lvm::format::{Layout, format_pv, write_label};
use ashlar_lvm::metadata::{Creation, Header};
use ashlar_lvm::{LogicalVolume, Metadata, Uuid as LvmId, VolumeGroup};
use ashlar_sim::oracle::Ticket;
use ashlar_sim::{Oracle, SimDisk, Value};
use ashlar_stack::volume_groups::new_member;

use super::disks::SimulatedDisk;
use super::world::World;

/// The sectors of an extent, and of each disk that metadata takes.
pub(super) const EXTENT: u64 = 32;
/// How disks become physical volumes: with little room for metadata.
pub(super) const LAYOUT: Layout = Layout {
    data_alignment: Sectors(8),
    metadata_copies: 1,
    metadata_size: Sectors(128),
    bootloader: Sectors(0),
};
/// The sectors at the start of a new volume that are zeroed.
const ZEROED: u64 = 8;

/// Whether a snapshot is merged into its origin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Merge {
    /// It is not.
    No,
    /// At the next activation.
    PutOff,
    /// The origin has the snapshot's data.
    Begun,
}

/// What is known of a snapshot's store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Validity {
    /// Or no snapshot.
    Valid,
    /// It was full, or could not be written.
    Invalid,
    /// It was invalid, and is not any more: its disk has not taken the record of that.
    Back,
}

/// A volume that users see.
pub(super) struct MadeVolume {
    pub(super) id: LvmId,
    pub(super) name: RefCell<String>,
    /// Its size in sectors; that of a snapshot is its origin's.
    pub(super) size: Cell<u64>,
    pub(super) oracle: RefCell<Oracle>,
    /// Whether its data is known.
    pub(super) is_known: Cell<bool>,
    /// What it is a snapshot of.
    pub(super) origin: Option<LvmId>,
    pub(super) merge: Cell<Merge>,
    pub(super) validity: Cell<Validity>,
    /// Whether its disk took the record that it is invalid. If it did not, the snapshot may be back after a restart, with data that
    /// are not its own, as with Linux (docs/internals/dm-snapshot.md).
    pub(super) is_recorded: Cell<bool>,
}

/// What a call asks for.
pub(super) enum Asked {
    Create {
        name: String,
    },
    Snapshot {
        name: String,
        of: Copying,
    },
    /// These have the name that the volume has when the change is made.
    Remove(String),
    Rename(String),
    Resize(String),
    Merge(String),
    NewGroup,
    RemoveGroup,
    /// What changes no volume.
    Other,
}

impl Asked {
    /// The copy that a snapshot called `name` would be.
    fn copying(&self, name: &str) -> Option<&Copying> {
        if let Self::Snapshot { name: new, of } = self { (new == name).then_some(of) } else { None }
    }
}

/// A copy of a volume, which is made at a moment from the call on.
pub(super) struct Copying {
    pub(super) volume: Rc<MadeVolume>,
    oracle: Oracle,
    ticket: Cell<Option<Ticket>>,
    copy: RefCell<Option<Oracle>>,
}

impl Copying {
    pub(super) fn of(volume: &Rc<MadeVolume>) -> Self {
        let oracle = volume.oracle.borrow().clone();
        let ticket = Cell::new(Some(oracle.begin_read(0..volume.size.get())));
        Self { volume: Rc::clone(volume), oracle, ticket, copy: RefCell::default() }
    }

    /// The copy was made by now, if it was made.
    fn end(&self) -> Oracle {
        let made = self.ticket.take().map(|ticket| self.oracle.copy_since(ticket));
        let mut copy = self.copy.borrow_mut();
        copy.get_or_insert_with(|| made.expect("a ticket, or the copy")).clone()
    }
}

/// See the module text.
pub(super) struct MadeGroup {
    pub(super) id: LvmId,
    seed: Cell<u64>,
    pub(super) volumes: RefCell<Vec<Rc<MadeVolume>>>,
    /// The groups on the disks at the last answer, and the numbers of their descriptions.
    answered: RefCell<BTreeMap<LvmId, u32>>,
    /// Calls under way, and those of which it is not known what they did.
    pub(super) pending: RefCell<Vec<Rc<Asked>>>,
    /// Whether the daemon changes the group no more, because it does not know which description is valid.
    pub(super) is_frozen: Cell<bool>,
    /// Whether a physical volume has misbehaved in this life.
    pub(super) had_trouble: Cell<bool>,
}

/// A number as an identity.
fn identity(number: u8) -> LvmId {
    LvmId::from_random([number; 32])
}

impl MadeGroup {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            id: identity(1),
            seed: Cell::new(seed ^ 0x6c76),
            volumes: RefCell::default(),
            answered: RefCell::default(),
            pending: RefCell::default(),
            is_frozen: Cell::new(false),
            had_trouble: Cell::new(false),
        }
    }

    /// No two volumes have the same data.
    fn new_seed(&self) -> u64 {
        self.seed.set(self.seed.get().wrapping_add(1 << 32));
        self.seed.get()
    }

    fn new_oracle(&self) -> Oracle {
        // What was on the extents before.
        let oracle = Oracle::new(self.new_seed(), Value::Anything);
        let zeroes = oracle.begin_write_zeroes(0..ZEROED, Flags::FUA);
        oracle.end(zeroes, Ok(()));
        oracle
    }

    /// It is not known what a call did, until the group is read again.
    pub(super) fn lose_track(&self, asked: &Asked) {
        if let Asked::Snapshot { of, .. } = asked {
            of.end();
        }
        // The daemon keeps merging, though the merge perhaps never began on the disks.
        if let Asked::Merge(name) = asked {
            let snapshot = self.called(name);
            let origin = snapshot.as_ref().and_then(|snapshot| snapshot.origin);
            for made in &*self.volumes.borrow() {
                let is_it = *made.name.borrow() == *name || Some(made.id) == origin;
                if is_it || snapshot.is_none() {
                    made.is_known.set(false);
                }
            }
        }
    }

    /// A life has ended: what was being copied then has no later changes.
    pub(super) fn end(&self) {
        for asked in &*self.pending.borrow() {
            if let Asked::Snapshot { of, .. } = &**asked {
                of.end();
            }
        }
        self.is_frozen.set(false);
        self.had_trouble.set(false);
    }

    /// The oracles of all volumes, and of snapshots that may have been made.
    pub(super) fn oracles(&self) -> Vec<Oracle> {
        let volumes = self.volumes.borrow();
        // The data of a merged one is its origin's.
        let volumes = volumes.iter().filter(|made| made.merge.get() != Merge::Begun);
        let mut all: Vec<Oracle> = volumes.map(|made| made.oracle.borrow().clone()).collect();
        for asked in &*self.pending.borrow() {
            if let Asked::Snapshot { of, .. } = &**asked {
                all.push(of.end());
            }
        }
        all
    }

    pub(super) fn called(&self, name: &str) -> Option<Rc<MadeVolume>> {
        self.volumes.borrow().iter().find(|made| *made.name.borrow() == name).cloned()
    }

    fn with_id(&self, id: LvmId) -> Option<Rc<MadeVolume>> {
        self.volumes.borrow().iter().find(|made| made.id == id).cloned()
    }

    /// From now on the origin has the data of a snapshot.
    pub(super) fn begin_merge(&self, snapshot: &MadeVolume) {
        if let Some(origin) = snapshot.origin.and_then(|id| self.with_id(id)) {
            let oracle = snapshot.oracle.borrow().clone();
            // What is beyond the snapshot's end is the origin's.
            let (from, to) = (snapshot.size.get(), origin.size.get());
            if from < to {
                let anything = oracle.begin_discard(from..to, Flags::FUA);
                oracle.end(anything, Ok(()));
            }
            *origin.oracle.borrow_mut() = oracle;
            // Of one that became invalid since nothing is merged, if that is on its disk.
            let is_valid = snapshot.validity.get() == Validity::Valid;
            origin.is_known.set(snapshot.is_known.get() && is_valid);
        }
        snapshot.merge.set(Merge::Begun);
    }

    /// Merges begin that were put off, of the volume called `name` or of all.
    pub(super) fn begin_put_off(&self, name: Option<&str>) {
        let volumes = self.volumes.borrow().clone();
        for made in volumes.iter().filter(|made| made.merge.get() == Merge::PutOff) {
            let origin = made.origin.and_then(|id| self.with_id(id));
            let is_it = |made: &MadeVolume| name.is_none_or(|name| *made.name.borrow() == name);
            if is_it(made) || origin.is_some_and(|origin| is_it(&origin)) {
                self.begin_merge(made);
            }
        }
    }

    /// The description is `vg` now, after these calls.
    fn follow(&self, vg: &VolumeGroup, asked: &[Rc<Asked>]) {
        let volumes = self.volumes.borrow().clone();
        let is_asked = |is: &dyn Fn(&Asked) -> bool| asked.iter().any(|asked| is(asked));
        for made in &volumes {
            let (name, id) = (made.name.borrow().clone(), made.id);
            let merges = is_asked(&|asked| matches!(asked, Asked::Merge(it) if *it == name));
            let Some(lv) = vg.lvs.iter().find(|lv| lv.id == id) else {
                let origin_of =
                    |made: &MadeVolume| volumes.iter().find(|other| Some(other.id) == made.origin);
                let origin = origin_of(made).map(|origin| origin.name.borrow().clone());
                let removed = is_asked(
                    &|asked| matches!(asked, Asked::Remove(it) if *it == name || Some(it) == origin.as_ref()),
                );
                let is_merged = made.merge.get() == Merge::Begun || merges;
                assert!(removed || is_merged, "{name} is gone, which nobody asked for");
                if !removed && made.merge.get() != Merge::Begun {
                    self.begin_merge(made);
                } else if merges && removed {
                    // Two calls had no answer: it is not known which of them was made.
                    let origin = origin_of(made);
                    origin.into_iter().for_each(|origin| origin.is_known.set(false));
                }
                self.volumes.borrow_mut().retain(|other| other.id != id);
                continue;
            };
            if lv.name != name {
                let renamed = is_asked(&|asked| matches!(asked, Asked::Rename(it) if *it == name));
                assert!(renamed, "{name} is called {}, which nobody asked for", lv.name);
                made.name.replace(lv.name.clone());
            }
            if made.origin.is_none() {
                self.follow_size(made, vg.size(lv).0, asked);
            }
        }
        for found in vg.snapshots().filter(|found| found.snapshot.merging) {
            let Some(made) = self.called(&found.snapshot.cow) else { continue };
            let store = &found.snapshot.cow;
            let merges = is_asked(&|asked| matches!(asked, Asked::Merge(it) if it == store));
            let is_known = merges || made.merge.get() != Merge::No;
            assert!(is_known, "{} is merged, which nobody asked for", made.name.borrow());
        }
        let hidden = |lv: &LogicalVolume| {
            let moves = vg.moves().any(|moving| moving.name() == lv.name);
            moves || vg.snapshots().any(|found| found.lv.id == lv.id)
        };
        for lv in vg.lvs.iter().filter(|lv| !hidden(lv)) {
            if self.with_id(lv.id).is_none() {
                let made = self.new_volume(vg, lv, asked);
                self.volumes.borrow_mut().push(Rc::new(made));
            }
        }
    }

    fn follow_size(&self, made: &MadeVolume, now: u64, asked: &[Rc<Asked>]) {
        let before = made.size.replace(now);
        if before == now {
            return;
        }
        let name = made.name.borrow().clone();
        let is_resize = |asked: &Rc<Asked>| matches!(&**asked, Asked::Resize(it) if *it == name);
        assert!(asked.iter().any(is_resize), "{name} has another size, which nobody asked for");
        // Its new extents have what another volume left there.
        let oracle = made.oracle.borrow();
        let anything = oracle.begin_discard(now.min(before)..now.max(before), Flags::FUA);
        oracle.end(anything, Ok(()));
    }

    fn new_volume(&self, vg: &VolumeGroup, lv: &LogicalVolume, asked: &[Rc<Asked>]) -> MadeVolume {
        let (id, name) = (lv.id, RefCell::new(lv.name.clone()));
        let (merge, validity) = (Cell::new(Merge::No), Cell::new(Validity::Valid));
        let is_recorded = Cell::new(true);
        if let Some(found) = vg.snapshot_in(&lv.name) {
            let of = asked.iter().find_map(|asked| asked.copying(&lv.name));
            let of = of.unwrap_or_else(|| panic!("a snapshot {} that nobody asked for", lv.name));
            let origin = vg.lv(&found.snapshot.origin).map(|lv| lv.id);
            let copy = of.end();
            // Another volume may have had that name when it was asked for.
            let is_same =
                origin == Some(of.volume.id) && of.oracle.is_same(&of.volume.oracle.borrow());
            let is_known = Cell::new(is_same && of.volume.is_known.get());
            let size = origin.and_then(|id| self.with_id(id)).map_or(0, |it| it.size.get());
            let (size, oracle) = (Cell::new(size), RefCell::new(copy));
            return MadeVolume {
                id,
                name,
                size,
                oracle,
                is_known,
                origin,
                merge,
                validity,
                is_recorded,
            };
        }
        let is_it =
            |asked: &Rc<Asked>| matches!(&**asked, Asked::Create { name } if *name == lv.name);
        assert!(asked.iter().any(is_it), "a volume {} that nobody asked for", lv.name);
        let (size, oracle) = (Cell::new(vg.size(lv).0), RefCell::new(self.new_oracle()));
        let is_known = Cell::new(true);
        MadeVolume { id, name, size, oracle, is_known, origin: None, merge, validity, is_recorded }
    }
}

/// Each extent has one user, and the sum fits.
fn check_extents(vg: &VolumeGroup) {
    let mut used = vec![std::collections::BTreeSet::new(); vg.pvs.len()];
    for lv in &vg.lvs {
        for on in lv.pv_extents() {
            for extent in on.start..on.start + on.count {
                assert!(extent < vg.pvs[on.pv].pe_count, "{}: extent {extent}", lv.name);
                assert!(used[on.pv].insert(extent), "{}: extent {extent} is used twice", lv.name);
            }
        }
    }
    let used: usize = used.iter().map(std::collections::BTreeSet::len).sum();
    let all: u64 = vg.pvs.iter().map(|pv| u64::from(pv.pe_count)).sum();
    assert_eq!(used as u64 + vg.free_extents(), all, "extents of {}", vg.name);
}

impl World {
    /// Makes the group, with two volumes.
    pub(super) async fn make_group(&self, disks: &[usize]) {
        let mut vg = VolumeGroup::new("vg", self.group.id, Sectors(EXTENT));
        let mut members = Vec::new();
        for (number, at) in (10..).zip(disks) {
            let disk = &self.disks[*at];
            let gateway = SimDisk::over(disk.name(), disk.media.clone()).gateway();
            let mut pv = format_pv(&gateway, identity(number), &LAYOUT).await.expect("a disk");
            let member = new_member(&disk.path, &pv.label, vg.extent_size).expect("room");
            vg.add_physical(member).expect("a member");
            pv.label.set_used(true);
            write_label(&gateway, &pv).await.expect("a label");
            members.push((gateway, pv));
        }
        let creation = Creation { time: 1_700_000_000, host: "sim".to_owned() };
        let mut ids = (20..).map(identity);
        let mut new_uuid = || ids.next().expect("a number");
        let mut author = Author { creation, new_uuid: &mut new_uuid };
        for (name, stripes) in [("a", 1), ("b", 2)] {
            let extents = self.draw(|rng| 2 * (1 + rng.below(2) as u32));
            let wish = Wish::striped(extents, stripes, Sectors(8));
            let (name, tags) = (Some(name.to_owned()), Vec::new());
            let new = NewVolume { name, wish, tags, writable: true };
            let name = vg.create(&new, &mut author).expect("a volume");
            let lv = vg.lv(&name).expect("the new volume");
            let made = MadeVolume {
                id: lv.id,
                size: Cell::new(vg.size(lv).0),
                name: RefCell::new(name),
                oracle: RefCell::new(Oracle::new(self.group.new_seed(), Value::Zeroes)),
                is_known: Cell::new(true),
                origin: None,
                merge: Cell::new(Merge::No),
                validity: Cell::new(Validity::Valid),
                is_recorded: Cell::new(true),
            };
            self.group.volumes.borrow_mut().push(Rc::new(made));
        }
        vg.seqno = 1;
        let metadata = Metadata::new(vg, Header::default());
        let mut writing: Vec<Member<'_>> =
            members.iter_mut().map(|(gateway, pv)| Member { gateway, pv }).collect();
        commit(&mut writing, &metadata).await.expect("a group");
        self.group.answered.borrow_mut().insert(self.group.id, 1);
    }

    /// The newest description of each group on the disks.
    pub(super) fn descriptions(&self) -> BTreeMap<LvmId, Metadata> {
        let mut found: BTreeMap<LvmId, Metadata> = BTreeMap::new();
        let mut seen: Vec<Vec<u8>> = Vec::new();
        for disk in &self.disks {
            let Some(text) = disk.physical().and_then(|physical| physical.text) else { continue };
            if seen.contains(&text) {
                continue;
            }
            let metadata = Metadata::parse(&text);
            let metadata = metadata.unwrap_or_else(|why| panic!("{}: {why}", disk.path));
            seen.push(text);
            let is_newer = |old: &Metadata| old.group.seqno < metadata.group.seqno;
            if found.get(&metadata.group.id).is_none_or(is_newer) {
                found.insert(metadata.group.id, metadata);
            }
        }
        found
    }

    /// Whether a group has the physical volume on a disk.
    pub(super) fn is_listed(&self, disk: &SimulatedDisk) -> bool {
        let Some(physical) = disk.physical() else { return false };
        let all = self.descriptions();
        all.values().any(|text| text.group.pv_index(&physical.uuid).is_some())
    }

    /// The number of the group's description on the disks.
    pub(super) fn seqno(&self) -> u32 {
        self.descriptions().get(&self.group.id).map_or(0, |text| text.group.seqno)
    }

    /// These calls were answered, or had begun when the daemon ended: what the disks say now must be explained by them.
    pub(super) fn follow_groups(&self, asked: &[Rc<Asked>]) {
        let found = self.descriptions();
        let mut answered = self.group.answered.borrow_mut();
        let pending = self.group.pending.borrow().clone();
        let all: Vec<&Rc<Asked>> = asked.iter().chain(&pending).collect();
        let is_asked = |is: fn(&Asked) -> bool| all.iter().any(|asked| is(asked));
        for (id, seqno) in &*answered {
            match found.get(id) {
                Some(text) => {
                    let (name, now) = (&text.group.name, text.group.seqno);
                    assert!(now >= *seqno, "{name} was at {seqno}, and is at {now}");
                }
                None => {
                    let removed = is_asked(|asked| matches!(asked, Asked::RemoveGroup));
                    assert!(removed && *id != self.group.id, "a group is gone");
                }
            }
        }
        for (id, text) in &found {
            let is_new = !answered.contains_key(id);
            let made = is_asked(|asked| matches!(asked, Asked::NewGroup));
            assert!(!is_new || made, "there is a group {} again", text.group.name);
            check_extents(&text.group);
        }
        self.group.follow(&found[&self.group.id].group, asked);
        *answered = found.iter().map(|(id, text)| (*id, text.group.seqno)).collect();
    }
}
