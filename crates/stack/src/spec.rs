//! `stack.toml`: the configuration of a daemon.
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

mod models;
mod values;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::{fs, io};

use serde::{Deserialize, Deserializer};
use thiserror::Error;

pub use models::Assignment;
pub use values::{BadBytes, BadMode, Bytes, Group, Mode};

/// The contents of a `stack.toml`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Spec {
    /// The disks: image files or block devices.
    pub disks: Vec<PathBuf>,
    /// Write to nothing.
    pub read_only: bool,
    /// Go through the page cache.
    pub buffered: bool,
    /// Start arrays that lack members.
    pub run: bool,
    /// Let arrays that lack members wait for them.
    pub incremental: bool,
    /// Export disks and arrays as they are, whatever they contain.
    pub whole: bool,
    /// Export the raw bytes of images in hypervisors' formats.
    pub raw: bool,
    /// Activate logical volumes that lack physical volumes.
    pub partial: bool,
    /// Import pools that another host used last.
    pub force: bool,
    /// Where to mount the volumes.
    pub mount: Option<PathBuf>,
    /// Give other users access to the mount.
    pub allow_other: bool,
    /// Where to listen for NBD clients.
    pub nbd: Vec<Listen>,
    /// Permissions of the NBD server's Unix sockets.
    pub nbd_mode: Option<Mode>,
    /// Maximum of NBD clients at each address.
    pub nbd_max_connections: Option<u16>,
    /// Seconds after which an NBD connection without requests is closed; 0 for never.
    pub nbd_idle_timeout: Option<u32>,
    /// Memory of the requests of all NBD clients.
    pub nbd_memory: Option<Bytes>,
    /// The control socket.
    pub control: Option<PathBuf>,
    /// The group whose members may use the control socket.
    pub control_group: Option<Group>,
    /// Reactor threads.
    pub threads: Option<u16>,
    /// Microseconds for which a thread polls for completions before it sleeps.
    pub spin: Option<u32>,
    /// Device models for all disks or some.
    #[serde(deserialize_with = "models::deserialize")]
    pub model: Vec<Assignment>,
    /// Attributes to set at the start, by path.
    pub set: BTreeMap<String, Value>,
}

/// A value for an attribute, as for `ashlar set`; numbers and booleans are accepted too.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Value(pub String);

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a string, an integer or a boolean")]
        enum Scalar {
            Integer(i64),
            Boolean(bool),
            String(String),
        }
        Ok(Self(match Scalar::deserialize(deserializer)? {
            Scalar::Integer(number) => number.to_string(),
            Scalar::Boolean(flag) => u8::from(flag).to_string(),
            Scalar::String(text) => text,
        }))
    }
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
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Why a `stack.toml` cannot be used.
#[derive(Debug, Error)]
pub enum SpecError {
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

impl Spec {
    /// Reads and checks `path`.
    ///
    /// # Errors
    /// [`SpecError`]; a file with an error is ignored as a whole.
    pub fn load(path: &Path) -> Result<Self, SpecError> {
        let read = |error| SpecError::Read { path: path.to_owned(), error };
        let text = fs::read_to_string(path).map_err(read)?;
        Self::parse(&text, path)
    }

    /// Parses `text`, the contents of the file `path`.
    ///
    /// # Errors
    /// [`SpecError::Parse`].
    pub fn parse(text: &str, path: &Path) -> Result<Self, SpecError> {
        let mut spec: Self = toml::from_str(text).map_err(|error| {
            let (line, column) = position(text, error.span().map_or(0, |span| span.start));
            let message = error.message().replace('\n', " ");
            SpecError::Parse { path: path.to_owned(), line, column, message }
        })?;
        let base = path.parent().unwrap_or(Path::new(""));
        let unix = spec.nbd.iter_mut().filter_map(|listen| match listen {
            Listen::Unix(path) => Some(path),
            Listen::Tcp(_) => None,
        });
        let modelled = spec.model.iter_mut().filter_map(|assignment| assignment.disk.as_mut());
        let paths = spec.disks.iter_mut().chain(&mut spec.mount).chain(&mut spec.control);
        for relative in paths.chain(unix).chain(modelled) {
            *relative = base.join(&*relative);
        }
        Ok(spec)
    }
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

    fn parse(text: &str) -> Result<Spec, SpecError> {
        Spec::parse(text, Path::new("/etc/ashlar/stack.toml"))
    }

    #[test]
    fn a_full_file_is_understood_and_its_paths_are_relative_to_it() {
        let spec = parse(
            r#"
            disks = ["a.img", "/dev/sdb"]
            read_only = true
            run = true
            incremental = true
            whole = true
            partial = true
            force = true
            mount = "/srv"
            allow_other = true
            nbd = ["unix:nbd.sock", "tcp:[::1]:10809"]
            nbd_mode = "660"
            nbd_max_connections = 16
            nbd_idle_timeout = 600
            nbd_memory = "256M"
            control = "control.sock"
            control_group = "disk"
            threads = 2
            spin = 0
            [set]
            "sys/block/md0/queue/discard_max_bytes" = 524288
            "sys/block/md0/md/safe_mode_delay" = "0.2"
            "sys/block/md0/queue/nomerges" = true
            "#,
        )
        .unwrap();
        assert_eq!(spec.disks, [Path::new("/etc/ashlar/a.img"), Path::new("/dev/sdb")]);
        let unix = Listen::Unix("/etc/ashlar/nbd.sock".into());
        assert_eq!(spec.nbd, [unix, Listen::Tcp("[::1]:10809".into())]);
        assert_eq!(spec.nbd_mode, Some(Mode(0o660)));
        assert_eq!((spec.nbd_max_connections, spec.nbd_idle_timeout), (Some(16), Some(600)));
        assert_eq!(spec.nbd_memory, Some(Bytes(256 << 20)));
        assert_eq!(spec.control.as_deref(), Some(Path::new("/etc/ashlar/control.sock")));
        assert_eq!(spec.control_group, Some(Group("disk".to_owned())));
        let numbered = parse("control_group = 6").unwrap();
        assert_eq!(numbered.control_group, Some(Group("6".to_owned())));
        assert!(spec.read_only && spec.run && spec.incremental);
        assert!(spec.whole && spec.partial && spec.force && spec.allow_other);
        assert_eq!((spec.threads, spec.spin), (Some(2), Some(0)));
        let values: Vec<&str> = spec.set.values().map(|value| value.0.as_str()).collect();
        assert_eq!(values, ["0.2", "524288", "1"]);
        assert_eq!(parse("").unwrap(), Spec::default());
    }

    #[test]
    fn a_model_is_for_all_disks_or_by_disk_with_paths_relative_to_the_file() {
        let models = |text: &str| {
            let spec = parse(text).unwrap();
            spec.model.iter().map(Assignment::to_string).collect::<Vec<_>>()
        };
        assert_eq!(models("model = \"gp2:3000iops\""), ["gp2:3000iops"]);
        let table = "[model]\n\"a.img\" = \"hdd\"\n\"/dev/sdb\" = \"nvme:read=1ms\"";
        assert_eq!(models(table), ["/dev/sdb=nvme:read=1ms", "/etc/ashlar/a.img=hdd"]);
        assert_eq!(models("disks = [\"a\"]"), [""; 0]);
    }

    #[test]
    fn errors_say_file_line_and_column() {
        let cases = [
            ("disks = [\"a\"]\nread-only = true\n", "2:1: unknown field `read-only`"),
            ("threads = -1\n", "1:11: invalid value"),
            ("threads = 70000\n", "1:11: invalid value"),
            ("disks = [\n  \"a\"\n", "2:6: unclosed array"),
            ("read_only = 1\n", "1:13: invalid type: integer `1`, expected a boolean"),
            ("nbd = [\"unix:/a\", \"udp:1\"]\n", "1:7: `udp:1` is neither unix:PATH"),
            ("disks = []\nmodel = \"gp2:fast\"\n", "2:9: a device model has no `fast`"),
            ("[model]\n\"a.img\" = \"floppy\"\n", "1:1: there is no device model `floppy`"),
            ("model = 5\n", "1:9: a device model, or a table of device models by disk"),
            ("control_group = true\n", "1:17: the name or the number of a group"),
            ("control_group = -1\n", "1:17: the name or the number of a group"),
            ("nbd_mode = 660\n", "1:12: invalid type: integer `660`, expected a string"),
            ("nbd_memory = \"much\"\n", "1:14: `much` is not a number of bytes"),
            ("[set]\nx = [1]\n", "2:5: a string, an integer or a boolean"),
            ("# \u{e9}\u{e9}\n\u{e9} = 1", "2:1: "),
        ];
        for (text, expected) in cases {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.starts_with("/etc/ashlar/stack.toml:"), "{error}");
            assert!(error.contains(expected), "{text:?}: {error}");
            assert!(!error.contains('\n'), "{error:?}");
        }
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = Spec::load(Path::new("/nonexistent/stack.toml")).unwrap_err();
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
