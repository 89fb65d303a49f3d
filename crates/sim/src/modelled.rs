//! A device with the timing of another: a driver in front of any device, which ends no request before a [`Model`] says
//! so.
//!
//! A request is passed down at once, as one I/O, and ends when both the real I/O and the model's have ended. So the
//! device below may be slower than the model, never faster. The queue in front has its own settings and counters: it
//! merges and issues what the modelled device would see, whatever lies below. It may have sectors that cannot be read; they
//! can be written, but stay unreadable.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ashlar_block::bio::{Bio, CopyNumber, Flags, Op, Segments};
use ashlar_block::disk::Disk;
use ashlar_block::gateway::Gateway;
use ashlar_block::limits::{Features, Limits};
use ashlar_block::queue::{Driver, Queue};
use ashlar_block::request::Request;
use ashlar_block::runtime::Runtime;
use ashlar_block::status::{BioResult, Status};

use crate::model::{Clockwork, Model, Unreadable};

/// A device with the timing of a model.
pub type ModelledDevice = Queue<ModelledDriver>;

/// The model's state, shared by all threads.
struct Clock {
    clockwork: Clockwork,
    /// The state of the generator that varies the times: the same at every start.
    chance: u64,
}

/// See the module text.
pub struct ModelledDriver {
    lower: Gateway,
    runtime: Arc<dyn Runtime>,
    clock: Mutex<Clock>,
    unreadable: Vec<Unreadable>,
}

/// `lower` with the timing of `model`, and with sectors that cannot be read. Name, size and limits are those of `lower`; in addition, a model whose flushes
/// take time has a write cache, and a model with a head is a rotational disk.
///
/// Do not use `lower` directly afterwards: its soft limits are set to its hard ones.
pub fn modelled(
    lower: Gateway,
    model: Model,
    unreadable: Vec<Unreadable>,
    runtime: Arc<dyn Runtime>,
) -> ModelledDevice {
    let below = lower.disk();
    let disk = Disk::new(below.name(), below.capacity(), limits(below.limits(), &model));
    disk.set_read_only(below.is_read_only());
    // A request that the queue in front issues must arrive below in one piece and without waiting.
    let widest = [
        below.set_nr_requests(MAX_REQUESTS),
        below.set_max_sectors_kb(below.limits().max_hw_sectors.0 / 2),
    ];
    for error in widest.into_iter().filter_map(Result::err) {
        tracing::warn!(disk = below.name(), %error, "below a device model");
    }
    let clock = Clock { clockwork: Clockwork::new(model, below.capacity()), chance: 1 };
    let clock = Mutex::new(clock);
    ModelledDevice::new(disk, ModelledDriver { lower, runtime, clock, unreadable })
}

/// The largest allowed `nr_requests`.
const MAX_REQUESTS: u64 = 65_536;

fn limits(below: &Limits, model: &Model) -> Limits {
    let mut limits = *below;
    if model.flush_ns > 0 && !limits.features.contains(Features::WRITE_CACHE) {
        limits.features |= Features::WRITE_CACHE | Features::FUA;
    }
    if model.seek.is_some() {
        limits.features |= Features::ROTATIONAL;
        limits.features -= Features::FAST_ZERO;
    }
    limits
}

impl Clock {
    /// A number below `n` (xorshift).
    fn below(chance: &mut u64, n: u64) -> u64 {
        *chance ^= *chance << 13;
        *chance ^= *chance >> 7;
        *chance ^= *chance << 17;
        *chance % n.max(1)
    }

    fn end_ns(&mut self, now_ns: u64, rq: &Request) -> u64 {
        let Self { clockwork, chance } = self;
        clockwork.end_ns(now_ns, rq.op(), rq.sector(), rq.len(), |n| Self::below(chance, n))
    }
}

impl Driver for ModelledDriver {
    fn queue_rq(&self, rq: Request) {
        let now_ns = self.runtime.now_ns();
        let end_ns = self.clock.lock().unwrap_or_else(PoisonError::into_inner).end_ns(now_ns, &rq);
        let (lower, runtime) = (self.lower.clone(), Arc::clone(&self.runtime));
        let is_lost = |lost: &Unreadable| lost.is_in(rq.sector(), rq.len());
        let fails = rq.op() == Op::Read && self.unreadable.iter().any(is_lost);
        self.runtime.spawn(Box::pin(async move {
            let result = if fails { Err(Status::Medium) } else { execute(&lower, &rq).await };
            let left_ns = end_ns.saturating_sub(runtime.now_ns());
            if left_ns > 0 {
                runtime.sleep(Duration::from_nanos(left_ns)).await;
            }
            rq.complete(result);
        }));
    }

    /// The other process does not see the model.
    fn lend(&self) -> io::Result<OwnedFd> {
        self.lower.lend()
    }

    /// Nothing else uses the device below.
    fn release(&self) {
        self.lower.release();
    }
}

/// Submits a request to the device below. Only a discard may have several ranges.
async fn execute(lower: &Gateway, rq: &Request) -> BioResult {
    let bio = |sector, len, segments| Bio {
        op: rq.op(),
        flags: (rq.flags() - Flags::NOWAIT) | Flags::NOMERGE,
        sector,
        len,
        segments,
        ioprio: rq.ioprio(),
        copy: CopyNumber::ANY,
    };
    if rq.op() != Op::Discard {
        let segments: Segments = rq.segments().cloned().collect();
        return lower.submit(bio(rq.sector(), rq.len(), segments)).await;
    }
    let mut result: BioResult = Ok(());
    let started: Vec<_> =
        rq.ranges().map(|(at, len)| lower.submit(bio(at, len, Segments::new()))).collect();
    for range in started {
        result = result.and(range.await);
    }
    result
}
