//! A trace as lines on standard output, and its totals.

use std::collections::HashMap;
use std::io::{self, BufWriter, StdoutLock, Write};

use ashlar_block::disk::DeviceNumber;
use ashlar_btrfs::occupants::Occupant;
use ashlar_commands::trace::event_json;
use ashlar_plot::FileRow;
use ashlar_plot::trace::Summary;
use ashlar_plot::trace::binary::Item;
use ashlar_plot::trace::text::{Names, line};
use ashlar_terminal::bulk::{VisibleText, text_output};
use serde_json::json;

use super::files::{self, FileSums};

/// Prints a trace.
pub(super) struct Printer {
    json: bool,
    devices: HashMap<DeviceNumber, String>,
    names: Names,
    /// The time of the first record; times are relative to it.
    start_ns: Option<u64>,
    summary: Summary,
    out: VisibleText<BufWriter<StdoutLock<'static>>>,
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
            out: text_output(),
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

    /// Counts an item, and prints it if it is an event, with the names of what is at its sectors.
    pub(super) fn put(&mut self, item: &Item, occupants: &[Occupant]) -> io::Result<()> {
        self.count(item);
        let Item::Event(record) = item else { return Ok(()) };
        let start_ns = *self.start_ns.get_or_insert(record.time_ns);
        if self.json {
            let device = self.devices.get(&record.device).map(String::as_str);
            let mut value = event_json(record, start_ns, device, &self.names);
            if !occupants.is_empty() {
                let part = |it: &Occupant| json!({ "name": &*it.name, "bytes": it.len });
                value["files"] = occupants.iter().map(part).collect();
            }
            return writeln!(self.out, "{value}");
        }
        write!(self.out, "{}", line(record, start_ns, &self.names))?;
        if !occupants.is_empty() {
            write!(self.out, "  {}", files::in_line(occupants))?;
        }
        writeln!(self.out)
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Prints the totals, and those of files if their names were asked for.
    pub(super) fn finish(mut self, files: Option<&FileSums>) -> io::Result<()> {
        if self.json {
            let mut value = json!({ "summary": self.summary.totals() });
            if let Some(files) = files {
                let row = |row: FileRow| {
                    let FileRow { name, count, read_bytes, written_bytes } = row;
                    json!({
                        "name": name,
                        "count": count,
                        "read_bytes": read_bytes,
                        "written_bytes": written_bytes,
                    })
                };
                value["files"] = files.rows().into_iter().map(row).collect();
            }
            writeln!(self.out, "{value}")?;
        } else {
            write!(self.out, "{}", self.summary.text())?;
            if let Some(files) = files {
                write!(self.out, "{}", files::text(files.rows()))?;
            }
        }
        self.out.flush()
    }
}
