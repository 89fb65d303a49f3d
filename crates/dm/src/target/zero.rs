//! `zero`: reads return zeroes, writes are discarded.

use ashlar_block::{Bio, Features, Gateway, IoFuture, Limits, Op, Sector, Sectors};

use super::{TableTarget, Target, TargetError, TargetParameters};

/// See the module text.
pub struct Zero;

impl TableTarget for Zero {
    const NAME: &'static str = "zero";

    async fn construct(parameters: TargetParameters<'_>) -> Result<Self, TargetError> {
        parameters.args.end()?;
        Ok(Self)
    }
}

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
        features: Features::DISCARD_ZEROES,
        ..Limits::default()
    }
}

impl Target for Zero {
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

    fn submit(&self, bio: Bio) -> IoFuture<'_> {
        match bio.op {
            Op::Read => bio.segments.iter().for_each(ashlar_block::Segment::fill_zero),
            Op::Write | Op::Flush | Op::Discard | Op::WriteZeroes => {}
        }
        IoFuture::ready(Ok(()))
    }
}
