//! `stack.toml`, and the values of options, in the notation that command lines and the file share.
//!
//! The options themselves are those of `ashlar serve`; the daemon has them, as [`Options`].
//!
//! Every key is optional and has the meaning of the option of `ashlar serve` with its name. Relative
//! paths are relative to the file's directory. Unknown keys are errors: a misspelt `read_only` must
//! not start a writable stack.

mod given;
mod values;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::{fmt, fs};

use ashlar_block::io_max::VolumeLimit;
use ashlar_client::disk_path::is_no_file;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use thiserror::Error;

use self::values::Value;

pub use ashlar_block::byte_volume::Holes;
pub use ashlar_control::console::LogPlace;
pub use ashlar_engine::BackEnd;
pub use given::{Given, OptionValue, Options, take_keys};
pub use toml::de::{DeTable as Table, Error as BadValue};
pub(crate) use values::parsed;
pub use values::{BadBytes, BadMode, BadReAddPolicy, Bytes, Group, Mode, ReAddPolicy, some_parsed};

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

impl OptionValue for Listen {
    const REPLACE: bool = true;

    fn paths(&mut self) -> Vec<&mut PathBuf> {
        match self {
            Self::Unix(path) => vec![path],
            Self::Tcp(_) => Vec::new(),
        }
    }
}

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

/// Why a `stack.toml` cannot be used: it cannot be read, is not TOML, or has unknown keys or values. With the file, and where in it.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct FileError(String);

/// The options in the file `path`.
///
/// # Errors
/// [`FileError`]; a file with an error is ignored as a whole.
pub fn load<T: Options>(path: &Path) -> Result<T, FileError> {
    let failed = |error| FileError(format!("{}: {error}", path.display()));
    let text = fs::read_to_string(path).map_err(failed)?;
    parse(&text, path)
}

/// The options in `text`, the contents of the file `path`.
///
/// # Errors
/// [`FileError`].
pub fn parse<T: Options>(text: &str, path: &Path) -> Result<T, FileError> {
    let failed = |at, message: &str| {
        let (line, column) = position(text, at);
        let message = message.replace('\n', " ");
        FileError(format!("{}:{line}:{column}: {message}", path.display()))
    };
    let bad = |error: BadValue| failed(error.span().map_or(0, |span| span.start), error.message());
    let mut file = Table::parse(text).map_err(bad)?.into_inner();
    let keys = T::keys();
    if let Some(unknown) = file.keys().find(|key| !keys.contains(&&**key.get_ref())) {
        let (at, name, known) = (unknown.span().start, unknown.get_ref(), keys.join("`, `"));
        return Err(failed(at, &format!("unknown field `{name}`, expected one of `{known}`")));
    }
    let mut options = T::take(&mut file).map_err(bad)?;
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

/// The table `limit`: names of volumes, and their limits.
///
/// # Errors
/// It is not such a table.
pub fn limits<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<VolumeLimit>, D::Error> {
    let table = BTreeMap::<String, String>::deserialize(deserializer)?;
    // A star comes before most names, and the later of two limits counts.
    let limits = table.into_iter().map(|(volume, text)| VolumeLimit::new(&volume, &text));
    limits.collect::<Result<_, _>>().map_err(D::Error::custom)
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
