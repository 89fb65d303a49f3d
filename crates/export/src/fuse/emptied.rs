//! A volume that was opened with O_TRUNC: its client believes that it is an empty file.
//!
//! A block device ignores O_TRUNC, and its clients know that, since they see a block device. A volume of the mount is a regular file. Of such
//! a file `cp`, `tar` and `qemu-img` do not write what is zero: they go past it. Were O_TRUNC ignored, that would keep what
//! the volume had, and nothing would tell. So the volume keeps its size and all that it has, as a block device does, but what an
//! opener goes past becomes zero before it writes behind it: [`Emptied`] knows how far that is. A client that writes nothing changes nothing.
//!
//! Its writes wait for each other, since those that are in flight together might be on both sides of a gap.

use std::sync::Arc;

use ashlar_block::bio::Flags;
use ashlar_block::buffer::Segment;
use ashlar_block::byte_volume::{ByteVolume, OpenVolume};
use ashlar_block::status::Status;
use futures_util::lock::Mutex;

use super::work::{JobReply, Work};

/// An opener's volume that was emptied for it.
pub(crate) struct Emptied {
    volume: Arc<OpenVolume>,
    /// Up to here the volume has what this opener wrote, or zeroes.
    end: Mutex<u64>,
}

impl Emptied {
    pub(crate) fn new(volume: &Arc<OpenVolume>) -> Self {
        Self { volume: Arc::clone(volume), end: Mutex::new(0) }
    }

    /// The volume.
    pub(crate) fn volume(&self) -> &ByteVolume {
        &self.volume
    }

    /// Does `work`, after what lies before it.
    ///
    /// # Errors
    /// The status of the first operation that failed.
    pub(crate) async fn run(
        &self,
        unique: u64,
        work: Work,
        payload: Option<Segment>,
    ) -> Result<JobReply, Status> {
        let Some(range) = work.changes() else {
            return work.run(unique, &self.volume, payload).await;
        };
        let mut end = self.end.lock().await;
        self.zero(&mut end, range.start).await?;
        let done = work.run(unique, &self.volume, payload).await?;
        *end = range.end.max(*end);
        Ok(done)
    }

    /// Zeroes the rest of the volume: the client makes the file as large as that.
    ///
    /// # Errors
    /// The status of the operation.
    pub(crate) async fn extend(&self) -> Result<(), Status> {
        self.zero(&mut *self.end.lock().await, self.volume.size_bytes()).await
    }

    /// Zeroes what lies between `end` and `start`.
    async fn zero(&self, end: &mut u64, start: u64) -> Result<(), Status> {
        if *end < start {
            self.volume.write_zeroes(*end, start - *end, Flags::empty()).await?;
            *end = start;
        }
        Ok(())
    }
}
