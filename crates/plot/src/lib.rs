//! Traces of bios, and their pictures: offsets, throughput, latencies and queues over time, as SVG or a page.
//!
//! # Theory
//!
//! [`trace`] makes traces and reads them, and has a theory of its own; all else is pictures.
//!
//! A [`Plot`] takes the events of a trace one by one and keeps only sums, so a trace may be of any
//! length. Time is cut into at most [`COLUMNS`] columns of equal width, a power of two of
//! nanoseconds; when an event is after the last one, each pair of columns becomes one. Sectors are
//! cut into rows in the same manner. Durations are counted in buckets that are an eighth wide.
//! The state has the size of a picture: a longer trace only loses resolution.
//!
//! Invariants: sums of a device over all columns are the sums of its events, at any width. No
//! element of the picture belongs to one event, except where a cell has only one. The text of
//! names is escaped; the output is well-formed whatever the devices are called, and refers to
//! nothing outside itself.
//!
//! Ordering: events arrive in the order of time, as the readers of traces give them. One that is
//! late is counted where its time belongs.
//!
//! Assumed: Q and C of a bio name the same sectors, as in the kernel. Lost events leave a gap in
//! the numbers of a thread; bios in flight before the gap are dropped, rather than measured wrong.
//!
//! The SVG is written by hand. `plotters` 0.3.7 with its SVG back end alone adds four crates (itself,
//! `plotters-backend`, `plotters-svg`, `num-traits`) and, for one chart with one line, 104 KiB to a
//! stripped release program (452,408 bytes against 345,896); this crate's code, all charts and tables, is 65 KiB in a development build.
//! `plotters` would also write each mark as an element of its own, with colours as numbers: no
//! dark mode, and no bound on the size but that of the grid.

#![forbid(unsafe_code)]

mod device;
mod draw;
mod heading;
mod latency;
mod marks;
mod matching;
mod page;
mod scale;
mod side;
mod style;
mod svg;
#[cfg(test)]
mod tests;
pub mod trace;

use ashlar_block::disk::DeviceNumber;

use device::Device;
pub use page::FileRow;
use trace::{Record, Summary};

/// The most columns of time.
pub const COLUMNS: u64 = 200;
/// The most devices that a picture shows; further ones are only in the table.
pub const DEVICES_MAX: usize = 12;
/// The narrowest column: 4 microseconds.
const NARROWEST: u32 = 12;

/// A picture of a trace.
#[derive(Clone, Debug)]
pub struct Plot {
    devices: Vec<(DeviceNumber, Device)>,
    summary: Summary,
    /// A column is `1 << shift` ns wide.
    shift: u32,
    start_ns: Option<u64>,
    /// From the first to the last event.
    duration_ns: u64,
}

/// A line of the tree of devices.
struct Branch {
    /// The device.
    index: usize,
    /// How many devices it is below.
    depth: usize,
    /// The devices above it that are not traced.
    untraced: Vec<DeviceNumber>,
}

impl Plot {
    /// A picture of these devices, by name.
    pub fn new(devices: Vec<(DeviceNumber, String)>) -> Self {
        let summary = Summary::new(devices.clone());
        let shown = devices.into_iter().take(DEVICES_MAX);
        Self {
            devices: shown.map(|(number, name)| (number, Device::new(name))).collect(),
            summary,
            shift: NARROWEST,
            start_ns: None,
            duration_ns: 0,
        }
    }

    /// Counts an event.
    pub fn add(&mut self, record: &Record) {
        self.summary.add(record);
        let start_ns = *self.start_ns.get_or_insert(record.time_ns);
        let after_ns = record.time_ns.saturating_sub(start_ns);
        self.duration_ns = self.duration_ns.max(after_ns);
        while after_ns >> self.shift >= COLUMNS {
            self.shift += 1;
            self.devices.iter_mut().for_each(|(_, device)| device.halve_columns());
        }
        let column = (after_ns >> self.shift) as u16;
        let known = self.devices.iter().position(|(number, _)| *number == record.device);
        let at = match known {
            Some(at) => at,
            None if self.devices.len() < DEVICES_MAX => {
                let DeviceNumber { major, minor } = record.device;
                let device = Device::new(format!("{major},{minor}"));
                self.devices.push((record.device, device));
                self.devices.len() - 1
            }
            None => return,
        };
        self.devices[at].1.add(record, column);
    }

    /// The devices, each after those above it.
    fn layers(&self) -> Vec<&(DeviceNumber, Device)> {
        let mut depths = vec![0_usize; self.devices.len()];
        // A chain has no more links than there are devices; events that say otherwise change nothing.
        for _ in 0..self.devices.len() {
            for (at, (number, device)) in self.devices.iter().enumerate() {
                let above = self.devices.iter().zip(&depths);
                let above =
                    above.filter(|((other, _), _)| other != number && device.above.contains(other));
                let deepest = above.map(|(_, depth)| depth + 1).max().unwrap_or(0);
                depths[at] = deepest.min(self.devices.len());
            }
        }
        let mut all: Vec<_> = self.devices.iter().zip(depths).collect();
        all.sort_by_key(|(_, depth)| *depth);
        all.into_iter().map(|(device, _)| device).collect()
    }

    /// The devices as a tree: each below those that send it I/O, and what is below it only the first time.
    fn tree(&self) -> Vec<Branch> {
        let number = |index: usize| &self.devices[index].0;
        let above = |index: usize| {
            self.devices[index].1.above.iter().filter(move |it| *it != number(index))
        };
        let is_traced = |it: &&DeviceNumber| self.devices.iter().any(|(number, _)| number == *it);
        let below = |parent: usize| {
            let all = 0..self.devices.len();
            all.filter(move |index| above(*index).any(|it| it == number(parent))).rev()
        };
        let tops = (0..self.devices.len()).filter(|index| !above(*index).any(|it| is_traced(&it)));
        let mut left: Vec<(usize, usize)> = tops.rev().map(|index| (index, 0)).collect();
        let (mut tree, mut seen) = (Vec::new(), vec![false; self.devices.len()]);
        loop {
            while let Some((index, depth)) = left.pop() {
                let mut untraced: Vec<_> =
                    above(index).filter(|it| !is_traced(it)).copied().collect();
                untraced.sort_unstable_by_key(|it| it.raw());
                tree.push(Branch { index, depth, untraced });
                if !std::mem::replace(&mut seen[index], true) {
                    left.extend(below(index).map(|index| (index, depth + 1)));
                }
            }
            // Events that say that devices are below each other leave no top.
            match seen.iter().position(|seen| !seen) {
                Some(index) => left.push((index, 0)),
                None => return tree,
            }
        }
    }

    /// The picture as a file of SVG, with facts in its heading: their names and values.
    pub fn svg(&self, facts: &[(&str, String)]) -> String {
        let mut text = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n".to_owned();
        text += &svg::picture(self, facts);
        text
    }

    /// The picture and the numbers as a page of HTML, with the table of files if there are any.
    pub fn page(&self, facts: &[(&str, String)], files: &[FileRow]) -> String {
        page::page(self, facts, files)
    }
}
