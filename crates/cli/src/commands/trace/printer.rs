//! A trace as lines on standard output, and its totals.

use std::collections::HashMap;
use std::io::{self, BufWriter, StdoutLock, Write};

use ashlar_block::disk::DeviceNumber;
use ashlar_host::trace::event_json;
use ashlar_stack::trace::Summary;
use ashlar_stack::trace::binary::Item;
use ashlar_stack::trace::text::{Names, line};

/// Prints a trace.
pub(super) struct Printer {
    json: bool,
    devices: HashMap<DeviceNumber, String>,
    names: Names,
    /// The time of the first record; times are relative to it.
    start_ns: Option<u64>,
    summary: Summary,
    out: BufWriter<StdoutLock<'static>>,
}

impl Printer {
    /// A printer for a trace of these devices.
    pub(super) fn new(json: bool, devices: Vec<(DeviceNumber, String)>) -> Self {
        Self {
            json,
            names: Names::new(),
            start_ns: None,
            summary: Summary::new(devices.clone()),
            devices: devices.into_iter().collect(),
            out: BufWriter::new(io::stdout().lock()),
        }
    }

    /// Counts an item.
    pub(super) fn count(&mut self, item: &Item) {
        match item {
            Item::Event(record) => self.summary.add(record),
            Item::Name(who) => {
                self.names.insert(who.pid, who.name.clone());
            }
            Item::Start { .. } | Item::Other => {}
        }
    }

    /// Counts an item, and prints it if it is an event.
    pub(super) fn put(&mut self, item: &Item) -> io::Result<()> {
        self.count(item);
        let Item::Event(record) = item else { return Ok(()) };
        let start_ns = *self.start_ns.get_or_insert(record.time_ns);
        if self.json {
            let device = self.devices.get(&record.device).map(String::as_str);
            writeln!(self.out, "{}", event_json(record, start_ns, device, &self.names))
        } else {
            writeln!(self.out, "{}", line(record, start_ns, &self.names))
        }
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Prints the totals.
    pub(super) fn finish(mut self) -> io::Result<()> {
        if self.json {
            writeln!(self.out, "{}", serde_json::json!({ "summary": self.summary.totals() }))?;
        } else {
            write!(self.out, "{}", self.summary.text())?;
        }
        self.out.flush()
    }
}
