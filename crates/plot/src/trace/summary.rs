//! The summary of a trace, as blkparse prints it.

use std::collections::BTreeMap;
use std::fmt::Write;

use ashlar_block::disk::DeviceNumber;
use ashlar_block::trace::Action;
use serde::Serialize;

use super::categories::Categories;
use super::record::Record;

/// A count, and an amount of data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Amount {
    /// The count.
    pub count: u64,
    /// Bytes in total.
    pub bytes: u64,
    /// The sum of the whole KiB of each: rates use this.
    #[serde(skip)]
    pub whole_kib: u64,
}

impl Amount {
    fn add(&mut self, bytes: u32) {
        self.count += 1;
        self.bytes += u64::from(bytes);
        self.whole_kib += u64::from(bytes / 1024);
    }

    fn add_all(&mut self, other: Self) {
        self.count += other.count;
        self.bytes += other.bytes;
        self.whole_kib += other.whole_kib;
    }

    fn text(self) -> String {
        format!("{}, {}iB", scaled(self.count, 0), scaled(self.kib(), 1))
    }

    const fn kib(self) -> u64 {
        self.bytes / 1024
    }
}

/// The counts of reads, or of writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Side {
    /// Bios queued.
    pub queued: Amount,
    /// Requests sent to the driver, minus requeued ones.
    pub dispatched: Amount,
    /// Requests requeued.
    pub requeued: u64,
    /// Requests, or a layer's bios, that completed.
    pub completed: Amount,
    /// Bios merged into a request.
    pub merged: Amount,
}

/// The counts of one thread on one device, or of several.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Counts {
    /// Reads.
    pub read: Side,
    /// Writes, discards and flushes.
    pub write: Side,
    /// Plugs that were removed.
    pub unplugs: u64,
}

impl Counts {
    fn add(&mut self, record: &Record) {
        let write = record.categories.contains(Categories::WRITE);
        let side = if write { &mut self.write } else { &mut self.read };
        match record.action {
            Action::Queue => side.queued.add(record.bytes),
            Action::BackMerge | Action::FrontMerge => side.merged.add(record.bytes),
            Action::Issue => side.dispatched.add(record.bytes),
            Action::Complete => side.completed.add(record.bytes),
            Action::Requeue => {
                side.requeued += 1;
                let bytes = u64::from(record.bytes);
                side.dispatched.bytes = side.dispatched.bytes.saturating_sub(bytes);
                side.dispatched.whole_kib = side.dispatched.bytes / 1024;
            }
            Action::Unplug => self.unplugs += 1,
            Action::Remap | Action::Split | Action::GetRequest | Action::Plug | Action::Insert => {}
        }
    }

    fn add_all(&mut self, other: &Self) {
        for (side, more) in [(&mut self.read, &other.read), (&mut self.write, &other.write)] {
            side.queued.add_all(more.queued);
            side.dispatched.add_all(more.dispatched);
            side.requeued += more.requeued;
            side.completed.add_all(more.completed);
            side.merged.add_all(more.merged);
        }
        self.unplugs += other.unplugs;
    }
}

/// The counts of a thread.
#[derive(Clone, Debug, Default)]
struct Thread {
    counts: Counts,
    /// The last sequence number.
    sequence: u32,
}

/// The counts of a device.
#[derive(Clone, Debug, Default)]
struct Device {
    name: String,
    threads: BTreeMap<u32, Thread>,
    events: u64,
    gaps: u64,
    lost: u64,
    /// Reads and writes at the driver: current and maximum.
    depth: [u32; 2],
    max_depth: [u32; 2],
    first_ns: u64,
    last_ns: u64,
}

/// Counts the events of each device.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    devices: Vec<(DeviceNumber, Device)>,
}

/// The totals of a device, for programs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Totals {
    /// The device.
    pub device: String,
    /// Its number.
    pub number: String,
    /// The counts of all threads.
    #[serde(flatten)]
    pub counts: Counts,
    /// Maximum of reads at the driver at a time.
    pub read_depth: u32,
    /// Maximum of writes at the driver at a time.
    pub write_depth: u32,
    /// Events.
    pub events: u64,
    /// Lost events.
    pub lost: u64,
    /// Time from the first to the last event, nanoseconds.
    pub duration_ns: u64,
}

impl Summary {
    /// A summary of these devices, in this order.
    pub fn new(devices: impl IntoIterator<Item = (DeviceNumber, String)>) -> Self {
        let device = |(number, name)| (number, Device { name, ..Device::default() });
        Self { devices: devices.into_iter().map(device).collect() }
    }

    /// Counts a record. A record of an unknown device is counted under its number.
    pub fn add(&mut self, record: &Record) {
        let known = self.devices.iter().position(|(number, _)| *number == record.device);
        let at = known.unwrap_or_else(|| {
            let DeviceNumber { major, minor } = record.device;
            let name = format!("{major},{minor}");
            self.devices.push((record.device, Device { name, ..Device::default() }));
            self.devices.len() - 1
        });
        self.devices[at].1.add(record);
    }

    /// The totals of each device.
    pub fn totals(&self) -> Vec<Totals> {
        let totals = |(number, device): &(DeviceNumber, Device)| Totals {
            device: device.name.clone(),
            number: number.to_string(),
            counts: device.total(),
            read_depth: device.max_depth[0],
            write_depth: device.max_depth[1],
            events: device.events,
            lost: device.lost,
            duration_ns: device.last_ns - device.first_ns,
        };
        self.devices.iter().map(totals).collect()
    }

    /// In blkparse's format: each thread of each device, and each device.
    pub fn text(&self) -> String {
        let devices: Vec<_> = self.devices.iter().map(|(_, device)| device.text()).collect();
        devices.join("\n")
    }
}

impl Device {
    fn add(&mut self, record: &Record) {
        let thread = self.threads.entry(record.thread).or_default();
        // Numbers start at 1.
        let missing = record.sequence.saturating_sub(thread.sequence.saturating_add(1));
        self.gaps += u64::from(missing > 0);
        self.lost += u64::from(missing);
        thread.sequence = record.sequence;
        thread.counts.add(record);
        let side = usize::from(record.categories.contains(Categories::WRITE));
        match record.action {
            Action::Issue => {
                self.depth[side] += 1;
                self.max_depth[side] = self.max_depth[side].max(self.depth[side]);
            }
            Action::Complete | Action::Requeue => {
                self.depth[side] = self.depth[side].saturating_sub(1);
            }
            Action::Remap
            | Action::Queue
            | Action::Split
            | Action::GetRequest
            | Action::Plug
            | Action::Unplug
            | Action::BackMerge
            | Action::FrontMerge
            | Action::Insert => {}
        }
        if self.events == 0 {
            self.first_ns = record.time_ns;
        }
        self.last_ns = record.time_ns.max(self.last_ns);
        self.events += 1;
    }

    fn total(&self) -> Counts {
        let mut total = Counts::default();
        for thread in self.threads.values() {
            total.add_all(&thread.counts);
        }
        total
    }

    fn text(&self) -> String {
        let (name, total) = (&self.name, self.total());
        let mut out = String::new();
        for (index, thread) in &self.threads {
            out += &format!("CPU{index} ({name}):\n");
            put(&mut out, &thread.counts, Some(self.max_depth));
        }
        if self.threads.len() > 1 {
            out += &format!("\nTotal ({name}):\n");
            put(&mut out, &total, None);
        }
        let milliseconds = (self.last_ns - self.first_ns) / 1_000_000;
        let rate = |amount: Amount| {
            // Bytes beyond whole KiB count as thousandths of a KiB, as in blkparse.
            let rest = amount.bytes - 1024 * amount.whole_kib;
            (1000 * amount.whole_kib + rest).checked_div(milliseconds).unwrap_or(0)
        };
        let (reads, writes) = (rate(total.read.completed), rate(total.write.completed));
        out += &format!("\nThroughput (R/W): {reads}KiB/s / {writes}KiB/s\n");
        out += &format!("Events ({name}): {} entries\n", self.events);
        let all = (self.events + self.lost).max(1) as f64;
        let percent = 100.0 * self.lost as f64 / all;
        out += &format!("Skips: {} forward ({} - {percent:5.1}%)\n", self.gaps, self.lost);
        out
    }
}

/// A number in eight columns: more than a million of a unit is shown in the next unit.
fn scaled(mut number: u64, mut unit: usize) -> String {
    const UNITS: [&str; 5] = ["", "K", "M", "G", "P"];
    while number > 1_000_000 && unit + 1 < UNITS.len() {
        number /= 1000;
        unit += 1;
    }
    format!("{number:8}{}", UNITS[unit])
}

/// One block of lines; the depth is the device's.
fn put(out: &mut String, counts: &Counts, depth: Option<[u32; 2]>) {
    let Counts { read, write, unplugs } = counts;
    let mut two = |left: String, right: String| {
        // Writing to a string cannot fail.
        writeln!(out, " {left} {right}").unwrap_or_default();
    };
    let amounts = |name: &str, other: &str, left: Amount, right: Amount| {
        (format!("{name:<16} {}\t", left.text()), format!("{other:<17} {}", right.text()))
    };
    let rows = [
        amounts("Reads Queued:", "Writes Queued:", read.queued, write.queued),
        amounts("Read Dispatches:", "Write Dispatches:", read.dispatched, write.dispatched),
        (
            format!("Reads Requeued:  {}\t\t", scaled(read.requeued, 0)),
            format!("Writes Requeued:  {}", scaled(write.requeued, 0)),
        ),
        amounts("Reads Completed:", "Writes Completed:", read.completed, write.completed),
        amounts("Read Merges:", "Write Merges:", read.merged, write.merged),
    ];
    for (left, right) in rows {
        two(left, right);
    }
    if let Some([reads, writes]) = depth {
        two(
            format!("Read depth:      {reads:8}{:8}\t", ' '),
            format!("Write depth:      {writes:8}"),
        );
    }
    two(format!("IO unplugs:      {unplugs:8}{:8}\t", ' '), format!("Timer unplugs:    {:8}", 0));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::text::tests::record;

    fn events(of: &[(Action, u32, u32)]) -> Summary {
        let mut summary = Summary::new([(record().device, "md0".to_owned())]);
        for (number, (action, bytes, sequence)) in (0..).zip(of) {
            let time_ns = 1_000_000 * number;
            let (action, bytes, sequence) = (*action, *bytes, *sequence);
            summary.add(&Record { action, bytes, sequence, time_ns, ..record() });
        }
        summary
    }

    #[test]
    fn the_text_is_that_of_blkparse() {
        let summary = events(&[
            (Action::Queue, 4096, 1),
            (Action::GetRequest, 4096, 2),
            (Action::Queue, 4096, 3),
            (Action::BackMerge, 4096, 4),
            (Action::Unplug, 0, 5),
            (Action::Issue, 8192, 6),
            (Action::Complete, 8192, 9),
        ]);
        let expected = [
            "CPU0 (md0):",
            " Reads Queued:           2,        8KiB\t Writes Queued:           0,        0KiB",
            " Read Dispatches:        1,        8KiB\t Write Dispatches:        0,        0KiB",
            " Reads Requeued:         0\t\t Writes Requeued:         0",
            " Reads Completed:        1,        8KiB\t Writes Completed:        0,        0KiB",
            " Read Merges:            1,        4KiB\t Write Merges:            0,        0KiB",
            " Read depth:             1        \t Write depth:             0",
            " IO unplugs:             1        \t Timer unplugs:           0",
            "",
            "Throughput (R/W): 1333KiB/s / 0KiB/s",
            "Events (md0): 7 entries",
            "Skips: 1 forward (2 -  22.2%)",
            "",
        ];
        assert_eq!(summary.text(), expected.join("\n"));
        let totals = &summary.totals()[0];
        assert_eq!((totals.lost, totals.read_depth, totals.duration_ns), (2, 1, 6_000_000));
    }

    #[test]
    fn what_was_put_back_is_not_counted_as_dispatched_twice() {
        let summary = events(&[
            (Action::Issue, 8192, 1),
            (Action::Requeue, 8192, 2),
            (Action::Issue, 4096, 3),
            (Action::Issue, 4096, 4),
        ]);
        let read = summary.totals()[0].counts.read;
        let Amount { count, bytes, .. } = read.dispatched;
        assert_eq!((count, bytes, read.requeued), (3, 8192, 1));
    }

    #[test]
    fn throughput_is_rounded_as_blkparse_does() {
        let ends = [(Action::Complete, 512, 1), (Action::Complete, 532_992, 2)];
        let mut summary = events(&ends);
        let end = Record { action: Action::Plug, bytes: 0, sequence: 3, ..record() };
        summary.add(&Record { time_ns: 5_900_000, ..end });
        assert!(summary.text().contains(": 104204KiB/s / 0KiB/s\n"), "{}", summary.text());
    }

    #[test]
    fn large_numbers_are_scaled_as_blkparse_does() {
        assert_eq!(scaled(1_000_000, 0), " 1000000");
        assert_eq!(scaled(1_000_001, 0), "    1000K");
        assert_eq!(scaled(5_000_000_000, 1), "    5000G");
        assert_eq!(scaled(u64::MAX, 4), "18446744073709551615P");
    }
}
