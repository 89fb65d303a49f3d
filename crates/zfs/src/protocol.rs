//! What the daemon and a worker say to each other. No libzpool in it.
//!
//! **Control channel**: a socket pair of packets. One [`Command`] at a time, as JSON, is answered by one `Result<Reply, Refusal>`;
//! [`crate::control`] sends and receives either, of any length.
//! **Data channels**: a socket pair of packets for each thread that does I/O on a volume, handed over with
//! [`Command::Attach`]. A packet to the worker is a [`Submission`] and the [`RemoteSegment`]s of its request, or several; one from the
//! worker is one [`Completion`] or several. The data itself does not pass: the worker moves it between the daemon's memory
//! and the DMU's buffers. Native byte order: both ends are one program.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// What a worker is told to do.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case")]
pub enum Command {
    /// The first one: loads libzpool. Answered by [`Reply::Started`].
    Start {
        /// OpenZFS's module parameters by name, as in `sys/module/zfs/parameters`.
        parameters: BTreeMap<String, u64>,
    },
    /// Lends the memory that the daemon's buffers are in, to be read (with one file descriptor, which cannot be written).
    Share {
        /// Where it is in the daemon.
        address: u64,
        /// How long it is.
        len_bytes: u64,
    },
    /// Changes a module parameter.
    SetParameter {
        /// Its name.
        name: String,
        /// Its new value.
        value: u64,
    },
    /// Makes a pool. It is then the worker's pool.
    CreatePool {
        /// Its name.
        name: String,
        /// Its top-level vdevs.
        vdevs: Vec<NewVdev>,
        /// Pool properties by name (`ashift`, `autotrim`, ..., `feature@NAME`).
        properties: BTreeMap<String, String>,
        /// Properties of its root dataset.
        dataset_properties: BTreeMap<String, String>,
        /// Also on disks whose labels say that they belong to another pool.
        #[serde(default)]
        force: bool,
        /// What is zeroed first: the bytes by which others know the disks as theirs.
        #[serde(default)]
        wiped: Vec<Wiped>,
    },
    /// Has a path of the configuration of a pool that is imported later stand for a part of a file, with the file (one file
    /// descriptor): the worker locks it, and opens it anew.
    Part {
        /// The path, which need not be there.
        path: PathBuf,
        /// Where the part begins.
        offset_bytes: u64,
        /// How long it is.
        size_bytes: u64,
        /// The pool will be imported read-only.
        read_only: bool,
    },
    /// Imports a pool. It is then the worker's pool.
    ImportPool {
        /// What was found on its disks, with the paths they have now.
        config: ImportConfig,
        /// Another name for it.
        name: Option<String>,
        /// Nothing is written.
        read_only: bool,
        /// Also if it was last used by another host.
        force: bool,
        /// Also if a log device is missing: what was only in its log is lost.
        #[serde(default)]
        missing_log: bool,
    },
    /// Writes all out and lets go of the pool. Volumes must be closed.
    ExportPool,
    /// Answered by [`Reply::Pool`].
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
    /// Answered by [`Reply::Datasets`]: what is below `root` (a dataset; the pool if `None`), volumes and snapshots.
    List {
        /// Where to begin.
        root: Option<String>,
    },
    /// Makes a volume.
    CreateVolume {
        /// Its full name.
        name: String,
        /// Its size, as asked for: a multiple of the block size, unless it is to be rounded up to one.
        volsize_bytes: u64,
        /// No reservation.
        sparse: bool,
        /// Makes parents that are missing, too.
        parents: bool,
        /// Properties by name, `volblocksize` among them, values as `zfs create -o` takes them.
        properties: BTreeMap<String, String>,
    },
    /// Sets a property of a dataset, `volsize` too.
    SetProperty {
        /// Full name.
        dataset: String,
        /// The property's name.
        name: String,
        /// Its value as `zfs set` takes it.
        value: String,
    },
    /// Lets a property be inherited again.
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
        /// What is below it too.
        recursive: bool,
    },
    /// Takes snapshots, all at one time.
    Snapshot {
        /// Full names, with `@`.
        names: Vec<String>,
    },
    /// Makes a volume of a snapshot.
    Clone {
        /// Full name of the snapshot.
        snapshot: String,
        /// Full name of the new volume.
        name: String,
        /// Properties by name.
        properties: BTreeMap<String, String>,
    },
    /// Takes a volume back to its last snapshot.
    Rollback {
        /// Full name of the volume.
        volume: String,
        /// The snapshot to go back to; newer ones are refused.
        snapshot: String,
    },
    /// Makes a clone the owner of what it shares with its origin.
    Promote {
        /// Full name of the clone.
        name: String,
    },
    /// Opens a volume or a snapshot of one for I/O; replays its log. Answered by [`Reply::Opened`].
    Open {
        /// Full name.
        name: String,
        /// Only reads come.
        read_only: bool,
    },
    /// Ends the I/O of a volume: what was started is finished, its log is closed.
    Close {
        /// Its number.
        volume: u32,
    },
    /// Lets an open volume be written or not as its properties say now; I/O waits meanwhile. Answered by [`Reply::Opened`].
    Reopen {
        /// Its number.
        volume: u32,
    },
    /// A data channel (with one file descriptor) for an open volume.
    Attach {
        /// Its number.
        volume: u32,
    },
    /// Writes over an open volume by a plain loop of libzpool's own calls, to measure I/O against. Its data is gone then. Answered by
    /// [`Reply::Took`].
    WritePlainly {
        /// Full name.
        name: String,
        /// Bytes of a write.
        write_bytes: u32,
    },
}

/// A top-level vdev to make.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NewVdev {
    /// What it is.
    pub kind: VdevKind,
    /// What it is for.
    pub class: VdevClass,
    /// Files or devices: one for [`VdevKind::Single`].
    pub paths: Vec<PathBuf>,
}

/// Bytes of a disk that are zeroed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Wiped {
    /// The file or device.
    pub path: PathBuf,
    /// The ranges, in bytes.
    pub ranges: Vec<Range<u64>>,
}

/// What a top-level vdev is.
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

/// What a top-level vdev is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VdevClass {
    /// Data.
    #[default]
    Normal,
    /// The intent log.
    Log,
}

/// A pool as its labels tell, ready to be imported: what libzpool's `spa_import` wants, as JSON.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ImportConfig(pub NvMap);

/// A name-value list.
pub type NvMap = BTreeMap<String, NvValue>;

/// A value of a name-value list.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NvValue {
    /// Only its being there matters.
    Boolean,
    /// A number.
    Uint64(u64),
    /// A text.
    String(String),
    /// A list of its own.
    List(NvMap),
    /// Lists of their own.
    Lists(Vec<NvMap>),
    /// Numbers.
    Uint64s(Vec<u64>),
}

/// What to do about a scrub.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scrub {
    /// Starts one, or goes on with a paused one.
    Start,
    /// Pauses it.
    Pause,
    /// Ends it.
    Stop,
}

/// What a worker answers.
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
    /// How long it took.
    Took {
        /// In nanoseconds.
        nanoseconds: u64,
    },
}

/// Why a command was not carried out.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// What went wrong, in words of ZFS.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
    /// errno, 0 if there is none.
    pub errno: i32,
}

/// A pool's state.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PoolStatus {
    /// Its name.
    pub name: String,
    /// Its number.
    pub guid: u64,
    /// `ONLINE`, `DEGRADED`, ...
    pub state: String,
    /// What can be stored, in bytes.
    pub size_bytes: u64,
    /// What is in use, in bytes.
    pub allocated_bytes: u64,
    /// Its vdevs.
    pub root: VdevStatus,
    /// The last or running scrub or resilver.
    pub scan: Option<ScanStatus>,
    /// Data errors known.
    pub errors: u64,
    /// Properties by name, those of its features among them (`feature@NAME`).
    pub properties: BTreeMap<String, Property>,
    /// The names of the properties that `zpool get all` shows, in its order.
    pub listed: Vec<String>,
}

/// A vdev's state.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct VdevStatus {
    /// Its name: `mirror-0`, a path, ...
    pub name: String,
    /// What a top-level vdev is for.
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
    /// What is below.
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
    /// When it ended, in seconds since 1970; 0 if it did not.
    pub end_time: u64,
    /// What there is to look at.
    pub to_examine_bytes: u64,
    /// What was issued.
    pub examined_bytes: u64,
    /// What was repaired.
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
    /// As `zfs get -p` or `zpool get -p` prints it.
    pub value: String,
    /// As they print it: `default`, `local`, `inherited from NAME`, `-`.
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

/// Flag of a [`Submission`]: answered only when it is on stable storage.
pub const FUA: u8 = 1;

/// A request, before its segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Submission {
    /// What its completion carries.
    pub tag: u64,
    /// Where it begins in the volume.
    pub offset_bytes: u64,
    /// How long it is; the segments' lengths add up to it if it moves data.
    pub len_bytes: u64,
    /// One of [`op`].
    pub op: u8,
    /// [`FUA`] or 0.
    pub flags: u8,
    /// How many segments follow.
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
    /// How long it is.
    pub len_bytes: u64,
}

/// The end of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Completion {
    /// The submission's.
    pub tag: u64,
    /// 0, or why it failed.
    pub errno: i32,
    /// 0.
    pub reserved: u32,
}

/// Segments of a request at most: what one call of process_vm_readv(2) takes.
pub const MAX_SEGMENTS: usize = 1024;

/// Bytes of a packet to the worker at most.
pub const MAX_SUBMISSION_BYTES: usize =
    size_of::<Submission>() + MAX_SEGMENTS * size_of::<RemoteSegment>();

const _: () = assert!(size_of::<Submission>() == 32);
const _: () = assert!(size_of::<RemoteSegment>() == 16);
const _: () = assert!(size_of::<Completion>() == 16);
