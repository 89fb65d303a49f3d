//! A minimal array with a bitmap, of members with volatile caches: which version of the data is where,
//! what may be left after a power cut, and whether everything that may differ is marked. The oracle is
//! [`World::check`].

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ops::Range;

use ashlar_block::{BioResult, LocalFuture, Sector, Sectors, Status};
use ashlar_md::internals::bitmap::{Kind, State, Store};
use ashlar_sim::Rng;

use crate::bitmap::store::Signal;

/// Sectors of a chunk.
pub(crate) const CHUNK: u64 = 8;
/// Parts per chunk; a part is written atomically.
pub(crate) const SLOTS: u64 = 4;
const BLOCK: usize = 512;

/// A deliberate defect of the array.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Canary {
    None,
    /// Data is sent together with the mark.
    DataBeforeMark,
    /// A flush of the data succeeds but does nothing.
    FlushLies,
    /// A write of marks ends when the first member has it.
    FirstMemberIsEnough,
    /// A write that a member lacks is not reported.
    FailureForgotten,
}

/// One part of a chunk on one member.
#[derive(Clone, Copy, Default)]
struct Copy {
    durable: u64,
    cache: u64,
}

struct Member {
    area: Vec<u8>,
    slots: Vec<Copy>,
}

enum Op {
    /// Blocks of the bitmap, each still to be written on some members.
    Marks { offset: usize, bytes: Vec<u8>, left: Vec<(usize, usize)> },
    /// A version of some slots, still to be written on some members.
    Data { slots: Range<usize>, version: u64, left: Vec<usize> },
    /// Still to be flushed on some members.
    Flush { left: Vec<usize>, fails: bool },
}

/// What happened to a slot, for discards.
#[derive(Clone, Copy, Default)]
struct History {
    /// Whether the slot holds data that must be kept.
    holds_data: bool,
    in_flight: u32,
    begun: u32,
}

/// See the module text.
pub(crate) struct World {
    kind: Kind,
    canary: Canary,
    /// The chunks that are written: the array is too large for all.
    hot: Vec<u32>,
    state: RefCell<Data>,
    versions: Cell<u64>,
}

struct Data {
    rng: Rng,
    members: Vec<Member>,
    ops: Vec<(Op, Signal)>,
    history: Vec<History>,
}

impl World {
    pub(crate) fn new(kind: Kind, canary: Canary, hot: Vec<u32>, members: usize, rng: Rng) -> Self {
        let slots = hot.len() * SLOTS as usize;
        let members = (0..members)
            .map(|_| Member { area: vec![0; 16 << 10], slots: vec![Copy::default(); slots] })
            .collect();
        let history =
            vec![History { holds_data: kind == Kind::Classic, ..History::default() }; slots];
        let state = RefCell::new(Data { rng, members, ops: Vec::new(), history });
        Self { kind, canary, hot, state, versions: Cell::new(1) }
    }

    /// The bitmap on a member.
    pub(crate) fn area(&self, member: usize) -> Vec<u8> {
        self.state.borrow().members[member].area.clone()
    }

    pub(crate) fn members(&self) -> usize {
        self.state.borrow().members.len()
    }

    /// Writes a bitmap to all members, as creating an array does.
    pub(crate) fn create(&self, bytes: &[u8]) {
        for member in &mut self.state.borrow_mut().members {
            member.area[..bytes.len()].copy_from_slice(bytes);
        }
    }

    /// The sectors of slots in adjacent chunks.
    pub(crate) fn span(&self, slots: &Range<usize>) -> (Sector, Sectors) {
        let chunk = u64::from(self.hot[slots.start / SLOTS as usize]);
        let len = CHUNK / SLOTS;
        let start = chunk * CHUNK + slots.start as u64 % SLOTS * len;
        (Sector(start), Sectors(slots.len() as u64 * len))
    }

    /// A span of up to three adjacent chunks.
    pub(crate) fn random_slots(&self, rng: &mut Rng) -> Range<usize> {
        let start = rng.index(self.hot.len() * SLOTS as usize);
        let wanted = start + 1 + rng.index(3 * SLOTS as usize);
        let adjacent = |slot: usize| {
            let (a, b) = ((slot - 1) / SLOTS as usize, slot / SLOTS as usize);
            b < self.hot.len() && self.hot[b] - self.hot[a] <= 1
        };
        let end = (start + 1..wanted).find(|slot| !adjacent(*slot)).unwrap_or(wanted);
        start..end
    }

    fn submit(&self, op: Op) -> LocalFuture<'static, BioResult> {
        let signal = Signal::default();
        self.state.borrow_mut().ops.push((op, signal.clone()));
        Box::pin(signal.wait())
    }

    /// Writes a new version to all members except `skip`.
    pub(crate) async fn write_data(&self, slots: Range<usize>, skip: Option<usize>) -> BioResult {
        let version = self.versions.get() + 1;
        self.versions.set(version);
        let left = (0..self.members()).filter(|member| Some(*member) != skip).collect();
        for history in &mut self.state.borrow_mut().history[slots.clone()] {
            history.holds_data = true;
            history.in_flight += 1;
            history.begun += 1;
        }
        let done = self.submit(Op::Data { slots: slots.clone(), version, left }).await;
        for history in &mut self.state.borrow_mut().history[slots] {
            history.in_flight -= 1;
        }
        done
    }

    /// Discards on all members. With a lockless bitmap, chunks that it covers entirely no longer hold
    /// data, if they were not written meanwhile.
    pub(crate) async fn discard(&self, slots: Range<usize>) -> BioResult {
        let version = self.versions.get() + 1;
        self.versions.set(version);
        let before = self.state.borrow().history[slots.clone()].to_vec();
        let left = (0..self.members()).collect();
        self.submit(Op::Data { slots: slots.clone(), version, left }).await?;
        let whole = slots.start.next_multiple_of(SLOTS as usize)
            ..slots.end / SLOTS as usize * SLOTS as usize;
        let mut state = self.state.borrow_mut();
        for (slot, before) in slots.zip(before) {
            let history = &mut state.history[slot];
            let alone = before.in_flight == 0 && before.begun == history.begun;
            if self.kind == Kind::Lockless && whole.contains(&slot) && alone {
                history.holds_data = false;
            }
        }
        Ok(())
    }

    /// Whether writes to the chunk are in flight.
    pub(crate) fn is_busy(&self, chunk: u32) -> bool {
        let Some(index) = self.hot.iter().position(|hot| *hot == chunk) else { return false };
        let slots = index * SLOTS as usize..(index + 1) * SLOTS as usize;
        let overlaps = |other: &Range<usize>| other.start < slots.end && slots.start < other.end;
        let state = self.state.borrow();
        state.ops.iter().any(|(op, _)| matches!(op, Op::Data { slots, .. } if overlaps(slots)))
            || state.history[slots.clone()].iter().any(|history| history.in_flight != 0)
    }

    /// Copies a chunk from the first member to the others.
    pub(crate) fn sync(&self, chunk: u32) {
        let Some(index) = self.hot.iter().position(|hot| *hot == chunk) else { return };
        let mut state = self.state.borrow_mut();
        for slot in index * SLOTS as usize..(index + 1) * SLOTS as usize {
            let version = state.members[0].slots[slot].cache;
            for member in &mut state.members[1..] {
                member.slots[slot].cache = version;
            }
        }
    }

    /// One event in the members: a part of an operation, or data that becomes durable without a flush.
    pub(crate) fn step(&self) {
        let mut state = self.state.borrow_mut();
        let Data { rng, members, ops, .. } = &mut *state;
        if ops.is_empty() || rng.chance(1, 8) {
            let member = rng.index(members.len());
            let slot = rng.index(members[member].slots.len());
            let copy = &mut members[member].slots[slot];
            copy.durable = copy.cache;
            return;
        }
        let index = rng.index(ops.len());
        let (op, signal) = &mut ops[index];
        let early = self.canary == Canary::FirstMemberIsEnough;
        let result = advance(op, members, rng, self.canary);
        match result {
            Some(result) => {
                signal.end(result);
                ops.remove(index);
            }
            None if early
                && matches!(op, Op::Marks { left, .. } if left.iter().all(|(m, _)| *m != 0)) =>
            {
                signal.end(Ok(()));
            }
            None => {}
        }
    }

    /// Power fails: a random part of the data in flight and in caches becomes durable, the rest is lost.
    pub(crate) fn cut_power(&self) {
        let mut state = self.state.borrow_mut();
        let Data { rng, members, ops, history } = &mut *state;
        for (mut op, _) in std::mem::take(ops) {
            for _ in 0..rng.below(12) {
                advance(&mut op, members, rng, Canary::FlushLies);
            }
        }
        for copy in members.iter_mut().flat_map(|member| &mut member.slots) {
            if rng.chance(1, 2) {
                copy.durable = copy.cache;
            }
            copy.cache = copy.durable;
        }
        history.iter_mut().for_each(|history| history.in_flight = 0);
    }

    /// The oracle. On every member, with any part of the marks in flight: a chunk whose copies may differ
    /// after a power cut is marked, and a chunk that holds data is not unwritten.
    pub(crate) fn check(&self) -> Result<(), String> {
        for (index, chunk) in self.hot.iter().enumerate() {
            let slots = index * SLOTS as usize..(index + 1) * SLOTS as usize;
            let differs = slots.clone().any(|slot| self.may_differ(slot));
            let holds_data = slots.clone().any(|slot| self.state.borrow().history[slot].holds_data);
            for (member, byte) in self.marks(*chunk) {
                let marked = match self.kind {
                    Kind::Classic => byte >> (chunk % 8) & 1 == 1,
                    Kind::Lockless => State::from_byte(byte).is_marked(),
                };
                if differs && !marked {
                    return Err(format!("chunk {chunk} may differ, member {member} has no mark"));
                }
                if self.kind == Kind::Lockless && holds_data && byte == 0 {
                    return Err(format!(
                        "chunk {chunk} holds data, member {member} says unwritten"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Slots that hold data and differ between members.
    pub(crate) fn differing(&self) -> Vec<usize> {
        let state = self.state.borrow();
        let versions = |slot: usize| state.members.iter().map(move |m| m.slots[slot].cache);
        (0..state.history.len())
            .filter(|slot| state.history[*slot].holds_data)
            .filter(|slot| versions(*slot).collect::<BTreeSet<_>>().len() > 1)
            .collect()
    }

    fn may_differ(&self, slot: usize) -> bool {
        let state = self.state.borrow();
        let mut possible = BTreeSet::new();
        for (index, member) in state.members.iter().enumerate() {
            let copy = member.slots[slot];
            possible.extend([copy.durable, copy.cache]);
            for (op, _) in &state.ops {
                if let Op::Data { slots, version, left } = op {
                    let comes = slots.contains(&slot) && left.contains(&index);
                    possible.extend((comes && *version > copy.cache).then_some(*version));
                }
            }
        }
        state.history[slot].holds_data && possible.len() > 1
    }

    /// The bytes with a chunk's mark that each member may have.
    fn marks(&self, chunk: u32) -> Vec<(usize, u8)> {
        let at = match self.kind {
            Kind::Classic => 256 + chunk as usize / 8,
            Kind::Lockless => 1024 + chunk as usize,
        };
        let state = self.state.borrow();
        let mut bytes: Vec<(usize, u8)> =
            state.members.iter().map(|member| member.area[at]).enumerate().collect();
        for (op, _) in &state.ops {
            if let Op::Marks { offset, bytes: new, left } = op {
                let (start, block) = (*offset, at / BLOCK);
                let coming = left.iter().filter(|(_, left)| start / BLOCK + left == block);
                bytes.extend(coming.map(|(member, _)| (*member, new[at - start])));
            }
        }
        bytes
    }
}

/// Performs a part of an operation; returns its result once it is complete.
fn advance(
    op: &mut Op,
    members: &mut [Member],
    rng: &mut Rng,
    canary: Canary,
) -> Option<BioResult> {
    match op {
        Op::Marks { offset, bytes, left } => {
            if !left.is_empty() {
                let (member, block) = left.swap_remove(rng.index(left.len()));
                let (from, to) = (block * BLOCK, *offset + block * BLOCK);
                members[member].area[to..to + BLOCK].copy_from_slice(&bytes[from..from + BLOCK]);
            }
            left.is_empty().then_some(Ok(()))
        }
        Op::Data { slots, version, left } => {
            if !left.is_empty() {
                let member = left.swap_remove(rng.index(left.len()));
                for copy in &mut members[member].slots[slots.clone()] {
                    copy.cache = copy.cache.max(*version);
                }
            }
            left.is_empty().then_some(Ok(()))
        }
        Op::Flush { left, fails } => {
            if !left.is_empty() {
                let member = left.swap_remove(rng.index(left.len()));
                for copy in &mut members[member].slots {
                    if canary != Canary::FlushLies {
                        copy.durable = copy.cache;
                    }
                }
            }
            let result = if *fails { Err(Status::Io) } else { Ok(()) };
            (left.is_empty() || *fails).then_some(result)
        }
    }
}

impl Store for World {
    fn write<'a>(&'a self, offset: u64, bytes: &'a [u8]) -> LocalFuture<'a, BioResult> {
        let members = self.members();
        let mut state = self.state.borrow_mut();
        let Data { rng, members: media, ops, .. } = &mut *state;
        // Complete abandoned writes first, as the store's contract requires.
        ops.retain_mut(|(op, signal)| {
            let gone = matches!(op, Op::Marks { .. }) && signal.is_orphan();
            while gone && advance(op, media, rng, Canary::None).is_none() {}
            !gone
        });
        if rng.chance(1, 40) {
            // It fails, and has written an unknown part.
            let mut left = all_blocks(bytes, members);
            left.retain(|_| rng.chance(1, 2));
            let mut op = Op::Marks { offset: offset as usize, bytes: bytes.to_vec(), left };
            while advance(&mut op, media, rng, Canary::None).is_none() {}
            return Box::pin(std::future::ready(Err(Status::Io)));
        }
        let left = all_blocks(bytes, members);
        drop(state);
        self.submit(Op::Marks { offset: offset as usize, bytes: bytes.to_vec(), left })
    }

    fn flush_data(&self) -> LocalFuture<'_, BioResult> {
        let left = (0..self.members()).collect();
        let fails = self.state.borrow_mut().rng.chance(1, 20);
        self.submit(Op::Flush { left, fails })
    }
}

fn all_blocks(bytes: &[u8], members: usize) -> Vec<(usize, usize)> {
    (0..members).flat_map(|m| (0..bytes.len() / BLOCK).map(move |block| (m, block))).collect()
}
