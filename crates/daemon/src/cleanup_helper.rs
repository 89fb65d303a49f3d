//! The cleanup helper: a small process beside a daemon, which ends the daemon's mount, makes the sockets of volumes that appear,
//! removes the files of sockets, and starts the workers of ZFS pools. A second one controls the driver ublk, whose commands may wait.
//!
//! # Theory
//!
//! A daemon in its sandbox can neither unmount, nor make or remove files, nor start a process. It starts the cleanup helper before it
//! enters the sandbox, passes the mount, the files and the pattern of sockets on its command line, and sends requests later, as words on a
//! pair of sockets: a letter, and a number of two bytes or a name. The command line fixes what the cleanup helper can do, so a
//! compromised daemon can end its own mount, make sockets that match its pattern, remove its own sockets' files, start workers, make ublk
//! devices and take over those that earlier daemons have left, and nothing else. A worker enters a sandbox of its own before it receives
//! its first command: it has no right that the daemon lacks.
//!
//! | word | what the cleanup helper does |
//! |---|---|
//! | `u` | ends the mount, unless it is in use |
//! | `d` | detaches the mount, even when it is in use |
//! | `w` | reports what uses the mount |
//! | `r`, number | removes the file of a socket, unless another file has taken its place |
//! | `s`, name | makes the socket with that name in the pattern, and passes it |
//! | `q`, name | removes its file, unless another file has taken its place |
//! | `z` | starts a worker with the three descriptors that come with it |
//! | `b`, more | controls a ublk device ([`ashlar_ublk::Controller`]), and passes its file |
//!
//! The cleanup helper ends when the daemon's end of the pair closes. It does nothing then: workers export their pools by
//! themselves, and after `kill -9` the mount stays, and fails all requests. If it were detached, its users would write into the
//! directory below it without an error. The next daemon removes both mount and sockets. The cleanup helper has its own process
//! group and blocks the signals that end a daemon, has no descriptor but its socket and those of workers, and holds no directory.
//!
//! If the cleanup helper has ended, the daemon tries to do its work itself. In a sandbox it cannot unmount; the log says so.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use ashlar_engine::net::{BoundSocket, readable_until, receive_with_files, send_with_files};
use ashlar_engine::process::pass_on_nothing;
use ashlar_engine::signal::{self, Signal};
use ashlar_engine::socket_file::{self, Identity, SocketFile};
use ashlar_export::fuse::mount::{MountError, MountPlace};
use ashlar_ublk::{Channel, Controller};
use ashlar_zfs::client::{Launcher, WorkerEnds};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};
use rustix::stdio::stdin;

use crate::error::{Error, Result};
use crate::front_ends::mount::users;
use crate::front_ends::vhost_user::SocketPattern;

mod made;

use made::Made;

/// The hidden command of the program.
const COMMAND: &str = "cleanup-helper";
/// How long the cleanup helper may take for a word: it waits for the kernel, which waits for the daemon's other threads.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long it may take for a word about a ublk device: the driver waits for queues or for I/O, up to 60 s.
const UBLK_PATIENCE: Duration = Duration::from_secs(75);
/// How long it may take when the process is about to exit.
const BRIEF: Duration = Duration::from_millis(500);
/// The longest reply, bytes.
const MAX_REPLY: usize = 16 << 10;

const UNMOUNT: u8 = b'u';
const DETACH: u8 = b'd';
const USERS: u8 = b'w';
const REMOVE: u8 = b'r';
const MAKE_SOCKET: u8 = b's';
const REMOVE_SOCKET: u8 = b'q';
const START_WORKER: u8 = b'z';
const CONTROL_UBLK: u8 = b'b';

/// The environment variables that the cleanup helper and its workers need: where programs and libraries are, which libzpool to
/// load, and this host's ID in pools.
const ENVIRONMENT: [&str; 4] = ["PATH", "LD_LIBRARY_PATH", ashlar_zfs::ffi::LIBRARY, "ZFS_HOSTID"];
/// The most workers that a cleanup helper starts: far more than pools fit into the memory of a machine.
const MAX_WORKERS: u32 = 1024;

/// The longest word: a letter, and the longest name of a file.
const MAX_WORD: usize = 256;

/// The first byte of replies.
const DONE: u8 = 0;
const BUSY: u8 = 1;
const FAILED: u8 = 2;

/// What the daemon asks: a letter, and a number (little endian).
type Word = [u8; 3];

fn word(letter: u8, number: u16) -> Word {
    let [low, high] = number.to_le_bytes();
    [letter, low, high]
}

/// The same, with a name.
fn named(letter: u8, name: &str) -> Vec<u8> {
    [&[letter], name.as_bytes()].concat()
}

/// What a cleanup helper keeps.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CleanupTasks {
    pub(crate) mount: Option<MountPlace>,
    /// The files of sockets.
    pub(crate) files: Vec<(PathBuf, Identity)>,
    /// The sockets that it may make, and their mode.
    pub(crate) sockets: Option<(SocketPattern, u32)>,
    /// Whether it controls the driver ublk.
    pub(crate) ublk: bool,
}

impl CleanupTasks {
    pub(crate) fn is_empty(&self) -> bool {
        self.mount.is_none() && self.files.is_empty() && self.sockets.is_none() && !self.ublk
    }

    /// How long a word may take.
    fn patience(&self) -> Duration {
        if self.ublk { UBLK_PATIENCE } else { PATIENCE }
    }

    /// The words of the command line: `--mount PATH DEVICE HOW`, `--file PATH DEVICE INODE`, `--sockets PATH MODE`, `--ublk`.
    fn words(&self) -> Vec<OsString> {
        let mut words = Vec::new();
        if let Some(MountPlace { path, device, by_helper }) = &self.mount {
            let how = if *by_helper { "helper" } else { "call" };
            words.extend(["--mount".into(), path.into(), device.into(), how.into()]);
        }
        for (path, (device, inode)) in &self.files {
            let numbers = [device.to_string().into(), inode.to_string().into()];
            words.extend(["--file".into(), path.into()].into_iter().chain(numbers));
        }
        if let Some((pattern, mode)) = &self.sockets {
            words.extend(["--sockets".into(), pattern.path().into(), mode.to_string().into()]);
        }
        if self.ublk {
            words.push("--ublk".into());
        }
        words
    }

    /// What the words behind `--mount`, `--file` and `--sockets` say, and whether there is `--ublk`; `None` if they say nothing that
    /// [`Self::words`] would.
    pub fn of(
        mount: &[OsString],
        files: &[OsString],
        sockets: &[OsString],
        ublk: bool,
    ) -> Option<Self> {
        let mount = match mount {
            [] => None,
            [path, device, how] => Some(MountPlace {
                path: path.into(),
                device: device.to_str()?.to_owned(),
                by_helper: how == "helper",
            }),
            [..] => return None,
        };
        let number = |word: &OsStr| word.to_str()?.parse().ok();
        let file = |words: &[OsString]| match words {
            [path, device, inode] => Some((path.into(), (number(device)?, number(inode)?))),
            [..] => None,
        };
        let files = files.chunks(3).map(file).collect::<Option<_>>()?;
        let sockets = match sockets {
            [] => None,
            [path, mode] => Some((SocketPattern::of(path.into()), mode.to_str()?.parse().ok()?)),
            [..] => return None,
        };
        Some(Self { mount, files, sockets, ublk })
    }

    /// The reply to a word that comes without descriptors.
    fn obey(&self, word: &[u8]) -> Vec<u8> {
        let done = match (word, &self.mount) {
            ([UNMOUNT, _, _], Some(mount)) => mount.end(false),
            ([DETACH, _, _], Some(mount)) => mount.end(true),
            ([USERS, _, _], Some(mount)) => {
                return reply(DONE, &users::users(mount).join("\n"));
            }
            ([REMOVE, low, high], _) => {
                let index = usize::from(u16::from_le_bytes([*low, *high]));
                if let Some((path, identity)) = self.files.get(index) {
                    socket_file::remove(path, *identity);
                }
                Ok(())
            }
            _ => return reply(FAILED, "the cleanup helper has no such word"),
        };
        match done {
            Ok(()) => reply(DONE, ""),
            Err(MountError::Busy { .. }) => reply(BUSY, ""),
            Err(error) => reply(FAILED, &error.to_string()),
        }
    }
}

fn reply(kind: u8, text: &str) -> Vec<u8> {
    let mut end = text.len().min(MAX_REPLY - 1);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    [&[kind], &text.as_bytes()[..end]].concat()
}

/// Serves `tasks` until the process at the other end of standard input has ended.
///
/// # Errors
/// Standard input is not a socket of a daemon.
pub fn run(tasks: &CleanupTasks) -> Result<ExitCode> {
    let failed = |why: io::Error| Error::plain("cannot work for a daemon", why);
    signal::block(&[Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT]).map_err(failed)?;
    rustix::thread::set_name(c"ashlar-cleanup").map_err(|errno| failed(errno.into()))?;
    let mut said = reply(DONE, "");
    let mut passed_on: Option<OwnedFd> = None;
    let mut started = 0;
    let mut made = Made::default();
    let mut controller = tasks.ublk.then(Controller::default);
    loop {
        let files: Vec<BorrowedFd<'_>> = passed_on.iter().map(AsFd::as_fd).collect();
        match send_with_files(stdin(), &said, &files) {
            Ok(()) => {}
            Err(error) if is_over(&error) => return Ok(ExitCode::SUCCESS),
            Err(error) => return Err(failed(error)),
        }
        // A driver sees by its file that the daemon has ended.
        passed_on = None;
        let (mut word, mut passed) = ([0; MAX_WORD + 1], Vec::new());
        readable_until(stdin(), None).map_err(failed)?;
        let len = match receive_with_files(stdin(), &mut word, &mut passed) {
            Ok(0) => return Ok(ExitCode::SUCCESS),
            Ok(len) => len,
            Err(error) if is_over(&error) => return Ok(ExitCode::SUCCESS),
            Err(error) => return Err(failed(error)),
        };
        let word = word.get(..len).unwrap_or_default();
        said = match (word, <[OwnedFd; 3]>::try_from(passed), &mut controller) {
            ([START_WORKER, ..], Ok([control, words, watch]), _) => {
                started += 1;
                start_worker(WorkerEnds { control, words, watch }, started)
            }
            ([CONTROL_UBLK, word @ ..], _, Some(controller)) => match controller.obey(word) {
                Ok((said, file)) => {
                    passed_on = file;
                    [&[DONE], &said[..]].concat()
                }
                Err(why) => reply(FAILED, &why),
            },
            ([MAKE_SOCKET, name @ ..], ..) => match made.make(tasks.sockets.as_ref(), name) {
                Ok((fd, identity)) => {
                    passed_on = Some(fd);
                    reply(DONE, &identity)
                }
                Err(why) => reply(FAILED, &why),
            },
            ([REMOVE_SOCKET, name @ ..], ..) => {
                made.remove(name);
                reply(DONE, "")
            }
            (_, Ok(_) | Err(_), _) => tasks.obey(word),
        };
    }
}

/// Whether the daemon has ended.
fn is_over(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
}

/// The reply to the word for a worker.
fn start_worker(ends: WorkerEnds, started: u32) -> Vec<u8> {
    if started > MAX_WORKERS {
        return reply(FAILED, "too many workers were started");
    }
    match ends.spawn() {
        Ok(pid) => reply(DONE, &pid.to_string()),
        Err(error) => reply(FAILED, &error.to_string()),
    }
}

/// The cleanup helper, as the daemon sees it.
#[derive(Debug)]
pub(crate) struct CleanupHelper {
    tasks: CleanupTasks,
    /// `None` once it has ended.
    socket: Mutex<Option<OwnedFd>>,
    /// The names of the sockets that it has made and not removed.
    made: Mutex<Vec<String>>,
}

impl CleanupHelper {
    /// Starts it, and waits until no signal can end it.
    ///
    /// # Errors
    /// It cannot be started.
    pub(crate) fn start(tasks: CleanupTasks) -> Result<Arc<Self>> {
        let failed = |why: io::Error| {
            Error::plain(
                "cannot start the process that works for the daemon outside its sandbox",
                why,
            )
            .hint("it is this program again, by the name /proc/self/exe")
        };
        let pair =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (ours, theirs) = pair.map_err(|errno| failed(errno.into()))?;
        pass_on_nothing().map_err(failed)?;
        let mut helper = Command::new("/proc/self/exe");
        helper.arg0("ashlar-cleanup").arg(COMMAND).args(tasks.words());
        let kept = ENVIRONMENT.iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
        helper.env_clear().envs(kept);
        helper.current_dir("/").process_group(0);
        helper.stdin(Stdio::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = helper.spawn().map_err(failed)?;
        // Our copy of its end.
        drop(helper);
        match hear(&ours, PATIENCE).map_err(failed)? {
            Some(_) => {
                Ok(Arc::new(Self { tasks, socket: Mutex::new(Some(ours)), made: Mutex::default() }))
            }
            None => {
                let status = child.wait().map_err(failed)?;
                Err(failed(io::Error::other(format!("it ended: {status}"))))
            }
        }
    }

    /// Ends the mount; `lazy`: even when it is in use.
    ///
    /// # Errors
    /// It is in use, or cannot be ended.
    pub(crate) fn end_mount(&self, lazy: bool) -> std::result::Result<(), MountError> {
        let Some(mount) = &self.tasks.mount else { return Ok(()) };
        let Some(said) = self.ask(word(if lazy { DETACH } else { UNMOUNT }, 0)) else {
            return mount.end(lazy).map_err(|error| {
                if matches!(error, MountError::Busy { .. }) {
                    return error;
                }
                let path = mount.path.clone();
                let place = path.display();
                let why = format!("the cleanup helper has ended ({error}): run umount {place}");
                MountError::Ending { path, why }
            });
        };
        let path = mount.path.clone();
        match said.split_first() {
            Some((&DONE, _)) => Ok(()),
            Some((&BUSY, _)) => Err(MountError::Busy { path }),
            other => {
                let why = other.map(|(_, text)| String::from_utf8_lossy(text).into_owned());
                Err(MountError::Ending { path, why: why.unwrap_or_default() })
            }
        }
    }

    /// What uses the mount.
    pub(crate) fn users(&self) -> Vec<String> {
        let Some(mount) = &self.tasks.mount else { return Vec::new() };
        match self.ask(word(USERS, 0)) {
            Some(said) => {
                let text = String::from_utf8_lossy(said.get(1..).unwrap_or_default());
                text.lines().map(str::to_owned).collect()
            }
            None => users::users(mount),
        }
    }

    /// Removes the file of a socket, unless another has taken its place.
    pub(crate) fn remove(&self, path: &Path, identity: Identity) {
        let is_it = |file: &(PathBuf, Identity)| file.0 == path && file.1 == identity;
        let index = self.tasks.files.iter().position(is_it);
        let index = index.and_then(|index| u16::try_from(index).ok());
        if index.and_then(|index| self.ask(word(REMOVE, index))).is_none() {
            socket_file::remove(path, identity);
        }
    }

    /// Makes the socket for which `name` stands in the tasks' pattern. Dropping it removes its file.
    ///
    /// # Errors
    /// Those of bind(2), as a text; or the cleanup helper has ended.
    pub(crate) fn listen(self: &Arc<Self>, name: &str) -> io::Result<BoundSocket> {
        let over = || io::Error::other("the cleanup helper, which makes sockets, has ended");
        let (pattern, _) = self.tasks.sockets.as_ref().ok_or_else(over)?;
        let (said, files) = self.ask_with(&named(MAKE_SOCKET, name), &[]).ok_or_else(over)?;
        let text = String::from_utf8_lossy(said.get(1..).unwrap_or_default()).into_owned();
        let identity = || {
            let (device, inode) = text.split_once(' ')?;
            Some((device.parse().ok()?, inode.parse().ok()?))
        };
        let (Some(&DONE), Some(identity), Ok([fd])) =
            (said.first(), identity(), <[OwnedFd; 1]>::try_from(files))
        else {
            return Err(io::Error::other(text));
        };
        self.made.lock().unwrap_or_else(PoisonError::into_inner).push(name.to_owned());
        let (helper, name) = (Arc::clone(self), name.to_owned());
        let path = pattern.socket(&name);
        let remover = Box::new(move || {
            helper.made.lock().unwrap_or_else(PoisonError::into_inner).retain(|made| *made != name);
            helper.ask_with(&named(REMOVE_SOCKET, &name), &[]);
        });
        Ok(BoundSocket::with_file(fd, SocketFile::of_other(path, identity, remover)))
    }

    /// Detaches the mount and removes all files, in a process that is about to exit and waits for nothing long.
    pub(crate) fn clear_away(&self) {
        let socket = match self.socket.try_lock() {
            Ok(socket) => socket,
            Err(TryLockError::Poisoned(socket)) => socket.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let Some(socket) = &*socket else { return };
        let made = match self.made.try_lock() {
            Ok(made) => made.clone(),
            Err(TryLockError::Poisoned(made)) => made.into_inner().clone(),
            Err(TryLockError::WouldBlock) => Vec::new(),
        };
        let mount = self.tasks.mount.iter().map(|_| word(DETACH, 0).to_vec());
        let files = (0..self.tasks.files.len()).filter_map(|index| u16::try_from(index).ok());
        let files = files.map(|index| word(REMOVE, index).to_vec());
        let made = made.iter().map(|name| named(REMOVE_SOCKET, name));
        for word in mount.chain(files).chain(made) {
            let said = send(socket, &word, SendFlags::NOSIGNAL).map_err(io::Error::from);
            if said.and_then(|_| hear(socket, BRIEF)).is_err() {
                return;
            }
        }
    }

    /// The reply to a word; `None` if the cleanup helper has ended.
    fn ask(&self, word: Word) -> Option<Vec<u8>> {
        self.ask_with(&word, &[]).map(|(said, _)| said)
    }

    /// As [`Self::ask`], with descriptors in both directions.
    fn ask_with(&self, word: &[u8], descriptors: &[BorrowedFd<'_>]) -> Option<Reply> {
        let mut socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        let said = send_with_files(socket.as_ref()?, word, descriptors).and_then(|()| {
            let heard = socket.as_ref().map(|socket| hear(socket, self.tasks.patience()));
            heard.transpose().map(Option::flatten)
        });
        match said {
            Ok(Some(said)) => return Some(said),
            Ok(None) => tracing::error!("the cleanup helper has ended"),
            Err(error) => tracing::error!(%error, "the cleanup helper does not respond"),
        }
        // A late reply would be taken for that to another word.
        *socket = None;
        None
    }
}

impl Launcher for CleanupHelper {
    fn launch(&self, ends: WorkerEnds) -> io::Result<u32> {
        let WorkerEnds { control, words, watch } = &ends;
        let descriptors = [control.as_fd(), words.as_fd(), watch.as_fd()];
        let said = self.ask_with(&word(START_WORKER, 0), &descriptors);
        let (said, _) = said.ok_or_else(|| io::Error::other("the cleanup helper has ended"))?;
        let text = String::from_utf8_lossy(said.get(1..).unwrap_or_default());
        match (said.first(), text.parse()) {
            (Some(&DONE), Ok(pid)) => Ok(pid),
            _ => Err(io::Error::other(text.into_owned())),
        }
    }
}

impl Channel for CleanupHelper {
    fn ask(&self, word: &[u8]) -> io::Result<Reply> {
        let said = self.ask_with(&[&[CONTROL_UBLK], word].concat(), &[]);
        let over = || io::Error::other("the cleanup helper, which controls ublk, has ended");
        let (said, files) = said.ok_or_else(over)?;
        match said.split_first() {
            Some((&DONE, said)) => Ok((said.to_vec(), files)),
            other => {
                let why = other.map(|(_, why)| String::from_utf8_lossy(why).into_owned());
                Err(io::Error::other(why.unwrap_or_default()))
            }
        }
    }
}

/// A reply, and the descriptors that came with it.
type Reply = (Vec<u8>, Vec<OwnedFd>);

/// The next reply; `None` once the cleanup helper has ended.
fn hear(socket: &OwnedFd, patience: Duration) -> io::Result<Option<Reply>> {
    if !readable_until(socket.as_fd(), Some(Instant::now() + patience))? {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let (mut said, mut files) = (vec![0; MAX_REPLY], Vec::new());
    match receive_with_files(socket, &mut said, &mut files) {
        Ok(0) => Ok(None),
        Ok(len) => {
            said.truncate(len);
            Ok(Some((said, files)))
        }
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use rustix::net::{RecvFlags, recv};

    use super::*;

    #[test]
    fn tasks_are_what_its_words_say() {
        let mount = MountPlace { path: "/a b".into(), device: "0:44".into(), by_helper: true };
        let files = vec![("/run/x".into(), (1, 2)), ("-y".into(), (3, u64::MAX))];
        let sockets = Some((SocketPattern::of("/run/vm/{}.sock".into()), 0o660));
        let tasks = CleanupTasks { mount: Some(mount), files, sockets, ublk: true };
        let words = tasks.words();
        assert_eq!((words.len(), &words[0], &words[4]), (16, &"--mount".into(), &"--file".into()));
        let files = [&words[5..8], &words[9..12]].concat();
        assert_eq!([&words[12], &words[15]], ["--sockets", "--ublk"]);
        assert_eq!(CleanupTasks::of(&words[1..4], &files, &words[13..15], true), Some(tasks));
        assert_eq!(CleanupTasks::of(&[], &[], &[], false), Some(CleanupTasks::default()));
        assert_eq!(CleanupTasks::of(&words[1..3], &[], &[], false), None);
        assert_eq!(CleanupTasks::of(&[], &words[5..7], &[], false), None);
        assert_eq!(CleanupTasks::of(&[], &[], &words[13..14], false), None);
    }

    #[test]
    fn words_that_it_does_not_know_and_places_that_it_does_not_keep_do_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let (_fd, mut file) = socket_file::listen(&path, 0o600, None).unwrap();
        file.removed_by(Box::new(|| {}));
        let identity = file.identity();
        let tasks =
            CleanupTasks { files: vec![(path.clone(), identity)], ..CleanupTasks::default() };
        let words = [&b""[..], b"r", b"r\0", b"u\0\0", b"d\0\0", b"w\0\0", b"x\0\0", b"r\0\0\0"];
        for word in words {
            assert_eq!(tasks.obey(word).first(), Some(&FAILED), "{word:?}");
        }
        for other in [1, 256] {
            assert_eq!(tasks.obey(&word(REMOVE, other)), [DONE]);
            assert!(path.exists());
        }
        assert_eq!(tasks.obey(&word(REMOVE, 0)), [DONE]);
        assert!(!path.exists());
        std::fs::write(&path, "another").unwrap();
        assert_eq!(tasks.obey(&word(REMOVE, 0)), [DONE]);
        assert!(path.exists(), "it has another inode");
    }

    /// The cleanup helper at the other end of a pair of sockets, on a thread.
    #[test]
    fn more_sockets_than_a_byte_can_count_are_all_removed() {
        let dir = tempfile::tempdir().unwrap();
        let make = |number: u32| {
            let path = dir.path().join(number.to_string());
            std::fs::write(&path, "").unwrap();
            let found = std::fs::metadata(&path).unwrap();
            (path, (found.dev(), found.ino()))
        };
        let files: Vec<(PathBuf, Identity)> = (0..300).map(make).collect();
        let tasks = CleanupTasks { files: files.clone(), ..CleanupTasks::default() };
        let pair =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (ours, theirs) = pair.unwrap();
        let helper = CleanupHelper {
            tasks: tasks.clone(),
            socket: Mutex::new(Some(ours)),
            made: Mutex::default(),
        };
        let told = std::thread::spawn(move || {
            let mut count = 0;
            loop {
                let mut word = [0; 4];
                let (_, len) = recv(&theirs, &mut word[..], RecvFlags::empty()).unwrap();
                if len == 0 {
                    return count;
                }
                count += 1;
                send(&theirs, &tasks.obey(&word[..len]), SendFlags::NOSIGNAL).unwrap();
            }
        });
        let (by_one, at_the_end) = files.split_at(270);
        for (path, identity) in by_one {
            helper.remove(path, *identity);
            assert!(!path.exists(), "{}", path.display());
        }
        helper.clear_away();
        assert!(at_the_end.iter().all(|(path, _)| !path.exists()));
        drop(helper);
        assert_eq!(told.join().unwrap(), 270 + 300, "the daemon itself removed some");
    }
}
