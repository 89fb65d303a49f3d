//! The text that describes the interface to clients that ask for it.

/// The interface in varlink's description language.
pub const DESCRIPTION: &str = "\
# Live state and settings of a running ashlar daemon.
# Paths are those of a Linux root without the leading slash: sys/block/md0/queue/nomerges.
interface io.ashlar.Control

# An NBD client of a volume: an IP address, or process and a number. One in its handshake is not listed.
type NbdClient (
  peer: string,
  connections: int
)

# A virtual machine that has a volume by vhost-user-blk, by its process; 0 if that is not known.
type VhostUserClient (
  process: int
)

# The block device of a volume.
type UblkDevice (
  volume: string,
  path: string
)

# A volume that is served: an array, or a device that holds no others (level disk or part). Arrays are
# listed even if they hold others.
# The size is in bytes. The state of a snapshot that was lost is invalid or overflow.
type Volume (
  name: string,
  alias: ?string,
  level: string,
  size: int,
  state: string,
  raid_devices: int,
  degraded: int,
  snapshot: ?SnapshotSample,
  nbd_clients: []NbdClient,
  vhost_user_clients: []VhostUserClient
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

# A volume with rate limits.
type LimitedVolume (
  volume: string,
  limits: LimitSample
)

# Io is io_uring or threads; sandbox is on, or off: with the reason.
type Status (
  version: string,
  pid: int,
  io: string,
  sandbox: string,
  mount: ?string,
  nbd: []string,
  vhost_user: ?string,
  ublk: []UblkDevice,
  metrics: ?string,
  models: []Model,
  limited: []LimitedVolume,
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

# A reshape that was interrupted, and does not continue. The layout and the chunk size are there if they change.
type Reshape (
  percent: int,
  position_kib: int,
  delta_devices: int,
  new_layout: ?string,
  new_chunk_kib: ?int
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
  reshape: ?Reshape,
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

# Adds a disk with a member, as mdadm --incremental: the array starts once all members are present
# that worked last time, or with run as many as have all data. A running array re-adds the member,
# if its bitmap marks what the member lacks. Returns what was done, a line each.
method Attach(disk: string, run: ?bool) -> (done: []string)

# Removes the member on a disk from the array that it is in (mdadm --incremental --fail).
method Detach(disk: string) -> (done: []string)

# Starts the arrays that wait for members with the present ones, if these have all data.
method StartWaiting() -> (done: []string, failed: []string)

# Sends a command to a ZFS pool: the command and its reply are those of the pool's process, objects with a field command or
# reply that says which (docs/internals/zvol.md). Devices follow the changes of the volumes. On export-pool the daemon
# releases the pool's disks.
method Zfs(pool: string, command: object) -> (reply: object)

# A question to the user, and the error if the answer is no.
type Question (text: string, refusal: string)

# Changes a volume group by its name or UUID. The command is an object with one field that says which: create, resize, remove,
# rename, merge, move, abort-move, rename-group, restore, tag, allocatable (docs/internals/lvm.md). If the user must confirm it,
# the reply has questions, and the daemon does nothing until the call comes again as confirmed. Archive false keeps no copies of
# the metadata; line is the command as the user gave it. The reply has lines to print before and after.
method Lvm(
  group: string,
  command: object,
  confirmed: ?bool,
  archive: ?bool,
  line: string
) -> (notes: []string, questions: []Question, done: []string)

# Changes which physical volumes a volume group has, as Lvm does: the command is create, extend, reduce, resize or remove. Paths
# are those of devices of the daemon, or of disks that it opens, in the directory.
method LvmMembers(
  group: string,
  command: object,
  directory: string,
  confirmed: ?bool,
  archive: ?bool,
  line: string
) -> (notes: []string, questions: []Question, done: []string)

# Activates or deactivates volumes of a group, all of them if no volume is named; a snapshot and its origin together. Returns how
# many volumes of the group are active then. When the daemon starts again, all are.
method Activate(group: string, volumes: []string, active: bool) -> (active: int)

# A physical volume.
type Physical (path: string, uuid: string, size_bytes: int, is_used: bool, areas: int)

# A logical volume with a device; status is that of dmsetup.
type Logical (name: string, device: string, is_open: bool, status: string)

# A volume group: its text as on disk, its members (present, stale or returned with an index into the physical volumes, or
# missing), and its volumes with a device.
type Group (text: string, members: []object, volumes: []Logical)

method Groups() -> (physical: []Physical, groups: []Group)

# A job, named after its device: md0, vg/lv, a pool, or a file system's UUID. The kind is resync, recover, check, repair, merge,
# move, scrub or resilver, the state running, paused or failed. Actions are those possible now: pause, resume, cancel.
type Job (
  name: string,
  alias: ?string,
  kind: string,
  state: string,
  done_bytes: int,
  total_bytes: int,
  bytes_per_second: ?int,
  seconds_left: ?int,
  actions: []string
)

method Jobs() -> (jobs: []Job)

# Counters and states of all devices, arrays and jobs, in the text format of Prometheus, version 0.0.4.
method Metrics() -> (text: string)

# One kind of operation on a device since the daemon began. Those that were merged into others count among merges and not among ios; latencies
# has both, by the ranges of time of Sample, without the zeroes of the last ranges. Times are nanoseconds.
type OperationSample (
  ios: int,
  merges: int,
  bytes: int,
  time_ns: int,
  latencies: []int
)

# A snapshot, or one that is being merged, which its origin has then. The state is active, merging, merge-failed, overflow or invalid; the used
# part of its space is as lvs shows it in the column Data%.
type SnapshotSample (
  origin: string,
  state: string,
  used_percent: ?float,
  used_bytes: ?int,
  size_bytes: int
)

# Requests that had to wait for a rate limit: those that wait now, and all since the daemon began, with the time in nanoseconds for which
# those waited that have passed.
type DelaySample (
  waiting: int,
  requests: int,
  time_ns: int
)

# The rate limits of a volume's clients, in the words of io.max: bytes and requests in each second. A burst is as much as they allow in that
# many milliseconds.
type LimitSample (
  rbps: ?int,
  wbps: ?int,
  riops: ?int,
  wiops: ?int,
  burst_ms: int,
  read: DelaySample,
  write: DelaySample
)

# A block device; below are the names of the devices that it is made of. Its state is answering, silent or gone. Busy is the time in which a
# thread of the daemon had a request under way, added up over its threads.
type DeviceSample (
  name: string,
  path: string,
  alias: ?string,
  kind: string,
  use: string,
  below: []string,
  size_bytes: int,
  read_only: bool,
  state: string,
  snapshot: ?SnapshotSample,
  in_flight: int,
  busy_ns: int,
  read: OperationSample,
  write: OperationSample,
  discard: OperationSample,
  flush: OperationSample,
  errors: int,
  limits: ?LimitSample,
  nbd_clients: []NbdClient,
  vhost_user_clients: []VhostUserClient
)

type MemberSample (
  name: string,
  state: string,
  read_errors: int,
  corrected_bytes: int
)

# The progress of a sync that runs or is paused.
type RunSample (
  done_bytes: int,
  total_bytes: int,
  bytes_per_second: int,
  seconds_left: ?int
)

# The action is in the words of sync_action.
type SyncSample (
  action: string,
  mismatched_bytes: int,
  barrier_waits: int,
  barrier_raises: int,
  barrier_freezes: int,
  run: ?RunSample
)

# An md array; the state is in the words of array_state. Only a running array with redundancy has sync.
type ArraySample (
  device: string,
  level: string,
  state: string,
  required: int,
  active: int,
  failed: int,
  spare: int,
  degraded: int,
  unsynced: bool,
  sync: ?SyncSample,
  members: []MemberSample
)

# A thread that serves clients, and its connections of NBD clients that have chosen an export.
type ThreadSample (
  name: string,
  nbd_connections: int
)

# Everything at one moment: now, on a monotonic clock. The bounds are those of the ranges of latencies, inclusive; a last range has
# no bound. The limit is that of each NBD address. Jobs are missing if they could not be listed in time.
type Sample (
  version: string,
  io: string,
  now_ns: int,
  uptime_ns: int,
  latency_bounds_us: []int,
  threads: []ThreadSample,
  nbd_connections_limit: ?int,
  devices: []DeviceSample,
  arrays: []ArraySample,
  pools: []Pool,
  jobs: ?[]Job
)

# What the metrics are made of, for programs that make rates of it.
method Sample() -> (sample: Sample)

method ControlJob(name: string, action: string) -> ()

# The file system on volumes, by any of their names, and the directory of the status files of scrubs. Now only of btrfs.
method FileSystem(devices: []string) -> (fsid: string, status_dir: string)

# Begins a scrub of the btrfs file system on volumes that no client has open, or can open until it ends; with resume it continues
# where the last one ended. It is a job, named after the UUID of the file system. The limit is in bytes per second of each device,
# the depth in groups of 512 KiB; the readahead of the extent and checksum trees is back, forward, forward-always, none or scan
# (the default). Degraded accepts that devices are missing, stale those that missed transactions, force a damaged status file.
method Scrub(
  devices: []string,
  resume: ?bool,
  read_only: ?bool,
  limit: ?int,
  depth: ?int,
  readahead: ?string,
  degraded: ?bool,
  stale: ?bool,
  force: ?bool
) -> (fsid: string, status_dir: string)

# A device that is traced, with its number as in sys/block/*/dev.
type TracedDevice (name: string, major: int, minor: int)

# What happens to bios on these devices (md0, md/data, vg/lv, or a name in sys/block), in the format of
# blktrace, version 7, in base64. Actions are the categories of blktrace -a, without any: all. To be called
# with more: the first reply has the devices, and comes once no event is missed; the last one
# comes when the caller has shut down its side of the connection, or the daemon stops. Lost is how many
# events were dropped up to then because they came faster than the caller read them.
method Trace(
  devices: []string,
  actions: ?[]string
) -> (devices: []TracedDevice, records: string, lost: int)

# The entries of a directory.
method List(path: string) -> (entries: []Entry)

# Stop as on SIGTERM; with force as on a second one; with unused only if no client has a volume open, and otherwise the answer is
# Refused. The answer comes before the daemon has stopped. A call with more gets a reply whenever the list of what the shutdown
# waits for changes, and a last one when everything is stopped: failure says what did not stop cleanly. Then the process ends.
method Stop(force: ?bool, unused: ?bool) -> (waits_for: []string, failure: ?string)

# The daemon cannot open a disk, or not for this caller: the call may be sent again with its descriptor, see docs/control.md.
error NotOpened (path: string, access: (read, write))

error NotFound (path: string)
error IsDirectory (path: string)
error NotADirectory (path: string)
error NotReadable (path: string)
error NotWritable (path: string)
error InvalidValue (path: string, reason: string)
error Busy (path: string, reason: string)
# The code is the exit code for a command, if not 1.
error Refused (reason: string, hint: ?string, code: ?int)
";
