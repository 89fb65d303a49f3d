//! The parameters and the answers of each method.

use std::fmt;
use std::path::{Path, PathBuf};

use ashlar_btrfs::readahead::Reada;
use ashlar_stack::volume_groups::{ServedGroup, ServedPhysical};
use ashlar_view::detail::Detail;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Status;

/// Parameters of `Manage`.
#[derive(Clone, Serialize, Deserialize, Debug, Default)]
#[serde(deny_unknown_fields)]
pub struct Manage {
    /// The array, by its name (`md0`) or alias (`md/data`).
    pub name: String,
    /// What to do.
    pub action: ManageAction,
    /// The member: a path, a name below `sys/block`, or one of the words `detached` and `failed`.
    pub disk: String,
    /// The spare that shall replace the disk.
    pub with: Option<String>,
    /// Whether reads shall avoid the member.
    pub write_mostly: Option<bool>,
    /// Whether requests to the member shall fail early.
    pub failfast: Option<bool>,
    /// Whether the disk shall only become a spare.
    pub spare: Option<bool>,
    /// Whether to overwrite the contents of the disk.
    pub force: Option<bool>,
}

impl Manage {
    /// `action` with a disk that the user calls `disk`.
    pub fn new(array: &str, action: ManageAction, disk: &str) -> Self {
        let (name, disk) = (array.to_owned(), disk_for_daemon(disk));
        Self { name, action, disk, ..Self::default() }
    }
}

/// A disk's path for the daemon, which may have another working directory; other words stay as they are.
pub fn disk_for_daemon(disk: &str) -> String {
    let path = Path::new(disk).canonicalize();
    path.map_or_else(|_| disk.to_owned(), |path| path.display().to_string())
}

/// The action of `Manage`.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug, Default)]
#[serde(rename_all = "kebab-case")]
pub enum ManageAction {
    /// Add a disk.
    #[default]
    Add,
    /// Add a former member, and copy only what it misses.
    ReAdd,
    /// Mark a member as failed.
    Fail,
    /// Remove a failed member or a spare.
    Remove,
    /// Copy a member to a spare, which then replaces it.
    Replace,
}

/// The answer of `Manage`.
#[derive(Serialize, Deserialize, Debug)]
pub struct DoneReply {
    /// What was done, a line each.
    pub done: Vec<String>,
}

/// Parameters of `Attach`.
#[derive(Serialize, Deserialize, Debug, Default)]
#[serde(deny_unknown_fields)]
pub struct Attach {
    /// The disk's path.
    pub disk: String,
    /// Whether to start an array as soon as all data are available.
    pub run: Option<bool>,
}

/// Parameters of `Detach`.
#[derive(Serialize, Deserialize, Debug, Default)]
#[serde(deny_unknown_fields)]
pub struct DiskReference {
    /// The disk's path, or its name below `sys/block`.
    pub disk: String,
}

/// The answer of `StartWaiting`.
#[derive(Serialize, Deserialize, Debug)]
pub struct StartedReply {
    /// The arrays that started, a line each.
    pub done: Vec<String>,
    /// The arrays that did not start, a line each.
    pub failed: Vec<String>,
}

/// Parameters of `Grow`.
#[derive(Serialize, Deserialize, Debug, Default)]
#[serde(deny_unknown_fields)]
pub struct Grow {
    /// The array, by its name or alias.
    pub name: String,
    /// The part of each member to use: KiB, or `max`.
    pub size: Option<String>,
    /// The new bitmap: `internal`, `lockless` or `none`.
    pub bitmap: Option<String>,
    /// Bytes for each bit of the new bitmap.
    pub bitmap_chunk: Option<u64>,
    /// The new number of devices.
    pub raid_devices: Option<usize>,
    /// Whether the copies in the new space count as equal.
    pub assume_clean: Option<bool>,
    /// Whether to do it in spite of a warning.
    pub force: Option<bool>,
}

/// The answer of `Grow`.
#[derive(Serialize, Deserialize, Debug)]
pub struct SizeReply {
    /// The size of the array, bytes.
    pub size: u64,
}

/// Parameters of `Zfs`.
#[derive(Serialize, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Zfs {
    /// The pool's name.
    pub pool: String,
    /// What the pool shall do.
    pub command: ashlar_zfs::protocol::Command,
}

/// The answer of `Zfs`.
#[derive(Serialize, Deserialize, Debug)]
pub struct ZfsReply {
    /// The pool's answer.
    pub reply: ashlar_zfs::protocol::Reply,
}

/// Parameters of `Lvm`.
#[derive(Serialize, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Lvm {
    /// The group, by its name or UUID.
    pub group: String,
    /// The change.
    pub command: ashlar_lvm::command::Command,
    /// Whether the user has answered all questions with yes.
    pub confirmed: Option<bool>,
    /// Whether to keep copies of the metadata; they are kept unless this is false.
    pub archive: Option<bool>,
    /// The command as the user gave it.
    pub line: String,
}

/// Parameters of `LvmMembers`.
#[derive(Serialize, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct LvmMembers {
    /// The group, by its name or UUID.
    pub group: String,
    /// The change.
    pub command: ashlar_lvm::command::Membership,
    /// The directory that relative paths refer to.
    pub directory: PathBuf,
    /// Whether the user has answered all questions with yes.
    pub confirmed: Option<bool>,
    /// Whether to keep copies of the metadata; they are kept unless this is false.
    pub archive: Option<bool>,
    /// The command as the user gave it.
    pub line: String,
}

/// The answer of `Lvm` and `LvmMembers`.
#[derive(Serialize, Deserialize, Debug)]
pub struct LvmReply {
    /// Lines to print before `done`.
    pub notes: Vec<String>,
    /// Questions to the user. If there are any, nothing was done.
    pub questions: Vec<ashlar_lvm::command::Question>,
    /// What was done, a line each.
    pub done: Vec<String>,
}

/// Parameters of `Activate`.
#[derive(Serialize, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Activate {
    /// The group, by its name or UUID.
    pub group: String,
    /// Its volumes; none: all.
    pub volumes: Vec<String>,
    /// Whether they shall be active.
    pub active: bool,
}

/// The answer of `Activate`.
#[derive(Serialize, Deserialize, Debug)]
pub struct ActivateReply {
    /// How many volumes of the group are active now.
    pub active: u64,
}

/// The answer of `Groups`.
#[derive(Serialize, Deserialize, Debug)]
pub struct GroupsReply {
    /// The physical volumes.
    pub physical: Vec<ServedPhysical>,
    /// The groups; their members are indices into `physical`.
    pub groups: Vec<ServedGroup>,
}

/// The parameters of `FileSystem`.
#[derive(Serialize, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct VolumeNames {
    /// The names of the volumes, or their aliases.
    pub devices: Vec<String>,
}

/// The parameters of `Scrub`.
#[derive(Clone, Default, Serialize, Deserialize, Debug)]
#[serde(deny_unknown_fields, default)]
pub struct Scrub {
    /// The volumes of the file system, by any of their names.
    pub devices: Vec<String>,
    /// Continue where the last one ended.
    pub resume: bool,
    /// Only report errors, and write nothing.
    pub read_only: bool,
    /// Bytes per second of each device; zero means no limit.
    pub limit: u64,
    /// Groups of 512 KiB in flight on each device.
    pub depth: Option<usize>,
    /// How the extent and checksum trees are read ahead. A daemon of an earlier version does not know the name of its default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub readahead: Option<Reada>,
    /// Scrub although devices are missing.
    pub degraded: bool,
    /// Scrub also devices that missed transactions.
    pub stale: bool,
    /// Even if the status file is damaged.
    pub force: bool,
}

/// The answer of `FileSystem` and `Scrub`.
#[derive(Serialize, Deserialize, Debug)]
pub struct FileSystemReply {
    /// Its UUID.
    pub fsid: Uuid,
    /// The directory of the status files of its scrubs.
    pub status_dir: PathBuf,
}

/// A job of the daemon.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub struct Job {
    /// Its device, and the name of the job: `md0`, `vg/lv`, a pool, or the UUID of a file system.
    pub name: String,
    /// Another name of the device: `md/data`.
    pub alias: Option<String>,
    /// What is done.
    pub kind: JobKind,
    /// Whether it runs.
    pub state: JobState,
    /// How much is done: of a member in a recovery, otherwise of the device.
    pub done_bytes: u64,
    /// How much there is to do.
    pub total_bytes: u64,
    /// The recent speed, if it is known.
    pub bytes_per_second: Option<u64>,
    /// The remaining time at this speed.
    pub seconds_left: Option<u64>,
    /// What can be done with it now.
    pub actions: Vec<JobAction>,
}

/// The kind of a job.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub enum JobKind {
    /// An array makes copies equal that may differ.
    Resync,
    /// An array rebuilds members.
    Recover,
    /// An array compares its copies.
    Check,
    /// An array compares its copies, and makes them equal.
    Repair,
    /// A snapshot is merged into its origin.
    Merge,
    /// Extents of a physical volume go to others.
    Move,
    /// A pool or a file system verifies its data.
    Scrub,
    /// A pool rebuilds disks.
    Resilver,
}

impl JobKind {
    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Resync => "resync",
            Self::Recover => "recovery",
            Self::Check => "check",
            Self::Repair => "repair",
            Self::Merge => "merge",
            Self::Move => "move",
            Self::Scrub => "scrub",
            Self::Resilver => "resilver",
        }
    }
}

/// The state of a job.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub enum JobState {
    /// It runs.
    Running,
    /// It waits to be resumed.
    Paused,
    /// It cannot continue; the daemon's log says why.
    Failed,
}

impl JobState {
    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Failed => "failed",
        }
    }
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a user does with a job.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub enum JobAction {
    /// Pauses it.
    Pause,
    /// Resumes it.
    Resume,
    /// Ends it.
    Cancel,
}

impl JobAction {
    /// The verb.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Cancel => "cancel",
        }
    }

    /// The state of a job afterwards; `None` for a cancelled one, which is no longer listed.
    pub const fn result(self) -> Option<JobState> {
        match self {
            Self::Pause => Some(JobState::Paused),
            Self::Resume => Some(JobState::Running),
            Self::Cancel => None,
        }
    }
}

/// The answer of `Jobs`.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) struct JobsReply {
    /// The jobs.
    pub(crate) jobs: Vec<Job>,
}

/// The answer of `Metrics`.
#[derive(Serialize, Deserialize, Debug)]
pub struct MetricsReply {
    /// The metrics, in the text format of Prometheus.
    pub text: String,
}

/// Parameters of `ControlJob`.
#[derive(Serialize, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct JobControl {
    /// The job, by the name or alias of its device.
    pub name: String,
    /// What to do with it.
    pub action: JobAction,
}

/// Parameters of `Trace`.
#[derive(Serialize, Deserialize, Debug, Default)]
#[serde(deny_unknown_fields)]
pub struct Trace {
    /// The devices: `md0`, `md/data`, `vg/lv`, or a name below `sys/block`.
    pub devices: Vec<String>,
    /// The categories of `blktrace -a`; without any, all.
    pub actions: Option<Vec<String>>,
}

/// An answer of `Trace`.
#[derive(Serialize, Deserialize, Debug)]
pub struct TraceReply {
    /// The traced devices; only in the first reply.
    pub devices: Vec<TracedDevice>,
    /// Events in blktrace's format, in base64.
    pub records: String,
    /// How many events were lost so far.
    pub lost: u64,
}

/// A traced device.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub struct TracedDevice {
    /// The device's name.
    pub name: String,
    /// Its major number, as in `sys/block/*/dev`.
    pub major: u32,
    /// Its minor number.
    pub minor: u32,
}

/// Parameters of `Stop`.
#[derive(Serialize, Deserialize, Debug, Default)]
#[serde(deny_unknown_fields)]
pub struct Stop {
    /// Whether to force the shutdown, without waiting for clients.
    #[serde(default)]
    pub force: Option<bool>,
    /// Whether to end only if no client has a volume open.
    #[serde(default)]
    pub unused: Option<bool>,
}

/// An answer of `Stop`.
#[derive(Serialize, Deserialize, Debug, Default)]
pub struct StopReply {
    /// What the end waits for.
    pub waits_for: Vec<String>,
    /// What was not stopped cleanly; only in the last reply.
    pub failure: Option<String>,
}

/// Parameters of methods on one path, and of the errors about one.
#[derive(Serialize, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct TreePath {
    /// A path below the root of the mount: `sys/block/md0/queue/nomerges`.
    pub path: String,
}

/// Parameters of `Detail`.
#[derive(Serialize, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct ArrayReference {
    /// The array, by its name or alias.
    pub name: String,
}

/// Parameters of `Set`.
#[derive(Serialize, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// The attribute's path, as in `Get`.
    pub path: String,
    /// The new value.
    pub value: String,
}

/// The answer of `Get`.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) struct ValueReply {
    /// The attribute's text, with its final newline.
    pub(crate) value: String,
}

/// The answer of `List`.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) struct EntriesReply {
    /// The entries.
    pub(crate) entries: Vec<Entry>,
}

/// The answer of `Status`.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) struct StatusReply {
    /// The state.
    pub(crate) status: Status,
}

/// The answer of `Detail`.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) struct DetailReply {
    /// The facts.
    pub(crate) detail: Detail,
}

/// An entry of a directory.
#[derive(Serialize, Deserialize, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name in its directory.
    pub name: String,
    /// What it is.
    pub kind: EntryKind,
}

/// The kind of an entry.
#[derive(Clone, Copy, Serialize, Deserialize, Debug, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum EntryKind {
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// An attribute that can be read.
    Attribute,
    /// An attribute that cannot be read.
    WriteOnly,
    /// A volume.
    Volume,
}
