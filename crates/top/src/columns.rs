//! The columns of the table.

use std::cmp::Ordering;

use ashlar_block::text::one_line;

use crate::format::{latency, megabytes, percent, rate};
use crate::rates::{DeviceRates, Latency};

/// A column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Column {
    /// The device's name.
    Device,
    /// Its type.
    Kind,
    /// What it is used for.
    Use,
    /// Connections of NBD clients.
    Nbd,
    /// Virtual machines, by vhost-user-blk.
    VhostUser,
    /// Reads in each second.
    Reads,
    /// Writes in each second.
    Writes,
    /// Bytes read in each second.
    ReadBytes,
    /// Bytes written in each second.
    WrittenBytes,
    /// Discards in each second.
    Discards,
    /// Flushes in each second.
    Flushes,
    /// Requests in flight.
    Queue,
    /// The time that half of the reads did not exceed.
    ReadP50,
    /// The time that 99 of 100 reads did not exceed.
    ReadP99,
    /// The time that half of the writes did not exceed.
    WriteP50,
    /// The time that 99 of 100 writes did not exceed.
    WriteP99,
    /// The share that was merged.
    Merged,
    /// The share of the time with requests in flight.
    Busy,
}

/// The properties of a column.
struct Facts {
    column: Column,
    /// Its name for `--sort`.
    key: &'static str,
    heading: &'static str,
    width: usize,
    /// The order in which columns get a place; a narrow terminal shows only the first ones.
    rank: u8,
}

const fn facts(
    column: Column,
    key: &'static str,
    heading: &'static str,
    width: usize,
    rank: u8,
) -> Facts {
    Facts { column, key, heading, width, rank }
}

/// All columns, in the order in which they stand.
const TABLE: [Facts; 18] = [
    facts(Column::Device, "device", "DEVICE", 0, 0),
    facts(Column::Kind, "kind", "KIND", 5, 7),
    facts(Column::Use, "use", "USE", 15, 15),
    facts(Column::Nbd, "nbd", "NBD", 3, 16),
    facts(Column::VhostUser, "vm", "VM", 3, 17),
    facts(Column::Reads, "reads", "READ/S", 7, 1),
    facts(Column::Writes, "writes", "WRITE/S", 7, 2),
    facts(Column::ReadBytes, "read-bytes", "RD-MB/S", 7, 3),
    facts(Column::WrittenBytes, "written-bytes", "WR-MB/S", 7, 4),
    facts(Column::Discards, "discards", "DISC/S", 7, 13),
    facts(Column::Flushes, "flushes", "FLUSH/S", 7, 12),
    facts(Column::Queue, "queue", "QUEUE", 5, 6),
    facts(Column::ReadP50, "read-p50", "RD-P50", 6, 10),
    facts(Column::ReadP99, "read-p99", "RD-P99", 6, 8),
    facts(Column::WriteP50, "write-p50", "WR-P50", 6, 11),
    facts(Column::WriteP99, "write-p99", "WR-P99", 6, 9),
    facts(Column::Merged, "merged", "MERGE", 5, 14),
    facts(Column::Busy, "busy", "BUSY", 5, 5),
];

/// The least and the greatest width of the column of devices. Between these it has at most a quarter of the terminal, or 20 columns.
const DEVICE_WIDTH: (usize, usize) = (8, 32);

impl Column {
    /// All columns, in the order in which they stand.
    pub const ALL: [Self; 18] = {
        let mut all = [Self::Device; 18];
        let mut index = 0;
        while index < all.len() {
            all[index] = TABLE[index].column;
            index += 1;
        }
        all
    };

    fn facts(self) -> &'static Facts {
        // The table has the columns in the order of the enum; a test compares them.
        &TABLE[self as usize]
    }

    /// Its name for options.
    pub fn key(self) -> &'static str {
        self.facts().key
    }

    /// The column with this name.
    pub fn named(key: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|column| column.key() == key)
    }

    /// Its heading.
    pub(crate) fn heading(self) -> &'static str {
        self.facts().heading
    }

    /// Whether it contains words, which are left-aligned.
    pub(crate) const fn has_words(self) -> bool {
        matches!(self, Self::Device | Self::Kind | Self::Use)
    }

    /// The next column, or the previous one; the first follows the last.
    pub(crate) fn neighbour(self, forwards: bool) -> Self {
        let count = Self::ALL.len();
        let step = if forwards { 1 } else { count - 1 };
        Self::ALL[(self as usize + step) % count]
    }

    /// Its text for a device.
    pub(crate) fn text(self, device: &DeviceRates) -> String {
        match self {
            Self::Device => one_line(device.title()),
            Self::Kind => device.kind.clone(),
            // That a device does not respond, or is an invalid snapshot, matters more than its use.
            Self::Use if device.state != "answering" => device.state.clone(),
            Self::Use => match device.snapshot.as_ref().filter(|snapshot| snapshot.is_lost()) {
                Some(lost) => lost.state.clone(),
                None => device.usage.clone(),
            },
            Self::Nbd => count(device.nbd_connections),
            Self::VhostUser => count(device.vhost_user_connections),
            Self::Reads => rate(device.read.ios_per_second),
            Self::Writes => rate(device.write.ios_per_second),
            Self::ReadBytes => megabytes(device.read.bytes_per_second),
            Self::WrittenBytes => megabytes(device.write.bytes_per_second),
            Self::Discards => rate(device.discard.ios_per_second),
            Self::Flushes => rate(device.flush.ios_per_second),
            Self::Queue => device.queue.to_string(),
            Self::ReadP50 => latency(device.read.p50),
            Self::ReadP99 => latency(device.read.p99),
            Self::WriteP50 => latency(device.write.p50),
            Self::WriteP99 => latency(device.write.p99),
            Self::Merged => device.merged_percent.map_or_else(|| "-".to_owned(), percent),
            Self::Busy => percent(device.busy_percent),
        }
    }

    /// The order of two devices: words from the first, numbers from the greatest.
    pub(crate) fn order(self, one: &DeviceRates, other: &DeviceRates) -> Ordering {
        let number = |device: &DeviceRates| match self {
            Self::Device | Self::Kind | Self::Use => 0.0,
            Self::Nbd => device.nbd_connections.map_or(-1.0, |count| count as f64),
            Self::VhostUser => device.vhost_user_connections.map_or(-1.0, |count| count as f64),
            Self::Reads => device.read.ios_per_second,
            Self::Writes => device.write.ios_per_second,
            Self::ReadBytes => device.read.bytes_per_second,
            Self::WrittenBytes => device.write.bytes_per_second,
            Self::Discards => device.discard.ios_per_second,
            Self::Flushes => device.flush.ios_per_second,
            Self::Queue => device.queue as f64,
            Self::ReadP50 => time(device.read.p50),
            Self::ReadP99 => time(device.read.p99),
            Self::WriteP50 => time(device.write.p50),
            Self::WriteP99 => time(device.write.p99),
            Self::Merged => device.merged_percent.unwrap_or(-1.0),
            Self::Busy => device.busy_percent,
        };
        let by_name = || counted(one.title()).cmp(&counted(other.title()));
        let first = match self {
            Self::Device => Ordering::Equal,
            Self::Kind | Self::Use => self.text(one).cmp(&self.text(other)),
            Self::Nbd
            | Self::VhostUser
            | Self::Reads
            | Self::Writes
            | Self::ReadBytes
            | Self::WrittenBytes
            | Self::Discards
            | Self::Flushes
            | Self::Queue
            | Self::ReadP50
            | Self::ReadP99
            | Self::WriteP50
            | Self::WriteP99
            | Self::Merged
            | Self::Busy => number(other).total_cmp(&number(one)),
        };
        first.then_with(by_name)
    }
}

/// Connections; a dash for a device that is not a volume.
fn count(connections: Option<u64>) -> String {
    connections.map_or_else(|| "-".to_owned(), |count| count.to_string())
}

/// For the order: a time within the last range comes before one at its beginning.
fn time(latency: Option<Latency>) -> f64 {
    latency.map_or(-1.0, |it| if it.is_over { f64::INFINITY } else { it.us })
}

/// A name and the number at its end, so that d9 comes before d10.
fn counted(name: &str) -> (&str, u64) {
    let words = name.trim_end_matches(|c: char| c.is_ascii_digit());
    (words, name[words.len()..].parse().unwrap_or(0))
}

/// The columns that fit into `width` characters, with their widths, if the longest name of a device has `longest`.
pub(crate) fn fitting(width: usize, longest: usize) -> Vec<(Column, usize)> {
    let (least, most) = DEVICE_WIDTH;
    // Long names leave room for the numbers.
    let device = longest.clamp(least, (width / 4).clamp(20, most));
    let width_of = |facts: &Facts| if facts.rank == 0 { device } else { facts.width };
    let mut by_rank: Vec<&Facts> = TABLE.iter().collect();
    by_rank.sort_unstable_by_key(|facts| facts.rank);
    let mut taken = 0;
    let mut last_rank = 0;
    for facts in by_rank {
        // Each column but the first has a space before it.
        taken += width_of(facts) + usize::from(facts.rank > 0);
        if facts.rank > 0 && taken > width {
            break;
        }
        last_rank = facts.rank;
    }
    let fits = TABLE.iter().filter(|facts| facts.rank <= last_rank);
    fits.map(|facts| (facts.column, width_of(facts))).collect()
}

/// `text` in a column of this width, with `~` where characters are left out.
pub(crate) fn cell(column: Column, width: usize, text: &str) -> String {
    let letters: Vec<char> = text.chars().collect();
    let short: String = if letters.len() <= width {
        text.to_owned()
    } else if column == Column::Device {
        // Names of one group begin alike, and differ at the end.
        let end = (width - 1) / 2;
        let (begin, end) = (&letters[..width - 1 - end], &letters[letters.len() - end..]);
        begin.iter().chain(&['~']).chain(end).collect()
    } else {
        letters.iter().take(width.saturating_sub(1)).chain(&['~']).collect()
    };
    if column.has_words() { format!("{short:<width$}") } else { format!("{short:>width$}") }
}
