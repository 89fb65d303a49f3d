//! Maps of GNU ddrescue in the user's notation: `disk0.img=disk0.map`, or `disk0.map` if there is one disk.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use ashlar_client::disk_path::absolute;
use ashlar_control::error::Result;
use serde::{Deserialize, Deserializer};
use thiserror::Error;

use crate::options::{OptionValue, parsed};

/// A map for a disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MapFile {
    /// The disk; `None` for the only one.
    pub disk: Option<PathBuf>,
    /// The map.
    pub file: PathBuf,
}

/// Why a text names no map.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("`{0}` names no map: it is FILE, or DISK=FILE")]
pub struct BadMapFile(String);

impl MapFile {
    /// The same as seen from any directory.
    ///
    /// # Errors
    /// The current directory is gone.
    pub fn absolute(self) -> Result<Self> {
        let disk = self.disk.map(|disk| absolute(&disk)).transpose()?;
        Ok(Self { disk, file: absolute(&self.file)? })
    }
}

impl OptionValue for MapFile {
    fn paths(&mut self) -> Vec<&mut PathBuf> {
        self.disk.iter_mut().chain([&mut self.file]).collect()
    }
}

impl FromStr for MapFile {
    type Err = BadMapFile;

    /// `FILE` or `DISK=FILE`, cut at the last equals sign: URIs of disks have some.
    fn from_str(text: &str) -> std::result::Result<Self, BadMapFile> {
        let (disk, file) = match text.rsplit_once('=') {
            Some((disk, file)) => (Some(disk), file),
            None => (None, text),
        };
        if file.is_empty() || disk == Some("") {
            return Err(BadMapFile(text.to_owned()));
        }
        Ok(Self { disk: disk.map(PathBuf::from), file: file.into() })
    }
}

impl fmt::Display for MapFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(disk) = &self.disk {
            write!(f, "{}=", disk.display())?;
        }
        self.file.display().fmt(f)
    }
}

impl<'de> Deserialize<'de> for MapFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        parsed(deserializer)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_map_is_for_the_only_disk_or_for_the_one_before_the_last_equals_sign() {
        let cases = [
            ("disk.map", None, "disk.map"),
            ("disk.img=a/disk.map", Some("disk.img"), "a/disk.map"),
            ("nbd+unix:///e?socket=s=e.map", Some("nbd+unix:///e?socket=s"), "e.map"),
        ];
        for (text, disk, file) in cases {
            let found: MapFile = text.parse().unwrap();
            assert_eq!(found.disk.as_deref(), disk.map(Path::new), "{text}");
            assert_eq!(found.file, Path::new(file), "{text}");
            assert_eq!(found.to_string(), text);
        }
        for bad in ["", "=", "disk=", "=map"] {
            assert_eq!(bad.parse::<MapFile>(), Err(BadMapFile(bad.to_owned())));
        }
    }
}
