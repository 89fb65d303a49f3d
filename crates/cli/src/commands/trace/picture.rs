//! The file of a picture, which is whole or not there.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use std::time::Duration;

use ashlar_block::disk::DeviceNumber;
use ashlar_daemon::error::{Error, Result};
use ashlar_files::utc;
use ashlar_plot::trace::binary::Item;
use ashlar_plot::{FileRow, Plot};

/// Checks the ending of a picture's name.
pub(super) fn ending(name: &str) -> std::result::Result<PathBuf, String> {
    match Path::new(name).extension().and_then(|ending| ending.to_str()) {
        Some("svg" | "html") => Ok(name.into()),
        Some(_) | None => Err("a picture is a FILE.svg or a FILE.html".to_owned()),
    }
}

/// A picture that is being made.
pub(super) struct Picture {
    path: PathBuf,
    plot: Plot,
    /// The host, if the trace is of this one.
    host: Option<String>,
    /// A time of the trace's clock, and since 1970.
    clock: Option<(u64, Duration)>,
    /// The time of the first event.
    first_ns: Option<u64>,
}

impl Picture {
    /// A picture of these devices, of `host` if it is known.
    ///
    /// # Errors
    /// Its directory cannot be written.
    pub(super) fn new(
        path: &Path,
        devices: Vec<(DeviceNumber, String)>,
        host: Option<String>,
    ) -> Result<Self> {
        let (path, plot) = (path.to_owned(), Plot::new(devices));
        let this = Self { path, plot, host, clock: None, first_ns: None };
        let beside = this.beside();
        let made = File::create_new(&beside).and_then(|_| fs::remove_file(&beside));
        made.map_err(|error| this.failed(error))?;
        Ok(this)
    }

    /// Counts an item.
    pub(super) fn add(&mut self, item: &Item) {
        match item {
            Item::Event(record) => {
                self.first_ns.get_or_insert(record.time_ns);
                self.plot.add(record);
            }
            Item::Start { time_ns, wall_clock } => {
                self.clock.get_or_insert((*time_ns, *wall_clock));
            }
            Item::Name(_) | Item::Other => {}
        }
    }

    /// What the heading says beside the events.
    fn facts(&self) -> Vec<(&'static str, String)> {
        let date = self.clock.map(|(time_ns, wall_clock)| {
            let first_ns = self.first_ns.unwrap_or(time_ns);
            let after = Duration::from_nanos(first_ns.saturating_sub(time_ns));
            format!("{} UTC", utc(wall_clock.saturating_add(after).as_secs() as i64))
        });
        let unknown = || "not in the files of the trace".to_owned();
        vec![
            ("Date", date.unwrap_or_else(unknown)),
            ("Host", self.host.clone().unwrap_or_else(unknown)),
            ("Command", command(std::env::args_os().skip(1))),
            ("Program", format!("ashlar {}", env!("CARGO_PKG_VERSION"))),
        ]
    }

    /// Writes it: to a file beside it, which then takes its name.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn finish(self, files: &[FileRow]) -> Result<()> {
        let is_page = self.path.extension().is_some_and(|ending| ending == "html");
        let facts = self.facts();
        let text = if is_page { self.plot.page(&facts, files) } else { self.plot.svg(&facts) };
        let beside = self.beside();
        let written = File::create_new(&beside)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .and_then(|()| fs::rename(&beside, &self.path));
        written.map_err(|error| {
            // What could not be written may not have been made either.
            fs::remove_file(&beside).unwrap_or_default();
            self.failed(error)
        })
    }

    /// A file in the same directory that no other process makes.
    fn beside(&self) -> PathBuf {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        self.path.with_file_name(format!(".{name}.{}", std::process::id()))
    }

    fn failed(&self, error: io::Error) -> Error {
        Error::new("cannot write the picture", self.path.display(), error)
    }
}

/// The command line, as a shell takes it.
fn command(words: impl Iterator<Item = OsString>) -> String {
    let quoted = |word: OsString| {
        let word = word.to_string_lossy().into_owned();
        let is_plain = |c: char| c.is_alphanumeric() || "_@%+=:,./-".contains(c);
        let is_word = !word.is_empty() && word.chars().all(is_plain);
        if is_word { word } else { format!("'{}'", word.replace('\'', r"'\''")) }
    };
    std::iter::once("ashlar".to_owned()).chain(words.map(quoted)).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_one_that_can_be_typed() {
        let words = ["trace", "-w", "5", "--plot", "it's slow.svg", "", "md/data"];
        let text = r"ashlar trace -w 5 --plot 'it'\''s slow.svg' '' md/data";
        assert_eq!(command(words.iter().map(OsString::from)), text);
    }
}
