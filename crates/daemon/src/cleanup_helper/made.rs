//! The sockets that a cleanup helper makes.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use ashlar_engine::socket_file::{self, Identity};

use crate::front_ends::vhost_user::SocketPattern;

/// The most sockets that a cleanup helper makes and has not removed: a daemon has fewer volumes.
const MAX_SOCKETS: usize = 65_536;

/// The sockets that a cleanup helper has made and not removed, by their names.
#[derive(Default)]
pub(super) struct Made(BTreeMap<String, (PathBuf, Identity)>);

impl Made {
    /// Makes the socket for which a name stands in `sockets`, and says which file it is.
    ///
    /// # Errors
    /// The text for the daemon.
    pub(super) fn make(
        &mut self,
        sockets: Option<&(SocketPattern, u32)>,
        name: &[u8],
    ) -> std::result::Result<(OwnedFd, String), String> {
        let (pattern, mode) = sockets.ok_or("the daemon has no such sockets")?;
        let name = str::from_utf8(name).ok().filter(|name| !name.contains(['/', '\0']));
        let name = name.filter(|name| !name.is_empty()).ok_or("not the name of a file")?;
        if self.0.len() >= MAX_SOCKETS {
            return Err(format!("there are {MAX_SOCKETS} sockets already"));
        }
        let path = pattern.socket(name);
        let made = socket_file::listen(&path, *mode, None);
        let (fd, mut file) = made.map_err(|error| error.to_string())?;
        // The daemon says when.
        file.removed_by(Box::new(|| {}));
        let (device, inode) = file.identity();
        self.0.insert(name.to_owned(), (path, (device, inode)));
        Ok((fd, format!("{device} {inode}")))
    }

    /// Removes the file of the socket with this name, unless another file has taken its place.
    pub(super) fn remove(&mut self, name: &[u8]) {
        let name = str::from_utf8(name).unwrap_or_default();
        if let Some((path, identity)) = self.0.remove(name) {
            socket_file::remove(&path, identity);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use ashlar_engine::net::BoundSocket;

    use super::*;

    #[test]
    fn it_makes_sockets_of_its_pattern_alone_and_removes_only_those() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let sockets = Some((SocketPattern::of(at("v-{}.sock")), 0o600));
        let mut made = Made::default();
        for name in [&b""[..], b"a/b", b"..\0", b"\xff", &[b'n'; 255]] {
            made.make(sockets.as_ref(), name).map(|_| ()).unwrap_err();
        }
        made.make(None, b"md0").map(|_| ()).unwrap_err();
        let (fd, _) = made.make(sockets.as_ref(), b"..").unwrap();
        assert_eq!(BoundSocket::listening(fd).unwrap().path(), Some(at("v-...sock")));
        // The socket is stale now, and is replaced; one that listens is not.
        let (_fd, identity) = made.make(sockets.as_ref(), b"..").unwrap();
        made.make(sockets.as_ref(), b"..").map(|_| ()).unwrap_err();
        let found = std::fs::symlink_metadata(at("v-...sock")).unwrap();
        assert_eq!(identity, format!("{} {}", found.dev(), found.ino()));
        std::fs::write(at("v-md0.sock"), "").unwrap();
        made.remove(b"md0");
        made.remove(b"..");
        made.remove(b"..");
        let left: Vec<_> =
            dir.path().read_dir().unwrap().map(|it| it.unwrap().file_name()).collect();
        assert_eq!(left, ["v-md0.sock"]);
    }
}
