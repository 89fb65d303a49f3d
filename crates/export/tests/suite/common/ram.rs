//! A RAM disk that records the bios it receives.

use std::sync::{Arc, Mutex};

use ashlar_block::{
    Bio, BlockDevice, ByteVolume, Disk, Features, Flags, Gateway, IoFuture, Limits, Op, Sector,
    Sectors, Status,
};

/// One recorded bio.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RecordedBio {
    /// The operation.
    pub(crate) op: Op,
    /// Its flags.
    pub(crate) flags: Flags,
    /// First sector.
    pub(crate) sector: Sector,
    /// Its length.
    pub(crate) len: Sectors,
}

/// The disk.
pub(crate) struct Ram {
    disk: Disk,
    data: Mutex<Vec<u8>>,
    seen: Mutex<Vec<RecordedBio>>,
    broken: Mutex<Option<Status>>,
}

impl Ram {
    /// A disk of `bytes` zeroes with a write cache, discard and write-zeroes.
    pub(crate) fn new(name: &str, bytes: usize) -> Arc<Self> {
        let limits = Limits {
            max_hw_discard: Sectors(1 << 20),
            discard_granularity_bytes: 4096,
            max_write_zeroes: Sectors(1 << 20),
            features: Features::WRITE_CACHE | Features::FUA | Features::FAST_ZERO,
            ..Limits::default()
        };
        Self::with_limits(name, bytes, limits)
    }

    /// A disk with these limits.
    pub(crate) fn with_limits(name: &str, bytes: usize, limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            disk: Disk::new(name, Sectors::from_bytes_floor(bytes as u64), limits),
            data: Mutex::new(vec![0; bytes]),
            seen: Mutex::default(),
            broken: Mutex::default(),
        })
    }

    /// Byte-granular access to it.
    pub(crate) fn volume(self: &Arc<Self>) -> Arc<ByteVolume> {
        Arc::new(ByteVolume::new(Gateway::new(Arc::clone(self) as Arc<dyn BlockDevice>)))
    }

    /// Takes the bios recorded so far.
    pub(crate) fn take_seen(&self) -> Vec<RecordedBio> {
        std::mem::take(&mut self.seen.lock().expect("no panic while locked"))
    }

    /// The bytes `[at, at + len)`.
    pub(crate) fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        self.data.lock().expect("no panic while locked")[at..at + len].to_vec()
    }

    /// Makes every I/O fail from now on.
    pub(crate) fn break_with(&self, status: Status) {
        *self.broken.lock().expect("no panic while locked") = Some(status);
    }

    fn serve(&self, bio: &Bio) -> Result<(), Status> {
        let (op, flags, sector, len) = (bio.op, bio.flags, bio.sector, bio.len);
        self.seen.lock().expect("no panic while locked").push(RecordedBio {
            op,
            flags,
            sector,
            len,
        });
        if let Some(status) = *self.broken.lock().expect("no panic while locked") {
            return Err(status);
        }
        let mut data = self.data.lock().expect("no panic while locked");
        let mut at = sector.bytes() as usize;
        match op {
            Op::Flush => {}
            // The contract leaves discarded ranges undefined: make them differ from zero and from before.
            Op::Discard => data[at..at + len.bytes() as usize].fill(0xdd),
            Op::WriteZeroes => data[at..at + len.bytes() as usize].fill(0),
            Op::Read | Op::Write => {
                for segment in &bio.segments {
                    let part = &mut data[at..at + segment.len()];
                    if op == Op::Read {
                        segment.copy_from(part)
                    } else {
                        segment.copy_to(part)
                    }
                    at += segment.len();
                }
            }
        }
        Ok(())
    }
}

impl BlockDevice for Ram {
    fn disk(&self) -> &Disk {
        &self.disk
    }

    fn submit_bio(&self, bio: Bio) -> IoFuture<'_> {
        let result = self.serve(&bio);
        drop(bio);
        IoFuture::ready(result)
    }
}
