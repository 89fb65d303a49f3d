//! The client of a daemon's control socket.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ashlar_control::error::{Error, FAILURE, Result};
use ashlar_control::varlink::{Call, Frames, MAX_CALL, MAX_REPLY, Reply, encode};
use ashlar_engine::net::{MAX_FILES, Socket, readable_until, send_with_files};
use ashlar_engine::process::{self, credentials};
use ashlar_lvm::command::Membership;
use ashlar_view::detail::Detail;
use ashlar_zfs::protocol::{Command, Reply as PoolReply};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::control_path;
use crate::disk_path::{Access, in_directory};
use crate::interface::{
    self, Activate, ActivateReply, Attach, DetailReply, DoneReply, EntriesReply, Entry,
    FileSystemReply, GroupsReply, Grow, Job, JobAction, JobsReply, Lvm, LvmMembers, LvmReply,
    Manage, Sample, SampleReply, Scrub, SizeReply, StartedReply, Status, StatusReply, StopReply,
    ValueReply, VolumeNames, ZfsReply,
};

/// How long a daemon may take to answer: its main thread does no slow work.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Opens a disk for a daemon, with this access.
pub type Lend = fn(&Path, Access) -> Result<OwnedFd>;

/// A connection to a daemon.
pub struct Client {
    stream: UnixStream,
    path: PathBuf,
    frames: Frames,
    lend: Lend,
}

impl Client {
    /// Connects to the daemon at `path`, or at the default path. `lend` opens disks of the user's that the daemon cannot open.
    ///
    /// # Errors
    /// No daemon listens there.
    pub fn connect(path: Option<&Path>, lend: Lend) -> Result<Self> {
        let path = match path {
            Some(path) => path.to_owned(),
            None => control_path::default_for_client()?,
        };
        let failed = |error: io::Error| {
            let hint = if error.kind() == io::ErrorKind::PermissionDenied {
                "only root, the daemon's user and the group of ashlar serve --control-group may"
            } else {
                "nothing is served there: start a daemon with ashlar serve DISK..., or give the --control it was started with"
            };
            Error::new("cannot reach the daemon", path.display(), error).hint(hint)
        };
        let stream = UnixStream::connect(&path).map_err(failed)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(failed)?;
        Ok(Self { stream, path, frames: Frames::new(MAX_REPLY), lend })
    }

    /// The daemon's state.
    ///
    /// # Errors
    /// The connection failed.
    pub fn status(&mut self) -> Result<Status> {
        let StatusReply { status } = self.call("Status", json!({}))?;
        Ok(status)
    }

    /// The details of an array.
    ///
    /// # Errors
    /// There is no array of that name.
    pub fn detail(&mut self, name: &str) -> Result<Detail> {
        let DetailReply { detail } = self.call("Detail", json!({ "name": name }))?;
        Ok(detail)
    }

    /// An attribute's text.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn get(&mut self, path: &str) -> Result<String> {
        let ValueReply { value } = self.call("Get", json!({ "path": path }))?;
        Ok(value)
    }

    /// Sets an attribute.
    ///
    /// # Errors
    /// The attribute or the value is not accepted.
    pub fn set(&mut self, path: &str, value: &str) -> Result<()> {
        let _: Value = self.call("Set", json!({ "path": path, "value": value }))?;
        Ok(())
    }

    /// Changes a member of an array; returns messages about what was done.
    ///
    /// # Errors
    /// It was refused.
    pub fn manage(&mut self, change: &Manage) -> Result<Vec<String>> {
        let DoneReply { done } = self.call_passing("Manage", json!(change), &[&change.disk])?;
        Ok(done)
    }

    /// Passes a disk with a member to the daemon; returns messages about what was done with it.
    ///
    /// # Errors
    /// It was refused.
    pub fn attach(&mut self, at: &Attach) -> Result<Vec<String>> {
        let DoneReply { done } = self.call_passing("Attach", json!(at), &[&at.disk])?;
        Ok(done)
    }

    /// Makes the daemon release a member; returns messages about what was done.
    ///
    /// # Errors
    /// It was refused.
    pub fn detach(&mut self, disk: &str) -> Result<Vec<String>> {
        let DoneReply { done } = self.call_long("Detach", json!({ "disk": disk }))?;
        Ok(done)
    }

    /// Starts arrays that wait for members; returns messages about those that started and those that did not.
    ///
    /// # Errors
    /// The connection failed.
    pub fn start_waiting(&mut self) -> Result<StartedReply> {
        self.call_long("StartWaiting", json!({}))
    }

    /// Changes the size or bitmap of an array; returns its new size in bytes.
    ///
    /// # Errors
    /// It was refused.
    pub fn grow(&mut self, change: &Grow) -> Result<u64> {
        let SizeReply { size } = self.call_long("Grow", json!(change))?;
        Ok(size)
    }

    /// Changes a volume group.
    ///
    /// # Errors
    /// It was refused, or the group is not served.
    pub fn lvm(&mut self, at: &Lvm) -> Result<LvmReply> {
        self.call_long("Lvm", json!(at))
    }

    /// Changes which physical volumes a volume group has.
    ///
    /// # Errors
    /// It was refused, or the group is not served.
    pub fn lvm_members(&mut self, at: &LvmMembers) -> Result<LvmReply> {
        let whole = |path: &String| in_directory(&at.directory, path).display().to_string();
        let physical: Vec<String> = match &at.command {
            Membership::Create(new) => new.physical.iter().map(whole).collect(),
            Membership::Extend { physical, .. } => physical.iter().map(whole).collect(),
            Membership::Reduce { .. } | Membership::Resize { .. } | Membership::Remove { .. } => {
                Vec::new()
            }
        };
        let named: Vec<&str> = physical.iter().map(String::as_str).collect();
        self.call_passing("LvmMembers", json!(at), &named)
    }

    /// Activates or deactivates volumes; returns how many of the group are active then.
    ///
    /// # Errors
    /// It was refused, or the group is not served.
    pub fn activate(&mut self, at: &Activate) -> Result<u64> {
        let ActivateReply { active } = self.call_long("Activate", json!(at))?;
        Ok(active)
    }

    /// The volume groups.
    ///
    /// # Errors
    /// The connection failed.
    pub fn groups(&mut self) -> Result<GroupsReply> {
        self.call_long("Groups", json!({}))
    }

    /// The jobs.
    ///
    /// # Errors
    /// The connection failed.
    pub fn jobs(&mut self) -> Result<Vec<Job>> {
        let JobsReply { jobs } = self.call("Jobs", json!({}))?;
        Ok(jobs)
    }

    /// Counters and states of everything.
    ///
    /// # Errors
    /// The connection failed.
    pub fn sample(&mut self) -> Result<Sample> {
        let SampleReply { sample } = self.call("Sample", json!({}))?;
        Ok(sample)
    }

    /// Pauses, resumes or cancels the work on the device called `name`.
    ///
    /// # Errors
    /// There is no such work, or the daemon refused.
    pub fn control_job(&mut self, name: &str, action: JobAction) -> Result<()> {
        let _: Value = self.call_long("ControlJob", json!({ "name": name, "action": action }))?;
        Ok(())
    }

    /// The file system on volumes.
    ///
    /// # Errors
    /// There is no file system, or there are several.
    pub fn file_system(&mut self, devices: Vec<String>) -> Result<FileSystemReply> {
        self.call_long("FileSystem", json!(VolumeNames { devices }))
    }

    /// Begins or resumes a scrub of a file system.
    ///
    /// # Errors
    /// It was refused.
    pub fn scrub(&mut self, options: &Scrub) -> Result<FileSystemReply> {
        self.call_long("Scrub", json!(options))
    }

    /// Sends a command to a pool.
    ///
    /// # Errors
    /// The command was refused, or the pool is not served.
    pub fn zfs(&mut self, pool: &str, command: &Command) -> Result<PoolReply> {
        self.set_patience(None)?;
        let parameters = json!({ "pool": pool, "command": command });
        let first = self.exchange_with("Zfs", parameters, true)?;
        let mut continues = first.continues;
        let ZfsReply { reply: mut all } = self.understand(first)?;
        while continues {
            let next = self.next_reply().map_err(|error| self.lost(error))?;
            continues = next.continues;
            let ZfsReply { reply: part } = self.understand(next)?;
            // Only a list of datasets comes in parts.
            if let (PoolReply::Datasets { datasets }, PoolReply::Datasets { datasets: part }) =
                (&mut all, part)
            {
                datasets.extend(part);
            }
        }
        self.set_patience(Some(PATIENCE))?;
        Ok(all)
    }

    /// The entries of a directory; `None` if `path` is not a directory.
    ///
    /// # Errors
    /// There is nothing at `path`.
    pub fn list(&mut self, path: &str) -> Result<Option<Vec<Entry>>> {
        let reply = self.exchange("List", json!({ "path": path }))?;
        if reply.error.as_deref().and_then(own_error) == Some("NotADirectory") {
            return Ok(None);
        }
        let EntriesReply { entries } = self.understand(reply)?;
        Ok(Some(entries))
    }

    /// Calls a method with many replies, which from now on are all that the connection is used for: the first reply, and the rest of the
    /// connection to the daemon at a path.
    ///
    /// # Errors
    /// It was refused.
    pub(crate) fn into_replies<T: DeserializeOwned>(
        mut self,
        method: &str,
        parameters: Value,
    ) -> Result<(T, Socket, Frames, PathBuf)> {
        let reply = self.exchange_with(method, parameters, true)?;
        let first = self.understand(reply)?;
        let failed = |error| Error::new("cannot talk to the daemon", self.path.display(), error);
        self.stream.set_read_timeout(None).map_err(failed)?;
        let Self { stream, path, frames, .. } = self;
        Ok((first, Socket::from_fd(stream.into()), frames, path))
    }

    /// Asks the daemon to stop; with `force` it does not wait for its clients.
    ///
    /// # Errors
    /// The connection failed.
    pub fn stop(&mut self, force: bool) -> Result<()> {
        let _: Value = self.call("Stop", json!({ "force": force }))?;
        Ok(())
    }

    /// As [`Self::stop`], and waits until the daemon's process has ended, but at most for `patience`. Calls `told`
    /// whenever the list of clients that the daemon waits for changes.
    ///
    /// # Errors
    /// The daemon did not end in time, or not cleanly.
    pub fn stop_and_wait(
        self,
        force: bool,
        patience: Option<Duration>,
        told: impl FnMut(&[String]),
    ) -> Result<()> {
        self.end(json!({ "force": force }), patience, told)
    }

    /// As [`Self::stop_and_wait`], unless a client has a volume open.
    ///
    /// # Errors
    /// As there, and if a volume is open.
    pub fn stop_unused(self, told: impl FnMut(&[String])) -> Result<()> {
        self.end(json!({ "unused": true }), None, told)
    }

    fn end(
        mut self,
        parameters: Value,
        patience: Option<Duration>,
        mut told: impl FnMut(&[String]),
    ) -> Result<()> {
        let process = process::peer(&self.stream).map_err(|error| self.lost(error))?;
        let deadline = patience.map(|patience| Instant::now() + patience);
        self.set_patience(None)?;
        self.begin("Stop", parameters, true).map_err(|error| self.lost(error))?;
        let mut waits_for = Vec::new();
        // Until the first message the daemon may not know of the call at all.
        let mut is_heard = false;
        // The daemon's last message; after it the connection has no more messages.
        let mut end = None;
        loop {
            // If the process is not visible, the connection's end stands for the daemon's.
            let wanted = match (&end, &process) {
                (None, _) => self.stream.as_fd(),
                (Some(_), Some(process)) => process.as_fd(),
                (Some(_), None) => break,
            };
            if !readable_until(wanted, deadline).map_err(|error| self.lost(error))? {
                let seconds = patience.unwrap_or_default().as_secs();
                let why = match waits_for.join(", ") {
                    text if text.is_empty() => format!("not stopped within {seconds} s"),
                    text => format!("not stopped within {seconds} s: {text}"),
                };
                let error = Error::new("the daemon is still stopping", self.path.display(), why);
                return Err(
                    error.hint("ashlar stop waits again; ashlar stop --force waits for no client")
                );
            }
            if end.is_some() {
                break;
            }
            end = match self.next_reply() {
                Ok(reply) => {
                    let is_last = !reply.continues;
                    let reply: StopReply = self.understand(reply)?;
                    if !is_last && reply.waits_for != waits_for {
                        told(&reply.waits_for);
                        waits_for = reply.waits_for;
                    }
                    is_last.then_some(reply.failure)
                }
                Err(error) if !is_heard && !is_gone(process.as_ref()) => {
                    return Err(self.lost(error));
                }
                // It ended without a final message.
                Err(_) => Some(Some("it ended before all was stopped: see its log".to_owned())),
            };
            is_heard = true;
        }
        match end.flatten() {
            None => Ok(()),
            Some(why) => {
                Err(Error::new("the daemon did not stop cleanly", self.path.display(), why))
            }
        }
    }

    /// A call that waits for I/O on an array, without a time limit.
    fn call_long<T: DeserializeOwned>(&mut self, method: &str, parameters: Value) -> Result<T> {
        self.set_patience(None)?;
        let result = self.call(method, parameters);
        self.set_patience(Some(PATIENCE))?;
        result
    }

    /// A call that waits for I/O, and passes disks to a daemon that cannot open them: only those that the user `named`.
    fn call_passing<T: DeserializeOwned>(
        &mut self,
        method: &str,
        parameters: Value,
        named: &[&str],
    ) -> Result<T> {
        self.set_patience(None)?;
        let mut passed: Vec<(String, OwnedFd)> = Vec::new();
        let reply = loop {
            let begun = self.begin_passing(method, parameters.clone(), false, &passed);
            let reply = begun.and_then(|()| self.next_reply());
            let reply = reply.map_err(|error| self.lost(error))?;
            let Some((path, access)) = not_opened(&reply) else { break reply };
            let is_new = !passed.iter().any(|(known, _)| known == path);
            if !is_new || !named.contains(&path) || passed.len() >= MAX_FILES {
                break reply;
            }
            let disk = (self.lend)(Path::new(path), access)?;
            passed.push((path.to_owned(), disk));
        };
        let result = self.understand(reply);
        self.set_patience(Some(PATIENCE))?;
        result
    }

    /// Sets the time limit for replies.
    fn set_patience(&self, patience: Option<Duration>) -> Result<()> {
        self.stream.set_read_timeout(patience).map_err(|error| self.lost(error))
    }

    fn lost(&self, why: io::Error) -> Error {
        Error::new("cannot talk to the daemon", self.path.display(), why)
    }

    fn call<T: DeserializeOwned>(&mut self, method: &str, parameters: Value) -> Result<T> {
        let reply = self.exchange(method, parameters)?;
        self.understand(reply)
    }

    fn exchange(&mut self, method: &str, parameters: Value) -> Result<Reply> {
        self.exchange_with(method, parameters, false)
    }

    fn exchange_with(&mut self, method: &str, parameters: Value, more: bool) -> Result<Reply> {
        let reply = self.begin(method, parameters, more).and_then(|()| self.next_reply());
        reply.map_err(|error| self.lost(error))
    }

    /// Connects again if the daemon has closed the connection: it closes connections that have been idle for long.
    fn renew(&mut self) -> io::Result<()> {
        // No reply is due, so there is nothing to read but the end.
        if !readable_until(self.stream.as_fd(), Some(Instant::now()))? {
            return Ok(());
        }
        let new = UnixStream::connect(&self.path)?;
        // To another daemon the call could mean something else.
        if credentials(&new)?.pid != credentials(&self.stream)?.pid {
            return Err(io::Error::other("another daemon listens there now"));
        }
        new.set_read_timeout(self.stream.read_timeout()?)?;
        new.set_write_timeout(Some(PATIENCE))?;
        self.stream = new;
        Ok(())
    }

    /// Sends a call.
    fn begin(&mut self, method: &str, parameters: Value, more: bool) -> io::Result<()> {
        self.begin_passing(method, parameters, more, &[])
    }

    /// Sends a call with descriptors of disks.
    fn begin_passing(
        &mut self,
        method: &str,
        parameters: Value,
        more: bool,
        passed: &[(String, OwnedFd)],
    ) -> io::Result<()> {
        let parameters = match parameters {
            Value::Object(map) => map,
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_) => Map::new(),
        };
        let method = format!("{}.{method}", interface::NAME);
        let paths = passed.iter().map(|(path, _)| path.clone()).collect();
        let call = Call { method, parameters, oneway: false, more, passed: paths, upgrade: false };
        let message = encode(&call);
        if message.len() > MAX_CALL {
            return Err(io::Error::other("the call is longer than a daemon accepts"));
        }
        self.renew()?;
        let files: Vec<BorrowedFd<'_>> = passed.iter().map(|(_, disk)| disk.as_fd()).collect();
        send_with_files(&self.stream, &message, &files)
    }

    fn next_reply(&mut self) -> io::Result<Reply> {
        let reply = receive(&mut self.stream, &mut self.frames)?;
        reply.ok_or_else(|| {
            let why = "it closed the connection without an answer";
            io::Error::new(io::ErrorKind::UnexpectedEof, why)
        })
    }

    fn understand<T: DeserializeOwned>(&self, reply: Reply) -> Result<T> {
        understand(&self.path, reply)
    }
}

/// Whether a process is known to have ended.
fn is_gone(process: Option<&OwnedFd>) -> bool {
    process.is_some_and(|process| {
        readable_until(process.as_fd(), Some(Instant::now())).is_ok_and(|it| it)
    })
}

/// The next message of a stream; `None` if the stream ends first.
///
/// # Errors
/// Reading failed, or the message is invalid.
pub fn receive<T: DeserializeOwned>(
    stream: &mut UnixStream,
    frames: &mut Frames,
) -> io::Result<Option<T>> {
    let mut buffer = [0; 4096];
    loop {
        if let Some(message) = frames.next_message().map_err(io::Error::other)? {
            return Ok(Some(serde_json::from_slice(&message)?));
        }
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(None),
            Ok(len) => frames.push(&buffer[..len]),
            // The kernel does not restart a read with a time limit, not even after SIGCONT (signal(7)).
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Parses the reply of the daemon at `path`.
pub(crate) fn understand<T: DeserializeOwned>(path: &Path, reply: Reply) -> Result<T> {
    if let Some(name) = reply.error {
        return Err(refused(&name, &reply.parameters));
    }
    serde_json::from_value(reply.parameters).map_err(|error| {
        Error::new("the daemon's answer was not understood", path.display(), error)
    })
}

/// The disk that a daemon in its sandbox asks for, and the access that it needs.
fn not_opened(reply: &Reply) -> Option<(&str, Access)> {
    if reply.error.as_deref().and_then(own_error) != Some("NotOpened") {
        return None;
    }
    let access = match reply.parameters.get("access")?.as_str()? {
        "write" => Access::Write,
        _ => Access::Read,
    };
    Some((reply.parameters.get("path")?.as_str()?, access))
}

/// The name of an error of our own interface.
fn own_error(name: &str) -> Option<&str> {
    name.strip_prefix(interface::NAME)?.strip_prefix('.')
}

fn refused(name: &str, parameters: &Value) -> Error {
    let text = |key: &str| parameters.get(key).and_then(Value::as_str);
    if own_error(name) == Some("Refused") {
        let code = parameters.get("code").and_then(Value::as_u64);
        let code = code.and_then(|code| u8::try_from(code).ok()).unwrap_or(FAILURE);
        let error = Error::failed(text("reason").unwrap_or(name)).code(code);
        return match text("hint") {
            Some(hint) => error.hint(hint),
            None => error,
        };
    }
    let place = text("path").or(text("parameter")).or(text("method")).unwrap_or_default();
    let why = match own_error(name) {
        Some("NotOpened") => "it does not open this itself, and its client did not pass it",
        Some("NotFound") => "there is no such thing",
        Some("IsDirectory") => "is a directory",
        Some("NotReadable") => "cannot be read",
        Some("NotWritable") => "cannot be written",
        Some("InvalidValue" | "Busy") => text("reason").unwrap_or(name),
        Some(_) | None => name,
    };
    Error::new("the daemon refused", place, why)
}
