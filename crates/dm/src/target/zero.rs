//! Targets without a device below them.
//!
//! - `zero`: reads return zeroes, writes are discarded.
//! - `error`: all I/O fails. For holes in a device, as in a volume group with a missing disk.

use ashlar_block::{
    Bio, ExtentState, Extents, Features, Gateway, IoFuture, Limits, LocalFuture, Op, Sector,
    Sectors, Segment, Status,
};

use super::{TableTarget, Target, TargetError, TargetParameters};

/// See the module text: `zero` if `ZERO`, else `error`.
pub struct Nothing<const ZERO: bool>;

/// The target `zero`.
pub type Zero = Nothing<true>;
/// The target `error`.
pub type Error = Nothing<false>;

/// The limits of a target without a device below it.
pub(super) fn anything() -> Limits {
    /// The kernel's `UINT_MAX >> SECTOR_SHIFT`.
    const MAX: Sectors = Sectors(u32::MAX as u64 >> 9);
    Limits {
        dma_alignment_bytes: 1,
        max_hw_sectors: Sectors::MAX,
        max_segments: u32::MAX,
        max_hw_discard: MAX,
        max_write_zeroes: MAX,
        features: Features::DISCARD_ZEROES | Features::FAST_ZERO,
        ..Limits::default()
    }
}

impl<const ZERO: bool> TableTarget for Nothing<ZERO> {
    const NAME: &'static str = if ZERO { "zero" } else { "error" };

    async fn construct(parameters: TargetParameters<'_>) -> Result<Self, TargetError> {
        parameters.args.end()?;
        Ok(Self)
    }
}

impl<const ZERO: bool> Target for Nothing<ZERO> {
    fn type_name(&self) -> &'static str {
        Self::NAME
    }

    fn arguments(&self) -> String {
        String::new()
    }

    fn iterate_devices(&self, _seen: &mut dyn FnMut(&Gateway)) {}

    fn stack_limits(&self, limits: &mut Limits) {
        limits.stack(&anything(), Sector::ZERO);
    }

    fn extents(&self, at: Sector, len: Sectors) -> LocalFuture<'_, Result<Extents, Status>> {
        let state = if ZERO { ExtentState::all() } else { ExtentState::empty() };
        Box::pin(std::future::ready(Ok(Extents::of(at, len, state))))
    }

    fn submit(&self, bio: Bio) -> IoFuture<'_> {
        match bio.op {
            // No write was ever acknowledged by `error`, and the other pieces can be flushed.
            Op::Flush => {}
            Op::Read | Op::Write | Op::Discard | Op::WriteZeroes if !ZERO => {
                return IoFuture::failed(Status::Io);
            }
            Op::Read => bio.segments.iter().for_each(Segment::fill_zero),
            Op::Write | Op::Discard | Op::WriteZeroes => {}
        }
        IoFuture::ready(Ok(()))
    }
}
