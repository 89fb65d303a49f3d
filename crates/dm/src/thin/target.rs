//! `thin POOL DEVICE [ORIGIN]`: a device of a pool, read-only.
//!
//! Reads are only split where the data is not contiguous, not at every data block as in the kernel.

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
use crate::text::QuotedArgument;

/// Maximum of parts of one bio in flight.
const WINDOW: usize = 128;

/// See the module text.
pub struct Thin {
    pool: Arc<ThinPool>,
    id: u32,
    /// The root of its mappings.
    root: u64,
    len: Sectors,
    origin: Option<(String, Gateway)>,
}

/// The mapping at a block of the device.
#[derive(Clone, Copy)]
struct Run {
    /// Its data block, if it is mapped.
    data_block: Option<u64>,
    /// Number of blocks from it on that are also unmapped, or have consecutive data blocks.
    len: u64,
}

impl ThinPool {
    /// Device `id` as the target of a piece of `len` sectors. Unmapped blocks read as zeroes.
    ///
    /// # Errors
    /// There is no such device, or the metadata cannot be read or is damaged.
    pub async fn volume(self: &Arc<Self>, id: u32, len: Sectors) -> Result<Thin, ThinError> {
        if self.details(id).await?.is_none() {
            return Err(self.no_device(id));
        }
        let root = self.root(id).await?;
        Ok(Thin { pool: Arc::clone(self), id, root, len, origin: None })
    }
}

impl Thin {
    /// Reads unmapped blocks from `origin`, which tables name `name`: an external origin. Beyond
    /// its end, they read as zeroes.
    #[must_use]
    pub fn with_origin(self, name: impl Into<String>, origin: Gateway) -> Self {
        Self { origin: Some((name.into(), origin)), ..self }
    }

    /// Length of the piece.
    pub fn len(&self) -> Sectors {
        self.len
    }

    /// Whether the piece is empty.
    pub fn is_empty(&self) -> bool {
        self.len.is_zero()
    }

    fn data_block(&self) -> Sectors {
        self.pool.superblock().data_block
    }

    /// The descent to the first block of `bio`, and the function to apply at its end.
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

    /// The length of the start of `bio` that a run from its first block covers.
    fn covered(&self, bio: &Bio, run: Run) -> Sectors {
        let size = self.data_block().0;
        bio.len.min(Sectors(run.len * size - bio.sector.0 % size))
    }

    /// Reads the part in one run.
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

    /// The run of the whole read, if its mapping is cached and the read is in one run.
    fn read_known(&self, bio: &Bio) -> Option<Result<Run, Status>> {
        let (mut descent, take) = self.lookup(bio);
        match self.pool.store.try_find(&mut descent, take) {
            Ok(Some(run)) => (self.covered(bio, run) == bio.len).then_some(Ok(run)),
            Ok(None) => None,
            Err(error) => Some(Err(self.failed_lookup(&error))),
        }
    }

    /// Reads one run after the other, several at a time. As in the gateway: started reads are
    /// waited for, and after an error no more are started.
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
        let origin = self.origin.iter().map(|(name, _)| format!(" {}", QuotedArgument(name)));
        format!("{} {}{}", QuotedArgument(&self.pool.name), self.id, origin.collect::<String>())
    }

    fn iterate_devices(&self, seen: &mut dyn FnMut(&Gateway)) {
        seen(&self.pool.data);
        self.origin.iter().for_each(|(_, origin)| seen(origin));
    }

    fn stack_limits(&self, limits: &mut Limits) {
        limits.stack(self.pool.data.disk().limits(), Sector::ZERO);
        if let Some((_, origin)) = &self.origin {
            limits.stack(origin.disk().limits(), Sector::ZERO);
        }
        // Boundaries of the data device are meaningless for reordered blocks.
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
            // Nothing is written, so no data is volatile.
            Op::Flush => IoFuture::ready(Ok(())),
        }
    }
}
