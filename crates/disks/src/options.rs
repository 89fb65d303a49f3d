//! `stack.toml`, and the values of options, in the notation that command lines and the file share.
//!
//! The options themselves are those of `ashlar serve`; the front end has them, as [`FileOptions`].
//!
//! ```toml
//! disks = ["disk0.img", "disk1.img"]
//! mount = "/srv/volumes"
//! nbd = ["unix:/run/ashlar.nbd", "tcp:localhost:10809"]
//! model = "gp2:3000iops"
//!
//! [set]
//! "sys/block/md0/queue/discard_max_bytes" = 524288
//! ```
//!
//! Instead of one device model for all disks, a table may give models by disk:
//!
//! ```toml
//! [model]
//! "disk0.img" = "hdd"
//! ```
//!
//! Every key is optional and has the meaning of the option of `ashlar serve` with its name. Relative
//! paths are relative to the file's directory. Unknown keys are errors: a misspelt `read_only` must
//! not start a writable stack.

mod maps;
mod metrics;
mod models;
mod values;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::{fs, io};

use ashlar_client::disk_path::is_no_file;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use thiserror::Error;

use self::values::{Value, parsed};

pub use ashlar_block::byte_volume::Holes;
pub use ashlar_control::console::LogPlace;
pub use ashlar_engine::BackEnd;
pub use maps::{BadMapFile, MapFile};
pub use metrics::{BadMetricsAddress, MetricsAddress};
pub use models::{Assignment, models};
pub use values::{BadBytes, BadMode, BadReAddPolicy, Bytes, Group, Mode, ReAddPolicy, some_parsed};

/// The options that a `stack.toml` may have.
pub trait FileOptions: DeserializeOwned {
    /// The paths among them.
    fn paths(&mut self) -> Vec<&mut PathBuf>;
}

/// An address to listen on: `unix:PATH` or `tcp:HOST:PORT`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Listen {
    /// A Unix socket.
    Unix(PathBuf),
    /// A host (a name, or an address; IPv6 in brackets) and a port, not yet resolved.
    Tcp(String),
}

/// Why a text is not an address to listen on.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("`{0}` is neither unix:PATH nor tcp:HOST:PORT")]
pub struct BadListen(String);

impl FromStr for Listen {
    type Err = BadListen;

    fn from_str(text: &str) -> Result<Self, BadListen> {
        let bad = || BadListen(text.to_owned());
        match text.split_once(':') {
            Some(("unix", path)) if !path.is_empty() => Ok(Self::Unix(path.into())),
            Some(("tcp", address)) => {
                let (host, port) = address.rsplit_once(':').ok_or_else(bad)?;
                let bare_v6 = host.contains(':') && !(host.starts_with('[') && host.ends_with(']'));
                if host.is_empty() || bare_v6 || port.parse::<u16>().is_err() {
                    return Err(bad());
                }
                Ok(Self::Tcp(address.to_owned()))
            }
            Some(_) | None => Err(bad()),
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}

impl<'de> Deserialize<'de> for Listen {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        parsed(deserializer)
    }
}

/// Why a `stack.toml` cannot be used.
#[derive(Debug, Error)]
pub enum FileError {
    /// The file cannot be read.
    #[error("{path}: {error}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// The file is not TOML, or has unknown keys or values.
    #[error("{path}:{line}:{column}: {message}", path = path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The character in the line, from 1.
        column: usize,
        /// The error.
        message: String,
    },
}

/// The options in the file `path`.
///
/// # Errors
/// [`FileError`]; a file with an error is ignored as a whole.
pub fn load<T: FileOptions>(path: &Path) -> Result<T, FileError> {
    let read = |error| FileError::Read { path: path.to_owned(), error };
    let text = fs::read_to_string(path).map_err(read)?;
    parse(&text, path)
}

/// The options in `text`, the contents of the file `path`.
///
/// # Errors
/// [`FileError::Parse`].
pub fn parse<T: FileOptions>(text: &str, path: &Path) -> Result<T, FileError> {
    let mut options: T = toml::from_str(text).map_err(|error| {
        let (line, column) = position(text, error.span().map_or(0, |span| span.start));
        let message = error.message().replace('\n', " ");
        FileError::Parse { path: path.to_owned(), line, column, message }
    })?;
    let base = path.parent().unwrap_or(Path::new(""));
    for relative in options.paths() {
        if !is_no_file(relative) {
            *relative = base.join(&*relative);
        }
    }
    Ok(options)
}

/// The table `set`: paths of attributes, and their values as for `ashlar set`; numbers and booleans are accepted, too.
///
/// # Errors
/// It is not such a table.
pub fn settings<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<(String, String)>, D::Error> {
    let table = BTreeMap::<String, Value>::deserialize(deserializer)?;
    Ok(table.into_iter().map(|(path, value)| (path, value.0)).collect())
}

/// The line and column of a byte of `text`, both from 1, the column in characters.
fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[start..].chars().count() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    struct DiskOptions {
        disks: Vec<PathBuf>,
    }

    impl FileOptions for DiskOptions {
        fn paths(&mut self) -> Vec<&mut PathBuf> {
            self.disks.iter_mut().collect()
        }
    }

    #[test]
    fn paths_are_relative_to_the_file_unless_they_are_no_files() {
        let text = r#"disks = ["a.img", "/b", "ram:1G", "nbd://h/e", "nbd+unix:///?socket=s"]"#;
        let DiskOptions { disks } = parse(text, Path::new("/etc/stack.toml")).unwrap();
        let expected = ["/etc/a.img", "/b", "ram:1G", "nbd://h/e", "nbd+unix:///?socket=s"];
        assert_eq!(disks, expected.map(PathBuf::from));
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = load::<DiskOptions>(Path::new("/nonexistent/stack.toml")).unwrap_err();
        assert!(error.to_string().starts_with("/nonexistent/stack.toml: "), "{error}");
    }

    #[test]
    fn addresses_to_listen_on_read_as_they_print() {
        for good in ["unix:/a b", "unix:rel", "tcp:localhost:0", "tcp:[::]:1", "tcp:0.0.0.0:65535"]
        {
            assert_eq!(good.parse::<Listen>().unwrap().to_string(), good);
        }
        for bad in
            ["", "unix:", "tcp:", "tcp:1", "tcp::1", "tcp:h:65536", "tcp:::1:1", "/a", "UNIX:/a"]
        {
            assert!(bad.parse::<Listen>().is_err(), "{bad}");
        }
    }
}
