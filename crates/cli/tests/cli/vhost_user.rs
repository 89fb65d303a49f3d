//! Volumes as disks of virtual machines: `--vhost-user`, with libblkio's driver in the place of a machine's.
#![allow(unsafe_code)]

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use ashlar_block::buffer::gather;
use ashlar_engine::memfd::Memfd;
use serde_json::{Value, json};
use virtio_driver::{
    VhostUser, VirtioBlkFeatureFlags as Blk, VirtioBlkQueue, VirtioBlkTransport, VirtioFeatureFlags,
};

use super::support::{Daemon, Images, MIB, Nbd, until};

const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of the memory of a machine.
const MEMORY: usize = 1 << 16;

/// A machine with one queue and one request at a time.
struct Machine {
    transport: Box<VirtioBlkTransport>,
    queue: VirtioBlkQueue<'static, ()>,
    memory: Memfd,
}

impl Machine {
    fn start(socket: &Path) -> Self {
        let wanted = VirtioFeatureFlags::VERSION_1.bits()
            | (Blk::FLUSH | Blk::RO | Blk::DISCARD | Blk::WRITE_ZEROES).bits();
        let transport = VhostUser::new(socket.to_str().unwrap(), wanted).unwrap();
        let mut transport: Box<VirtioBlkTransport> = Box::new(transport);
        let queues = VirtioBlkQueue::<()>::setup_queues(&mut *transport, 1, 16).unwrap();
        let mut queue = queues.into_iter().next().unwrap();
        queue.set_used_notif_enabled(true);
        let memory = Memfd::new(c"machine", MEMORY).unwrap();
        let (at, file) = (memory.address as usize, memory.file.as_raw_fd());
        transport.map_mem_region(at, MEMORY, file, 0).unwrap();
        Self { transport, queue, memory }
    }

    fn bytes(&self) -> u64 {
        u64::from(self.transport.get_config().unwrap().capacity) * 512
    }

    fn features(&self) -> Blk {
        Blk::from_bits_truncate(self.transport.get_features())
    }

    /// The result of the request that was made: 0, or an errno below 0.
    fn finish(&mut self) -> i32 {
        self.transport.get_submission_notifier(0).notify().unwrap();
        loop {
            if let Some(completion) = self.queue.completions().next() {
                return completion.ret;
            }
            // Blocks until the device signals.
            self.transport.get_completion_fd(0).read().unwrap();
        }
    }

    fn write(&mut self, at: u64, data: &[u8]) -> i32 {
        self.memory.memory.segment(0..data.len()).unwrap().copy_from(data);
        let start = self.memory.address as *const u8;
        // SAFETY: the memory lives longer than the request, and nobody else uses it.
        unsafe { self.queue.write_raw(at, start, data.len(), ()) }.unwrap();
        self.finish()
    }

    fn read(&mut self, at: u64, len: usize) -> Vec<u8> {
        // SAFETY: as above.
        unsafe { self.queue.read_raw(at, self.memory.address as *mut u8, len, ()) }.unwrap();
        assert_eq!(self.finish(), 0);
        let mut bytes = vec![0; len];
        gather(&[self.memory.memory.segment(0..len).unwrap()], &mut bytes);
        bytes
    }

    fn flush(&mut self) {
        self.queue.flush(()).unwrap();
        assert_eq!(self.finish(), 0);
    }
}

fn sockets(images: &Images) -> Vec<String> {
    let entries = fs::read_dir(images.path("vm")).unwrap().map(Result::unwrap);
    let mut names: Vec<String> = entries
        .filter(|entry| entry.file_type().unwrap().is_socket())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn group() -> Images {
    let images = Images::new(2, 32 * MIB);
    fs::create_dir(images.path("vm")).unwrap();
    images.run(&["lvm", "vgcreate", "--devices", "d0,d1", "vg"], &["d0", "d1"]).ok();
    for name in ["one", "two-b"] {
        images.run(&["lvm", "lvcreate", "--devices", "d0,d1", "-L8M", "-n", name, "vg"], &[]).ok();
    }
    images
}

fn shown(daemon: &Daemon, args: &[&str]) -> Value {
    serde_json::from_str(&daemon.client(args).ok().out).unwrap()
}

#[test]
fn each_volume_has_a_socket_for_machines_and_keeps_what_they_write() {
    let images = group();
    let daemon = images.serve(&[
        "--vhost-user",
        "unix:vm/{}.sock",
        "--nbd",
        "unix:nbd",
        "--vhost-user-mode",
        "660",
    ]);
    assert_eq!(sockets(&images), ["vg-one.sock", "vg-two--b.sock"]);
    let mode = fs::symlink_metadata(images.path("vm/vg-one.sock")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o660);
    let mut machine = Machine::start(&images.path("vm/vg-one.sock"));
    assert_eq!(machine.bytes(), 8 * MIB);
    let data: Vec<u8> = (0..MEMORY).map(|at| (at / 512 + at) as u8).collect();
    assert_eq!(machine.write(MIB, &data), 0);
    machine.flush();
    assert!(machine.read(MIB, MEMORY) == data);
    let mut client = Nbd::open(&images.path("nbd"), "vg/one");
    assert!(client.read_at(MIB, MEMORY as u32) == data);
    drop(client);

    let status = shown(&daemon, &["status", "--json"]);
    assert_eq!(status["sandbox"], "on");
    let pattern = status["vhost_user"].as_str().unwrap();
    assert!(pattern.starts_with("unix:/") && pattern.ends_with("/vm/{}.sock"), "{pattern}");
    let own = json!([{ "process": std::process::id() }]);
    let of = |name: &str, field: &str, all: &Value| {
        let all = all.as_array().unwrap().clone();
        let found = all.into_iter().find(|volume| volume["alias"] == name).unwrap();
        found[field].clone()
    };
    assert_eq!(of("vg/one", "vhost_user_clients", &status["volumes"]), own, "{status}");
    assert_eq!(of("vg/two-b", "vhost_user_clients", &status["volumes"]), json!([]), "{status}");
    let top = shown(&daemon, &["top", "--json", "-d", "0.1"]);
    assert_eq!(of("vg/one", "vhost_user_clients", &top["devices"]), own, "{top}");
    let text = daemon.client(&["status"]).ok().out;
    let line = format!("  vhost-user front end, process {}\n", std::process::id());
    assert!(text.contains(&line) && text.contains("vhost-user-blk at unix:/"), "{text}");
    drop(machine);
    until(PATIENCE, "the machine is still shown", || {
        !daemon.client(&["status"]).ok().out.contains("front end, process")
    });
    daemon.end();
    assert_eq!(sockets(&images), [""; 0]);
}

#[test]
fn sockets_appear_and_go_with_their_volumes_and_machines_see_another_size() {
    let images = group();
    let daemon = images.serve(&["--vhost-user", "unix:vm/{}.sock"]);
    let machine = Machine::start(&images.path("vm/vg-one.sock"));
    daemon.client(&["lvm", "lvextend", "-L", "12M", "vg/one"]).ok();
    assert_eq!(machine.bytes(), 12 * MIB);
    daemon.client(&["lvm", "lvcreate", "-L", "4M", "-n", "later", "vg"]).ok();
    assert_eq!(sockets(&images), ["vg-later.sock", "vg-one.sock", "vg-two--b.sock"]);
    let mut later = Machine::start(&images.path("vm/vg-later.sock"));
    assert_eq!(later.write(0, &[7; 4096]), 0);
    // It is in use.
    daemon.client(&["lvm", "lvremove", "-y", "vg/later"]).fails(5, &["vg/later"]);
    drop(later);
    until(PATIENCE, "the volume is still in use", || {
        daemon.client(&["lvm", "lvremove", "-y", "vg/later"]).code == Some(0)
    });
    assert_eq!(sockets(&images), ["vg-one.sock", "vg-two--b.sock"]);
    daemon.client(&["lvm", "lvrename", "vg", "one", "uno"]).ok();
    assert_eq!(sockets(&images), ["vg-two--b.sock", "vg-uno.sock"]);
    assert_eq!(Machine::start(&images.path("vm/vg-uno.sock")).bytes(), 12 * MIB);
    // It has kept the volume.
    assert_eq!(machine.bytes(), 12 * MIB);
    drop(machine);
    daemon.end();
}

#[test]
fn a_socket_that_a_killed_daemon_left_is_replaced() {
    let images = group();
    for _ in 0..2 {
        let daemon = images.serve(&["--vhost-user", "unix:vm/{}.sock"]);
        Machine::start(&images.path("vm/vg-one.sock"));
        daemon.signal("KILL");
        daemon.wait();
        assert_eq!(sockets(&images), ["vg-one.sock", "vg-two--b.sock"]);
    }
    let daemon = images.serve(&["--vhost-user", "unix:vm/{}.sock", "--no-sandbox"]);
    // Another daemon does not take it away.
    let other = Images::new(1, MIB);
    let path = format!("unix:{}", images.path("vm/vg-one.sock").display());
    other
        .run(&["serve", "--vhost-user", &path, "--control", "other"], &["d0"])
        .fails(1, &["vg-one.sock", "in use"]);
    Machine::start(&images.path("vm/vg-one.sock"));
    daemon.end();
    assert_eq!(sockets(&images), [""; 0]);
}

#[test]
fn a_path_without_a_name_is_for_one_volume() {
    let images = group();
    let refused =
        images.run(&["serve", "--vhost-user", "unix:vm/s", "--control", "c"], &["d0", "d1"]);
    refused.fails(1, &["unix:", "vm/s", "there are 2", "{}"]);
    assert_eq!(sockets(&images), [""; 0]);
    let cases = [
        ("unix:none/s", "no such directory"),
        ("unix:vm/{}/s", "{}"),
        ("tcp:localhost:1", "unix:PATH"),
    ];
    for (bad, why) in cases {
        let run = images.run(&["serve", "--vhost-user", bad, "--control", "c"], &["d0", "d1"]);
        assert!(run.code != Some(0) && run.err.contains(why), "{bad}: {}", run.err);
    }
    let images = Images::new(1, 4 * MIB);
    let daemon = images.serve(&["--read-only", "--vhost-user", "unix:s"]);
    let mut machine = Machine::start(&images.path("s"));
    assert_eq!((machine.bytes(), machine.features().contains(Blk::RO)), (4 * MIB, true));
    assert_ne!(machine.write(0, &[1; 512]), 0);
    assert_eq!(machine.read(0, 512), [0; 512]);
    drop(machine);
    daemon.end();
    assert!(!images.path("s").exists());
}
