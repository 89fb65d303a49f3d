//! The same checks of both rings: each runs with threads and, where the kernel allows it, with io_uring, and names the
//! completions that both must post. Where they differ by design, the check says so, with [`Rig::is_kernel`].

mod descriptors;
mod files;
mod sockets;
mod waiting;

use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use io_uring::{opcode, squeue, types};

use super::{BackEnd, Ring};
use crate::op::IGNORED;

const IN: i32 = libc::POLLIN as i32;
const OUT: i32 = libc::POLLOUT as i32;

/// More than any completion takes, on a busy machine too.
const LONG: Duration = Duration::from_secs(20);
/// Enough for a completion that would be posted by mistake.
const SHORT: Duration = Duration::from_millis(20);

/// A ring, and its posted completions.
struct Rig {
    ring: Ring,
    posted: HashMap<u64, i32>,
}

/// Runs a check on both rings.
fn on_both(check: impl Fn(&mut Rig)) {
    for back_end in [BackEnd::Threads, BackEnd::Uring] {
        let ring = match Ring::with(back_end, 64, false) {
            Err(error) if back_end == BackEnd::Uring && super::is_refusal(&error) => {
                eprintln!("not checked with io_uring: {error}");
                continue;
            }
            ring => ring.unwrap(),
        };
        // Shown if the check fails.
        eprintln!("with {}", back_end.name());
        let mut rig = Rig { ring, posted: HashMap::new() };
        check(&mut rig);
        rig.look(None);
        assert_eq!(rig.posted, HashMap::new(), "completions that the check does not know");
    }
}

fn fd(of: &impl AsRawFd) -> types::Fd {
    types::Fd(of.as_raw_fd())
}

impl Rig {
    const fn is_kernel(&self) -> bool {
        matches!(self.ring, Ring::Kernel(_))
    }

    /// Queues an entry.
    fn push(&mut self, user_data: u64, entry: squeue::Entry) {
        // SAFETY: the checks keep memory and descriptors until the completion.
        unsafe { self.ring.push(entry.user_data(user_data)) }
    }

    fn cancel(&mut self, user_data: u64) {
        self.push(IGNORED, opcode::AsyncCancel::new(user_data).build());
    }

    fn poll(&mut self, user_data: u64, of: &impl AsRawFd, events: i32) {
        self.push(user_data, opcode::PollAdd::new(fd(of), events as u32).build());
    }

    fn recv(&mut self, user_data: u64, from: &impl AsRawFd, into: &mut [u8]) {
        let entry = opcode::Recv::new(fd(from), into.as_mut_ptr(), into.len() as u32);
        self.push(user_data, entry.build());
    }

    fn send(&mut self, user_data: u64, to: &impl AsRawFd, bytes: &[u8]) {
        let entry = opcode::Send::new(fd(to), bytes.as_ptr(), bytes.len() as u32);
        self.push(user_data, entry.flags(libc::MSG_NOSIGNAL).build());
    }

    fn enter(&mut self, wait: Option<Option<Duration>>) {
        self.ring.enter(wait).unwrap();
        let mut completions = Vec::new();
        self.ring.harvest(&mut completions);
        for completion in completions.iter().filter(|it| it.user_data != IGNORED) {
            let before = self.posted.insert(completion.user_data, completion.result);
            assert_eq!(before, None, "{completion:?}: posted twice");
        }
    }

    /// Enters for a short time; true if this operation has ended then.
    fn look(&mut self, user_data: Option<u64>) -> bool {
        let end = Instant::now() + SHORT;
        while Instant::now() < end {
            self.enter(Some(Some(Duration::from_millis(5))));
        }
        user_data.is_some_and(|user_data| self.posted.contains_key(&user_data))
    }

    /// Waits for the end of an operation.
    fn wait(&mut self, user_data: u64) -> i32 {
        let end = Instant::now() + LONG;
        loop {
            if let Some(result) = self.posted.remove(&user_data) {
                return result;
            }
            assert!(Instant::now() < end, "{user_data} has not ended: {:?}", self.posted);
            self.enter(Some(Some(LONG)));
        }
    }

    /// Executes one operation.
    fn run(&mut self, entry: squeue::Entry) -> i32 {
        const ONE: u64 = 1 << 40;
        self.push(ONE, entry);
        self.wait(ONE)
    }
}

/// A connected pair of Unix sockets.
fn pair() -> (OwnedFd, OwnedFd) {
    let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();
    (one.into(), other.into())
}

fn write(to: &OwnedFd, bytes: &[u8]) {
    assert_eq!(rustix::io::write(to, bytes), Ok(bytes.len()));
}

/// Receives until the socket is empty; returns how many bytes.
fn drain(from: &OwnedFd) -> usize {
    let (mut sum, mut bytes) = (0, vec![0; 1 << 20]);
    while let Ok((count, _)) =
        rustix::net::recv(from, &mut bytes[..], rustix::net::RecvFlags::DONTWAIT)
        && count > 0
    {
        sum += count;
    }
    sum
}
