//! The control interface: its methods, their parameters and errors, as data.
//!
//! [`DESCRIPTION`] is sent to clients that ask for it; the types beside it are the messages. A test checks that they
//! agree.

use ashlar_stack::detail::Detail;
use ashlar_stack::volume_groups::{ServedGroup, ServedPhysical};
use serde::{Deserialize, Serialize};

/// The interface's name.
pub(crate) const NAME: &str = "io.ashlar.Control";

/// The interface in varlink's description language.
pub(crate) const DESCRIPTION: &str = "\
# Live state and settings of a running ashlar daemon.
# Paths are those of a Linux root without the leading slash: sys/block/md0/queue/nomerges.
interface io.ashlar.Control

# A volume that is served: an array, or a device that holds no others (level disk or part). Arrays are
# listed even if they hold others.
# The size is in bytes.
type Volume (
  name: string,
  alias: ?string,
  level: string,
  size: int,
  state: string,
  raid_devices: int,
  degraded: int
)

# A disk that takes the time of a device model, as in gp2:3000iops.
type Model (
  disk: string,
  model: string
)

# A ZFS pool, the process that has it, the release of OpenZFS in there, and if that process has ended, how.
type Pool (
  name: string,
  pid: int,
  release: string,
  ended: ?string
)

type Status (
  version: string,
  pid: int,
  mount: ?string,
  nbd: []string,
  models: []Model,
  pools: []Pool,
  volumes: []Volume,
  stopping: ?[]string
)

# A writeonly entry is an attribute that cannot be read.
type Entry (name: string, kind: (directory, symlink, attribute, writeonly, volume))

# A slot of an array, or a member beside the slots.
type Member (
  number: ?int,
  slot: ?int,
  state: string,
  replacement: bool,
  path: ?string,
  read_errors: int,
  corrected: int
)

# A resync, recovery, check or repair under way; kind is mdadm's word for it.
type Sync (
  kind: string,
  percent: int,
  done_kib: int,
  total_kib: int,
  speed_kib: int,
  seconds_left: ?int
)

# An array, with the facts of mdadm --detail. Times are seconds since 1970.
type Detail (
  device: string,
  alias: ?string,
  version: string,
  created: int,
  level: string,
  size_kib: int,
  used_dev_size_kib: ?int,
  raid_devices: int,
  preferred_minor: ?int,
  updated: int,
  intent_bitmap: ?string,
  state: string,
  total_devices: int,
  active_devices: int,
  working_devices: int,
  failed_devices: int,
  spare_devices: int,
  layout: ?string,
  chunk_kib: ?int,
  consistency_policy: string,
  sync_action: string,
  sync: ?Sync,
  sync_busy: bool,
  last_sync_action: string,
  mismatch_count: int,
  name: string,
  uuid: string,
  events: int,
  members: []Member,
  notes: []string
)

method Status() -> (status: Status)

# An array by its name (md0) or alias (md/data).
method Detail(name: string) -> (detail: Detail)

# The text of an attribute, with its final newline.
method Get(path: string) -> (value: string)

method Set(path: string, value: string) -> ()

# Changes the members of an array. The action is add, re-add, fail, remove or replace; the disk a path
# or a name under sys/block, for fail also the word detached, for remove detached or failed. With is
# the spare that shall replace the disk. Says what was done, a line each.
method Manage(
  name: string,
  action: string,
  disk: string,
  with: ?string,
  write_mostly: ?bool,
  failfast: ?bool,
  spare: ?bool,
  force: ?bool
) -> (done: []string)

# Changes the size, the bitmap or the number of devices of an array. The size is max or KiB of each
# member, the bitmap internal, lockless or none, its chunk bytes. The new size is that of the array in
# bytes.
method Grow(
  name: string,
  size: ?string,
  bitmap: ?string,
  bitmap_chunk: ?int,
  raid_devices: ?int,
  assume_clean: ?bool,
  force: ?bool
) -> (size: int)

# Hands in a disk with a member, as mdadm --incremental: the array starts once all members are there
# that worked last time, or with run as many as have all data. To a running array the member comes
# back, if its bitmap knows what it lacks. Says what became of it, a line each.
method Attach(disk: string, run: ?bool) -> (done: []string)

# Takes the member on a disk out of whatever array it is in (mdadm --incremental --fail).
method Detach(disk: string) -> (done: []string)

# Starts the arrays that wait for members with those that are there, if these have all data.
method StartWaiting() -> (done: []string, failed: []string)

# Has a ZFS pool do something: a command and its reply are those of a pool's own process, objects with a field command or
# reply that says which (docs/internals/zvol.md). Devices follow what becomes of the volumes. In answer to export-pool
# the pool's disks are let go of.
method Zfs(pool: string, command: object) -> (reply: object)

# A question to the user, and the error if the answer is no.
type Question (text: string, refusal: string)

# Changes a volume group by its name or UUID. The command is an object with one field that says which: create, resize, remove,
# rename, merge, rename-group (docs/internals/lvm.md). If the user must confirm it, there are questions in the reply, and nothing is done before it
# comes confirmed. Archive false keeps no copies of the metadata; line is the command as the user gave it. The reply has
# lines to print before and after.
method Lvm(
  group: string,
  command: object,
  confirmed: ?bool,
  archive: ?bool,
  line: string
) -> (notes: []string, questions: []Question, done: []string)

# A physical volume.
type Physical (path: string, uuid: string, size_bytes: int, is_used: bool, areas: int)

# A logical volume with a device; status is that of dmsetup.
type Logical (name: string, device: string, is_open: bool, status: string)

# A volume group: its text as on disk, its members (present, stale or returned with an index into the physical volumes, or
# missing), and its volumes with a device.
type Group (text: string, members: []object, volumes: []Logical)

method Groups() -> (physical: []Physical, groups: []Group)

# A device that is traced, with its number as in sys/block/*/dev.
type TracedDevice (name: string, major: int, minor: int)

# What happens to bios on these devices (md0, md/data, vg/lv, or a name in sys/block), in the format of
# blktrace, version 7, in base64. Actions are the categories of blktrace -a, without any: all. To be called
# with more: the first reply has the devices, and comes when nothing is missed any more; the last one
# comes when the caller has shut down its side of the connection, or the daemon stops. Lost is how many
# events were dropped up to then because they came faster than the caller took them.
method Trace(
  devices: []string,
  actions: ?[]string
) -> (devices: []TracedDevice, records: string, lost: int)

# What is in a directory.
method List(path: string) -> (entries: []Entry)

# Stop as on SIGTERM; with force as on a second one. The answer comes before the daemon has stopped. To a call with more there is a
# reply whenever what the end waits for changes, and a last one when all is stopped: failure tells what was not in good order. Then the
# process ends.
method Stop(force: ?bool) -> (waits_for: []string, failure: ?string)

error NotFound (path: string)
error IsDirectory (path: string)
error NotADirectory (path: string)
error NotReadable (path: string)
error NotWritable (path: string)
error InvalidValue (path: string, reason: string)
error Busy (path: string, reason: string)
# The code is what a command is to end with, if not 1.
error Refused (reason: string, hint: ?string, code: ?int)
";

/// Parameters of `Manage`.
#[derive(Clone, Serialize, Deserialize, Debug, Default)]
#[serde(deny_unknown_fields)]
pub(crate) struct Manage {
    pub(crate) name: String,
    pub(crate) action: ManageAction,
    pub(crate) disk: String,
    #[serde(default)]
    pub(crate) with: Option<String>,
    #[serde(default)]
    pub(crate) write_mostly: Option<bool>,
    #[serde(default)]
    pub(crate) failfast: Option<bool>,
    #[serde(default)]
    pub(crate) spare: Option<bool>,
    #[serde(default)]
    pub(crate) force: Option<bool>,
}

/// The action of `Manage`.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug, Default)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ManageAction {
    #[default]
    Add,
    ReAdd,
    Fail,
    Remove,
    Replace,
}

/// The answer of `Manage`.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) struct DoneReply {
    pub(crate) done: Vec<String>,
}

/// Parameters of `Attach`.
#[derive(Serialize, Deserialize, Debug, Default)]
#[serde(deny_unknown_fields)]
pub(crate) struct Attach {
    pub(crate) disk: String,
    #[serde(default)]
    pub(crate) run: Option<bool>,
}

/// Parameters of `Detach`.
#[derive(Serialize, Deserialize, Debug, Default)]
#[serde(deny_unknown_fields)]
pub(crate) struct DiskOnly {
    pub(crate) disk: String,
}

/// The answer of `StartWaiting`.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) struct StartedReply {
    pub(crate) done: Vec<String>,
    pub(crate) failed: Vec<String>,
}

/// Parameters of `Grow`.
#[derive(Serialize, Deserialize, Debug, Default)]
#[serde(deny_unknown_fields)]
pub(crate) struct Grow {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) size: Option<String>,
    #[serde(default)]
    pub(crate) bitmap: Option<String>,
    #[serde(default)]
    pub(crate) bitmap_chunk: Option<u64>,
    #[serde(default)]
    pub(crate) raid_devices: Option<usize>,
    #[serde(default)]
    pub(crate) assume_clean: Option<bool>,
    #[serde(default)]
    pub(crate) force: Option<bool>,
}

/// The answer of `Grow`.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) struct SizeReply {
    pub(crate) size: u64,
}

/// Parameters of `Zfs`.
#[derive(Serialize, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct Zfs {
    pub(crate) pool: String,
    pub(crate) command: ashlar_zfs::protocol::Command,
}

/// The answer of `Zfs`.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) struct ZfsReply {
    pub(crate) reply: ashlar_zfs::protocol::Reply,
}

/// Parameters of `Lvm`.
#[derive(Serialize, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct Lvm {
    pub(crate) group: String,
    pub(crate) command: ashlar_lvm::command::Command,
    #[serde(default)]
    pub(crate) confirmed: Option<bool>,
    #[serde(default)]
    pub(crate) archive: Option<bool>,
    pub(crate) line: String,
}

/// The answer of `Lvm`.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) struct LvmReply {
    pub(crate) notes: Vec<String>,
    pub(crate) questions: Vec<ashlar_lvm::command::Question>,
    pub(crate) done: Vec<String>,
}

/// The answer of `Groups`.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) struct GroupsReply {
    pub(crate) physical: Vec<ServedPhysical>,
    pub(crate) groups: Vec<ServedGroup>,
}

/// Parameters of `Trace`.
#[derive(Serialize, Deserialize, Debug, Default)]
#[serde(deny_unknown_fields)]
pub(crate) struct Trace {
    pub(crate) devices: Vec<String>,
    #[serde(default)]
    pub(crate) actions: Option<Vec<String>>,
}

/// An answer of `Trace`.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) struct TraceReply {
    pub(crate) devices: Vec<TracedDevice>,
    pub(crate) records: String,
    pub(crate) lost: u64,
}

/// A traced device.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub(crate) struct TracedDevice {
    pub(crate) name: String,
    pub(crate) major: u32,
    pub(crate) minor: u32,
}

/// Parameters of `Stop`.
#[derive(Serialize, Deserialize, Debug, Default)]
#[serde(deny_unknown_fields)]
pub(crate) struct Stop {
    #[serde(default)]
    pub(crate) force: Option<bool>,
}

/// An answer of `Stop`.
#[derive(Serialize, Deserialize, Debug, Default)]
pub(crate) struct StopReply {
    pub(crate) waits_for: Vec<String>,
    pub(crate) failure: Option<String>,
}

/// Parameters of methods on one path, and of the errors about one.
#[derive(Serialize, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct PathOnly {
    pub(crate) path: String,
}

/// Parameters of `Detail`.
#[derive(Serialize, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct NameOnly {
    pub(crate) name: String,
}

/// Parameters of `Set`.
#[derive(Serialize, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct PathValue {
    pub(crate) path: String,
    pub(crate) value: String,
}

/// The answer of `Get`.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) struct ValueReply {
    pub(crate) value: String,
}

/// The answer of `List`.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) struct EntriesReply {
    pub(crate) entries: Vec<Entry>,
}

/// The answer of `Status`.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) struct StatusReply {
    pub(crate) status: Status,
}

/// The answer of `Detail`.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) struct DetailReply {
    pub(crate) detail: Detail,
}

/// An entry of a directory.
#[derive(Serialize, Deserialize, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) kind: EntryKind,
}

/// The kind of an entry.
#[derive(Clone, Copy, Serialize, Deserialize, Debug, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum EntryKind {
    Directory,
    Symlink,
    Attribute,
    WriteOnly,
    Volume,
}

/// A daemon's state.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) struct Status {
    pub(crate) version: String,
    pub(crate) pid: u32,
    pub(crate) mount: Option<String>,
    pub(crate) nbd: Vec<String>,
    pub(crate) models: Vec<ModelStatus>,
    pub(crate) pools: Vec<PoolStatus>,
    pub(crate) volumes: Vec<VolumeStatus>,
    pub(crate) stopping: Option<Vec<String>>,
}

/// A pool's process.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) struct PoolStatus {
    pub(crate) name: String,
    pub(crate) pid: u32,
    pub(crate) release: String,
    pub(crate) ended: Option<String>,
}

/// A disk's device model.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) struct ModelStatus {
    pub(crate) disk: String,
    pub(crate) model: String,
}

/// A volume's state.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) struct VolumeStatus {
    pub(crate) name: String,
    pub(crate) alias: Option<String>,
    pub(crate) level: String,
    pub(crate) size: u64,
    pub(crate) state: String,
    pub(crate) raid_devices: usize,
    pub(crate) degraded: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fields of `type NAME (...)` in the description.
    fn described(name: &str) -> Vec<String> {
        let start = DESCRIPTION.find(&format!("type {name} (")).unwrap();
        let body = &DESCRIPTION[start..];
        let (_, body) = body.split_once('(').unwrap();
        let body = body.split("\n)").next().unwrap();
        let fields = body.split([',', '\n']).filter_map(|part| part.split_once(':'));
        fields.map(|(field, _)| field.trim().to_owned()).collect()
    }

    fn sent(value: serde_json::Value) -> Vec<String> {
        let mut names: Vec<String> = value.as_object().unwrap().keys().cloned().collect();
        names.sort_unstable();
        names
    }

    fn check(name: &str, value: serde_json::Value) {
        let mut described = described(name);
        described.sort_unstable();
        assert_eq!(described, sent(value), "{name}");
    }

    #[test]
    fn the_description_has_the_fields_that_are_sent() {
        let volume = VolumeStatus {
            name: String::new(),
            alias: None,
            level: String::new(),
            size: 0,
            state: String::new(),
            raid_devices: 0,
            degraded: 0,
        };
        check("Volume", serde_json::to_value(volume).unwrap());
        let status = Status {
            version: String::new(),
            pid: 1,
            mount: None,
            nbd: Vec::new(),
            models: Vec::new(),
            pools: Vec::new(),
            volumes: Vec::new(),
            stopping: None,
        };
        check("Status", serde_json::to_value(status).unwrap());
        let model = ModelStatus { disk: String::new(), model: String::new() };
        check("Model", serde_json::to_value(model).unwrap());
        let pool = PoolStatus { name: String::new(), pid: 1, release: String::new(), ended: None };
        check("Pool", serde_json::to_value(pool).unwrap());
        let member = ashlar_stack::detail::DetailMember {
            number: None,
            slot: None,
            state: String::new(),
            replacement: false,
            path: None,
            read_errors: 0,
            corrected: 0,
        };
        check("Member", serde_json::to_value(&member).unwrap());
        let sync = ashlar_stack::detail::DetailSync {
            kind: String::new(),
            percent: 0,
            done_kib: 0,
            total_kib: 0,
            speed_kib: 0,
            seconds_left: None,
        };
        check("Sync", serde_json::to_value(&sync).unwrap());
        let detail = Detail {
            device: String::new(),
            alias: None,
            version: String::new(),
            created: 0,
            level: String::new(),
            size_kib: 0,
            used_dev_size_kib: None,
            raid_devices: 0,
            preferred_minor: None,
            updated: 0,
            intent_bitmap: None,
            state: String::new(),
            total_devices: 0,
            active_devices: 0,
            working_devices: 0,
            failed_devices: 0,
            spare_devices: 0,
            layout: None,
            chunk_kib: None,
            consistency_policy: String::new(),
            sync_action: String::new(),
            sync: Some(sync.clone()),
            sync_busy: false,
            last_sync_action: String::new(),
            mismatch_count: 0,
            name: String::new(),
            uuid: String::new(),
            events: 0,
            members: vec![member],
            notes: Vec::new(),
        };
        check("Detail", serde_json::to_value(detail).unwrap());
    }

    #[test]
    fn the_description_has_the_parameters_that_are_taken() {
        for (method, parameters) in [
            ("Manage", serde_json::to_value(Manage::default()).unwrap()),
            ("Grow", serde_json::to_value(Grow::default()).unwrap()),
            ("Stop", serde_json::to_value(Stop::default()).unwrap()),
            ("Attach", serde_json::to_value(Attach::default()).unwrap()),
            ("Detach", serde_json::to_value(DiskOnly::default()).unwrap()),
            ("Trace", serde_json::to_value(Trace::default()).unwrap()),
            ("Zfs", {
                let command = ashlar_zfs::protocol::Command::PoolStatus;
                serde_json::to_value(Zfs { pool: String::new(), command }).unwrap()
            }),
        ] {
            let start = DESCRIPTION.find(&format!("method {method}(")).unwrap();
            let (_, body) = DESCRIPTION[start..].split_once('(').unwrap();
            let body = body.split(") ->").next().unwrap();
            let fields = body.split([',', '\n']).filter_map(|part| part.split_once(':'));
            let mut fields: Vec<String> =
                fields.map(|(field, _)| field.trim().to_owned()).collect();
            fields.sort_unstable();
            assert_eq!(fields, sent(parameters), "{method}");
        }
    }
}
