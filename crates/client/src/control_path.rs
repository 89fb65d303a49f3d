//! The default path of the control socket, which the daemon and its clients derive in the same way.
//!
//! | user | path |
//! |---|---|
//! | root | `/run/ashlar.sock` |
//! | another, with `XDG_RUNTIME_DIR` | `$XDG_RUNTIME_DIR/ashlar.sock` |
//! | without, but with a directory in `/run/user` (after su, in cron) | `/run/user/UID/ashlar.sock`: the same place |
//! | without both (no systemd or elogind) | `/tmp/ashlar-UID/ashlar.sock` |
//!
//! Any user may make a directory in `/tmp`, and the owner of the one in the last line could pose as the daemon, or as its
//! client: it must be a directory of this user that no other user can enter.

use std::ffi::OsStr;
use std::fs::{DirBuilder, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use ashlar_control::error::{Error, Result};

/// The name of the socket.
const NAME: &str = "ashlar.sock";
/// The permissions of a directory of ours.
const MODE: u32 = 0o700;

/// The default path for a client.
///
/// # Errors
/// The directory is not safe.
pub(crate) fn default_for_client() -> Result<PathBuf> {
    Ok(Place::of_this_user()?.socket())
}

/// The default path for a daemon. Makes the directory unless the system provides it.
///
/// # Errors
/// The directory cannot be made, or is not safe.
pub(crate) fn default_for_daemon() -> Result<PathBuf> {
    let place = Place::of_this_user()?;
    place.make()?;
    Ok(place.socket())
}

/// A directory for the socket.
#[derive(PartialEq, Eq, Debug)]
enum Place {
    /// One that the system made.
    System(PathBuf),
    /// One that we make.
    Own { directory: PathBuf, user: u32 },
}

impl Place {
    fn of_this_user() -> Result<Self> {
        let user = rustix::process::geteuid();
        if user.is_root() {
            return Ok(Self::System("/run".into()));
        }
        let named = std::env::var_os("XDG_RUNTIME_DIR");
        let roots = [Path::new("/run/user"), Path::new("/tmp")];
        let place = Self::find(user.as_raw(), named.as_deref(), roots);
        place.check()?;
        Ok(place)
    }

    /// The place for `user`, with the value of `XDG_RUNTIME_DIR`, `/run/user` and `/tmp`.
    fn find(user: u32, named: Option<&OsStr>, [run, temporary]: [&Path; 2]) -> Self {
        // The XDG Base Directory Specification ignores relative paths.
        if let Some(directory) = named.map(Path::new).filter(|path| path.is_absolute()) {
            return Self::System(directory.to_owned());
        }
        let directory = run.join(user.to_string());
        let found = directory.symlink_metadata();
        if found.is_ok_and(|found| found.is_dir() && found.uid() == user) {
            return Self::System(directory);
        }
        Self::Own { directory: temporary.join(format!("ashlar-{user}")), user }
    }

    fn socket(&self) -> PathBuf {
        let (Self::System(directory) | Self::Own { directory, .. }) = self;
        directory.join(NAME)
    }

    /// Makes a directory of ours, and checks it.
    fn make(&self) -> Result<()> {
        let Self::Own { directory, .. } = self else { return Ok(()) };
        match DirBuilder::new().mode(MODE).create(directory) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed(directory, error)),
        }
        self.check()
    }

    /// Checks that a directory of ours, if it is there, is safe.
    fn check(&self) -> Result<()> {
        let Self::Own { directory, user } = self else { return Ok(()) };
        match directory.symlink_metadata() {
            Ok(found) => unsafe_because(&found, *user).map_or(Ok(()), |why| {
                let error = failed(directory, why);
                Err(error.hint("remove it, set XDG_RUNTIME_DIR, or give --control PATH"))
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(failed(directory, error)),
        }
    }
}

fn failed(directory: &Path, why: impl std::fmt::Display) -> Error {
    Error::new("no safe place for the control socket", directory.display(), why)
        .hint("set XDG_RUNTIME_DIR, or give --control PATH")
}

/// Why other users than `user` may control a directory.
fn unsafe_because(found: &Metadata, user: u32) -> Option<String> {
    let permissions = found.mode() & 0o777;
    if !found.is_dir() {
        // Nor is a symbolic link accepted.
        Some("it is not a directory".to_owned())
    } else if found.uid() != user {
        Some(format!("it belongs to user {}", found.uid()))
    } else if permissions != MODE {
        Some(format!("its permissions are {permissions:o}, not {MODE:o}"))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// This user, `/run/user` and `/tmp`.
    fn site() -> (u32, tempfile::TempDir, tempfile::TempDir) {
        let user = rustix::process::geteuid().as_raw();
        (user, tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap())
    }

    #[test]
    fn the_variable_is_followed_and_then_the_directory_that_it_usually_names() {
        let (user, run, tmp) = site();
        let roots = [run.path(), tmp.path()];
        let find = |named: Option<&str>| Place::find(user, named.map(OsStr::new), roots).socket();
        let own = tmp.path().join(format!("ashlar-{user}/ashlar.sock"));
        assert_eq!(find(Some("/x/y")), Path::new("/x/y/ashlar.sock"));
        for named in [None, Some(""), Some("x/y")] {
            assert_eq!(find(named), own, "{named:?}");
        }
        let usual = run.path().join(user.to_string());
        // Neither a file nor a link to a directory is it, nor what belongs to another.
        fs::write(&usual, "").unwrap();
        assert_eq!(find(None), own);
        fs::remove_file(&usual).unwrap();
        symlink("/", &usual).unwrap();
        assert_eq!(find(None), own);
        fs::remove_file(&usual).unwrap();
        fs::create_dir(&usual).unwrap();
        assert_eq!(find(None), usual.join("ashlar.sock"));
        fs::create_dir(run.path().join((user + 1).to_string())).unwrap();
        let other = Place::find(user + 1, None, roots);
        assert_eq!(other.socket(), tmp.path().join(format!("ashlar-{}/ashlar.sock", user + 1)));
    }

    #[test]
    fn a_directory_of_ours_is_made_once_and_only_used_if_it_is_safe() {
        let (user, run, tmp) = site();
        let place = Place::find(user, None, [run.path(), tmp.path()]);
        let directory = tmp.path().join(format!("ashlar-{user}"));
        place.check().unwrap();
        assert!(!directory.exists(), "a client makes nothing");
        for _ in 0..2 {
            place.make().unwrap();
            assert_eq!(fs::metadata(&directory).unwrap().mode() & 0o7777, 0o700);
        }
        let refused = |place: &Place, why: &str| {
            for result in [place.check(), place.make()] {
                let text = result.unwrap_err().to_string();
                assert!(text.contains(directory.to_str().unwrap()) && text.contains(why), "{text}");
            }
        };
        let stranger = Place::Own { directory: directory.clone(), user: user + 1 };
        refused(&stranger, &format!("it belongs to user {user}"));
        for mode in [0o755, 0o770, 0o600] {
            fs::set_permissions(&directory, Permissions::from_mode(mode)).unwrap();
            refused(&place, &format!("its permissions are {mode:o}, not 700"));
        }
        fs::remove_dir(&directory).unwrap();
        let safe = run.path().join("safe");
        DirBuilder::new().mode(0o700).create(&safe).unwrap();
        symlink(&safe, &directory).unwrap();
        refused(&place, "it is not a directory");
        fs::remove_file(&directory).unwrap();
        fs::write(&directory, "").unwrap();
        refused(&place, "it is not a directory");
    }
}
