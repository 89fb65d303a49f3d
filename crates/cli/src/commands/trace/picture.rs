//! The file of a picture, which is whole or not there.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use ashlar_block::disk::DeviceNumber;
use ashlar_host::error::{Error, Result};
use ashlar_plot::{FileRow, Plot};
use ashlar_stack::trace::Record;

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
}

impl Picture {
    /// A picture of these devices.
    ///
    /// # Errors
    /// Its directory cannot be written.
    pub(super) fn new(path: &Path, devices: Vec<(DeviceNumber, String)>) -> Result<Self> {
        let this = Self { path: path.to_owned(), plot: Plot::new(devices) };
        let beside = this.beside();
        let made = File::create_new(&beside).and_then(|_| fs::remove_file(&beside));
        made.map_err(|error| this.failed(error))?;
        Ok(this)
    }

    pub(super) fn add(&mut self, record: &Record) {
        self.plot.add(record);
    }

    /// Writes it: to a file beside it, which then takes its name.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn finish(self, files: &[FileRow]) -> Result<()> {
        let is_page = self.path.extension().is_some_and(|ending| ending == "html");
        let text = if is_page { self.plot.page(files) } else { self.plot.svg() };
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
