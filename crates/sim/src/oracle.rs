//! The oracle: records every write that was submitted, acknowledged and made durable, and so knows
//! what a read may return.
//!
//! Every sector that a test writes holds a **stamp**: its address, a generation, and bytes computed
//! from both and the seed. So a sector that was read identifies the write that it comes from.
//!
//! The rules, for one sector. A write that succeeded **supersedes** every write that had ended
//! before it was submitted. A read may return any write that was submitted before the read ended
//! and was not superseded when the read began. A write is **durable** if it was acknowledged with
//! FUA, or if a flush that was submitted after its acknowledgement succeeded. After a power cut, the
//! sector may hold any write that no *durable* write supersedes; the first read shows which one, and
//! from then on it stays. A write that failed may have happened or not; it supersedes nothing. A
//! discard writes "anything".
//!
//! A device that **reports losses** ([`Oracle::expect_losses`]) fails the next flush of each of its users, and says with that
//! that writes which it had acknowledged, and not made durable, may be lost. They then count as writes that failed, and so do
//! those that were acknowledged before the loss but end after it: the data may be old or new until a later write supersedes both. What was
//! durable stays so.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use ashlar_block::{BioResult, Flags};
use thiserror::Error;

use crate::rng::mix;
use crate::store::SectorData;

/// What a sector holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Value {
    /// Unknown or undefined.
    Anything,
    /// Zeroes.
    Zeroes,
    /// The stamp of this generation.
    Stamp(u64),
}

/// A read that returned data that is not allowed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("sector {sector} holds {found}, allowed: {allowed:?}")]
pub struct Violation {
    /// The sector.
    pub sector: u64,
    /// What was found.
    pub found: String,
    /// What would have been allowed.
    pub allowed: Vec<Value>,
}

/// Position in the order of all beginnings and ends of I/Os.
type Moment = u64;

/// A write to one sector.
#[derive(Clone, Debug)]
struct Version {
    write: u64,
    value: Value,
    submitted: Moment,
    ended: Option<Moment>,
    ok: bool,
    /// Acknowledged as durable without a flush.
    fua: bool,
    /// When the first write that supersedes it was acknowledged.
    superseded: Option<Moment>,
    /// Whether the first read after a crash decides if this write is there.
    undecided: Uncertainty,
}

/// Whether a read must still show which of several writes is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Uncertainty {
    No,
    /// The process was killed: writes not seen may still be the durable ones.
    AfterKill,
    /// The power failed: writes not seen are lost.
    AfterCut,
}

enum Kind {
    Change { range: Range<u64> },
    Flush,
    Read { range: Range<u64> },
}

/// An I/O that has begun.
#[must_use = "the oracle must be told how the I/O ended"]
pub struct Ticket {
    id: u64,
    kind: Kind,
    flags: Flags,
    submitted: Moment,
    /// The losses that the device had reported.
    losses: u64,
}

struct State {
    seed: u64,
    initial: Value,
    moment: Moment,
    /// The last generation; copies of a device count on together.
    ids: Rc<Cell<u64>>,
    /// Everything acknowledged before this is durable.
    durable_before: Moment,
    sectors: BTreeMap<u64, Vec<Version>>,
    /// Number of reads in flight by the moment of their beginning.
    reading: BTreeMap<Moment, usize>,
    /// How many losses the device reports, if it may.
    reported: Option<Box<dyn Fn() -> u64>>,
    /// How many of them are taken into account.
    losses: u64,
}

/// The oracle; clones share its state.
#[derive(Clone)]
pub struct Oracle {
    state: Rc<RefCell<State>>,
}

/// The stamp of `generation` for `sector`.
pub fn stamp(seed: u64, sector: u64, generation: u64) -> SectorData {
    let mut data = [0; 512];
    let mut word = mix(seed ^ mix(sector ^ mix(generation)));
    for chunk in data.chunks_exact_mut(8) {
        word = mix(word.wrapping_add(0x9e37_79b9_7f4a_7c15));
        chunk.copy_from_slice(&word.to_le_bytes());
    }
    data[..8].copy_from_slice(&sector.to_le_bytes());
    data[8..16].copy_from_slice(&generation.to_le_bytes());
    data
}

impl State {
    fn tick(&mut self) -> Moment {
        self.moment += 1;
        self.moment
    }

    fn versions(&mut self, sector: u64) -> &mut Vec<Version> {
        let initial = self.initial;
        self.sectors.entry(sector).or_insert_with(|| {
            vec![Version {
                write: 0,
                value: initial,
                submitted: 0,
                ended: Some(0),
                ok: true,
                fua: true,
                superseded: None,
                undecided: Uncertainty::No,
            }]
        })
    }

    fn begin_change(&mut self, range: Range<u64>, value: Value) -> (u64, Moment) {
        let write = self.ids.get() + 1;
        self.ids.set(write);
        let submitted = self.tick();
        for sector in range {
            self.versions(sector).push(Version {
                write,
                value,
                submitted,
                ended: None,
                ok: false,
                fua: false,
                superseded: None,
                undecided: Uncertainty::No,
            });
        }
        (write, submitted)
    }

    fn end_change(&mut self, range: Range<u64>, id: u64, ok: bool, fua: bool) {
        let now = self.tick();
        let oldest_read = self.reading.first_key_value().map_or(now, |(moment, _)| *moment);
        let durable_before = self.durable_before;
        for sector in range {
            let versions = self.versions(sector);
            let Some(this) = versions.iter_mut().find(|v| v.write == id) else { continue };
            (this.ended, this.ok, this.fua) = (Some(now), ok, ok && fua);
            let submitted = this.submitted;
            if !ok {
                continue;
            }
            for older in versions.iter_mut() {
                if older.ended.is_some_and(|ended| ended < submitted) {
                    older.superseded.get_or_insert(now);
                }
            }
            forget(versions, durable_before, oldest_read);
        }
    }

    /// Takes into account what the device reports.
    fn look_for_losses(&mut self) {
        let reported = self.reported.as_ref().map_or(self.losses, |reported| reported());
        if reported == self.losses {
            return;
        }
        self.losses = reported;
        let durable_before = self.durable_before;
        for versions in self.sectors.values_mut() {
            lose(versions, durable_before);
        }
    }

    /// What a read that began at `began` may return for `sector`.
    fn allowed(&mut self, sector: u64, began: Moment) -> Vec<Value> {
        let versions = self.versions(sector);
        versions.iter().filter(|v| v.is_readable(began)).map(|v| v.value).collect()
    }

    /// The stamp that `data` hold: the sector and the generation.
    fn stamp_in(&self, data: &SectorData) -> Option<(u64, u64)> {
        let (words, _) = data.as_chunks::<8>();
        let (sector, generation) = (u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1]));
        (data == &stamp(self.seed, sector, generation)).then_some((sector, generation))
    }

    fn value(&self, sector: u64, data: &SectorData) -> Value {
        if data == &[0; 512] {
            return Value::Zeroes;
        }
        match self.stamp_in(data) {
            Some((address, generation)) if address == sector => Value::Stamp(generation),
            Some(_) | None => Value::Anything,
        }
    }

    fn describe(&self, sector: u64, data: &SectorData) -> String {
        if data == &[0; 512] {
            return "zeroes".into();
        }
        match self.stamp_in(data) {
            Some((address, generation)) if address == sector => format!("generation {generation}"),
            Some((address, generation)) => format!("generation {generation} of sector {address}"),
            None => "bytes that nobody wrote".into(),
        }
    }

    fn check(&mut self, range: Range<u64>, began: Moment, data: &[u8]) -> Result<(), Violation> {
        let (sectors, rest) = data.as_chunks::<512>();
        assert!(rest.is_empty() && sectors.len() as u64 == range.end - range.start);
        for (sector, data) in range.zip(sectors) {
            let found = self.value(sector, data);
            let explains = |v: &Version| v.is_readable(began) && v.could_be(found);
            if !self.versions(sector).iter().any(explains) {
                let (found, allowed) = (self.describe(sector, data), self.allowed(sector, began));
                return Err(Violation { sector, found, allowed });
            }
            self.decide(sector, found, began);
        }
        Ok(())
    }

    /// After a crash, the first read of a sector shows which of the possible writes is there, unless
    /// a newer write explains the data too.
    fn decide(&mut self, sector: u64, found: Value, began: Moment) {
        let versions = self.versions(sector);
        let open = |v: &Version| v.undecided != Uncertainty::No;
        let explains = |v: &Version| v.is_readable(began) && v.could_be(found);
        if versions.iter().any(|v| !open(v) && explains(v)) {
            return;
        }
        let exact = versions.iter().any(|v| open(v) && explains(v) && v.value == found);
        let chosen = |v: &Version| open(v) && explains(v) && (v.value == found || !exact);
        if !versions.iter().any(chosen) {
            return;
        }
        versions.retain(|v| v.undecided != Uncertainty::AfterCut || chosen(v));
        for version in versions.iter_mut().filter(|v| open(v)) {
            if !chosen(version) {
                version.superseded = Some(0);
            }
            version.undecided = Uncertainty::No;
        }
    }

    /// The power fails: everything in flight ends, and writes that may be lost or kept become
    /// undecided.
    fn power_cut(&mut self) {
        let now = self.tick();
        let durable_before = self.durable_before;
        for versions in self.sectors.values_mut() {
            let all = std::mem::take(versions);
            let gone = |v: &&Version| {
                all.iter().any(|w| w.is_durable(durable_before) && v.ended_before(w))
            };
            let left = all.iter().filter(|v| !gone(v));
            *versions = left
                .map(|v| Version {
                    submitted: now,
                    ended: Some(now),
                    ok: true,
                    // Data present after a power cut is durable.
                    fua: true,
                    superseded: None,
                    undecided: Uncertainty::AfterCut,
                    ..*v
                })
                .collect();
        }
        self.reading.clear();
        self.tick();
    }

    /// The process is killed: everything in flight ends as if it had failed.
    fn kill(&mut self) {
        let now = self.tick();
        for version in self.sectors.values_mut().flatten() {
            version.ended.get_or_insert(now);
            // Data seen from now on may be only in the cache: it does not show which write is
            // durable.
            if version.superseded.is_none() || version.undecided == Uncertainty::AfterCut {
                version.undecided = Uncertainty::AfterKill;
            }
        }
        self.reading.clear();
        self.tick();
    }
}

impl Version {
    fn is_durable(&self, durable_before: Moment) -> bool {
        self.ok && (self.fua || self.ended.is_some_and(|ended| ended < durable_before))
    }

    /// Whether a read that began at `began` may return it.
    fn is_readable(&self, began: Moment) -> bool {
        self.superseded.is_none_or(|when| when > began)
    }

    fn could_be(&self, found: Value) -> bool {
        self.value == found || self.value == Value::Anything
    }

    fn ended_before(&self, other: &Self) -> bool {
        self.ended.is_some_and(|ended| ended < other.submitted)
    }
}

/// Drops the versions that neither a read in flight nor a read after a power cut can return.
fn forget(versions: &mut Vec<Version>, durable_before: Moment, oldest_read: Moment) {
    let newest_durable = versions
        .iter()
        .filter(|v| v.is_durable(durable_before))
        .map(|v| v.submitted)
        .max()
        .unwrap_or(0);
    versions.retain(|v| {
        let readable = v.superseded.is_none_or(|when| when > oldest_read);
        readable || v.ended.is_none_or(|ended| ended >= newest_durable)
    });
}

/// The writes that were acknowledged and are not durable count as failed from now on.
fn lose(versions: &mut [Version], durable_before: Moment) {
    let mut acknowledged = Vec::new();
    for version in versions.iter_mut() {
        if version.ok && !version.is_durable(durable_before) {
            version.ok = false;
            acknowledged.extend(version.ended);
        }
    }
    let durable: Vec<Version> = versions.iter().filter(|v| v.ok).cloned().collect();
    for version in versions.iter_mut() {
        if version.superseded.is_some_and(|when| acknowledged.contains(&when)) {
            let newer = durable.iter().filter(|newer| version.ended_before(newer));
            version.superseded = newer.filter_map(|newer| newer.ended).min();
        }
    }
}

impl Oracle {
    /// An oracle for a device that holds `initial` everywhere.
    pub fn new(seed: u64, initial: Value) -> Self {
        let state = State {
            seed,
            initial,
            moment: 0,
            ids: Rc::default(),
            durable_before: 1,
            sectors: BTreeMap::new(),
            reading: BTreeMap::new(),
            reported: None,
            losses: 0,
        };
        Self { state: Rc::new(RefCell::new(state)) }
    }

    /// A write of `range` begins. Returns the ticket and the bytes to write.
    pub fn begin_write(&self, range: Range<u64>, flags: Flags) -> (Ticket, Vec<u8>) {
        let generation = self.state.borrow().ids.get() + 1;
        let ticket = self.begin(range.clone(), Value::Stamp(generation), flags);
        let seed = self.state.borrow().seed;
        let mut data = Vec::with_capacity((range.end - range.start) as usize * 512);
        for sector in range.clone() {
            data.extend_from_slice(&stamp(seed, sector, generation));
        }
        (ticket, data)
    }

    fn begin(&self, range: Range<u64>, value: Value, flags: Flags) -> Ticket {
        let mut state = self.state.borrow_mut();
        state.look_for_losses();
        let (id, submitted) = state.begin_change(range.clone(), value);
        Ticket { id, kind: Kind::Change { range }, flags, submitted, losses: state.losses }
    }

    /// A write-zeroes of `range` begins.
    pub fn begin_write_zeroes(&self, range: Range<u64>, flags: Flags) -> Ticket {
        self.begin(range, Value::Zeroes, flags)
    }

    /// A discard of `range` begins.
    pub fn begin_discard(&self, range: Range<u64>, flags: Flags) -> Ticket {
        self.begin(range, Value::Anything, flags)
    }

    /// A flush begins.
    pub fn begin_flush(&self) -> Ticket {
        let mut state = self.state.borrow_mut();
        let (submitted, losses) = (state.tick(), state.losses);
        Ticket { id: 0, kind: Kind::Flush, flags: Flags::empty(), submitted, losses }
    }

    /// A read of `range` begins.
    pub fn begin_read(&self, range: Range<u64>) -> Ticket {
        let mut state = self.state.borrow_mut();
        let submitted = state.tick();
        *state.reading.entry(submitted).or_insert(0) += 1;
        let losses = state.losses;
        Ticket { id: 0, kind: Kind::Read { range }, flags: Flags::empty(), submitted, losses }
    }

    /// An I/O other than a read has ended.
    pub fn end(&self, ticket: Ticket, result: BioResult) {
        let mut state = self.state.borrow_mut();
        let flushes = match ticket.kind {
            Kind::Change { .. } => ticket.flags.contains(Flags::PREFLUSH),
            Kind::Flush => true,
            Kind::Read { .. } => false,
        };
        // What it covers is not among the losses that were reported since.
        if flushes && result.is_ok() {
            state.durable_before = state.durable_before.max(ticket.submitted);
        }
        state.look_for_losses();
        match ticket.kind {
            Kind::Change { range } => {
                let fua = ticket.flags.contains(Flags::FUA);
                // Otherwise it may have been acknowledged before the loss.
                let stays = fua || state.losses == ticket.losses;
                state.end_change(range, ticket.id, result.is_ok() && stays, fua);
            }
            Kind::Flush => {}
            Kind::Read { .. } => state.end_read(ticket.submitted),
        }
    }

    /// A read has returned `data`.
    ///
    /// # Errors
    /// The first sector with data that is not allowed.
    ///
    /// # Panics
    /// When the ticket does not belong to a read of as many sectors.
    pub fn check_read(&self, ticket: Ticket, data: &[u8]) -> Result<(), Violation> {
        let Kind::Read { range } = ticket.kind else { panic!("the ticket of a read") };
        let mut state = self.state.borrow_mut();
        state.look_for_losses();
        let result = state.check(range, ticket.submitted, data);
        state.end_read(ticket.submitted);
        result
    }

    /// Checks contents that were inspected without an I/O.
    ///
    /// # Errors
    /// As [`Self::check_read`].
    pub fn check_contents(&self, range: Range<u64>, data: &[u8]) -> Result<(), Violation> {
        self.check_read(self.begin_read(range), data)
    }

    /// The oracle of a copy that was made of the whole device at one moment since the read of `ticket` began; that read ends. What was
    /// acknowledged before it began is in the copy, what was in flight since, perhaps; all that is in it is durable.
    ///
    /// No write to the one has the generation of a write to the other.
    pub fn copy_since(&self, ticket: Ticket) -> Self {
        let mut state = self.state.borrow_mut();
        state.look_for_losses();
        let began = ticket.submitted;
        let copied = |version: &Version| Version {
            submitted: 0,
            ended: Some(0),
            ok: true,
            fua: true,
            superseded: None,
            // The first read shows which of several it has.
            undecided: Uncertainty::AfterCut,
            ..*version
        };
        let sectors = state.sectors.iter().map(|(sector, versions)| {
            let readable = versions.iter().filter(|version| version.is_readable(began));
            (*sector, readable.map(copied).collect())
        });
        let copy = State {
            seed: state.seed,
            initial: state.initial,
            moment: 0,
            ids: Rc::clone(&state.ids),
            durable_before: 1,
            sectors: sectors.collect(),
            reading: BTreeMap::new(),
            reported: None,
            losses: 0,
        };
        state.end_read(began);
        Self { state: Rc::new(RefCell::new(copy)) }
    }

    /// Whether `other` shares its state.
    pub fn is_same(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.state, &other.state)
    }

    /// The power has failed.
    pub fn power_cut(&self) {
        self.state.borrow_mut().power_cut();
    }

    /// The process was killed: writes in flight happened or not; everything else is unchanged.
    pub fn kill(&self) {
        self.state.borrow_mut().kill();
    }

    /// What a read that begins now may return for `sector`.
    pub fn allowed(&self, sector: u64) -> Vec<Value> {
        let mut state = self.state.borrow_mut();
        state.look_for_losses();
        let now = state.tick();
        state.allowed(sector, now)
    }

    /// From now on the device may lose acknowledged writes that no flush has covered, if it reports that: `reported` is how often
    /// it did, which also fails the next flush of each of its users. With `None`, it may not lose them.
    pub fn expect_losses(&self, reported: Option<Box<dyn Fn() -> u64>>) {
        let mut state = self.state.borrow_mut();
        state.look_for_losses();
        state.losses = reported.as_ref().map_or(0, |reported| reported());
        state.reported = reported;
    }
}

impl State {
    fn end_read(&mut self, began: Moment) {
        if let Some(count) = self.reading.get_mut(&began) {
            *count -= 1;
            if *count == 0 {
                self.reading.remove(&began);
            }
        }
    }
}

#[cfg(test)]
mod tests;
