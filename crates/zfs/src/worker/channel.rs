//! Data channels: the incoming requests for a volume, and their replies.
//!
//! Each channel has a receiving thread. The daemon wrote the packets, but they are checked as if it
//! had not: an invalid request is answered with EINVAL and never reaches libzpool.

use std::io::IoSliceMut;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, ReturnFlags, SendFlags, Shutdown, recvmsg, send, shutdown, sockopt};
use zerocopy::{FromBytes, IntoBytes};

use super::taskq::{Task, TaskQueues};
use crate::protocol::{Completion, FUA, MAX_SEGMENTS, RemoteSegment, Submission, op};
use crate::zvol::{Peer, Segments, SharedMemory, Volume, Window};

/// Maximum of running requests per channel; no more are received until one ends.
const MAX_IN_FLIGHT: u32 = 1024;
/// Maximum size of a packet.
const MAX_PACKET_BYTES: usize = size_of::<Submission>() + MAX_SEGMENTS * size_of::<RemoteSegment>();
/// Offsets and lengths are multiples of this.
const SECTOR_BYTES: u64 = 512;

/// The task queues of a worker.
pub type Queues = TaskQueues<Request>;

/// Where the segments of a channel's requests are.
pub enum RequestMemory {
    /// In the process that created the channel's socket pair: this process or its parent.
    OfPeer {
        /// The part that it shares.
        shared: Option<SharedMemory>,
    },
    /// In a window.
    Window(Window),
}

/// A volume with its data channels.
pub struct Server {
    volume: Arc<Volume>,
    queues: Arc<Queues>,
    channels: Vec<Channel>,
    attached: u32,
}

impl Server {
    /// A server without channels.
    pub fn new(volume: Volume, queues: Arc<Queues>) -> Self {
        Self { volume: Arc::new(volume), queues, channels: Vec::new(), attached: 0 }
    }

    /// The volume.
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    /// Serves requests from `socket` until its other end is closed. The segments are in `memory`.
    ///
    /// # Errors
    /// A thread cannot be started, the socket is of the wrong kind, or it was created by neither
    /// this process nor its parent.
    pub fn attach(&mut self, socket: OwnedFd, memory: RequestMemory) -> std::io::Result<()> {
        self.channels.retain(|channel| !channel.is_finished());
        let (peer, window) = match memory {
            RequestMemory::OfPeer { shared } => {
                let pid = sockopt::socket_peercred(&socket)?.pid;
                (Peer::process(pid.as_raw_nonzero().get())?.with_shared(shared), None)
            }
            RequestMemory::Window(window) => (Peer::behind(window.memory()), Some(window)),
        };
        let shared = Arc::new(ChannelState {
            volume: Arc::clone(&self.volume),
            peer,
            _window: window,
            hardware_queue: self.attached % self.queues.hardware_queues(),
            socket,
            in_flight: RunningCount::default(),
        });
        self.attached += 1;
        let (queues, theirs) = (Arc::clone(&self.queues), Arc::clone(&shared));
        let reader = std::thread::Builder::new()
            .name("zvol-channel".to_owned())
            .spawn(move || receive_all(&theirs, &queues))?;
        self.channels.push(Channel { shared, reader: Some(reader) });
        Ok(())
    }

    /// Stops receiving, waits for running requests, and closes channels and volume.
    pub fn close(self) {
        drop(self.channels);
        self.volume.close();
    }
}

/// A channel. When dropped, it stops receiving and waits for running requests.
struct Channel {
    shared: Arc<ChannelState>,
    reader: Option<JoinHandle<()>>,
}

struct ChannelState {
    volume: Arc<Volume>,
    peer: Peer,
    /// Mapped until the last request has ended.
    _window: Option<Window>,
    hardware_queue: u32,
    socket: OwnedFd,
    in_flight: RunningCount,
}

impl Channel {
    fn is_finished(&self) -> bool {
        self.reader.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if let Err(errno) = shutdown(&self.shared.socket, Shutdown::Read) {
            // The other end is already closed.
            tracing::debug!(%errno, "shutting a channel down");
        }
        if self.reader.take().is_some_and(|reader| reader.join().is_err()) {
            tracing::error!("the thread of a channel panicked");
        }
        self.shared.in_flight.wait_for_none();
    }
}

/// The number of running requests of a channel.
#[derive(Default)]
struct RunningCount {
    count: Mutex<u32>,
    lowered: Condvar,
}

impl RunningCount {
    fn count(&self) -> MutexGuard<'_, u32> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self) {
        let full = |count: &mut u32| *count >= MAX_IN_FLIGHT;
        let waited = self.lowered.wait_while(self.count(), full);
        *waited.unwrap_or_else(PoisonError::into_inner) += 1;
    }

    fn leave(&self) {
        let mut count = self.count();
        *count -= 1;
        if *count == 0 || *count + 1 == MAX_IN_FLIGHT {
            self.lowered.notify_all();
        }
    }

    fn wait_for_none(&self) {
        drop(self.lowered.wait_while(self.count(), |count| *count > 0));
    }
}

/// A valid request.
pub struct Request {
    channel: Arc<ChannelState>,
    submission: Submission,
    action: Action,
}

/// The operation of a request, with its segments.
#[derive(Debug)]
enum Action {
    Read(Segments),
    Write(Segments),
    Flush,
    Discard,
    WriteZeroes,
}

impl Task for Request {
    fn run(self) {
        let Self { channel, submission, action } = self;
        let (offset_bytes, len_bytes) = (submission.offset_bytes, submission.len_bytes);
        let (volume, fua) = (&channel.volume, submission.flags & FUA != 0);
        let result = match action {
            Action::Read(mut segments) => volume.read(offset_bytes, len_bytes, &mut segments),
            Action::Write(mut segments) => {
                volume.write(offset_bytes, len_bytes, &mut segments, fua)
            }
            Action::Flush => volume.flush(),
            Action::Discard => volume.discard(offset_bytes, len_bytes, fua),
            Action::WriteZeroes => volume.write_zeroes(offset_bytes, len_bytes, fua),
        };
        channel.complete(submission.tag, result);
        channel.in_flight.leave();
    }
}

impl ChannelState {
    fn complete(&self, tag: u64, result: Result<(), Errno>) {
        let completion =
            Completion { tag, errno: result.map_or_else(Errno::raw_os_error, |()| 0), reserved: 0 };
        let sent = retry_on_intr(|| send(&self.socket, completion.as_bytes(), SendFlags::NOSIGNAL));
        if let Err(errno) = sent {
            // The daemon has exited or closed the volume: nothing waits for the reply.
            tracing::debug!(%errno, tag, "an answer was not sent");
        }
    }
}

fn receive_all(channel: &Arc<ChannelState>, queues: &Queues) {
    // Allocated in words, so that segments are aligned.
    let mut packet = vec![0_u64; MAX_PACKET_BYTES / size_of::<u64>()];
    loop {
        let received = match receive(channel.socket.as_fd(), packet.as_mut_bytes()) {
            Ok(Some(received)) => received,
            Ok(None) => return,
            Err(errno) => {
                tracing::warn!(%errno, "a data channel broke");
                return;
            }
        };
        if let Err(InvalidRequest) = dispatch_all(channel, queues, received) {
            // Without a tag there is no request to answer.
            tracing::warn!(bytes = received.len(), "a packet that is not a request");
            return;
        }
    }
}

/// The rest of a packet is not a request.
struct InvalidRequest;

/// Dispatches the requests of a packet to the threads.
fn dispatch_all(
    channel: &Arc<ChannelState>,
    queues: &Queues,
    mut packet: &[u8],
) -> Result<(), InvalidRequest> {
    loop {
        let (submission, rest) =
            Submission::read_from_prefix(packet).map_err(|_| InvalidRequest)?;
        let count = usize::from(submission.segments);
        // Too few segments are refused later.
        let segments = rest.len().min(count * size_of::<RemoteSegment>());
        let (segments, rest) = rest.split_at(segments);
        channel.in_flight.enter();
        match parse(&submission, segments, channel.peer) {
            Ok(action) => {
                let request = Request { channel: Arc::clone(channel), submission, action };
                let volume = Arc::as_ptr(&channel.volume) as u64;
                queues.dispatch(request, volume, submission.offset_bytes, channel.hardware_queue);
            }
            Err(errno) => {
                tracing::warn!(?submission, "a request that makes no sense");
                channel.complete(submission.tag, Err(errno));
                channel.in_flight.leave();
            }
        }
        if rest.is_empty() {
            return Ok(());
        }
        packet = rest;
    }
}

/// A packet. If it is too long, its first request is refused, and the rest is ignored.
fn receive(socket: impl AsFd, packet: &mut [u8]) -> Result<Option<&[u8]>, Errno> {
    let received = retry_on_intr(|| {
        let mut parts = [IoSliceMut::new(packet)];
        recvmsg(
            &socket,
            &mut parts,
            &mut rustix::net::RecvAncillaryBuffer::default(),
            RecvFlags::empty(),
        )
    })?;
    if received.bytes == 0 {
        return Ok(None);
    }
    if received.flags.contains(ReturnFlags::TRUNC) {
        tracing::warn!("a packet that is too long");
        packet[std::mem::offset_of!(Submission, op)] = u8::MAX;
        return Ok(packet.get(..size_of::<Submission>()));
    }
    Ok(packet.get(..received.bytes))
}

/// Checks a request as far as possible without the volume, whose size may change before it runs.
fn parse(submission: &Submission, rest: &[u8], peer: Peer) -> Result<Action, Errno> {
    let segments = <[RemoteSegment]>::ref_from_bytes(rest).map_err(|_| Errno::INVAL)?;
    let Submission { tag: _, offset_bytes, len_bytes, op, flags, segments: count, reserved } =
        *submission;
    if segments.len() != usize::from(count) || reserved != 0 {
        return Err(Errno::INVAL);
    }
    let end_bytes = offset_bytes.checked_add(len_bytes).ok_or(Errno::INVAL)?;
    if end_bytes % SECTOR_BYTES != 0 || offset_bytes % SECTOR_BYTES != 0 {
        return Err(Errno::INVAL);
    }
    if flags & !FUA != 0 {
        return Err(Errno::INVAL);
    }
    let data_bytes = match op {
        op::READ | op::WRITE if len_bytes > 0 => len_bytes,
        op::DISCARD | op::WRITE_ZEROES if len_bytes > 0 => 0,
        op::FLUSH if len_bytes == 0 => 0,
        _ => return Err(Errno::INVAL),
    };
    let mut sum_bytes = 0_u64;
    for segment in segments {
        segment.address.checked_add(segment.len_bytes).ok_or(Errno::INVAL)?;
        sum_bytes = sum_bytes.checked_add(segment.len_bytes).ok_or(Errno::INVAL)?;
        if segment.len_bytes == 0 {
            return Err(Errno::INVAL);
        }
    }
    if sum_bytes != data_bytes {
        return Err(Errno::INVAL);
    }
    let with_data = || Segments::new(peer, segments.iter().copied());
    Ok(match op {
        op::READ => Action::Read(with_data()),
        op::WRITE => Action::Write(with_data()),
        op::FLUSH => Action::Flush,
        op::DISCARD => Action::Discard,
        _ => Action::WriteZeroes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: Submission = Submission {
        tag: 7,
        offset_bytes: 4096,
        len_bytes: 1024,
        op: op::WRITE,
        flags: FUA,
        segments: 2,
        reserved: 0,
    };

    fn halves() -> Vec<RemoteSegment> {
        let half = |address| RemoteSegment { address, len_bytes: 512 };
        vec![half(0x1000), half(0x9000)]
    }

    fn parsed(submission: Submission, segments: &[RemoteSegment]) -> Result<Action, Errno> {
        parse(&submission, segments.as_bytes(), Peer::this())
    }

    #[test]
    fn good_requests_are_taken() {
        assert!(matches!(parsed(GOOD, &halves()), Ok(Action::Write(_))));
        let read = Submission { op: op::READ, flags: 0, ..GOOD };
        assert!(matches!(parsed(read, &halves()), Ok(Action::Read(_))));
        let bare = Submission { segments: 0, ..GOOD };
        let discard = Submission { op: op::DISCARD, ..bare };
        assert!(matches!(parsed(discard, &[]), Ok(Action::Discard)));
        let zeroes = Submission { op: op::WRITE_ZEROES, ..bare };
        assert!(matches!(parsed(zeroes, &[]), Ok(Action::WriteZeroes)));
        let flush = Submission { op: op::FLUSH, offset_bytes: 0, len_bytes: 0, flags: 0, ..bare };
        assert!(matches!(parsed(flush, &[]), Ok(Action::Flush)));
    }

    #[test]
    fn requests_that_make_no_sense_are_refused() {
        let whole = halves();
        let bad = [
            Submission { op: 5, ..GOOD },
            Submission { op: 255, ..GOOD },
            Submission { flags: 2, ..GOOD },
            Submission { segments: 1, ..GOOD },
            Submission { segments: 3, ..GOOD },
            Submission { segments: u16::MAX, ..GOOD },
            Submission { reserved: 1, ..GOOD },
            Submission { len_bytes: 512, ..GOOD },
            Submission { len_bytes: 0, ..GOOD },
            Submission { len_bytes: 1025, ..GOOD },
            Submission { offset_bytes: 1, ..GOOD },
            Submission { offset_bytes: u64::MAX - 511, ..GOOD },
            Submission { op: op::DISCARD, ..GOOD },
            Submission { op: op::FLUSH, ..GOOD },
        ];
        for submission in bad {
            assert_eq!(parsed(submission, &whole).unwrap_err(), Errno::INVAL, "{submission:?}");
        }
        let segment = |address, len_bytes| RemoteSegment { address, len_bytes };
        for segments in [
            [segment(0x1000, 1024), segment(0x9000, 0)],
            [segment(0x1000, u64::MAX), segment(0x9000, 1025)],
            [segment(u64::MAX, 512), segment(0x9000, 512)],
        ] {
            assert_eq!(parsed(GOOD, &segments).unwrap_err(), Errno::INVAL, "{segments:?}");
        }
        assert_eq!(parse(&GOOD, &whole.as_bytes()[1..], Peer::this()).unwrap_err(), Errno::INVAL);
    }

    /// Whatever the bytes, accepted requests are consistent.
    #[test]
    fn random_packets_are_refused_or_add_up() {
        let mut random = 0x1234_5678_9abc_def1_u64;
        let mut next = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random
        };
        let mut taken = 0;
        for _ in 0..200_000 {
            let count = next() % 4;
            let segments: Vec<RemoteSegment> = (0..count)
                .map(|_| RemoteSegment {
                    address: next() >> (next() % 64),
                    len_bytes: if next() % 8 == 0 { next() } else { (next() % 3) * 512 },
                })
                .collect();
            let submission = Submission {
                tag: next(),
                offset_bytes: if next() % 8 == 0 { next() } else { (next() % 64) * 512 },
                len_bytes: if next() % 8 == 0 { next() } else { (next() % 4) * 512 },
                op: (next() % 6) as u8,
                flags: (next() % 3) as u8,
                segments: if next() % 8 == 0 { next() as u16 } else { count as u16 },
                reserved: u32::from(next() % 16 == 0),
            };
            let Ok(action) = parsed(submission, &segments) else {
                continue;
            };
            taken += 1;
            let sum: u64 = segments.iter().map(|segment| segment.len_bytes).sum();
            let moves_data = matches!(action, Action::Read(_) | Action::Write(_));
            assert_eq!(sum, if moves_data { submission.len_bytes } else { 0 });
            assert!(
                submission.offset_bytes.is_multiple_of(512)
                    && submission.len_bytes.is_multiple_of(512)
            );
        }
        assert!(taken > 1000, "{taken}");
    }
}
