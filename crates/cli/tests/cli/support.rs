//! Running the program, disk images, and daemons that end with their test.

use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use tempfile::TempDir;

pub(crate) use super::run::{Run, run};

pub(crate) const MIB: u64 = 1 << 20;

/// After this time a signal is another request, and not the last one again.
const ANOTHER: Duration = Duration::from_millis(1050);

pub(crate) fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ashlar"));
    command.env_remove("ASHLAR_LOG").env_remove("NOTIFY_SOCKET").stdin(Stdio::null());
    command
}

/// Whether io_uring may be used here; prints a message if not.
pub(crate) fn has_io_uring(test: &str) -> bool {
    let mut command = program();
    command.args(["scan", "ram:1M"]).env("ASHLAR_IO", "uring");
    let has = command.output().unwrap().status.success();
    if !has {
        eprintln!("{test}: skipped in part, io_uring is refused here");
    }
    has
}

/// Runs the program in `dir`. It must not panic, whatever its arguments. A daemon has a control socket of its own there: tests that
/// run beside this one start daemons, too.
pub(crate) fn ashlar_in(dir: &Path, args: &[&str]) -> Run {
    let mut command = program();
    command.args(args).current_dir(dir);
    if args.first() == Some(&"serve") && !args.contains(&"--control") {
        command.arg("--control=refused.control");
    }
    run(command)
}

pub(crate) fn ashlar(args: &[&str]) -> Run {
    ashlar_in(Path::new("/"), args)
}

/// The words of a scan: details that do not fit into a line continue in the next one, beside branches.
pub(crate) fn in_one_line(scan: &str) -> String {
    scan.split_whitespace().filter(|word| *word != "|").collect::<Vec<_>>().join(" ")
}

/// A copy of the program in the directory of `images`. A process of its own makes it: a child of another test that inherits a file
/// that is written here would make the copy busy for a moment.
pub(crate) fn program_in(images: &Images) -> PathBuf {
    let copy = images.path("ashlar");
    if !copy.exists() {
        let made = Command::new("cp").arg(program().get_program()).arg(&copy).status().unwrap();
        assert!(made.success());
    }
    copy
}

/// The program run by a user whom the system need not know, with a group and further ones, in the directory of `images`,
/// which everybody may enter from now on. `None` where that is not possible.
pub(crate) fn as_user(images: &Images, user: u32, group: u32, groups: &[u32]) -> Option<Command> {
    let copy = program_in(images);
    fs::set_permissions(images.dir.path(), Permissions::from_mode(0o755)).unwrap();
    let mut who = vec![format!("--reuid={user}"), format!("--regid={group}")];
    let list: Vec<String> = groups.iter().map(u32::to_string).collect();
    who.push(match groups {
        [] => "--clear-groups".to_owned(),
        [..] => format!("--groups={}", list.join(",")),
    });
    let can = Command::new("setpriv").args(&who).arg("true").status();
    if !can.is_ok_and(|status| status.success()) {
        eprintln!("skipped: this user cannot become another one");
        return None;
    }
    let mut command = Command::new("setpriv");
    command.args(&who).arg(copy).current_dir(images.dir.path()).stdin(Stdio::null());
    command.env_remove("ASHLAR_LOG").env_remove("NOTIFY_SOCKET").env_remove("XDG_RUNTIME_DIR");
    Some(command)
}

/// A directory with disk images `d0`, `d1` and so on, which are holes.
pub(crate) struct Images {
    pub(crate) dir: TempDir,
    pub(crate) names: Vec<String>,
}

impl Images {
    pub(crate) fn new(count: usize, size: u64) -> Self {
        let dir = TempDir::new().unwrap();
        let names: Vec<String> = (0..count).map(|n| format!("d{n}")).collect();
        for name in &names {
            File::create(dir.path().join(name)).unwrap().set_len(size).unwrap();
        }
        Self { dir, names }
    }

    /// Images with an array on them.
    pub(crate) fn array(count: usize, size: u64, options: &[&str]) -> Self {
        let images = Self::new(count, size);
        images.create(options).ok();
        images
    }

    /// Images `d0` and `d1` with an array made with `first`, and `m0` and `m1` with a RAID1 of the name `second`.
    pub(crate) fn two_arrays(first: &[&str], second: &str) -> Self {
        let images = Self::array(2, 32 * MIB, first);
        for name in ["m0", "m1"] {
            File::create(images.path(name)).unwrap().set_len(32 * MIB).unwrap();
        }
        let create = ["md", "create", "--homehost=any", "-n2", "-l1", second];
        images.run(&create, &["m0", "m1"]).ok();
        images
    }

    pub(crate) fn create(&self, options: &[&str]) -> Run {
        let count = format!("--raid-devices={}", self.names.len());
        self.run(&[&["md", "create", "--homehost=any", &count], options].concat(), &self.refs())
    }

    pub(crate) fn refs(&self) -> Vec<&str> {
        self.names.iter().map(String::as_str).collect()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs the program in the directory, with `files` after `args`.
    pub(crate) fn run(&self, args: &[&str], files: &[&str]) -> Run {
        ashlar_in(self.dir.path(), &[args, files].concat())
    }

    /// The contents of all images.
    pub(crate) fn bytes(&self) -> Vec<Vec<u8>> {
        self.names.iter().map(|name| fs::read(self.path(name)).unwrap()).collect()
    }

    /// Starts a daemon on all images, with its control socket at `control` in the directory.
    pub(crate) fn serve(&self, args: &[&str]) -> Daemon {
        Daemon::start(self.dir.path(), &[args, &self.refs()].concat())
    }
}

/// A running daemon, which is killed if its test ends early.
pub(crate) struct Daemon {
    child: Child,
    out: BufReader<Box<dyn Read + Send + Sync>>,
    /// Its output up to `ready`.
    pub(crate) greeting: String,
    pub(crate) control: PathBuf,
    dir: PathBuf,
}

impl Daemon {
    pub(crate) fn start(dir: &Path, args: &[&str]) -> Self {
        let mut command = program();
        command.args(["serve", "--control", "control"]).args(args).current_dir(dir);
        Self::of(command, dir)
    }

    pub(crate) fn of(mut command: Command, dir: &Path) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout: Box<dyn Read + Send + Sync> = Box::new(child.stdout.take().unwrap());
        let mut out = BufReader::new(stdout);
        let mut greeting = String::new();
        while !greeting.ends_with("ready\n") {
            if out.read_line(&mut greeting).unwrap() == 0 {
                let mut text = String::new();
                child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
                panic!("the daemon did not start: {:?} {text}", child.wait().unwrap());
            }
        }
        Self { child, out, greeting, control: dir.join("control"), dir: dir.to_owned() }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A client command with this daemon's control socket.
    pub(crate) fn client(&self, args: &[&str]) -> Run {
        ashlar_in(&self.dir, &[args, &["--control", "control"]].concat())
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.pid().to_string();
        let status = Command::new("kill").args(["-s", name, &pid]).status().unwrap();
        assert!(status.success());
    }

    /// As [`Self::signal`], late enough to be another request than the signal before.
    pub(crate) fn signal_again(&self, name: &str) {
        std::thread::sleep(ANOTHER);
        self.signal(name);
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Closes our end of its output.
    pub(crate) fn close_output(&mut self) {
        self.out = BufReader::new(Box::new(std::io::empty()));
        self.child.stderr = None;
    }

    /// Waits for the end, without a panic; returns the exit status and the log.
    pub(crate) fn wait(self) -> (ExitStatus, String) {
        let (status, log) = self.end_of_defect();
        assert!(!log.contains("panicked"), "{log}");
        (status, log)
    }

    /// Waits for the end; returns the exit status and the log.
    pub(crate) fn end_of_defect(mut self) -> (ExitStatus, String) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while self.is_running() {
            assert!(Instant::now() < deadline, "the daemon does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut rest = String::new();
        self.out.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "", "nothing is printed behind ready");
        let mut log = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            stderr.read_to_string(&mut log).unwrap();
        }
        (self.child.wait().unwrap(), log)
    }

    /// Ends it with SIGTERM once its log contains `wanted`; returns the log.
    pub(crate) fn end_once(self, wanted: &str) -> String {
        let (status, log) = self.signal_once(wanted, "TERM");
        assert_eq!(status.code(), Some(0), "{log}");
        log
    }

    /// Sends it a signal that ends it once its log contains `wanted`; returns the exit status and the log.
    pub(crate) fn signal_once(mut self, wanted: &str, signal: &str) -> (ExitStatus, String) {
        let (sender, lines) = mpsc::channel();
        let stderr = BufReader::new(self.child.stderr.take().unwrap());
        let reading = std::thread::spawn(move || {
            // The receiver may be gone, if its test has failed.
            stderr.lines().map_while(Result::ok).all(|line| sender.send(line).is_ok())
        });
        let mut log = String::new();
        while !log.contains(wanted) {
            let line = lines.recv_timeout(Duration::from_secs(30));
            log += &(line.unwrap_or_else(|error| panic!("{error}: {log}")) + "\n");
        }
        self.signal(signal);
        lines.iter().for_each(|line| log += &(line + "\n"));
        assert!(reading.join().is_ok());
        let (status, _) = self.end_of_defect();
        (status, log)
    }

    /// Ends it with SIGTERM; it must exit cleanly.
    pub(crate) fn end(self) -> String {
        self.signal("TERM");
        let (status, log) = self.wait();
        assert_eq!(status.code(), Some(0), "{log}");
        log
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            self.child.kill().unwrap();
            self.child.wait().unwrap();
        }
    }
}

/// Waits until `holds` returns true, for at most `patience`.
pub(crate) fn until(patience: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + patience;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A raw client of a daemon's NBD socket, with simple replies.
pub(crate) struct Nbd(pub(crate) UnixStream);

/// NBD_CMD_READ and so on.
pub(crate) const READ: u16 = 0;
pub(crate) const WRITE: u16 = 1;
pub(crate) const FLUSH: u16 = 3;

/// Waits until the server has closed the connection, and so has released the volume: what the test asks next finds it closed.
impl Drop for Nbd {
    fn drop(&mut self) {
        let patience = self.0.set_read_timeout(Some(Duration::from_secs(5)));
        if patience.is_ok() && self.0.shutdown(Shutdown::Write).is_ok() {
            // An error ends the wait, too: the server may be gone or frozen.
            let (Ok(_) | Err(_)) = std::io::copy(&mut self.0, &mut std::io::sink());
        }
    }
}

impl Nbd {
    /// A client that has not sent anything.
    pub(crate) fn connect(socket: &Path) -> Self {
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.read_exact(&mut [0; 18]).unwrap();
        Self(stream)
    }

    /// A client that has sent its flags, but chosen no export.
    pub(crate) fn greet(socket: &Path) -> Self {
        let mut client = Self::connect(socket);
        // Fixed newstyle, no zeroes.
        client.0.write_all(&[0, 0, 0, 3]).unwrap();
        client
    }

    /// A client that uses `export`.
    pub(crate) fn open(socket: &Path, export: &str) -> Self {
        let mut client = Self::greet(socket);
        client.choose(export);
        client.0.read_exact(&mut [0; 10]).unwrap();
        client
    }

    /// Sends NBD_OPT_EXPORT_NAME.
    pub(crate) fn choose(&mut self, export: &str) {
        let mut option = b"IHAVEOPT\0\0\0\x01".to_vec();
        option.extend((export.len() as u32).to_be_bytes());
        option.extend(export.as_bytes());
        self.0.write_all(&option).unwrap();
    }

    /// The header of a request.
    pub(crate) fn header(command: u16, at: u64, len: u32) -> Vec<u8> {
        let mut header = 0x2560_9513_u32.to_be_bytes().to_vec();
        header.extend(0_u16.to_be_bytes());
        header.extend(command.to_be_bytes());
        header.extend(7_u64.to_be_bytes());
        header.extend(at.to_be_bytes());
        header.extend(len.to_be_bytes());
        header
    }

    /// Sends the header of a request.
    pub(crate) fn request(&mut self, command: u16, at: u64, len: u32) {
        self.0.write_all(&Self::header(command, at, len)).unwrap();
    }

    /// The error of a simple reply.
    pub(crate) fn reply(&mut self) -> u32 {
        let mut reply = [0; 16];
        self.0.read_exact(&mut reply).unwrap();
        u32::from_be_bytes(reply[4..8].try_into().unwrap())
    }

    /// The data at an offset.
    pub(crate) fn read_at(&mut self, at: u64, len: u32) -> Vec<u8> {
        self.request(READ, at, len);
        assert_eq!(self.reply(), 0);
        let mut data = vec![0; len as usize];
        self.0.read_exact(&mut data).unwrap();
        data
    }

    /// Writes, and waits for the reply.
    pub(crate) fn write_at(&mut self, at: u64, data: &[u8]) {
        self.write(at, data);
        assert_eq!(self.reply(), 0);
    }

    /// Reads from offset 0; returns the error of the reply.
    pub(crate) fn read(&mut self, len: u32) -> u32 {
        self.request(READ, 0, len);
        let error = self.reply();
        if error == 0 {
            self.0.read_exact(&mut vec![0; len as usize]).unwrap();
        }
        error
    }

    pub(crate) fn write(&mut self, at: u64, data: &[u8]) {
        self.request(WRITE, at, data.len() as u32);
        self.0.write_all(data).unwrap();
    }

    pub(crate) fn flush(&mut self) {
        self.request(FLUSH, 0, 0);
        assert_eq!(self.reply(), 0);
    }
}
