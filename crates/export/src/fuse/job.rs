//! Requests on a volume: the part of the protocol that waits.

use std::sync::Arc;

use ashlar_block::bio::Flags;
use ashlar_block::buffer::{Buffer, Segment};
use ashlar_block::byte_volume::ByteVolume;
use ashlar_block::status::Status;
use rustix::io::Errno;

use super::reply;

/// A request on a volume, checked against its size.
pub struct Job {
    /// What the reply must carry.
    pub(crate) unique: u64,
    pub(crate) volume: Arc<ByteVolume>,
    pub(crate) work: Work,
}

/// What a [`Job`] does. Offsets and lengths are bytes.
#[derive(Debug, PartialEq, Clone, Copy)]
pub(crate) enum Work {
    Read {
        offset: u64,
        len: usize,
    },
    /// `len` is the part of the payload that is within the volume.
    Write {
        offset: u64,
        len: usize,
        flags: Flags,
    },
    Flush,
    /// Give the range's space back; it reads as zeroes.
    PunchHole {
        offset: u64,
        len: u64,
    },
    /// Make the range read as zeroes.
    Zero {
        offset: u64,
        len: u64,
        flags: Flags,
    },
}

/// A reply in two parts.
pub struct Done {
    /// The reply, or its header.
    pub head: Vec<u8>,
    /// The data behind the header.
    pub data: Option<Buffer>,
}

impl Job {
    /// Whether [`Self::run`] needs the request's payload.
    pub fn wants_payload(&self) -> bool {
        matches!(self.work, Work::Write { .. })
    }

    /// Does the work. `payload` is the data of a write.
    pub async fn run(self, payload: Option<Segment>) -> Done {
        let unique = self.unique;
        match self.work(payload).await {
            Ok(done) => done,
            Err(status) => {
                // A hole that cannot be punched is a normal answer; everything else is worth a line.
                if status != Status::NotSupported {
                    tracing::debug!(unique, %status, "request failed");
                }
                let errno = Errno::from_raw_os_error(status.errno());
                Done { head: reply::error(unique, errno), data: None }
            }
        }
    }

    async fn work(self, payload: Option<Segment>) -> Result<Done, Status> {
        let Self { unique, volume, work } = self;
        let head = match work {
            Work::Read { offset, len } => {
                let mut buffer = Buffer::alloc(len);
                volume.read(offset, [buffer.whole()]).await?;
                return Ok(Done { head: reply::header(unique, len).to_vec(), data: Some(buffer) });
            }
            Work::Write { offset, len, flags } => {
                let payload = payload.filter(|p| p.len() >= len).ok_or(Status::Invalid)?;
                volume.write(offset, [payload.slice(0..len)], flags).await?;
                reply::written(unique, len as u32)
            }
            Work::Flush => {
                volume.flush().await?;
                reply::ok(unique)
            }
            Work::PunchHole { offset, len } => {
                volume.punch_hole(offset, len).await?;
                reply::ok(unique)
            }
            Work::Zero { offset, len, flags } => {
                volume.write_zeroes(offset, len, flags).await?;
                reply::ok(unique)
            }
        };
        Ok(Done { head, data: None })
    }
}
