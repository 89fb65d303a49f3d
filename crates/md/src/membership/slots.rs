//! The members of a running array and their slots.
//!
//! Members are added and removed during I/O. The I/O path reads them without a lock and without
//! reference counts: a member that was ever part of the array stays in the table until the array is
//! dropped, so a reference to it is valid as long as the array. Only an index in each
//! slot changes, and I/O reads it with one load. A removed member is marked `REMOVED` and, like any other failed
//! member, receives no I/O.
//!
//! A device that comes and goes, such as one on a network, has a new membership each time, and the table must not grow with that. So a membership
//! that has ended is used again for the same device, once no I/O knows it: it is in no slot, and after that the barrier was
//! closed for a moment and nothing was inside ([`Former`]). I/O that began later cannot find it. Two memberships of a device in a row
//! never have one index: its last one is not used again. What does not pass the barrier, such as a flush or a probe, can fail a later membership of
//! the same device for an error of an earlier one, but only if it takes longer than a whole membership in between.
//!
//! A device has one membership: the table refuses a second one of the same disk, of the same identity or with the same number, until the
//! first one is removed. Otherwise superblocks, which know members by their numbers, would record the state of one of them as that of the
//! other.
//!
//! Slots change only under the superblocks' lock. A write that began before a member entered
//! its slot does not go to it; recovery copies its data later, because it raises the barrier, which
//! waits for writes in flight. So I/O must read the slots *after* it passed the barrier.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};

use ashlar_block::Gateway;

use crate::membership::rdev::{Rdev, State};
use crate::membership::read_errors;
use crate::ondisk::fields::MAX_ROLES;

/// Index of a membership in the table; it never changes, and stands for the same device as long as the array lives.
pub type Index = u32;

const NOBODY: Index = Index::MAX;

/// A membership that has ended. It may be used again if I/O was drained after this was made, and it was not used meanwhile.
#[derive(Clone, Copy)]
pub(crate) struct Former {
    index: Index,
    began: u64,
}

/// Where a member is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// In a slot: it holds the slot's data or is being rebuilt.
    Slot(usize),
    /// In a slot beside the member that it will replace.
    Replacement(usize),
    /// In no slot.
    Spare,
}

/// The member and the replacement of a slot. Both are in one word, so that a thread that reads it
/// while a replacement becomes the member finds it in one place or the other.
struct Slot(AtomicU64);

impl Slot {
    const fn new() -> Self {
        Self(AtomicU64::new(Self::word([NOBODY; 2])))
    }

    const fn word([member, replacement]: [Index; 2]) -> u64 {
        member as u64 | (replacement as u64) << 32
    }

    /// The member and the replacement.
    #[inline]
    fn load(&self) -> [Index; 2] {
        let word = self.0.load(SeqCst);
        [word as u32, (word >> 32) as u32]
    }

    /// Called only under the superblocks' lock, so no other thread changes it meanwhile.
    fn change(&self, change: impl FnOnce(&mut [Index; 2])) {
        let mut indices = self.load();
        change(&mut indices);
        self.0.store(Self::word(indices), SeqCst);
    }
}

/// See the module text.
pub struct Members {
    table: boxcar::Vec<Rdev>,
    /// The memberships that have begun.
    begun: AtomicU64,
    /// As many as an array can ever have, so that they stay in place when the array grows.
    slots: Box<[Slot]>,
    count: AtomicUsize,
    /// Counts the data that members lack although they stay in the array.
    lacking: AtomicU64,
    max_read_errors: AtomicU32,
    read_hedge_us: AtomicU32,
}

impl Members {
    /// Members of an array with this many slots.
    pub(crate) fn new(slots: usize, members: impl IntoIterator<Item = (Rdev, Place)>) -> Self {
        let this = Self {
            table: boxcar::Vec::new(),
            begun: AtomicU64::new(0),
            slots: std::iter::repeat_with(Slot::new).take(slots.max(MAX_ROLES)).collect(),
            count: AtomicUsize::new(slots),
            lacking: AtomicU64::new(0),
            max_read_errors: read_errors::DEFAULT_MAX.into(),
            read_hedge_us: AtomicU32::new(0),
        };
        // The assembly has checked that no number occurs twice.
        for (rdev, place) in members {
            rdev.set_began(this.begun.fetch_add(1, SeqCst));
            this.enter(rdev, place);
        }
        this
    }

    /// Number of slots.
    #[inline]
    pub fn slots(&self) -> usize {
        self.count.load(SeqCst)
    }

    /// Sets the number of slots, at most the number of roles of a superblock. Removed slots must be
    /// empty. No I/O may be in flight: the array is frozen.
    pub(crate) fn set_slots(&self, count: usize) {
        self.count.store(count.min(self.slots.len()), SeqCst);
    }

    #[inline]
    fn slot(&self, slot: usize) -> Option<&Slot> {
        self.slots.get(..self.slots())?.get(slot)
    }

    /// Adds a member, in place of `former` if I/O was drained since that was found; returns its index, or `None` if the device is a member
    /// already. The superblocks are locked.
    #[must_use = "a device that is a member already is not added"]
    pub(crate) fn add(&self, rdev: Rdev, former: Option<Former>, place: Place) -> Option<Index> {
        if self.iter().any(|(_, other)| is_double(&rdev, other)) {
            return None;
        }
        rdev.set_began(self.begun.fetch_add(1, SeqCst));
        match former.and_then(|former| self.renewable(former, &rdev)) {
            Some((index, old)) => {
                old.renew(rdev);
                self.put(index, place);
                Some(index)
            }
            None => Some(self.enter(rdev, place)),
        }
    }

    /// A membership that can be used again as `next`, if no other change has used it meanwhile.
    fn renewable(&self, former: Former, next: &Rdev) -> Option<(Index, &Rdev)> {
        let Former { index, began } = former;
        let old = self.get(index)?;
        let is_free = old.began() == began && self.has_ended(index, old);
        (is_free && old.may_become(next)).then_some((index, old))
    }

    fn enter(&self, rdev: Rdev, place: Place) -> Index {
        let index = self.table.push(rdev) as Index;
        self.put(index, place);
        index
    }

    /// A membership of this device that has ended, and is not its last one.
    pub(crate) fn former(&self, gateway: &Gateway) -> Option<Former> {
        let own = || {
            let all = self.table.iter().map(|(index, rdev)| (index as Index, rdev));
            all.filter(|(_, rdev)| rdev.gateway().is_same(gateway))
        };
        let last = own().map(|(_, rdev)| rdev.began()).max()?;
        let is_former =
            |(index, rdev): &(Index, &Rdev)| rdev.began() < last && self.has_ended(*index, rdev);
        let (index, rdev) = own().find(is_former)?;
        Some(Former { index, began: rdev.began() })
    }

    fn has_ended(&self, index: Index, rdev: &Rdev) -> bool {
        rdev.is_removed() && self.place(index) == Place::Spare
    }

    /// The length of the table: members, and memberships that have ended.
    pub fn memberships(&self) -> usize {
        self.table.count()
    }

    /// Puts a member into a place; the slot must be free.
    pub(crate) fn put(&self, index: Index, place: Place) {
        match place {
            Place::Slot(slot) => self.slots[slot].change(|indices| indices[0] = index),
            Place::Replacement(slot) => self.slots[slot].change(|indices| indices[1] = index),
            Place::Spare => {}
        }
    }

    /// Takes a member out of its place.
    pub(crate) fn take_out(&self, index: Index) {
        self.put(NOBODY, self.place(index));
    }

    /// Makes the replacement in `slot` its member.
    pub(crate) fn promote(&self, slot: usize) {
        self.slots[slot].change(|indices| *indices = [indices[1], NOBODY]);
    }

    /// The member with an index.
    #[inline]
    pub fn get(&self, index: Index) -> Option<&Rdev> {
        self.table.get(index as usize)
    }

    /// The member in `slot`, in any state.
    #[inline]
    pub fn member(&self, slot: usize) -> Option<&Rdev> {
        self.indexed(self.slot(slot)?.load()[0]).map(|(_, rdev)| rdev)
    }

    /// The replacement in `slot`, in any state.
    #[inline]
    pub fn replacement(&self, slot: usize) -> Option<&Rdev> {
        self.indexed(self.slot(slot)?.load()[1]).map(|(_, rdev)| rdev)
    }

    /// Whether the copies in `slot` rank after all others where copies may differ: the member is
    /// write-mostly, and with write-behind it may be behind. Its replacement ranks like the member.
    pub fn counts_last(&self, slot: usize) -> bool {
        self.member(slot).or_else(|| self.replacement(slot)).is_some_and(Rdev::is_write_mostly)
    }

    /// The member and the replacement in `slot`, with their indices.
    #[inline]
    pub fn both(&self, slot: usize) -> impl Iterator<Item = (Index, &Rdev)> {
        let indices = self.slot(slot).map(Slot::load);
        indices.into_iter().flatten().filter_map(|index| self.indexed(index))
    }

    #[inline]
    fn indexed(&self, index: Index) -> Option<(Index, &Rdev)> {
        if index == NOBODY {
            return None;
        }
        Some((index, self.get(index)?))
    }

    /// All members that were not removed, with their indices.
    pub fn iter(&self) -> impl Iterator<Item = (Index, &Rdev)> {
        let all = self.table.iter().map(|(index, rdev)| (index as Index, rdev));
        all.filter(|(_, rdev)| !rdev.is_removed())
    }

    /// All members in some slot.
    pub fn placed(&self) -> impl Iterator<Item = (Index, &Rdev)> {
        (0..self.slots()).flat_map(|slot| self.both(slot))
    }

    /// Whether other hosts can write a member, and no lock keeps them away.
    pub(crate) fn are_shared(&self) -> bool {
        self.placed().any(|(_, rdev)| !rdev.is_faulty() && rdev.gateway().disk().is_shared())
    }

    /// Where a member is.
    pub fn place(&self, index: Index) -> Place {
        for (number, slot) in self.slots.iter().take(self.slots()).enumerate() {
            let [member, replacement] = slot.load();
            if member == index {
                return Place::Slot(number);
            }
            if replacement == index {
                return Place::Replacement(number);
            }
        }
        Place::Spare
    }

    /// The member or replacement in `slot` that is in sync.
    #[inline]
    pub fn in_sync(&self, slot: usize) -> Option<&Rdev> {
        self.both(slot).map(|(_, rdev)| rdev).find(|rdev| rdev.is_in_sync())
    }

    /// Number of slots without a member or replacement in sync.
    pub fn degraded(&self) -> usize {
        (0..self.slots()).filter(|slot| self.in_sync(*slot).is_none()).count()
    }

    /// The members to be rebuilt: members and replacements in slots that have not failed and are not in
    /// sync, and in-sync replacements that have not taken the slot yet.
    pub(crate) fn to_rebuild(&self) -> impl Iterator<Item = (Index, &Rdev, Place)> {
        let placed = self.placed().map(|(index, rdev)| (index, rdev, self.place(index)));
        placed.filter(|(_, rdev, place)| match place {
            Place::Slot(_) => !rdev.is_in_sync() && !rdev.is_faulty(),
            Place::Replacement(_) => !rdev.is_faulty(),
            Place::Spare => false,
        })
    }

    /// Spares that can be put into a slot.
    pub fn spares(&self) -> impl Iterator<Item = (Index, &Rdev)> {
        let able = |rdev: &Rdev| !rdev.state().intersects(State::FAULTY | State::REMOVED);
        self.iter().filter(move |(index, rdev)| able(rdev) && self.place(*index) == Place::Spare)
    }

    /// Counts data that a member lacks although it stays. Called before the write ends.
    pub(crate) fn count_lacking(&self) {
        self.lacking.fetch_add(1, SeqCst);
    }

    /// How often a member that must stay missed data that others may have.
    pub(crate) fn lacking(&self) -> u64 {
        self.lacking.load(SeqCst)
    }

    /// Read errors that a member may have within about an hour (the kernel's `max_read_errors`).
    pub fn max_read_errors(&self) -> u32 {
        self.max_read_errors.load(SeqCst)
    }

    /// Sets how many read errors a member may have.
    pub fn set_max_read_errors(&self, max: u32) {
        self.max_read_errors.store(max, SeqCst);
    }

    /// Microseconds after which a read that a member has not answered is also made from another copy; zero for never.
    #[inline]
    pub fn read_hedge_us(&self) -> u32 {
        self.read_hedge_us.load(Relaxed)
    }

    /// Sets [`Self::read_hedge_us`].
    pub fn set_read_hedge_us(&self, bound_us: u32) {
        self.read_hedge_us.store(bound_us, Relaxed);
    }
}

/// Whether two memberships are of one device, or the superblocks cannot tell them apart.
fn is_double(one: &Rdev, other: &Rdev) -> bool {
    let is_same_device = !one.device_uuid().is_nil() && one.device_uuid() == other.device_uuid();
    one.number() == other.number() || is_same_device || one.is_on(other.gateway().disk())
}
