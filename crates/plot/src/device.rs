//! What happened on one device, column by column.

use std::collections::{BTreeMap, HashSet};

use ashlar_block::disk::DeviceNumber;
use ashlar_block::trace::Action;

use crate::latency::Latencies;
use crate::marks::Marks;
use crate::matching::{KINDS, Matching};
use crate::trace::{Categories, Payload, Record};

/// Kinds of I/O, as indices.
pub(crate) const READ: usize = 0;
pub(crate) const WRITE: usize = 1;
pub(crate) const DISCARD: usize = 2;

/// A count, and bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Amount {
    pub(crate) count: u64,
    pub(crate) bytes: u64,
}

impl Amount {
    fn add_all(&mut self, other: Self) {
        self.count += other.count;
        self.bytes += other.bytes;
    }
}

/// How much is in flight: the most in a column, and at its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Depth {
    pub(crate) most: u32,
    pub(crate) last: u32,
}

/// A column of time.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Column {
    /// I/O that completed, by kind.
    pub(crate) done: [Amount; KINDS],
    /// Flushes that arrived.
    pub(crate) flushes: u64,
    /// Bios merged into a request.
    pub(crate) merges: u64,
    /// Bios in flight, and requests at the driver.
    pub(crate) depths: [Depth; 2],
    /// From Q to C.
    pub(crate) q2c: Option<Latencies>,
}

impl Column {
    /// Takes over the next column.
    fn join(&mut self, next: &Self) {
        for (done, more) in self.done.iter_mut().zip(next.done) {
            done.add_all(more);
        }
        self.flushes += next.flushes;
        self.merges += next.merges;
        for (depth, later) in self.depths.iter_mut().zip(next.depths) {
            *depth = Depth { most: depth.most.max(later.most), last: later.last };
        }
        if let Some(more) = &next.q2c {
            self.q2c.get_or_insert_default().add_all(more);
        }
    }
}

/// Which parts of an I/O's time are measured.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Parts {
    /// From the arrival to the end.
    pub(crate) q2c: Latencies,
    /// From the arrival to the driver.
    pub(crate) q2d: Latencies,
    /// In the driver.
    pub(crate) d2c: Latencies,
}

/// A device.
#[derive(Clone, Debug, Default)]
pub(crate) struct Device {
    pub(crate) name: String,
    /// Columns with events.
    pub(crate) columns: BTreeMap<u16, Column>,
    pub(crate) marks: Marks,
    pub(crate) parts: Parts,
    /// Totals of completed I/O, by kind.
    pub(crate) done: [Amount; KINDS],
    pub(crate) flushes: u64,
    pub(crate) merges: u64,
    /// Whether there were events of the driver: layers have none.
    pub(crate) has_driver: bool,
    /// The devices above, from which I/O was sent on.
    pub(crate) above: HashSet<DeviceNumber>,
    matching: Matching,
    /// Whether marks are of Q; of C until the first Q.
    marks_queued: bool,
    under_way: [u32; 2],
    /// The last sequence number of each thread.
    sequences: BTreeMap<u32, u32>,
}

/// The most devices above that a device remembers.
const ABOVE_MAX: usize = 64;
/// The most threads for which gaps are noticed.
const THREADS_MAX: usize = 4096;

impl Device {
    pub(crate) fn new(name: String) -> Self {
        Self { name, ..Self::default() }
    }

    /// Two columns become one.
    pub(crate) fn halve_columns(&mut self) {
        self.marks.halve_columns();
        for (at, column) in std::mem::take(&mut self.columns) {
            self.columns.entry(at / 2).or_default().join(&column);
        }
    }

    /// Counts an event in a column.
    pub(crate) fn add(&mut self, record: &Record, at: u16) {
        self.notice_gap(record);
        let sectors = u64::from(record.sectors());
        let kind = kind(record);
        let mut column = self.columns.remove(&at).unwrap_or_else(|| self.quiet());
        match record.action {
            Action::Remap => {
                if let Payload::Remap { from, .. } = record.payload
                    && self.above.len() < ABOVE_MAX
                {
                    self.above.insert(from);
                }
            }
            Action::Queue if sectors == 0 => {
                let is_flush = record.categories.contains(Categories::FLUSH);
                column.flushes += u64::from(is_flush);
                self.flushes += u64::from(is_flush);
            }
            Action::Queue => {
                if !self.marks_queued {
                    self.marks = Marks::default();
                    self.marks_queued = true;
                }
                self.marks.add(at, record.sector, sectors, kind);
                self.matching.queue(kind, record.sector, sectors, record.time_ns);
                self.deepen(&mut column, 0);
            }
            Action::BackMerge | Action::FrontMerge => {
                column.merges += 1;
                self.merges += 1;
            }
            Action::Issue => {
                self.has_driver = true;
                self.deepen(&mut column, 1);
                if sectors > 0 {
                    self.matching.issue(kind, record.sector, sectors, record.time_ns);
                }
            }
            Action::Requeue => self.lift(&mut column, 1),
            Action::Complete => {
                self.lift(&mut column, 1);
                if sectors > 0 {
                    self.lift(&mut column, 0);
                    self.complete(&mut column, record, at);
                }
            }
            Action::Split | Action::GetRequest | Action::Plug | Action::Unplug | Action::Insert => {
            }
        }
        self.columns.insert(at, column);
    }

    fn complete(&mut self, column: &mut Column, record: &Record, at: u16) {
        let (kind, sectors) = (kind(record), u64::from(record.sectors()));
        let amount = Amount { count: 1, bytes: record.bytes.into() };
        column.done[kind].add_all(amount);
        self.done[kind].add_all(amount);
        if !self.marks_queued {
            self.marks.add(at, record.sector, sectors, kind);
        }
        for ended in self.matching.complete(kind, record.sector, sectors, record.time_ns) {
            column.q2c.get_or_insert_default().add(ended.q2c_ns);
            self.parts.q2c.add(ended.q2c_ns);
            if let Some((q2d_ns, d2c_ns)) = ended.parts {
                self.parts.q2d.add(q2d_ns);
                self.parts.d2c.add(d2c_ns);
            }
        }
    }

    /// A new column begins with what is in flight.
    fn quiet(&self) -> Column {
        let depths = self.under_way.map(|depth| Depth { most: depth, last: depth });
        Column { depths, ..Column::default() }
    }

    fn deepen(&mut self, column: &mut Column, which: usize) {
        self.under_way[which] += 1;
        let now = self.under_way[which];
        column.depths[which] = Depth { most: column.depths[which].most.max(now), last: now };
    }

    fn lift(&mut self, column: &mut Column, which: usize) {
        self.under_way[which] = self.under_way[which].saturating_sub(1);
        column.depths[which].last = self.under_way[which];
    }

    /// After lost events, it is not known what is in flight.
    fn notice_gap(&mut self, record: &Record) {
        if self.sequences.len() >= THREADS_MAX && !self.sequences.contains_key(&record.thread) {
            return;
        }
        let last = self.sequences.entry(record.thread).or_default();
        if record.sequence > last.saturating_add(1) {
            self.matching.forget();
            self.under_way = [0; 2];
        }
        *last = record.sequence;
    }

    /// The depth to show: requests at the driver, or a layer's bios in flight. An index for
    /// [`Column::depths`].
    pub(crate) const fn depth(&self) -> usize {
        self.has_driver as usize
    }
}

/// The kind of an event's I/O.
fn kind(record: &Record) -> usize {
    if record.categories.contains(Categories::DISCARD) {
        DISCARD
    } else if record.categories.contains(Categories::WRITE) {
        WRITE
    } else {
        READ
    }
}
