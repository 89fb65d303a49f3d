//! A device in memory, with which nothing waits.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use ashlar_block::{Bio, BlockDevice, Disk, IoFuture, Op, Status};

/// A device that begins with some bytes, and has zeroes behind them, which writes do not change.
pub(crate) struct Memory {
    disk: Disk,
    data: Mutex<Vec<u8>>,
    is_writable: bool,
}

impl Memory {
    /// A device that refuses all but reads.
    pub(crate) fn for_reading(disk: Disk, data: Vec<u8>) -> Arc<Self> {
        Arc::new(Self { disk, data: Mutex::new(data), is_writable: false })
    }

    /// A device that can be written.
    pub(crate) fn writable(disk: Disk, data: Vec<u8>) -> Arc<Self> {
        Arc::new(Self { disk, data: Mutex::new(data), is_writable: true })
    }

    /// Whether its bytes are now these.
    pub(crate) fn holds(&self, bytes: &[u8]) -> bool {
        *self.data.lock().unwrap_or_else(PoisonError::into_inner) == bytes
    }

    /// Where its bytes differ from these.
    pub(crate) fn differing(&self, bytes: &[u8]) -> Vec<usize> {
        let data = self.data.lock().unwrap_or_else(PoisonError::into_inner);
        (0..).zip(data.iter().zip(bytes)).filter(|(_, (a, b))| a != b).map(|(at, _)| at).collect()
    }

    fn serve(&self, bio: &Bio) {
        let mut data = self.data.lock().unwrap_or_else(PoisonError::into_inner);
        let at = usize::try_from(bio.sector.bytes()).unwrap_or(usize::MAX).min(data.len());
        let mut rest = &mut data[at..];
        if matches!(bio.op, Op::Discard | Op::WriteZeroes) {
            let len = rest.len().min(bio.len.bytes() as usize);
            rest[..len].fill(0);
        }
        for segment in &bio.segments {
            let len = rest.len().min(segment.len());
            let (part, behind) = std::mem::take(&mut rest).split_at_mut(len);
            if bio.op == Op::Read {
                segment.fill_zero();
                segment.copy_from(part);
            } else {
                segment.copy_to(part);
            }
            rest = behind;
        }
    }
}

impl BlockDevice for Memory {
    fn disk(&self) -> &Disk {
        &self.disk
    }

    fn submit_bio(&self, bio: Bio) -> IoFuture<'_> {
        if !self.is_writable && bio.op != Op::Read {
            return IoFuture::failed(Status::ReadOnly);
        }
        self.serve(&bio);
        drop(bio);
        IoFuture::ready(Ok(()))
    }
}

/// The result of a future that never waits for anything.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..10_000_000 {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
    }
    panic!("this never ends");
}
