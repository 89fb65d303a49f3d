//! Requests that wait: those on a volume, and attribute stores that may take a while.

use std::sync::Arc;

use ashlar_block::LocalFuture;
use ashlar_block::buffer::Segment;
use ashlar_block::byte_volume::{ByteVolume, OpenVolume};
use ashlar_block::limiter::Direction;
use ashlar_block::status::Status;
use rustix::io::Errno;

use super::emptied::Emptied;
use super::reply;
pub use super::work::JobReply;
use super::work::Work;

/// A request that waits.
pub struct Job {
    /// The request's identifier, for the reply.
    pub(crate) unique: u64,
    pub(crate) task: Task,
}

/// What a [`Job`] does.
pub(crate) enum Task {
    /// Work on a volume; the range was checked against the volume's size.
    Volume(Arc<OpenVolume>, Work),
    /// The same for a volume that was emptied for its opener.
    Emptied(Arc<Emptied>, Work),
    /// Makes an emptied volume as large as it is; the reply is for success.
    Extend(Arc<Emptied>, Vec<u8>),
    /// A store of an attribute; the number is the length of the text, bytes.
    Store(u32, LocalFuture<'static, Result<(), Errno>>),
}

impl Job {
    /// A job on a volume.
    pub(crate) fn on(volume: &Arc<OpenVolume>, unique: u64, work: Work) -> Self {
        Self { unique, task: Task::Volume(Arc::clone(volume), work) }
    }

    /// Whether [`Self::run`] needs the request's payload.
    pub fn wants_payload(&self) -> bool {
        matches!(
            self.task,
            Task::Volume(_, Work::Write { .. }) | Task::Emptied(_, Work::Write { .. })
        )
    }

    /// Whether its volume has rate limits now: then it may wait for them.
    pub(crate) fn is_limited(&self) -> bool {
        let volume: &ByteVolume = match &self.task {
            Task::Volume(volume, _) => volume,
            Task::Emptied(emptied, _) | Task::Extend(emptied, _) => emptied.volume(),
            Task::Store(..) => return false,
        };
        volume.limiter().is_on()
    }

    /// Waits until the rate limits of its volume let it pass, if it is a read, and returns then how many bytes of memory it
    /// needs to run. Others wait while they run.
    pub(crate) async fn pass(&mut self) -> Option<usize> {
        let Task::Volume(volume, Work::Read { len, has_passed, .. }) = &mut self.task else {
            return None;
        };
        volume.limiter().pass(Direction::Read, *len as u64).await;
        *has_passed = true;
        Some(*len)
    }

    /// Length of the data that came with it, bytes.
    pub(crate) fn payload_bytes(&self) -> usize {
        if self.wants_payload() { self.data_bytes() } else { 0 }
    }

    /// Length of the data that it holds while it runs, bytes.
    pub(crate) fn data_bytes(&self) -> usize {
        match self.task {
            Task::Volume(_, work) | Task::Emptied(_, work) => match work {
                Work::Read { len, .. } | Work::Write { len, .. } => len,
                Work::Flush | Work::PunchHole { .. } | Work::Zero { .. } => 0,
            },
            Task::Extend(..) | Task::Store(..) => 0,
        }
    }

    /// Runs the job. `payload` is the data of a write.
    pub async fn run(self, payload: Option<Segment>) -> JobReply {
        let Self { unique, task } = self;
        let done = match task {
            Task::Volume(volume, work) => work.run(unique, &volume, payload).await,
            Task::Emptied(emptied, work) => emptied.run(unique, work, payload).await,
            Task::Extend(emptied, head) => {
                emptied.extend().await.map(|()| JobReply { head, data: None })
            }
            Task::Store(size, stored) => {
                let head = match stored.await {
                    Ok(()) => reply::written(unique, size),
                    Err(errno) => reply::error(unique, errno),
                };
                return JobReply { head, data: None };
            }
        };
        match done {
            Ok(done) => done,
            Err(status) => {
                // A hole that is refused is a normal answer; other errors are logged.
                if status != Status::NotSupported {
                    tracing::debug!(unique, %status, "request failed");
                }
                let errno = Errno::from_raw_os_error(status.errno());
                JobReply { head: reply::error(unique, errno), data: None }
            }
        }
    }
}
