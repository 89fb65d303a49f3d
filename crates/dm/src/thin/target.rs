//! `thin POOL DEVICE [ORIGIN]`: a device of a pool, to be read.
//!
//! Reads are not cut at data blocks, as the kernel's are, but only where the data is not adjacent.

use std::sync::Arc;

use ashlar_block::{
    Bio, BioResult, Gateway, IoFuture, Limits, Op, Sector, Sectors, Segment, Status, rate_limited,
};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::error::ThinError;
use super::node::{Node, Tree};
use super::pool::ThinPool;
use super::store::{Descent, End};
use crate::target::Target;
use crate::text::Quoted;

/// Parts of one bio in flight at a time.
const WINDOW: usize = 128;

/// See the module text.
pub struct Thin {
    pool: Arc<ThinPool>,
    id: u32,
    /// Of its mappings.
    root: u64,
    len: Sectors,
    origin: Option<(String, Gateway)>,
}

/// What is at a block of the device.
#[derive(Clone, Copy)]
struct Run {
    /// Its data block, if it has one.
    data_block: Option<u64>,
    /// How many blocks from it on are the same, or have the next data blocks.
    len: u64,
}

impl Thin {
    pub(super) fn new(pool: Arc<ThinPool>, id: u32, root: u64, len: Sectors) -> Self {
        Self { pool, id, root, len, origin: None }
    }

    /// What has no data block is read from `origin`, which tables call `name`: an external origin.
    /// Behind the end of that it reads as zeroes.
    #[must_use]
    pub fn with_origin(self, name: impl Into<String>, origin: Gateway) -> Self {
        Self { origin: Some((name.into(), origin)), ..self }
    }

    /// How long the piece is.
    pub fn len(&self) -> Sectors {
        self.len
    }

    /// Whether there is nothing of it.
    pub fn is_empty(&self) -> bool {
        self.len.is_zero()
    }

    fn data_block(&self) -> Sectors {
        self.pool.superblock().data_block
    }

    /// The way to the first block of `bio`, and what to look for at its end.
    fn lookup(&self, bio: &Bio) -> (Descent, impl Fn(&Node, End) -> Run + use<>) {
        let size = self.data_block().0;
        let (first, last) = (bio.sector.0 / size, (bio.end().0 - 1) / size);
        let wanted = last - first + 1;
        let run = move |node: &Node, end| match end {
            End::At(index) => Run {
                data_block: node.values().get(index).map(|value| value >> 24),
                len: node.run(index, wanted),
            },
            End::Gap(next) => {
                Run { data_block: None, len: next.map_or(wanted, |next| wanted.min(next - first)) }
            }
        };
        (Descent::new(Tree::Mappings, self.root, first), run)
    }

    /// How much of the front of `bio` a run that begins at its first block covers.
    fn covered(&self, bio: &Bio, run: Run) -> Sectors {
        let size = self.data_block().0;
        bio.len.min(Sectors(run.len * size - bio.sector.0 % size))
    }

    /// Reads what lies in one run.
    fn read_run(&self, mut bio: Bio, run: Run) -> IoFuture<'_> {
        if let Some(block) = run.data_block {
            let size = self.data_block().0;
            bio.sector = Sector(block * size + bio.sector.0 % size);
            return self.pool.data.submit(bio);
        }
        match &self.origin {
            Some((_, origin)) if bio.end() <= origin.capacity().as_end() => origin.submit(bio),
            Some((_, origin)) if bio.sector < origin.capacity().as_end() => {
                let front = bio.split_front(origin.capacity().as_end() - bio.sector);
                bio.segments.iter().for_each(Segment::fill_zero);
                origin.submit(front)
            }
            Some(_) | None => {
                bio.segments.iter().for_each(Segment::fill_zero);
                IoFuture::ready(Ok(()))
            }
        }
    }

    /// The whole read at once, if its mapping is known and all of it lies in one run.
    fn read_known(&self, bio: &Bio) -> Option<Result<Run, Status>> {
        let (mut descent, take) = self.lookup(bio);
        match self.pool.store.try_find(&mut descent, take) {
            Ok(Some(run)) => (self.covered(bio, run) == bio.len).then_some(Ok(run)),
            Ok(None) => None,
            Err(error) => Some(Err(self.failed_lookup(&error))),
        }
    }

    /// Reads run after run, several at a time. As with the gateway: what was started is waited for, and
    /// after an error nothing more is.
    async fn read(&self, bio: Bio) -> BioResult {
        let mut in_flight = FuturesUnordered::new();
        let (mut rest, mut result) = (Some(bio), Ok(()));
        while let Some(mut bio) = rest.take().filter(|_| result.is_ok()) {
            let (descent, take) = self.lookup(&bio);
            match self.pool.store.find(descent, take).await {
                Ok(run) => {
                    let len = self.covered(&bio, run);
                    if len < bio.len {
                        let front = bio.split_front(len);
                        rest = Some(bio);
                        bio = front;
                    }
                    in_flight.push(self.read_run(bio, run));
                }
                Err(error) => result = Err(self.failed_lookup(&error)),
            }
            if in_flight.len() >= WINDOW
                && let Some(done) = in_flight.next().await
            {
                result = result.and(done);
            }
        }
        while let Some(done) = in_flight.next().await {
            result = result.and(done);
        }
        result
    }

    fn failed_lookup(&self, why: &ThinError) -> Status {
        rate_limited!(error, pool = self.pool.name, device = self.id, "a read failed: {why}");
        match why {
            ThinError::Read { status, .. } => *status,
            ThinError::Superblock { .. }
            | ThinError::TooSmall { .. }
            | ThinError::Node { .. }
            | ThinError::NoDevice { .. } => Status::Io,
        }
    }
}

impl Target for Thin {
    fn type_name(&self) -> &'static str {
        "thin"
    }

    fn arguments(&self) -> String {
        let origin = self.origin.iter().map(|(name, _)| format!(" {}", Quoted(name)));
        format!("{} {}{}", Quoted(&self.pool.name), self.id, origin.collect::<String>())
    }

    fn stack_limits(&self, limits: &mut Limits) {
        limits.stack(self.pool.data.disk().limits(), Sector::ZERO);
        if let Some((_, origin)) = &self.origin {
            limits.stack(origin.disk().limits(), Sector::ZERO);
        }
        // Boundaries of the data device mean nothing where blocks are in another order.
        limits.chunk_sectors = Sectors::ZERO;
        limits.max_hw_discard = Sectors::ZERO;
        limits.max_write_zeroes = Sectors::ZERO;
    }

    fn submit(&self, bio: Bio) -> IoFuture<'_> {
        match bio.op {
            Op::Read => match self.read_known(&bio) {
                Some(Ok(run)) => self.read_run(bio, run),
                Some(Err(status)) => IoFuture::failed(status),
                None => IoFuture::boxed(self.read(bio)),
            },
            Op::Write | Op::Discard | Op::WriteZeroes => IoFuture::failed(Status::ReadOnly),
            // Nothing is written, so nothing can be volatile.
            Op::Flush => IoFuture::ready(Ok(())),
        }
    }
}
