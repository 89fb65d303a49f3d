//! A worker process: starting, calling, and waiting for it.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, BufRead, BufReader, PipeReader};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command as Process, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use ashlar_engine::oneshot::{self, Receiver, Sender};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::process::{
    PTracer, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal, set_ptracer,
};
use thiserror::Error;

use crate::control;
use crate::protocol::{Command, Refusal, Reply};

/// The subcommand that makes this program a worker.
pub(super) const VERB: &str = "zfs-worker";
/// The option that puts the worker into its sandbox.
const CONFINED: &str = "--confined";
/// Number of lines kept of a worker's output.
const LAST_WORDS: usize = 20;
/// Time limit for an idle worker to exit.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why a call has no reply.
#[derive(Clone, Debug, Error)]
pub enum CallError {
    /// The worker refused.
    #[error(transparent)]
    Refused(Refusal),
    /// The worker has exited.
    #[error("the worker of the pool has ended: {0}")]
    Dead(String),
    /// The reply does not match the command.
    #[error("the worker of the pool is not understood: {0}")]
    NotUnderstood(String),
}

impl CallError {
    /// The remedy.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Refused(refusal) => refusal.hint.as_deref(),
            Self::Dead(_) => Some("what was flushed is on the disks; import the pool again"),
            Self::NotUnderstood(_) => None,
        }
    }
}

/// The result of a call.
pub(super) type CallResult = Result<Reply, CallError>;

struct Call {
    command: Command,
    descriptor: Option<OwnedFd>,
    answer: Sender<CallResult>,
}

#[derive(Default)]
struct State {
    last_words: VecDeque<String>,
    /// How the process exited.
    end: Option<String>,
    /// Why it was killed, if on purpose.
    given_up: Option<String>,
}

/// The state shared by a worker's threads.
#[derive(Default)]
struct WatchState {
    state: Mutex<State>,
    ended: Condvar,
}

impl WatchState {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic can at most lose or repeat a line.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the process to exit. Returns how it exited, or `None` after `patience`.
    fn wait(&self, patience: Duration) -> Option<String> {
        let deadline = Instant::now() + patience;
        let mut state = self.lock();
        while state.end.is_none() {
            let left = deadline.checked_duration_since(Instant::now())?;
            state = self.ended.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        if let Some(why) = &state.given_up {
            return Some(format!("killed: {why}"));
        }
        let mut text = state.end.clone().unwrap_or_default();
        if let Some(line) = state.last_words.back() {
            text = format!("{text}: {line}");
        }
        Some(text)
    }
}

/// What a worker gets from the process that uses it.
#[derive(Debug)]
pub struct WorkerEnds {
    /// The control channel: its standard input.
    pub control: OwnedFd,
    /// Its standard output and error.
    pub words: OwnedFd,
    /// Who starts it reports its end there, and kills it when something is received: see [`WorkerEnds::watch`].
    pub watch: OwnedFd,
}

/// Starts workers for a process that cannot: one in a sandbox. They are in a sandbox of their own, and move data through
/// windows.
pub trait Launcher: fmt::Debug + Send + Sync {
    /// Starts a worker, returns its number, and blocks until then.
    ///
    /// # Errors
    /// It was not started.
    fn launch(&self, ends: WorkerEnds) -> io::Result<u32>;
}

impl WorkerEnds {
    /// Starts this program as a worker in its sandbox, in the launcher's process; a thread reports the worker's end, and kills it
    /// when the other side asks for that. Returns its number.
    ///
    /// # Errors
    /// Those of fork(2), execve(2), pidfd_open(2).
    pub fn spawn(self) -> io::Result<u32> {
        let Self { control, words, watch } = self;
        let mut child = start(&[CONFINED], control, words)?;
        let pid = child.id();
        let watching = pidfd_of(&mut child).and_then(|process| {
            thread::Builder::new()
                .name("ashlar-watch".to_owned())
                .spawn(move || Self::watch(child, &process, &watch))
        });
        watching.map(|_| pid)
    }

    /// Waits for the end of a worker, and sends its status: a number as of waitpid(2), in native order. A packet from the other
    /// side kills the worker; without another side it ends by itself, because its control channel has ended too.
    fn watch(mut child: Child, process: &OwnedFd, watch: &OwnedFd) {
        loop {
            let mut both = [PollFd::new(process, PollFlags::IN), PollFd::new(watch, PollFlags::IN)];
            if let Err(Errno::INTR) = poll(&mut both, None) {
                continue;
            }
            let is_asked = !both[1].revents().is_empty();
            if is_asked && matches!(recv(watch, &mut [0; 1], RecvFlags::DONTWAIT), Ok((1, _))) {
                let (Ok(()) | Err(_)) = child.kill();
            }
            if is_asked || !both[0].revents().is_empty() {
                break;
            }
        }
        if let Ok(status) = child.wait() {
            // The other side may have ended.
            let (Ok(_) | Err(_)) =
                send(watch, &status.into_raw().to_ne_bytes(), SendFlags::NOSIGNAL);
        }
    }
}

/// How this process ends a worker, and learns of its end.
enum Handle {
    /// A child of this process.
    Child(OwnedFd),
    /// The other side of [`WorkerEnds::watch`].
    Launched(OwnedFd),
}

/// A worker process.
pub struct Worker {
    calls: Mutex<Option<mpsc::Sender<Call>>>,
    watched: Arc<WatchState>,
    handle: Handle,
    pid: u32,
}

impl Worker {
    /// Starts this program as a worker. Its output goes to our log.
    ///
    /// # Errors
    /// Those of socketpair(2), pipe(2), fork(2), execve(2).
    pub fn spawn() -> io::Result<Self> {
        // Descendants of the named process may access our memory
        // (Documentation/admin-guide/LSM/Yama.rst). A kernel without Yama does not know this call
        // and does not need it.
        if let Err(errno) = set_ptracer(PTracer::ProcessID(getpid())) {
            tracing::debug!(%errno, "no Yama");
        }
        let (ours, theirs) = control::pair()?;
        let (words, out) = io::pipe()?;
        Self::watch(start(&[], theirs, out.into())?, words, ours)
    }

    /// Has `launcher` start a worker. Blocks.
    ///
    /// # Errors
    /// Those of the launcher, of socketpair(2) and pipe(2).
    pub fn launched_by(launcher: &dyn Launcher) -> io::Result<Self> {
        let ((socket, control), (watching, watch)) = (control::pair()?, control::pair()?);
        let (words, out) = io::pipe()?;
        let pid = launcher.launch(WorkerEnds { control, words: out.into(), watch })?;
        let heard = watching.try_clone()?;
        let end = move || {
            let mut status = [0; size_of::<i32>()];
            match recv(&heard, &mut status[..], RecvFlags::empty()) {
                Ok((_, len)) if len == status.len() => {
                    told(ExitStatus::from_raw(i32::from_ne_bytes(status)))
                }
                Ok(_) => "and the cleanup helper, which would know how".to_owned(),
                Err(errno) => errno.to_string(),
            }
        };
        Self::with(Handle::Launched(watching), pid, (words, end), socket)
    }

    fn watch(mut child: Child, words: PipeReader, socket: OwnedFd) -> io::Result<Self> {
        let pid = child.id();
        let process = pidfd_of(&mut child)?;
        let end = move || match child.wait() {
            Ok(status) => told(status),
            Err(error) => error.to_string(),
        };
        Self::with(Handle::Child(process), pid, (words, end), socket)
    }

    /// A worker with this output, and a function that waits for its end and says how it ended.
    fn with(
        handle: Handle,
        pid: u32,
        (words, end): (PipeReader, impl FnOnce() -> String + Send + 'static),
        socket: OwnedFd,
    ) -> io::Result<Self> {
        let watched = Arc::new(WatchState::default());
        let watching = Arc::clone(&watched);
        thread::Builder::new()
            .name("ashlar-zfs-log".to_owned())
            .spawn(move || listen(pid, words, end, &watching))?;
        let (calls, receiver) = mpsc::channel();
        let answering = Arc::clone(&watched);
        thread::Builder::new()
            .name("ashlar-zfs-call".to_owned())
            .spawn(move || answer(&receiver, &socket, &answering))?;
        Ok(Self { calls: Mutex::new(Some(calls)), watched, handle, pid })
    }

    /// Whether it is in a sandbox: it cannot reach the memory of this process.
    pub(super) fn is_confined(&self) -> bool {
        matches!(self.handle, Handle::Launched(_))
    }

    /// The process's number.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// How it exited, with its last output; `None` while it runs.
    pub fn end(&self) -> Option<String> {
        self.watched.wait(Duration::ZERO)
    }

    /// Sends it a command and returns its reply.
    ///
    /// # Errors
    /// The worker refused, or has exited.
    pub async fn call(&self, command: Command) -> CallResult {
        self.answered(self.send(command, None)).await
    }

    /// As [`Self::call`], and passes a descriptor to the worker.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub async fn call_with(&self, command: Command, descriptor: OwnedFd) -> CallResult {
        self.answered(self.send(command, Some(descriptor))).await
    }

    /// As [`Self::call`], for a command without a reply value.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub async fn run(&self, command: Command) -> Result<(), CallError> {
        let Reply::Done = self.call(command).await? else { return Err(not_asked()) };
        Ok(())
    }

    fn send(&self, command: Command, descriptor: Option<OwnedFd>) -> Receiver<CallResult> {
        let (answer, receiver) = oneshot::channel();
        let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(calls) = &*calls
            && let Err(refused) = calls.send(Call { command, descriptor, answer })
        {
            // The worker's thread has ended; dropping the call notifies the receiver.
            drop(refused);
        }
        receiver
    }

    async fn answered(&self, receiver: Receiver<CallResult>) -> CallResult {
        match receiver.await {
            Ok(result) => result,
            Err(oneshot::ReceiveError) => Err(self.dead()),
        }
    }

    fn dead(&self) -> CallError {
        CallError::Dead(self.end().unwrap_or_else(|| "it was stopped".to_owned()))
    }

    /// Tells it to exit, after its pool was exported, and waits; kills it if it does not exit. Blocks.
    pub fn stop(&self) {
        drop(self.calls.lock().unwrap_or_else(PoisonError::into_inner).take());
        if self.watched.wait(PATIENCE).is_none() {
            tracing::warn!(pid = self.pid, "the worker of a pool does not end, and is killed");
            self.kill();
            if self.watched.wait(PATIENCE).is_none() {
                tracing::error!(pid = self.pid, "the worker of a pool cannot be killed");
            }
        }
    }

    /// Kills it, so that everything that waits for it ends; `why` is reported as the reason.
    pub fn give_up(&self, why: &str) {
        self.watched.lock().given_up = Some(why.to_owned());
        self.kill();
    }

    /// Kills it.
    pub fn kill(&self) {
        let killed = match &self.handle {
            Handle::Child(process) => pidfd_send_signal(process, Signal::KILL),
            Handle::Launched(watching) => {
                send(watching, &[0], SendFlags::NOSIGNAL | SendFlags::DONTWAIT).map(|_| ())
            }
        };
        if let Err(errno) = killed {
            tracing::debug!(%errno, pid = self.pid, "killing a worker");
        }
    }
}

/// The error for a reply that does not match the command.
pub(super) fn not_asked() -> CallError {
    CallError::NotUnderstood("its reply does not match the command".to_owned())
}

/// Forwards calls one after the other, until no sender is left.
fn answer(calls: &mpsc::Receiver<Call>, socket: &OwnedFd, watched: &WatchState) {
    for Call { command, descriptor, answer } in calls {
        let result = match exchange(socket, &command, descriptor) {
            Ok(Some(Ok(reply))) => Ok(reply),
            Ok(Some(Err(refusal))) => Err(CallError::Refused(refusal)),
            // The worker has exited, or is about to.
            Ok(None) => {
                let end = watched.wait(PATIENCE);
                Err(CallError::Dead(end.unwrap_or_else(|| "it does not answer".to_owned())))
            }
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                Err(CallError::Dead(watched.wait(PATIENCE).unwrap_or_else(|| error.to_string())))
            }
            Err(error) => Err(CallError::NotUnderstood(error.to_string())),
        };
        answer.send(result);
    }
}

/// `None` if the other end is closed.
fn exchange(
    socket: &OwnedFd,
    command: &Command,
    descriptor: Option<OwnedFd>,
) -> io::Result<Option<Result<Reply, Refusal>>> {
    let text = serde_json::to_vec(command)?;
    control::send(socket, &text, descriptor.as_ref().map(AsFd::as_fd))?;
    // The worker has the descriptor now and closes it with the channel.
    drop(descriptor);
    let Some(message) = control::receive(socket)? else { return Ok(None) };
    Ok(Some(serde_json::from_slice(&message.bytes)?))
}

/// Logs the worker's output until it exits, and stores how it exited.
fn listen(pid: u32, words: PipeReader, end: impl FnOnce() -> String, watched: &WatchState) {
    let mut words = BufReader::new(words);
    let mut line = Vec::new();
    loop {
        line.clear();
        match words.read_until(b'\n', &mut line) {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(%error, pid, "listening to a worker");
                break;
            }
        }
        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
        if text.is_empty() {
            continue;
        }
        tracing::info!(pid, "zfs: {text}");
        let mut state = watched.lock();
        if state.last_words.len() == LAST_WORDS {
            state.last_words.pop_front();
        }
        state.last_words.push_back(text);
    }
    let end = end();
    watched.lock().end = Some(end);
    watched.ended.notify_all();
}

/// Starts this program as a worker. Its ends are open in the worker alone then: readers see when it has ended.
fn start(options: &[&str], control: OwnedFd, words: OwnedFd) -> io::Result<Child> {
    let mut process = Process::new("/proc/self/exe");
    process
        .arg0("ashlar")
        .arg(VERB)
        .args(options)
        .stdin(Stdio::from(control))
        .stdout(words.try_clone()?)
        .stderr(words);
    // In its own process group, so that ^C at a terminal reaches only the daemon: imported
    // pools must be exported.
    process.process_group(0);
    process.spawn()
}

/// A descriptor of a child; without one the child is killed.
fn pidfd_of(child: &mut Child) -> io::Result<OwnedFd> {
    let opened = pidfd_open(rustix::process::Pid::from_child(child), PidfdFlags::empty());
    if opened.is_err() {
        child.kill()?;
        child.wait()?;
    }
    Ok(opened?)
}

fn told(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(0), _) => "with code 0".to_owned(),
        (Some(code), _) => format!("with code {code}"),
        (None, Some(signal)) => format!("by signal {signal}"),
        (None, None) => status.to_string(),
    }
}

#[cfg(test)]
impl Worker {
    /// A worker process `program`, with the control channel as its standard input.
    pub(super) fn played_by(program: &mut Process) -> (Self, OwnedFd) {
        let (ours, theirs) = control::pair().unwrap();
        let (words, out) = io::pipe().unwrap();
        let child = program
            .stdin(Stdio::null())
            .stdout(out.try_clone().unwrap())
            .stderr(out)
            .spawn()
            .unwrap();
        (Self::watch(child, words, ours).unwrap(), theirs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_engine::Reactor;

    #[test]
    fn calls_are_answered_in_order_and_refusals_are_told() {
        let (worker, theirs) = Worker::played_by(Process::new("sleep").arg("60"));
        let player = thread::spawn(move || {
            let mut seen = Vec::new();
            while let Some(message) = control::receive(&theirs).unwrap() {
                let command: Command = serde_json::from_slice(&message.bytes).unwrap();
                let reply: Result<Reply, Refusal> = if command == Command::PoolStatus {
                    let (message, hint) = ("no such pool".to_owned(), "make one".to_owned());
                    Err(Refusal { message, hint: Some(hint), errno: 2 })
                } else {
                    Ok(Reply::Done)
                };
                seen.push(command);
                control::send(&theirs, &serde_json::to_vec(&reply).unwrap(), None).unwrap();
            }
            seen
        });
        Reactor::new(Default::default()).unwrap().block_on(async {
            let first = worker.run(Command::ExportPool);
            let second = worker.call(Command::PoolStatus);
            first.await.unwrap();
            let error = second.await.unwrap_err();
            assert_eq!(
                (error.to_string().as_str(), error.hint()),
                ("no such pool", Some("make one"))
            );
        });
        worker.kill();
        worker.stop();
        assert_eq!(player.join().unwrap(), [Command::ExportPool, Command::PoolStatus]);
    }

    #[test]
    fn a_worker_that_dies_is_told_with_its_last_words() {
        let script = "echo first; echo 'ASSERT at vdev.c:1 failed' >&2; read line; kill -ABRT $$";
        let (worker, theirs) = Worker::played_by(Process::new("sh").args(["-c", script]));
        // Its end of the channel closes with the process.
        drop(theirs);
        let reactor = Reactor::new(Default::default()).unwrap();
        for _ in 0..2 {
            let error = reactor.block_on(worker.call(Command::PoolStatus)).unwrap_err();
            let expected =
                "the worker of the pool has ended: by signal 6: ASSERT at vdev.c:1 failed";
            assert_eq!(error.to_string(), expected);
        }
        assert!(worker.end().is_some());
    }

    #[test]
    fn one_that_does_not_end_is_killed() {
        let (worker, theirs) = Worker::played_by(Process::new("sleep").arg("60"));
        worker.kill();
        worker.stop();
        drop(theirs);
        assert!(worker.end().unwrap().contains("signal 9"), "{:?}", worker.end());
    }
}
