//! `error`: all I/O fails. For holes in a device, as in a volume group with a missing disk.

use ashlar_block::{Bio, Gateway, IoFuture, Limits, Op, Sector, Status};

use super::zero::anything;
use super::{TableTarget, Target, TargetError, TargetParameters};

/// See the module text.
pub struct Error;

impl TableTarget for Error {
    const NAME: &'static str = "error";

    async fn construct(parameters: TargetParameters<'_>) -> Result<Self, TargetError> {
        parameters.args.end()?;
        Ok(Self)
    }
}

impl Target for Error {
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
            // No write was ever acknowledged here, and the other pieces can be flushed.
            Op::Flush => IoFuture::ready(Ok(())),
            Op::Read | Op::Write | Op::Discard | Op::WriteZeroes => IoFuture::failed(Status::Io),
        }
    }
}
