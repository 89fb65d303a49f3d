//! The NBD server against common clients: the tools of libnbd and QEMU. A test whose tool is not installed says so and
//! passes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ashlar_block::byte_volume::ByteVolume;
use ashlar_block::gateway::Gateway;
use ashlar_block::{ExtentState, Extents, Sector, Sectors};
use ashlar_engine::net::Listener;
use ashlar_engine::ram::RamDevice;
use ashlar_engine::{Reactor, ReactorConfig};
use ashlar_export::nbd::context::{ChangeMap, ChangeMaps};
use ashlar_export::nbd::export::{Export, Exports};
use ashlar_export::nbd::listen::{Config, Tls, listen};
use ashlar_export::nbd::placement::Placement;

const SIZE: usize = 32 << 20;

/// A future that ends when told to, on any thread.
#[derive(Clone, Default)]
struct Stop(Arc<Mutex<(bool, Vec<Waker>)>>);

impl Stop {
    fn now(&self) {
        let mut state = self.0.lock().unwrap();
        state.0 = true;
        state.1.drain(..).for_each(Waker::wake);
    }
}

impl Future for Stop {
    type Output = ();

    fn poll(self: std::pin::Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.0.lock().unwrap();
        if state.0 {
            return Poll::Ready(());
        }
        state.1.push(cx.waker().clone());
        Poll::Pending
    }
}

/// The sectors 3 to 9 have changed since each of two snapshots.
fn changes() -> Vec<ChangeMap> {
    let same = |at: Sector, len: Sectors| {
        let mut extents = Extents::new(at);
        for (end, state) in [(3, ExtentState::all()), (10, ExtentState::empty())] {
            extents.extend_to(Sector(end).min(at + len), state);
        }
        extents.extend_to(at + len, ExtentState::all());
        extents
    };
    vec![ChangeMap::new("ashlar:changed:vg/a", same), ChangeMap::new("ashlar:changed:vg/b", same)]
}

/// A server in a thread with two exports: `disk`, and `frozen`, which is read-only.
struct Server {
    directory: PathBuf,
    socket: PathBuf,
    port: Option<u16>,
    stop: Stop,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Server {
    fn start(test: &str) -> Self {
        Self::listening(test, false)
    }

    fn listening(test: &str, tcp: bool) -> Self {
        let name = format!("ashlar-nbd-{}-{test}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir_all(&directory).unwrap();
        let socket = directory.join("nbd.sock");
        let (stop, path) = (Stop::default(), socket.clone());
        let (ready, started) = mpsc::channel();
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            let exports = Arc::new(Exports::new());
            let ram = |name| {
                let ram = RamDevice::new(name, Sectors(SIZE as u64 / 512)).unwrap();
                ByteVolume::new(Gateway::new(Arc::new(ram)))
            };
            exports.add(Export::new("disk", ram("ram0")).unwrap()).unwrap();
            let frozen = Export::new("frozen", ram("ram1")).unwrap().read_only();
            exports.add(frozen.with_changes(ChangeMaps::new(changes))).unwrap();
            let reactor = Reactor::new(ReactorConfig::default())?;
            reactor.block_on(async {
                let (listener, port) = if tcp {
                    let listener = Listener::bind_tcp(([127, 0, 0, 1], 0).into())?;
                    let port = listener.local_addr()?.port();
                    (listener, Some(port))
                } else {
                    (Listener::bind_unix(path, 0o600)?, None)
                };
                ready.send(port).unwrap();
                let (config, budget) = (Config::default(), Arc::default());
                listen(
                    listener,
                    exports,
                    budget,
                    Placement::here(),
                    config,
                    Tls::default(),
                    stopped,
                )
                .await
            })
        });
        let port = started.recv().expect("the server starts");
        Self { directory, socket, port, stop, thread: Some(thread) }
    }

    fn uri(&self, export: &str) -> String {
        match self.port {
            Some(port) => format!("nbd://127.0.0.1:{port}/{export}"),
            None => format!("nbd+unix:///{export}?socket={}", self.socket.display()),
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.now();
        let ended = self.thread.take().unwrap().join();
        fs::remove_dir_all(&self.directory).unwrap();
        if !thread::panicking() {
            ended.unwrap().unwrap();
        }
    }
}

/// Runs a tool, which must succeed; `None` if it is not installed.
fn tool(program: &str, arguments: &[&str]) -> Option<Output> {
    // nbdsh runs the first python3 in PATH; only the distribution's has the nbd module.
    let path = format!("/usr/bin:{}", std::env::var("PATH").unwrap_or_default());
    let output = match Command::new(program).args(arguments).env("PATH", path).output() {
        Ok(output) => output,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            println!("skipped: {program} is not installed");
            return None;
        }
        Err(error) => panic!("{program}: {error}"),
    };
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {text}");
    Some(output)
}

/// 32 MiB: a third random, a third zeroes, a third a pattern.
fn image(path: &Path) -> Vec<u8> {
    let mut bytes = vec![0; SIZE];
    let mut state = 1_u64;
    for (i, word) in bytes.chunks_exact_mut(8).enumerate() {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        match i * 3 / (SIZE / 8) {
            0 => word.copy_from_slice(&state.to_be_bytes()),
            1 => {}
            _ => word.copy_from_slice(&(i as u64).to_be_bytes()),
        }
    }
    fs::write(path, &bytes).unwrap();
    bytes
}

#[test]
fn nbdinfo_sees_every_capability() {
    let server = Server::start("info");
    let Some(output) = tool("nbdinfo", &["--json", &server.uri("disk")]) else { return };
    let text = String::from_utf8(output.stdout).unwrap();
    for line in [
        "\"protocol\": \"newstyle-fixed\"",
        "\"structured\": true",
        "\"base:allocation\"",
        "\"is_read_only\": false",
        "\"can_cache\": true",
        "\"can_df\": true",
        "\"can_fast_zero\": true",
        "\"can_flush\": true",
        "\"can_fua\": true",
        "\"can_multi_conn\": true",
        "\"can_trim\": true",
        "\"can_zero\": true",
        "\"block_size_minimum\": 1",
        "\"block_size_maximum\": 33554432",
        "\"export-size\": 33554432",
    ] {
        assert!(text.contains(line), "{line} is missing in {text}");
    }
    let list = tool("nbdinfo", &["--list", "--json", &server.uri("")]).unwrap();
    let text = String::from_utf8(list.stdout).unwrap();
    assert!(text.contains("\"disk\"") && text.contains("\"frozen\""), "{text}");
    let map = tool("nbdinfo", &["--map", &server.uri("disk")]).unwrap();
    let text = String::from_utf8(map.stdout).unwrap();
    assert_eq!(text.split_whitespace().collect::<Vec<_>>(), ["0", "33554432", "0", "data"]);
}

#[test]
fn nbdcopy_gets_back_what_it_put_there_over_several_connections() {
    for tcp in [false, true] {
        copy_there_and_back(&Server::listening(if tcp { "tcp" } else { "copy" }, tcp));
    }
}

fn copy_there_and_back(server: &Server) {
    let (source, copy) = (server.file("source"), server.file("copy"));
    let bytes = image(&source);
    let source = source.to_str().unwrap();
    for threads in ["1", "4"] {
        let to = ["--flush", "--connections", threads, source, &server.uri("disk")];
        if tool("nbdcopy", &to).is_none() {
            return;
        }
        let from = ["--connections", threads, &server.uri("disk"), copy.to_str().unwrap()];
        tool("nbdcopy", &from).unwrap();
        assert!(fs::read(&copy).unwrap() == bytes, "{threads} connections");
    }
}

#[test]
fn qemu_img_converts_compares_and_checks() {
    let server = Server::start("qemu");
    let (source, copy) = (server.file("source"), server.file("copy"));
    let bytes = image(&source);
    let (source, copy) = (source.to_str().unwrap(), copy.to_str().unwrap());
    let uri = server.uri("disk");
    if tool("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", source, &uri]).is_none() {
        return;
    }
    tool("qemu-img", &["compare", "-f", "raw", "-F", "raw", source, &uri]).unwrap();
    tool("qemu-img", &["convert", "-f", "raw", "-O", "raw", &uri, copy]).unwrap();
    assert!(fs::read(copy).unwrap() == bytes);
}

#[test]
fn qemu_io_reads_its_unaligned_writes_zeroes_and_discards() {
    let server = Server::start("qemuio");
    let commands = [
        "write -P 0x5a 1000 70001",
        "read -P 0x5a 1000 70001",
        "read -P 0 0 1000",
        "write -z 2000 5001",
        "read -P 0 2000 5001",
        "read -P 0x5a 7001 64000",
        "write -f -P 0x11 1M 1M",
        "write -z -u 1M 64k",
        "read -P 0 1M 64k",
        "discard 1M 128k",
        "flush",
        "aio_write -P 0x22 4M 512k",
        "aio_write -P 0x33 5M 512k",
        "aio_flush",
        "read -P 0x22 4M 512k",
        "read -P 0x33 5M 512k",
    ];
    let mut arguments = vec!["-f", "raw"];
    commands.iter().for_each(|command| arguments.extend(["-c", command]));
    let uri = server.uri("disk");
    arguments.push(&uri);
    let Some(output) = tool("qemu-io", &arguments) else { return };
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.contains("Pattern verification failed"), "{text}");
}

#[test]
fn nbdsh_gets_the_errors_the_protocol_names() {
    let server = Server::start("nbdsh");
    let script = format!(
        r#"
import errno
def fails(number, call):
    try:
        call()
    except nbd.Error as error:
        assert error.errnum == number, (error.errnum, number)
    else:
        raise AssertionError("no error where %d was due" % number)

h = nbd.NBD()
h.set_strict_mode(0)
h.connect_uri("{disk}")
size = h.get_size()
fails(errno.EINVAL, lambda: h.pread(512, size))
fails(errno.ENOSPC, lambda: h.pwrite(bytes(512), size - 511))
fails(errno.ENOSPC, lambda: h.zero(512, size))
fails(errno.EINVAL, lambda: h.trim(512, size))
fails(errno.EINVAL, lambda: h.trim(0, 0))
fails(errno.EINVAL, lambda: h.flush(1 << 14))
h.pwrite(b"abc" * 1000, 4095, nbd.CMD_FLAG_FUA)
assert h.pread(3000, 4095) == b"abc" * 1000
h.zero(1000, 4095, nbd.CMD_FLAG_NO_HOLE)
assert h.pread(1000, 4095) == bytes(1000)
h.cache(1 << 20, 0)
cookies = [h.aio_pread(nbd.Buffer(4096), i * 4096) for i in range(200)]
for cookie in cookies:
    while not h.aio_command_completed(cookie):
        h.poll(-1)
h.shutdown()

h = nbd.NBD()
h.set_strict_mode(0)
h.connect_uri("{frozen}")
assert h.is_read_only()
fails(errno.EPERM, lambda: h.pwrite(bytes(512), 0))
fails(errno.EPERM, lambda: h.trim(512, 0))
fails(errno.EPERM, lambda: h.zero(512, 0))
h.flush()
h.shutdown()

h = nbd.NBD()
h.set_request_structured_replies(False)
h.set_handshake_flags(0)
h.connect_uri("{disk}")
assert not h.get_structured_replies_negotiated() and h.get_protocol() == "newstyle"
assert h.pread(3, 5095) == b"bca"
h.shutdown()

h = nbd.NBD()
h.set_opt_mode(True)
h.connect_uri("{frozen}")
found = []
h.add_meta_context("ashlar:")
h.opt_list_meta_context(found.append)
assert found == ["ashlar:changed:vg/a", "ashlar:changed:vg/b"], found
h.opt_abort()

h = nbd.NBD()
for context in ["base:allocation", "ashlar:changed:vg/b", "ashlar:changed:vg/c"]:
    h.add_meta_context(context)
h.connect_uri("{frozen}")
assert h.can_meta_context("ashlar:changed:vg/b") and not h.can_meta_context("ashlar:changed:vg/c")
told = []
h.block_status(8192, 1000, lambda context, at, parts, error: told.append((context, at, parts)))
changed = [536, 0, 3584, 1, 4072, 0]
assert told == [("base:allocation", 1000, [8192, 0]), ("ashlar:changed:vg/b", 1000, changed)], told
h.shutdown()

h = nbd.NBD()
h.set_opt_mode(True)
h.connect_uri("{nothing}")
fails(errno.ENOENT, h.opt_go)
h.opt_abort()
"#,
        disk = server.uri("disk"),
        frozen = server.uri("frozen"),
        nothing = server.uri("nothing"),
    );
    if let Some(output) = tool("nbdsh", &["-c", &script]) {
        println!("{}", String::from_utf8_lossy(&output.stdout));
    }
}

#[test]
fn fio_verifies_its_random_writes() {
    let server = Server::start("fio");
    let uri = format!("--uri={}", server.uri("disk"));
    let arguments = [
        "--name=verify",
        "--ioengine=nbd",
        &uri,
        "--rw=randwrite",
        "--bsrange=512-64k",
        "--blockalign=512",
        "--iodepth=32",
        "--size=32m",
        "--verify=crc32c",
        "--verify_fatal=1",
        "--norandommap=0",
        "--do_verify=1",
        "--verify_state_save=0",
    ];
    tool("fio", &arguments);
}

#[test]
fn a_client_that_hangs_does_not_keep_the_server_from_stopping() {
    let server = Server::start("stop");
    let idle = std::os::unix::net::UnixStream::connect(&server.socket).unwrap();
    thread::sleep(Duration::from_millis(100));
    let began = Instant::now();
    drop(server);
    assert!(began.elapsed() < Duration::from_secs(5));
    drop(idle);
}
