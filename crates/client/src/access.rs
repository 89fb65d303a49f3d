//! Who may control the daemon: the socket's place and mode, and the check of every peer.
//!
//! The mode of the socket's file already says who may connect. But a user may change it by mistake, and a process may pass on
//! a connection that it opened for another user: the daemon checks the user that connected. Each call carries the
//! [`Caller`]: a member of the group may control the daemon, but may not open files and make connections with the daemon's
//! rights.

use std::cell::Cell;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use ashlar_block::rate_limited;
use ashlar_control::error::{Error, Result};
use ashlar_control::varlink::{Call, Frames, MAX_CALL, Reply, encode};
use ashlar_engine::net::{BoundSocket, Socket};
use ashlar_engine::process::{Credentials, credentials};
use ashlar_engine::{accounts, timeout};
use rustix::io::Errno;

use crate::connection_slots::Rank;
use crate::control_path;
use crate::interface::refused;

/// The mode of the socket for the daemon's user alone.
const ALONE: u32 = 0o600;
/// The mode with a group.
const WITH_GROUP: u32 = 0o660;
/// How long a peer that may not control the daemon has for the call that is refused.
const PATIENCE: Duration = Duration::from_secs(5);
/// The most of these peers at a time; more are disconnected without a reply.
const MAX_REFUSED: usize = 16;

/// A group whose members may control the daemon.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Group {
    /// As the user wrote it.
    name: String,
    id: u32,
}

impl Group {
    /// The group with this name, or else with this number, as for chown(1).
    fn find(name: &str) -> Result<Self> {
        let failed = |why: String| {
            let error = Error::new("no such group for the control socket", name, why);
            error.hint("--control-group takes a name that `getent group` shows, or a number")
        };
        let id = match accounts::group(name) {
            Ok(Some(id)) => id,
            // The highest number stands for no group (chown(2)).
            Ok(None) => match name.parse() {
                Ok(u32::MAX) => return Err(failed("the number is too high".to_owned())),
                Ok(id) => id,
                Err(_) => return Err(failed("the system does not know it".to_owned())),
            },
            Err(error) => return Err(failed(error.to_string())),
        };
        Ok(Self { name: name.to_owned(), id })
    }
}

/// For whom a call is carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Caller {
    /// Root, the daemon's user, or the daemon itself: the daemon opens for them what it can open.
    Owner,
    /// Another user, as a member of the control group: the daemon opens nothing for this user.
    Member {
        /// The user.
        user: u32,
    },
}

impl Caller {
    /// The rank among those that want a place at the control socket.
    pub fn rank(self) -> Rank {
        match self {
            Self::Owner => Rank::Owner,
            Self::Member { .. } => Rank::Guest,
        }
    }
}

/// Who may control the daemon.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Access {
    /// The daemon's user. Root may, too.
    user: u32,
    group: Option<Group>,
}

impl Access {
    /// Root, the user of this process, and the members of `group`.
    ///
    /// # Errors
    /// There is no such group.
    pub fn new(group: Option<&str>) -> Result<Self> {
        let group = group.map(Group::find).transpose()?;
        Ok(Self { user: rustix::process::geteuid().as_raw(), group })
    }

    /// For whom this peer calls, if it may.
    fn caller(&self, peer: &Credentials) -> Option<Caller> {
        if peer.user == 0 || peer.user == self.user {
            return Some(Caller::Owner);
        }
        let is_member = self.group.as_ref().is_some_and(|group| peer.has_group(group.id));
        is_member.then_some(Caller::Member { user: peer.user })
    }

    /// `root`, `root and user 1000`, `root, user 1000 and members of the group disk`.
    fn who(&self) -> String {
        let mut who = vec!["root".to_owned()];
        if self.user != 0 {
            who.push(format!("user {}", self.user));
        }
        who.extend(self.group.iter().map(|group| format!("members of the group {}", group.name)));
        let last = who.pop().unwrap_or_default();
        if who.is_empty() { last } else { format!("{} and {last}", who.join(", ")) }
    }

    /// Checks who is at the other end of a connection.
    ///
    /// # Errors
    /// The reply for a peer that may not control the daemon.
    pub fn check(&self, socket: &impl AsFd) -> std::result::Result<Caller, Reply> {
        let user = match credentials(socket) {
            Ok(peer) => match self.caller(&peer) {
                Some(caller) => return Ok(caller),
                None => {
                    let Credentials { pid, user, group, .. } = peer;
                    rate_limited!(warn, pid, user, group, "refused to control the daemon");
                    format!("user {user}")
                }
            },
            Err(error) => {
                rate_limited!(warn, %error, "who connected is not known");
                "an unknown user".to_owned()
            }
        };
        let who = self.who();
        let reason = format!("{user} may not control this daemon, only {who} may");
        let hint = match &self.group {
            Some(_) => "a new member of the group must log in again first",
            None => "ashlar serve --control-group GROUP lets a group in",
        };
        Err(refused(reason, Some(hint)))
    }

    /// Listens at `path`, or at the default path.
    ///
    /// # Errors
    /// The socket cannot be made there.
    pub fn bind(&self, path: Option<&Path>) -> Result<BoundSocket> {
        let path = place(path)?;
        let failed = |error: io::Error| {
            let in_use = error.kind() == io::ErrorKind::AddrInUse;
            // chown(2)'s answer; bind(2)'s is EACCES.
            let not_theirs = Errno::from_io_error(&error) == Some(Errno::PERM);
            let error = Error::new("cannot open the control socket", path.display(), error);
            match &self.group {
                _ if in_use => {
                    error.hint("another daemon listens there: give this one another --control PATH")
                }
                Some(Group { name, .. }) if not_theirs => error.hint(format!(
                    "to give it to the group {name}, the daemon's user must be root or a member"
                )),
                Some(_) | None => error.hint("--control PATH puts it elsewhere"),
            }
        };
        let (mode, group) = match &self.group {
            Some(group) => (WITH_GROUP, Some(group.id)),
            None => (ALONE, None),
        };
        let bound = BoundSocket::unix(&path, mode, group).map_err(failed)?;
        if let (Some(group), Some(directory)) = (&self.group, directory(&path))
            && let Ok(found) = std::fs::metadata(directory)
            && found.permissions().mode() & 0o011 == 0
        {
            let (group, directory) = (&group.name, directory.display());
            tracing::warn!(
                group,
                %directory,
                "members of the group cannot reach the control socket in this directory: \
                 --control PATH puts it elsewhere"
            );
        }
        Ok(bound)
    }
}

/// The directory of a path with one.
fn directory(path: &Path) -> Option<&Path> {
    path.parent().filter(|parent| !parent.as_os_str().is_empty())
}

/// The path of the control socket, whose directory must exist. The default one is made where it is ours to make.
///
/// # Errors
/// There is no such place.
pub fn place(path: Option<&Path>) -> Result<PathBuf> {
    let path = match path {
        Some(path) => path.to_owned(),
        None => control_path::default_for_daemon()?,
    };
    let error = directory(&path).and_then(|directory| match std::fs::metadata(directory) {
        Ok(found) if found.is_dir() => None,
        Ok(_) => Some(io::ErrorKind::NotADirectory.into()),
        Err(error) => Some(error),
    });
    match error {
        None => Ok(path),
        Some(error) => Err(Error::new("no place for the control socket", path.display(), error)
            .hint("--control PATH puts it elsewhere")),
    }
}

/// The peers that are being refused. They do not occupy the places of others.
#[derive(Clone, Default)]
pub struct Refusals(Rc<Cell<usize>>);

impl Refusals {
    /// A place for one more, if there is one.
    pub fn one_more(&self) -> Option<Refusal> {
        let count = self.0.get();
        (count < MAX_REFUSED).then(|| {
            self.0.set(count + 1);
            Refusal(Rc::clone(&self.0))
        })
    }
}

/// The place of a peer that is being refused.
pub struct Refusal(Rc<Cell<usize>>);

impl Drop for Refusal {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Refusal {
    /// Answers the first call with `reply`, and nothing else.
    pub async fn tell(self, socket: Socket, reply: Reply) {
        match timeout(PATIENCE, pin!(answer_first(&socket, &reply))).await {
            Some(Ok(())) => {}
            Some(Err(error)) => tracing::debug!(%error, "a refused connection is lost"),
            None => tracing::debug!("a refused connection without a call"),
        }
    }
}

/// Without the call, the caller would get an error when it sends it, and not read the reply.
async fn answer_first(socket: &Socket, reply: &Reply) -> io::Result<()> {
    let mut frames = Frames::new(MAX_CALL);
    let mut buffer = vec![0; 4096];
    let message = loop {
        if let Some(message) = frames.next_message().map_err(io::Error::other)? {
            break message;
        }
        let (received, same) = socket.recv(buffer).await;
        buffer = same;
        match received? {
            0 => return Ok(()),
            len => frames.push(&buffer[..len]),
        }
    };
    let call: Call = serde_json::from_slice(&message)?;
    if call.oneway { Ok(()) } else { socket.send_all(encode(reply)).await.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(user: u32, group: Option<u32>) -> Access {
        let group = group.map(|id| Group { name: format!("g{id}"), id });
        Access { user, group }
    }

    fn peer(user: u32, group: u32, groups: &[u32]) -> Credentials {
        Credentials { pid: 1, user, group, groups: groups.to_vec() }
    }

    #[test]
    fn root_the_user_and_the_group_may_and_no_other_user() {
        const OWNER: Option<Caller> = Some(Caller::Owner);
        const MEMBER: Option<Caller> = Some(Caller::Member { user: 1001 });
        let (alone, with) = (access(1000, None), access(1000, Some(27)));
        let cases = [
            (peer(0, 0, &[]), OWNER, OWNER),
            (peer(1000, 1000, &[]), OWNER, OWNER),
            // The daemon's user remains that as a member, too.
            (peer(1000, 27, &[]), OWNER, OWNER),
            (peer(1001, 27, &[]), None, MEMBER),
            (peer(1001, 1001, &[5, 27]), None, MEMBER),
            (peer(1001, 1001, &[5]), None, None),
            // Membership of root's group does not make a user root, and a user ID is not a group ID.
            (peer(1001, 0, &[0, 1000]), None, None),
            (peer(27, 1001, &[]), None, None),
        ];
        for (peer, may_alone, may_with) in cases {
            assert_eq!(
                (alone.caller(&peer), with.caller(&peer)),
                (may_alone, may_with),
                "{peer:?}"
            );
        }
    }

    #[test]
    fn who_may_is_said_in_words() {
        assert_eq!(access(0, None).who(), "root");
        assert_eq!(access(0, Some(6)).who(), "root and members of the group g6");
        assert_eq!(access(5, None).who(), "root and user 5");
        assert_eq!(access(5, Some(6)).who(), "root, user 5 and members of the group g6");
    }

    #[test]
    fn a_group_is_a_name_or_a_number() {
        let id = |name| Group::find(name).map(|group| group.id);
        assert_eq!(id("root").unwrap(), 0);
        assert_eq!(id("54321").unwrap(), 54321);
        for bad in ["", "no such group", "-1", "4294967295", "4294967296"] {
            let text = id(bad).unwrap_err().to_string();
            assert!(text.contains(&format!(": {bad}: ")), "{text}");
        }
    }
}
