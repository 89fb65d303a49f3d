//! Operations on a volume.

use std::ops::Range;

use ashlar_block::bio::Flags;
use ashlar_block::buffer::{Buffer, Segment};
use ashlar_block::byte_volume::{ByteVolume, Holes};
use ashlar_block::clock;
use ashlar_block::rate_limit::RateLimit;
use ashlar_block::status::Status;

use super::reply;

/// An operation on a volume. Offsets and lengths are in bytes.
#[derive(Debug, PartialEq, Clone, Copy)]
pub(crate) enum Work {
    /// `has_passed`: the volume's rate limits have let it pass.
    Read {
        offset: u64,
        len: usize,
        has_passed: bool,
    },
    /// `len` is the part of the payload that is inside the volume.
    Write {
        offset: u64,
        len: usize,
        flags: Flags,
    },
    Flush,
    /// Release the range's space; see [`Holes`].
    PunchHole {
        offset: u64,
        len: u64,
        holes: Holes,
    },
    /// Make the range read as zeroes.
    Zero {
        offset: u64,
        len: u64,
        flags: Flags,
    },
}

/// A reply in two parts.
pub struct JobReply {
    /// The reply, or its header.
    pub head: Vec<u8>,
    /// The data that follow the header.
    pub data: Option<Buffer>,
}

impl Work {
    /// The bytes that it changes.
    pub(crate) fn changes(&self) -> Option<Range<u64>> {
        match *self {
            Self::Read { .. } | Self::Flush => None,
            Self::Write { offset, len, .. } => Some(offset..offset + len as u64),
            Self::PunchHole { offset, len, .. } | Self::Zero { offset, len, .. } => {
                Some(offset..offset + len)
            }
        }
    }

    pub(crate) async fn run(
        self,
        unique: u64,
        volume: &ByteVolume,
        payload: Option<Segment>,
    ) -> Result<JobReply, Status> {
        let head = match self {
            Self::Read { offset, len, has_passed } => {
                let mut buffer = Buffer::alloc(len);
                match has_passed {
                    true => volume.read_passed(offset, [buffer.whole()]).await?,
                    false => volume.read(offset, [buffer.whole()]).await?,
                }
                return Ok(JobReply {
                    head: reply::header(unique, len).to_vec(),
                    data: Some(buffer),
                });
            }
            Self::Write { offset, len, flags } => {
                let payload = payload.filter(|p| p.len() >= len).ok_or(Status::Invalid)?;
                volume.write(offset, [payload.slice(0..len)], flags).await?;
                reply::written(unique, len as u32)
            }
            Self::Flush => {
                volume.flush().await?;
                reply::ok(unique)
            }
            Self::PunchHole { offset, len, holes } => {
                let punched = volume.punch_hole(offset, len, holes).await;
                if punched == Err(Status::NotSupported) {
                    explain(volume, holes);
                }
                punched?;
                reply::ok(unique)
            }
            Self::Zero { offset, len, flags } => {
                volume.write_zeroes(offset, len, flags).await?;
                reply::ok(unique)
            }
        };
        Ok(JobReply { head, data: None })
    }
}

/// Logs once an hour why holes are refused: a file system on a loop device asks for very many.
fn explain(volume: &ByteVolume, holes: Holes) {
    static LIMIT: RateLimit = RateLimit::of(1, 3600 * 1_000_000_000);
    let disk = volume.gateway().disk();
    if LIMIT.admit(clock::now_ns()).is_none() {
        return;
    }
    let volume = disk.name();
    match holes {
        _ if disk.max_discard().is_zero() && !disk.limits().max_hw_discard.is_zero() => {
            tracing::info!(volume, "refused to punch a hole: discard_max_bytes is 0");
        }
        Holes::Fast if disk.limits().takes_zeroes(Flags::NOFALLBACK) => tracing::info!(
            volume,
            "refused to punch a hole: not all disks below zero it faster than they write. With \
             `ashlar serve --holes=zero` they zero it nevertheless, with `ashlar serve --holes=discard` they discard it"
        ),
        Holes::Fast | Holes::Zero => tracing::info!(
            volume,
            "refused to punch a hole: not all disks below zero it without a write. With \
             `ashlar serve --holes=discard` they discard it"
        ),
        Holes::Discard => tracing::info!(volume, "refused to punch a hole: no disk below discards"),
    }
}
