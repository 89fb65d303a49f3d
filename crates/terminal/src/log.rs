//! The log: where its lines go, and the thread that writes them.
//!
//! A daemon serves although nothing reads its log: from [`hand_over`] on a separate thread writes the lines; when too many
//! wait, further lines are only counted. Before that, and in other commands, the thread that logs writes.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use ashlar_control::console::LogPlace;
use ashlar_control::error::{Error, Result};
use rustix::net::{SendAncillaryBuffer, SendFlags, SocketAddrUnix, sendmsg_addr};
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

/// The most bytes of lines that wait for the thread that writes them.
const MOST_BYTES: usize = 1 << 20;
/// How long [`flush`] waits for a reader of the log.
const PATIENCE: Duration = Duration::from_millis(500);
/// The socket of the system's log (syslog(3)).
const SYSLOG: &str = "/dev/log";
/// How long the system's log may take for a line.
const SYSLOG_PATIENCE: Duration = Duration::from_secs(1);
/// The facility of daemons (RFC 3164, 4.1.1).
const DAEMON: u8 = 3;

/// A line, with its end.
struct Line {
    /// Its level; `None` for a text for standard error.
    level: Option<Level>,
    /// Whether standard error shows it in other words.
    is_said: bool,
    text: String,
}

/// Where lines go.
enum Place {
    Stderr,
    File(File),
    Syslog(SystemLog),
}

/// The system's log, which takes messages of RFC 3164 on a socket.
pub struct SystemLog {
    socket: UnixDatagram,
    address: SocketAddrUnix,
    program: &'static str,
}

/// The severity of a message (RFC 3164, 4.1.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Severity {
    /// Somebody should act.
    Critical = 2,
    /// An error.
    Error = 3,
    /// Something to know soon.
    Warning = 4,
    /// Something to know.
    Info = 6,
    /// Details for developers.
    Debug = 7,
}

impl SystemLog {
    /// Reaches the system's log, for messages of `program`.
    ///
    /// # Errors
    /// Nothing listens there.
    pub fn open(program: &'static str) -> Result<Self> {
        let failed = |error| Error::new("cannot reach the system's log", SYSLOG, error);
        Self::at(Path::new(SYSLOG), program).map_err(failed)
    }

    fn at(path: &Path, program: &'static str) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.set_write_timeout(Some(SYSLOG_PATIENCE))?;
        // Only a test: the program that listens there may restart, with another socket.
        UnixDatagram::unbound()?.connect(path)?;
        Ok(Self { socket, address: SocketAddrUnix::new(path)?, program })
    }

    /// Sends a message in one line. The receiver adds the time, as section 4.3.2 says.
    ///
    /// # Errors
    /// The receiver did not accept the message.
    pub fn send(&self, severity: Severity, text: &str) -> io::Result<()> {
        let priority = DAEMON * 8 + severity as u8;
        let process = std::process::id();
        let message = format!("<{priority}>{}[{process}]: {}", self.program, text.trim_end());
        let message = [IoSlice::new(message.as_bytes())];
        let mut nothing = SendAncillaryBuffer::default();
        sendmsg_addr(&self.socket, &self.address, &message, &mut nothing, SendFlags::NOSIGNAL)?;
        Ok(())
    }
}

/// The log of a process.
struct Log {
    state: Mutex<State>,
    /// There is something to write.
    work: Condvar,
    /// Everything is written.
    written: Condvar,
}

struct State {
    lines: VecDeque<Line>,
    bytes: usize,
    left_out: u64,
    /// Whether a thread writes.
    has_thread: bool,
    is_writing: bool,
}

static LOG: Log = Log::new();

/// Its lock is held while a line is written: only threads that write themselves wait for it.
static PLACE: Mutex<Target> = Mutex::new(Target { place: Place::Stderr, and_stderr: false });

/// Whether the log goes elsewhere than to standard error. Outside the lock, which a thread may hold as long as nothing reads.
static IS_ELSEWHERE: AtomicBool = AtomicBool::new(false);

struct Target {
    place: Place,
    and_stderr: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Log {
    const fn new() -> Self {
        let state = State {
            lines: VecDeque::new(),
            bytes: 0,
            left_out: 0,
            has_thread: false,
            is_writing: false,
        };
        Self { state: Mutex::new(state), work: Condvar::new(), written: Condvar::new() }
    }

    /// Passes a line to the thread that writes; returns the line if there is no such thread. A line too many is only counted.
    fn push(&self, line: Line) -> Option<Line> {
        let mut state = lock(&self.state);
        if !state.has_thread {
            return Some(line);
        }
        if state.bytes + line.text.len() > MOST_BYTES {
            state.left_out += 1;
        } else {
            state.bytes += line.text.len();
            state.lines.push_back(line);
        }
        self.work.notify_one();
        None
    }

    /// Waits for lines; returns them, and how many were left out after them.
    fn next(&self) -> (VecDeque<Line>, u64) {
        let mut state = lock(&self.state);
        state.is_writing = false;
        while state.lines.is_empty() && state.left_out == 0 {
            self.written.notify_all();
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.is_writing = true;
        state.bytes = 0;
        (std::mem::take(&mut state.lines), std::mem::take(&mut state.left_out))
    }

    /// Waits until the thread has written everything, for at most `patience`.
    fn flush(&self, patience: Duration) {
        let state = lock(&self.state);
        let is_busy = |state: &mut State| {
            state.has_thread && (state.is_writing || !state.lines.is_empty() || state.left_out > 0)
        };
        // A reader that does not read must not keep the process from ending.
        let (Ok(_) | Err(_)) = self.written.wait_timeout_while(state, patience, is_busy);
    }

    /// Writes all lines by `write`, forever; `tell` logs how many were left out.
    fn serve(&self, mut write: impl FnMut(&Line), tell: impl Fn(u64)) -> ! {
        loop {
            let (lines, left_out) = self.next();
            lines.iter().for_each(&mut write);
            if left_out > 0 {
                tell(left_out);
            }
        }
    }
}

/// Has `program` write its log to `place` from now on, and to standard error as well if `and_stderr`.
///
/// # Errors
/// The place cannot be opened.
pub(crate) fn open(place: &LogPlace, and_stderr: bool, program: &'static str) -> Result<()> {
    let opened = match place {
        LogPlace::Stderr => Place::Stderr,
        LogPlace::File(path) => {
            let mut options = OpenOptions::new();
            // Programs that rotate logs may cut the file.
            options.append(true).create(true).mode(0o640);
            let file = options.open(path);
            Place::File(
                file.map_err(|error| Error::new("cannot write the log", path.display(), error))?,
            )
        }
        LogPlace::Syslog => Place::Syslog(SystemLog::open(program)?),
    };
    let is_elsewhere = !matches!(opened, Place::Stderr);
    IS_ELSEWHERE.store(is_elsewhere, Ordering::Relaxed);
    let and_stderr = and_stderr && is_elsewhere;
    *lock(&PLACE) = Target { place: opened, and_stderr };
    Ok(())
}

/// Has a thread write the log from now on.
pub(crate) fn hand_over() {
    let serve = || {
        let tell = |left_out| {
            tracing::warn!(left_out, "lines of the log are missing here: its reader was slow");
        };
        LOG.serve(|line| write(line, &mut lock(&PLACE)), tell)
    };
    // The thread finds the lines that were passed to it before it began.
    lock(&LOG.state).has_thread = true;
    if let Err(error) = thread::Builder::new().name("ashlar-log".to_owned()).spawn(serve) {
        lock(&LOG.state).has_thread = false;
        tracing::warn!(%error, "no thread for the log");
    }
}

/// Waits until the log is written, as long as something reads it.
pub(crate) fn flush() {
    LOG.flush(PATIENCE);
}

/// Writes a text to standard error, after the lines of the log.
pub(crate) fn to_stderr(text: &str) {
    push(Line { level: None, is_said: false, text: text.to_owned() });
    flush();
}

fn push(line: Line) {
    if let Some(line) = LOG.push(line) {
        write(&line, &mut lock(&PLACE));
    }
}

/// There is no place to report that writing failed.
fn write(line: &Line, target: &mut Target) {
    let Line { level, is_said, text } = line;
    let is_shown = target.and_stderr && !is_said;
    if level.is_none() || is_shown || matches!(target.place, Place::Stderr) {
        let (Ok(()) | Err(_)) = io::stderr().lock().write_all(text.as_bytes());
    }
    let Some(level) = level else { return };
    match &mut target.place {
        Place::Stderr => {}
        Place::File(file) => {
            let (Ok(()) | Err(_)) = file.write_all(plain(text).as_bytes());
        }
        Place::Syslog(log) => {
            let text = plain(text);
            let (Ok(()) | Err(_)) = log.send(severity(*level), message(&text));
        }
    }
}

const fn severity(level: Level) -> Severity {
    match level {
        Level::ERROR => Severity::Error,
        Level::WARN => Severity::Warning,
        Level::INFO => Severity::Info,
        Level::DEBUG | Level::TRACE => Severity::Debug,
    }
}

/// A line of the log without time and level: the system's log has its own fields for them.
fn message(line: &str) -> &str {
    let rest = line.split_once(' ').map(|(_, rest)| rest.trim_start());
    rest.and_then(|rest| rest.split_once(' ')).map_or(line, |(_, text)| text)
}

/// A line without the colours of a terminal. (Control characters of names are escaped.)
fn plain(text: &str) -> Cow<'_, str> {
    let mut parts = text.split("\u{1b}[");
    let first = parts.next().unwrap_or_default();
    if first.len() == text.len() {
        return Cow::Borrowed(text);
    }
    let behind = |part: &'_ str| part.split_once('m').map_or("", |(_, behind)| behind).to_owned();
    Cow::Owned(std::iter::once(first.to_owned()).chain(parts.map(behind)).collect())
}

/// Makes the lines of the log.
pub(crate) struct Lines;

/// An event, which becomes a line once it is dropped.
pub(crate) struct Event {
    level: Level,
    bytes: Vec<u8>,
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Event;

    fn make_writer(&'a self) -> Event {
        Event { level: Level::INFO, bytes: Vec::new() }
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> Event {
        Event { level: *metadata.level(), bytes: Vec::new() }
    }
}

impl Write for Event {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let text = String::from_utf8_lossy(&self.bytes).into_owned();
        push(Line { level: Some(self.level), is_said: IS_SAID.get(), text });
    }
}

thread_local! {
    /// Whether standard error shows in other words what this thread logs.
    static IS_SAID: Cell<bool> = const { Cell::new(false) };
}

/// Logs by `log` what standard error shows in other words.
pub(crate) fn log_said(log: impl FnOnce()) {
    if IS_ELSEWHERE.load(Ordering::Relaxed) {
        IS_SAID.set(true);
        log();
        IS_SAID.set(false);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};

    use super::*;

    fn line(text: &str) -> Line {
        Line { level: Some(Level::WARN), is_said: false, text: text.to_owned() }
    }

    #[test]
    fn a_reader_that_takes_nothing_holds_nothing_up_and_learns_how_much_is_missing() {
        let log = Arc::new(Log::new());
        assert!(log.push(line("written by its own thread")).is_some());
        lock(&log.state).has_thread = true;
        let (enter, entered) = mpsc::channel();
        let (go, gone) = mpsc::channel();
        let (tell, told) = mpsc::channel();
        let serving = Arc::clone(&log);
        thread::spawn(move || {
            let mut read = Vec::new();
            serving.serve(
                |line| {
                    enter.send(line.text.len()).unwrap();
                    gone.recv().unwrap();
                    read.push(line.text.clone());
                },
                |left_out| tell.send(left_out).unwrap(),
            )
        });
        log.push(line("first"));
        assert_eq!(entered.recv(), Ok(5));
        log.flush(Duration::from_millis(1));
        let half = "x".repeat(MOST_BYTES / 2);
        (0..10).for_each(|_| assert!(log.push(line(&half)).is_none()));
        (0..3).for_each(|_| go.send(()).unwrap());
        assert_eq!(told.recv(), Ok(8));
        log.flush(Duration::from_secs(10));
        assert_eq!(entered.try_iter().count(), 2);
        // There is room again.
        log.push(line("last"));
        assert_eq!(entered.recv(), Ok(4));
        go.send(()).unwrap();
        log.flush(Duration::from_secs(10));
        assert!(lock(&log.state).lines.is_empty() && !lock(&log.state).is_writing);
    }

    #[test]
    fn the_system_log_gets_the_level_and_not_the_time() {
        let line = "2026-11-24T08:27:44.230896Z  INFO started array=\"md0\"";
        assert_eq!(message(line), "started array=\"md0\"");
        assert_eq!(message("2026-11-24T08:27:44.230896Z ERROR a b"), "a b");
        for (level, number) in [(Level::ERROR, 3), (Level::WARN, 4), (Level::INFO, 6)] {
            assert_eq!(severity(level) as u8, number);
        }
    }

    #[test]
    fn lines_reach_a_socket_that_was_made_anew() {
        let directory = std::env::temp_dir().join(format!("ashlar-log-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("log");
        let mut buffer = [0; 100];
        let listener = UnixDatagram::bind(&path).unwrap();
        let log = SystemLog::at(&path, "p").unwrap();
        drop(listener);
        std::fs::remove_file(&path).unwrap();
        assert!(log.send(Severity::Info, "lost").is_err());
        let mut target = Target { place: Place::Syslog(log), and_stderr: false };
        write(&line("a WARN lost"), &mut target);
        let listener = UnixDatagram::bind(&path).unwrap();
        write(&line("a WARN b\u{1b}[3mc\u{1b}[0m d"), &mut target);
        let len = listener.recv(&mut buffer).unwrap();
        let expected = format!("<28>p[{}]: bc d", std::process::id());
        assert_eq!(String::from_utf8_lossy(&buffer[..len]), expected);
        let Place::Syslog(log) = target.place else { panic!("another place") };
        log.send(Severity::Critical, "Fail of a").unwrap();
        let len = listener.recv(&mut buffer).unwrap();
        let expected = format!("<26>p[{}]: Fail of a", std::process::id());
        assert_eq!(String::from_utf8_lossy(&buffer[..len]), expected);
        std::fs::remove_dir_all(&directory).unwrap();
        assert!(SystemLog::at(&path, "p").is_err());
    }
}
