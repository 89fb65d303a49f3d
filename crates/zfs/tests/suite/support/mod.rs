//! A worker process, driven over its control channel as by the daemon.
//!
//! The process is this test program itself, run with [`serve_as_worker`] only.
#![allow(dead_code, reason = "each test uses its part")]

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, Stdio};

use ashlar_zfs::control;
use ashlar_zfs::ondisk::config::{Device, pools};
use ashlar_zfs::ondisk::label::DeviceLabels;
use ashlar_zfs::protocol::{
    Command, Completion, Dataset, ImportConfig, NewVdev, OpenedVolume, PoolStatus, Refusal,
    RemoteSegment, Reply, Scrub, Submission, VdevClass, VdevKind, op,
};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair};
use tempfile::TempDir;
use zerocopy::{FromBytes, IntoBytes};

pub(crate) use crate::zdb::assert_clean;

/// The environment variable that makes this program a worker.
const WORKER: &str = "ASHLAR_ZFS_TEST_WORKER";

/// Runs the worker, if this process must be one. Each test program has a test that calls it.
pub(crate) fn serve_as_worker() {
    if std::env::var_os(WORKER).is_some() {
        ashlar_zfs::worker::main(None);
    }
}

/// A worker with libzpool started.
pub(crate) struct Worker {
    process: Child,
    channel: OwnedFd,
    /// libzpool's release.
    pub(crate) release: String,
}

/// Texts by name.
pub(crate) fn texts<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, String> {
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

impl Worker {
    /// A worker; without libzpool `None`, with the reason printed, except in CI.
    pub(crate) fn start() -> Option<Self> {
        Self::start_with(&[])
    }

    /// As [`Self::start`], with this host ID.
    pub(crate) fn start_as_host(host_id: u32) -> Option<Self> {
        Self::spawn_with(|process| {
            process.env("ZFS_HOSTID", format!("{host_id:#x}"));
        })
        .started(&[])
    }

    /// As [`Self::start`], with module parameters.
    pub(crate) fn start_with(parameters: &[(&str, u64)]) -> Option<Self> {
        Self::spawn().started(parameters)
    }

    fn started(mut self, parameters: &[(&str, u64)]) -> Option<Self> {
        let parameters =
            parameters.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        match self.call(Command::Start { parameters }) {
            Ok(Reply::Started { release }) => {
                self.release = release;
                Some(self)
            }
            Err(refusal)
                if refusal.errno == libc::ENOENT
                    && refusal.message.contains("there is no libzpool") =>
            {
                assert!(std::env::var_os("CI").is_none(), "{refusal}");
                assert!(refusal.hint.is_some());
                println!("skipped: {refusal}");
                None
            }
            other => panic!("{other:?}"),
        }
    }

    /// A new process that has received no command.
    pub(crate) fn spawn() -> Self {
        Self::spawn_with(|_| ())
    }

    fn spawn_with(prepare: impl FnOnce(&mut Process)) -> Self {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .unwrap();
        let mut process = Process::new(std::env::current_exe().unwrap());
        process
            .args(["--exact", "worker_process", "--nocapture", "--test-threads=1"])
            .env(WORKER, "1")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null());
        prepare(&mut process);
        let process = process.spawn().unwrap();
        Self { process, channel: ours, release: String::new() }
    }

    /// The PID.
    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Sends a command, and waits for the reply.
    pub(crate) fn call(&self, command: Command) -> Result<Reply, Refusal> {
        self.call_with(command, None)
    }

    /// As [`Self::call`], with a descriptor.
    pub(crate) fn call_with(
        &self,
        command: Command,
        descriptor: Option<OwnedFd>,
    ) -> Result<Reply, Refusal> {
        let text = serde_json::to_vec(&command).unwrap();
        control::send(&self.channel, &text, descriptor.as_ref().map(AsFd::as_fd)).unwrap();
        let answer = control::receive(&self.channel).unwrap();
        let answer = answer.unwrap_or_else(|| panic!("the worker died of {command:?}"));
        serde_json::from_slice(&answer.bytes).unwrap()
    }

    /// Sends bytes that need not be a command.
    pub(crate) fn send_raw(&self, bytes: &[u8]) -> Result<Reply, Refusal> {
        control::send(&self.channel, bytes, None).unwrap();
        serde_json::from_slice(&control::receive(&self.channel).unwrap().unwrap().bytes).unwrap()
    }

    /// Sends a command without a reply value.
    pub(crate) fn run(&self, command: Command) {
        let told = format!("{command:?}");
        assert_eq!(self.call(command), Ok(Reply::Done), "{told}");
    }

    /// Sends a command that is refused.
    pub(crate) fn refused(&self, command: Command) -> Refusal {
        let told = format!("{command:?}");
        match self.call(command) {
            Err(refusal) => refusal,
            Ok(reply) => panic!("{told}: {reply:?}"),
        }
    }

    /// Creates a pool of these vdevs.
    pub(crate) fn create_pool(&self, name: &str, vdevs: Vec<NewVdev>) {
        self.run(new_pool(name, vdevs));
    }

    /// Creates a volume.
    pub(crate) fn create_volume(
        &self,
        name: &str,
        volsize_bytes: u64,
        properties: &[(&str, &str)],
    ) {
        self.run(new_volume(name, volsize_bytes, properties));
    }

    /// Sets a property.
    pub(crate) fn set(&self, dataset: &str, name: &str, value: &str) {
        self.run(set(dataset, name, value));
    }

    /// The status of the pool.
    pub(crate) fn status(&self) -> PoolStatus {
        match self.call(Command::PoolStatus) {
            Ok(Reply::Pool(status)) => status,
            other => panic!("{other:?}"),
        }
    }

    /// All datasets.
    pub(crate) fn list(&self) -> Vec<Dataset> {
        match self.call(Command::List { root: None }) {
            Ok(Reply::Datasets { datasets }) => datasets,
            other => panic!("{other:?}"),
        }
    }

    /// The names of all datasets.
    pub(crate) fn names(&self) -> Vec<String> {
        self.list().into_iter().map(|dataset| dataset.name).collect()
    }

    /// A property's value and source.
    pub(crate) fn get(&self, dataset: &str, name: &str) -> (String, String) {
        let all = match self.call(Command::List { root: Some(dataset.to_owned()) }) {
            Ok(Reply::Datasets { datasets }) => datasets,
            other => panic!("{other:?}"),
        };
        let property = all[0].properties.get(name).unwrap_or_else(|| panic!("{dataset} {name}"));
        assert_eq!(all[0].name, dataset);
        (property.value.clone(), property.source.clone())
    }

    /// A numeric property.
    pub(crate) fn number(&self, dataset: &str, name: &str) -> u64 {
        self.get(dataset, name).0.parse().unwrap()
    }

    /// Opens a volume.
    pub(crate) fn open(&self, name: &str) -> OpenedVolume {
        match self.call(Command::Open { name: name.to_owned(), read_only: false }) {
            Ok(Reply::Opened(opened)) => opened,
            other => panic!("{other:?}"),
        }
    }

    /// Sends a scrub command.
    pub(crate) fn scrub(&self, what: Scrub) {
        self.run(Command::Scrub(what));
    }

    /// Exports the pool, ends the worker, and checks its exit status.
    pub(crate) fn export(self) {
        self.run(Command::ExportPool);
        self.end();
    }

    /// Closes the control channel; the worker exports its pool, and exits cleanly.
    pub(crate) fn end(mut self) {
        drop(self.channel);
        let status = self.process.wait().unwrap();
        assert!(status.success(), "{status}");
    }

    /// Kills the worker: for its pool, a power failure.
    pub(crate) fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// Sends a request for an open volume over a new channel, and returns its errno.
fn submit(
    worker: &Worker,
    volume: OpenedVolume,
    op: u8,
    offset_bytes: u64,
    data: &mut [u8],
) -> i32 {
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let attached =
        worker.call_with(Command::Attach { volume: volume.volume, window: None }, Some(theirs));
    assert_eq!(attached, Ok(Reply::Done));
    let len_bytes = data.len() as u64;
    let submission =
        Submission { tag: 1, offset_bytes, len_bytes, op, flags: 0, segments: 1, reserved: 0 };
    let segment = RemoteSegment { address: data.as_mut_ptr() as u64, len_bytes };
    let mut packet = submission.as_bytes().to_vec();
    packet.extend_from_slice(segment.as_bytes());
    rustix::net::send(&ours, &packet, SendFlags::empty()).unwrap();
    let mut answer = [0; size_of::<Completion>()];
    rustix::net::recv(&ours, &mut answer, RecvFlags::empty()).unwrap();
    let completion = Completion::read_from_bytes(&answer).unwrap();
    assert_eq!(completion.tag, 1);
    completion.errno
}

/// Writes to an open volume.
pub(crate) fn write(worker: &Worker, volume: OpenedVolume, offset_bytes: u64, data: &[u8]) {
    assert_eq!(try_write(worker, volume, offset_bytes, data), 0);
}

/// As [`write`]; returns the errno.
pub(crate) fn try_write(
    worker: &Worker,
    volume: OpenedVolume,
    offset_bytes: u64,
    data: &[u8],
) -> i32 {
    submit(worker, volume, op::WRITE, offset_bytes, &mut data.to_vec())
}

/// Reads from an open volume.
pub(crate) fn read(
    worker: &Worker,
    volume: OpenedVolume,
    offset_bytes: u64,
    len_bytes: usize,
) -> Vec<u8> {
    let mut data = vec![0; len_bytes];
    assert_eq!(submit(worker, volume, op::READ, offset_bytes, &mut data), 0);
    data
}

/// The command to create a pool.
pub(crate) fn new_pool(name: &str, vdevs: Vec<NewVdev>) -> Command {
    Command::CreatePool {
        name: name.to_owned(),
        vdevs,
        properties: BTreeMap::new(),
        dataset_properties: BTreeMap::new(),
        force: false,
        wiped: Vec::new(),
    }
}

/// The command to create a volume, with its reservation.
pub(crate) fn new_volume(name: &str, volsize_bytes: u64, properties: &[(&str, &str)]) -> Command {
    Command::CreateVolume {
        name: name.to_owned(),
        volsize_bytes,
        sparse: false,
        parents: false,
        properties: properties
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
    }
}

/// The command to set a property.
pub(crate) fn set(dataset: &str, name: &str, value: &str) -> Command {
    Command::SetProperty {
        dataset: dataset.to_owned(),
        name: name.to_owned(),
        value: value.to_owned(),
    }
}

/// The command to import a pool.
pub(crate) fn import(config: ImportConfig) -> Command {
    Command::ImportPool { config, name: None, read_only: false, force: false, missing_log: false }
}

/// Imports a pool although a log device may be missing.
pub(crate) fn import_without_log(config: ImportConfig, read_only: bool) -> Command {
    Command::ImportPool { config, name: None, read_only, force: false, missing_log: true }
}

/// As [`import`], read-only.
pub(crate) fn import_read_only(config: ImportConfig) -> Command {
    Command::ImportPool { config, name: None, read_only: true, force: false, missing_log: false }
}

/// Files for pools, in a temporary folder.
pub(crate) struct Disks {
    /// The folder.
    pub(crate) folder: TempDir,
}

impl Disks {
    /// An empty folder.
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    /// A sparse file of this size.
    pub(crate) fn file(&self, name: &str, size_mib: u64) -> PathBuf {
        let path = self.folder.path().join(name);
        File::create(&path).unwrap().set_len(size_mib << 20).unwrap();
        path
    }

    /// A top-level vdev of new files of 192 MiB.
    pub(crate) fn vdev(&self, kind: VdevKind, class: VdevClass, names: &[&str]) -> NewVdev {
        NewVdev { kind, class, paths: names.iter().map(|name| self.file(name, 192)).collect() }
    }

    /// One file of 256 MiB.
    pub(crate) fn single(&self) -> Vec<NewVdev> {
        let paths = vec![self.file("disk", 256)];
        vec![NewVdev { kind: VdevKind::Single, class: VdevClass::Normal, paths }]
    }

    /// The folder.
    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Overwrites part of a file.
pub(crate) fn spoil(path: &Path, offset: u64, len: usize) {
    let file = File::options().write(true).open(path).unwrap();
    file.write_all_at(&vec![0xa5; len], offset).unwrap();
}

/// The import configuration of the one pool on these files.
pub(crate) fn scan(paths: &[&Path]) -> ImportConfig {
    let labels: Vec<DeviceLabels> = paths.iter().map(|path| read_labels(path)).collect();
    let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    let devices: Vec<Device<'_>> =
        names.iter().zip(&labels).map(|(path, labels)| Device { path, labels }).collect();
    let found = pools(&devices);
    let [pool] = &found.pools[..] else { panic!("{found:?}") };
    ImportConfig::from(&pool.import_config(&|index| names[index].clone()).unwrap())
}

/// The labels of a file.
pub(crate) fn read_labels(path: &Path) -> DeviceLabels {
    let bytes = std::fs::read(path).unwrap();
    DeviceLabels::parse(bytes.len() as u64, |offset| {
        bytes[usize::try_from(offset).unwrap()..].first_chunk()
    })
}

/// A loop device, detached on drop.
pub(crate) struct LoopDevice(pub(crate) PathBuf);

impl LoopDevice {
    /// A device with sectors of this size; `None` without permission.
    pub(crate) fn new(file: &Path, sector_bytes: u32) -> Option<Self> {
        let output = Process::new("losetup")
            .args(["--find", "--show", "--sector-size", &sector_bytes.to_string()])
            .arg(file)
            .output()
            .ok()?;
        let path = String::from_utf8(output.stdout).unwrap();
        output.status.success().then(|| Self(PathBuf::from(path.trim())))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let status = Process::new("losetup").arg("--detach").arg(&self.0).status().unwrap();
        assert!(status.success());
    }
}
