//! The protocol between the daemon and a worker. This module does not use libzpool.
//!
//! **Control channel**: a socket pair of packets. The daemon sends one [`Command`] at a time, as JSON; the worker
//! answers with one `Result<Reply, Refusal>`. [`crate::control`] sends and receives both, of any length.
//! **Data channels**: a socket pair of packets for each thread that does I/O on a volume, passed with
//! [`Command::Attach`]. A packet to the worker contains one or more [`Submission`]s, each followed by the
//! [`RemoteSegment`]s of its request; a packet from the worker contains one or more [`Completion`]s. The data is not
//! sent: the worker moves it between the daemon's memory and the DMU's buffers. Native byte order: both ends are one
//! program.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A command to a worker.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case")]
pub enum Command {
    /// The first command: loads libzpool. Answered by [`Reply::Started`].
    Start {
        /// OpenZFS's module parameters by name, as in `sys/module/zfs/parameters`.
        parameters: BTreeMap<String, u64>,
    },
    /// Lends the memory of the daemon's buffers to the worker for reading (with one read-only file descriptor).
    Share {
        /// Its address in the daemon.
        address: u64,
        /// Its length.
        len_bytes: u64,
    },
    /// Changes a module parameter.
    SetParameter {
        /// Its name.
        name: String,
        /// Its new value.
        value: u64,
    },
    /// Creates a pool, which becomes the worker's pool.
    CreatePool {
        /// Its name.
        name: String,
        /// Its top-level vdevs.
        vdevs: Vec<NewVdev>,
        /// Pool properties by name (`ashift`, `autotrim`, ..., `feature@NAME`).
        properties: BTreeMap<String, String>,
        /// Properties of its root dataset.
        dataset_properties: BTreeMap<String, String>,
        /// Also uses disks whose labels say that they belong to another pool.
        #[serde(default)]
        force: bool,
        /// The ranges to zero first: the signatures of other formats on the disks.
        #[serde(default)]
        wiped: Vec<DiskWipe>,
    },
    /// Makes a path in the configuration of a pool that is imported later stand for a part of a file. The file comes
    /// with the command (one file descriptor); the worker locks it, and opens it again.
    Part {
        /// The path, which need not exist.
        path: PathBuf,
        /// Where the part begins.
        offset_bytes: u64,
        /// Its length; otherwise it ends with the file.
        size_bytes: Option<u64>,
        /// The pool will be imported read-only.
        read_only: bool,
    },
    /// Imports a pool, which becomes the worker's pool.
    ImportPool {
        /// The configuration found on its disks, with their present paths.
        config: ImportConfig,
        /// A new name for the pool.
        name: Option<String>,
        /// Writes nothing.
        read_only: bool,
        /// Imports it even if another host used it last.
        force: bool,
        /// Imports it even if a log device is missing: what was only in that log is lost.
        #[serde(default)]
        missing_log: bool,
    },
    /// Writes everything out and releases the pool. Volumes must be closed.
    ExportPool,
    /// Marks the pool destroyed, and releases it. Volumes must be closed.
    DestroyPool,
    /// Adds top-level vdevs to the pool.
    AddVdevs {
        /// The vdevs.
        vdevs: Vec<NewVdev>,
        /// Also uses disks whose labels say that they belong to another pool, and vdevs of another form.
        force: bool,
        /// The ranges to zero first: the signatures of other formats on the disks.
        wiped: Vec<DiskWipe>,
    },
    /// Attaches a disk to a leaf, and starts its resilver.
    AttachDisk {
        /// The leaf: its path, the end of its path, or its number.
        leaf: String,
        /// The file or device to attach.
        path: PathBuf,
        /// It replaces the leaf, which is detached at the end of the resilver; otherwise both stay as a mirror.
        replace: bool,
        /// Also uses a disk whose labels say that it belongs to another pool.
        force: bool,
        /// The ranges to zero first: the signatures of other formats on the disk.
        wiped: Vec<DiskWipe>,
    },
    /// Changes the state of a leaf.
    ChangeLeaf {
        /// As in [`Command::AttachDisk`].
        leaf: String,
        /// The change.
        change: LeafChange,
    },
    /// Sets the error counters of a leaf to 0, or those of all vdevs.
    ClearErrors {
        /// As in [`Command::AttachDisk`].
        leaf: Option<String>,
    },
    /// Reads the pool's status. Answered by [`Reply::Pool`].
    PoolStatus,
    /// Starts, pauses or stops a scrub.
    Scrub(Scrub),
    /// Sets a pool property.
    SetPool {
        /// Its name.
        name: String,
        /// Its value.
        value: String,
    },
    /// Lists `root` (a dataset or snapshot; the pool if `None`) and its descendants. Answered by [`Reply::Datasets`].
    List {
        /// Its full name.
        root: Option<String>,
    },
    /// Creates a volume.
    CreateVolume {
        /// Its full name.
        name: String,
        /// Its size: a multiple of the block size.
        volsize_bytes: u64,
        /// Without a reservation.
        sparse: bool,
        /// Also creates missing parents.
        parents: bool,
        /// Properties by name, `volblocksize` among them, with values as `zfs create -o` takes them.
        properties: BTreeMap<String, String>,
    },
    /// Sets a property of a dataset, including `volsize`.
    SetProperty {
        /// Full name.
        dataset: String,
        /// The property's name.
        name: String,
        /// Its value, as `zfs set` takes it.
        value: String,
    },
    /// Makes a dataset inherit a property again.
    Inherit {
        /// Full name.
        dataset: String,
        /// The property's name.
        name: String,
    },
    /// Renames a dataset or snapshot.
    Rename {
        /// Full name.
        from: String,
        /// Full name.
        to: String,
    },
    /// Destroys a dataset or snapshot.
    Destroy {
        /// Full name.
        name: String,
        /// Also destroys everything below it.
        recursive: bool,
    },
    /// Takes snapshots, all at the same time.
    Snapshot {
        /// Full names, with `@`.
        names: Vec<String>,
    },
    /// Creates a volume from a snapshot.
    Clone {
        /// Full name of the snapshot.
        snapshot: String,
        /// Full name of the new volume.
        name: String,
        /// Properties by name.
        properties: BTreeMap<String, String>,
    },
    /// Rolls a volume back to its last snapshot.
    Rollback {
        /// Full name of the volume.
        volume: String,
        /// The snapshot to roll back to; refused if there is a newer one.
        snapshot: String,
    },
    /// Promotes a clone: it takes over the data that it shares with its origin.
    Promote {
        /// Full name of the clone.
        name: String,
    },
    /// Opens a volume or a volume's snapshot for I/O, and replays its log. Answered by [`Reply::Opened`].
    Open {
        /// Full name.
        name: String,
        /// The volume will only be read.
        read_only: bool,
    },
    /// Closes a volume: finishes its I/O, and closes its log.
    Close {
        /// Its number.
        volume: u32,
    },
    /// Applies an open volume's present `readonly` property; I/O waits meanwhile. Answered by [`Reply::Opened`].
    Reopen {
        /// Its number.
        volume: u32,
    },
    /// Passes a window (one file descriptor): memory that daemon and worker share for the data of a channel, which is attached
    /// next. A worker in a sandbox moves data only through windows.
    Window {
        /// Its number.
        window: u32,
        /// Its address in the daemon's memory.
        address: u64,
        /// Its length.
        len_bytes: u64,
    },
    /// Adds a data channel (one file descriptor) to an open volume.
    Attach {
        /// Its number.
        volume: u32,
        /// The window for its data; otherwise they are in the daemon's own memory.
        #[serde(default)]
        window: Option<u32>,
    },
    /// Overwrites an open volume in a plain loop of libzpool's own calls, as a baseline for I/O; its data is lost.
    /// Answered by [`Reply::Took`].
    WritePlainly {
        /// Full name.
        name: String,
        /// Size of each write.
        write_bytes: u32,
    },
}

/// A top-level vdev to create.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NewVdev {
    /// Its kind.
    pub kind: VdevKind,
    /// Its purpose.
    pub class: VdevClass,
    /// Files or devices: one for [`VdevKind::Single`].
    pub paths: Vec<PathBuf>,
}

/// Parts of a disk to zero.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DiskWipe {
    /// The file or device.
    pub path: PathBuf,
    /// The ranges, in bytes.
    pub ranges: Vec<Range<u64>>,
}

/// The kind of a top-level vdev.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VdevKind {
    /// One file or device.
    Single,
    /// Copies.
    Mirror,
    /// One, two or three parities.
    Raidz(u8),
}

/// The purpose of a top-level vdev.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VdevClass {
    /// Data.
    #[default]
    Normal,
    /// The intent log.
    Log,
}

/// The configuration in a pool's labels, ready for import: the argument of libzpool's `spa_import`, as JSON.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ImportConfig(pub NvMap);

/// A name-value list.
pub type NvMap = BTreeMap<String, NvValue>;

/// A value of a name-value list.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NvValue {
    /// No value: only its presence matters.
    Boolean,
    /// A number.
    Uint64(u64),
    /// A text.
    String(String),
    /// A nested list.
    List(NvMap),
    /// Nested lists.
    Lists(Vec<NvMap>),
    /// Numbers.
    Uint64s(Vec<u64>),
}

/// A change of a scrub.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scrub {
    /// Starts one, or continues a paused one.
    Start,
    /// Pauses it.
    Pause,
    /// Ends it.
    Stop,
}

/// A change of a leaf of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LeafChange {
    /// Removes it from its mirror. Its labels are of no transaction group then.
    Detach,
    /// Stops its use until it is brought online.
    Offline,
    /// Uses it again, and resilvers it.
    Online {
        /// Also uses space that the device has gained.
        expand: bool,
    },
}

/// A worker's answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "kebab-case")]
#[expect(clippy::large_enum_variant, reason = "there is one at a time")]
pub enum Reply {
    /// Done.
    Done,
    /// libzpool is loaded.
    Started {
        /// Its release, as `2.3`.
        release: String,
    },
    /// The pool.
    Pool(PoolStatus),
    /// Datasets.
    Datasets {
        /// In the order of their names.
        datasets: Vec<Dataset>,
    },
    /// A volume is open.
    Opened(OpenedVolume),
    /// The duration of the work.
    Took {
        /// In nanoseconds.
        nanoseconds: u64,
    },
}

/// Why a command was not carried out.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// What went wrong, in ZFS's words.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
    /// errno, 0 without one.
    pub errno: i32,
}

/// A pool's status.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PoolStatus {
    /// Its name.
    pub name: String,
    /// Its number.
    pub guid: u64,
    /// `ONLINE`, `DEGRADED`, ...
    pub state: String,
    /// Capacity, in bytes.
    pub size_bytes: u64,
    /// Bytes in use.
    pub allocated_bytes: u64,
    /// Its vdevs.
    pub root: VdevStatus,
    /// The last or running scrub or resilver.
    pub scan: Option<ScanStatus>,
    /// Known data errors.
    pub errors: u64,
    /// Properties by name, including its features (`feature@NAME`).
    pub properties: BTreeMap<String, Property>,
    /// The names of the properties that `zpool get all` shows, in its order.
    pub listed: Vec<String>,
}

/// A vdev's status.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct VdevStatus {
    /// Its name: `mirror-0`, a path, ...
    pub name: String,
    /// The purpose of a top-level vdev.
    #[serde(default)]
    pub class: VdevClass,
    /// `ONLINE`, `DEGRADED`, `UNAVAIL`, ...
    pub state: String,
    /// Failed reads.
    pub read_errors: u64,
    /// Failed writes.
    pub write_errors: u64,
    /// Wrong checksums.
    pub checksum_errors: u64,
    /// The vdevs below it.
    pub children: Vec<VdevStatus>,
}

/// A scrub or resilver.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ScanStatus {
    /// `scrub` or `resilver`.
    pub function: String,
    /// `scanning`, `paused`, `finished`, `canceled`.
    pub state: String,
    /// When it began, in seconds since 1970.
    pub start_time: u64,
    /// When it ended, in seconds since 1970; 0 if it has not ended.
    pub end_time: u64,
    /// Bytes to examine.
    pub to_examine_bytes: u64,
    /// Bytes issued.
    pub examined_bytes: u64,
    /// Bytes repaired.
    pub repaired_bytes: u64,
    /// Errors that could not be repaired.
    pub errors: u64,
}

/// A dataset.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Dataset {
    /// Full name.
    pub name: String,
    /// `volume`, `snapshot`, `filesystem`.
    pub kind: String,
    /// Properties by name.
    pub properties: BTreeMap<String, Property>,
}

/// A property.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Property {
    /// Its value, as `zfs get -p` or `zpool get -p` prints it.
    pub value: String,
    /// Its source, as they print it: `default`, `local`, `inherited from NAME`, `-`.
    pub source: String,
}

/// An open volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OpenedVolume {
    /// Its number in this worker.
    pub volume: u32,
    /// Its size.
    pub volsize_bytes: u64,
    /// Its block size.
    pub volblocksize_bytes: u32,
    /// It cannot be written.
    pub read_only: bool,
    /// What distinguishes its dataset from all others, whatever its name is.
    pub guid: u64,
}

/// The operations of a [`Submission`].
pub mod op {
    /// Read into the segments.
    pub const READ: u8 = 0;
    /// Write from the segments.
    pub const WRITE: u8 = 1;
    /// Commit the log.
    pub const FLUSH: u8 = 2;
    /// Free whole blocks of the range.
    pub const DISCARD: u8 = 3;
    /// Make the range read as zeroes.
    pub const WRITE_ZEROES: u8 = 4;
}

/// Flag of a [`Submission`]: the worker answers only when the write is on stable storage.
pub const FUA: u8 = 1;

/// A request, followed by its segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Submission {
    /// Copied to the completion.
    pub tag: u64,
    /// Where the request begins in the volume.
    pub offset_bytes: u64,
    /// Its length; if the request moves data, the sum of the segments' lengths.
    pub len_bytes: u64,
    /// One of [`op`].
    pub op: u8,
    /// [`FUA`] or 0.
    pub flags: u8,
    /// The number of segments that follow.
    pub segments: u16,
    /// 0.
    pub reserved: u32,
}

/// A segment of a request, in the memory of the process that submits it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RemoteSegment {
    /// Where it begins.
    pub address: u64,
    /// Its length.
    pub len_bytes: u64,
}

/// The result of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Completion {
    /// The submission's tag.
    pub tag: u64,
    /// 0, or the error.
    pub errno: i32,
    /// 0.
    pub reserved: u32,
}

/// Maximum that a transaction may touch (`DMU_MAX_ACCESS`, `include/sys/dmu.h`).
pub const DMU_MAX_ACCESS_BYTES: u32 = 64 << 20;

/// The longest request.
pub const MAX_REQUEST_BYTES: u32 = DMU_MAX_ACCESS_BYTES / 4;

/// Maximum of segments per request: what one call of process_vm_readv(2) takes.
pub const MAX_SEGMENTS: usize = 1024;

/// Maximum size of a packet to the worker.
pub const MAX_SUBMISSION_BYTES: usize =
    size_of::<Submission>() + MAX_SEGMENTS * size_of::<RemoteSegment>();

const _: () = assert!(size_of::<Submission>() == 32);
const _: () = assert!(size_of::<RemoteSegment>() == 16);
const _: () = assert!(size_of::<Completion>() == 16);
