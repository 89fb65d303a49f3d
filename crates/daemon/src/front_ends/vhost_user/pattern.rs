//! Where the sockets of volumes are.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::str::FromStr;

use ashlar_disks::options::{Listen, OptionValue};
use thiserror::Error;

/// Stands for the name of a volume.
const NAME: &[u8] = b"{}";

/// `unix:PATH`: the path of one volume's socket, or, with `{}` for the name in its last part, the paths of all volumes' sockets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SocketPattern(PathBuf);

/// Why a text is not such a pattern.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum BadPattern {
    /// It is not the path of a socket.
    #[error("`{0}` is not unix:PATH")]
    NotUnix(String),
    /// There can be only one `{{}}`, in the name of the file.
    #[error(
        "`{0}`: {{}}, for the name of a volume, can be there once, in the last part of the path"
    )]
    Name(String),
}

/// Where the only `{}` is in the last part of a path; `None` if there is no such part, or more than one.
fn name_at(last: &[u8]) -> Option<usize> {
    let mut found = last.windows(NAME.len()).enumerate().filter(|(_, part)| *part == NAME);
    let first = found.next()?;
    found.next().is_none().then_some(first.0)
}

impl SocketPattern {
    /// The pattern of a path.
    pub fn of(path: PathBuf) -> Self {
        Self(path)
    }

    /// The path itself.
    pub fn path(&self) -> &PathBuf {
        &self.0
    }

    /// Whether there is one socket, for one volume.
    pub fn is_of_one(&self) -> bool {
        self.0.file_name().is_none_or(|last| name_at(last.as_bytes()).is_none())
    }

    /// The socket of the volume for which `name` stands, a part of a path.
    pub fn socket(&self, name: &str) -> PathBuf {
        let last = self.0.file_name().map(OsStr::as_bytes).unwrap_or_default();
        let Some(at) = name_at(last) else { return self.0.clone() };
        let last = [&last[..at], name.as_bytes(), &last[at + NAME.len()..]].concat();
        self.0.with_file_name(OsString::from_vec(last))
    }
}

/// What stands for a volume's name in a path. A name with several parts, as that of a logical volume or of a zvol, becomes one part as
/// in /dev/mapper: `vg/lv` is `vg-lv`, and a hyphen in a part is doubled, so that two logical volumes never
/// have the same socket.
pub(super) fn part_of(name: &str) -> String {
    if !name.contains('/') {
        return name.to_owned();
    }
    let parts: Vec<String> = name.split('/').map(|part| part.replace('-', "--")).collect();
    parts.join("-")
}

impl OptionValue for SocketPattern {
    fn paths(&mut self) -> Vec<&mut PathBuf> {
        vec![&mut self.0]
    }
}

impl FromStr for SocketPattern {
    type Err = BadPattern;

    fn from_str(text: &str) -> Result<Self, BadPattern> {
        let Ok(Listen::Unix(path)) = text.parse() else {
            return Err(BadPattern::NotUnix(text.to_owned()));
        };
        let Some(last) = path.file_name().filter(|_| !text.ends_with('/')) else {
            return Err(BadPattern::NotUnix(text.to_owned()));
        };
        let count = |bytes: &[u8]| bytes.windows(NAME.len()).filter(|part| *part == NAME).count();
        let (all, own) = (count(path.as_os_str().as_bytes()), count(last.as_bytes()));
        if all > 1 || all != own {
            return Err(BadPattern::Name(text.to_owned()));
        }
        Ok(Self(path))
    }
}

impl fmt::Display for SocketPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unix:{}", self.0.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_has_one_socket_and_no_two_have_the_same() {
        let each: SocketPattern = "unix:/run/vm/{}.sock".parse().unwrap();
        let one: SocketPattern = "unix:disk.sock".parse().unwrap();
        assert_eq!((each.is_of_one(), one.is_of_one()), (false, true));
        assert_eq!(each.socket("md0"), PathBuf::from("/run/vm/md0.sock"));
        assert_eq!(one.socket("md0"), PathBuf::from("disk.sock"));
        let names = ["a/b", "a-b", "a/b-c", "a-b/c", "a/b/c", "md/0", "md0", "a-/b"];
        let mut parts: Vec<String> = names.into_iter().map(part_of).collect();
        assert_eq!(parts[..4], ["a-b", "a-b", "a-b--c", "a--b-c"]);
        // A name without parts may look like one with several.
        parts.remove(1);
        parts.sort();
        parts.dedup();
        assert_eq!(parts.len(), names.len() - 1);
        assert!(parts.iter().all(|part| !part.contains('/')));
        for bad in
            ["", "/run/x", "tcp:localhost:1", "unix:", "unix:/run/", "unix:/{}/s", "unix:{}{}"]
        {
            bad.parse::<SocketPattern>().unwrap_err();
        }
    }
}
