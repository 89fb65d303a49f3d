//! `snapshot-origin DEVICE`: a device that has snapshots, or may get some. Writes go through its [`Origin`]; reads pass.

use std::sync::Arc;

use ashlar_block::{
    Bio, Extents, Gateway, IoFuture, Limits, LocalFuture, Op, Sector, Sectors, Status,
};

use super::origin::Origin;
use crate::target::{TableTarget, Target, TargetError, TargetParameters};
use crate::text::QuotedArgument;

/// See the module text.
pub(crate) struct OriginTarget {
    name: String,
    origin: Arc<Origin>,
}

impl TableTarget for OriginTarget {
    const NAME: &'static str = "snapshot-origin";

    async fn construct(mut parameters: TargetParameters<'_>) -> Result<Self, TargetError> {
        let name = parameters.args.word("the origin")?.to_owned();
        parameters.args.end()?;
        let device = parameters.context.devices.find(&name);
        let device = device.ok_or_else(|| TargetError::NoDevice(name.clone()))?;
        let (size, start) = (device.capacity(), Sector::ZERO);
        if size < parameters.len {
            return Err(TargetError::TooSmall { name, size, start, len: parameters.len });
        }
        let origin = parameters.context.origins.of(&device);
        Ok(Self { name, origin })
    }
}

impl Target for OriginTarget {
    fn type_name(&self) -> &'static str {
        Self::NAME
    }

    fn arguments(&self) -> String {
        QuotedArgument(&self.name).to_string()
    }

    fn iterate_devices(&self, seen: &mut dyn FnMut(&Gateway)) {
        seen(&self.origin.device);
    }

    fn stack_limits(&self, limits: &mut Limits) {
        limits.stack(self.origin.device.disk().limits(), Sector::ZERO);
        // As in the kernel: a discard would copy unneeded data to a device with little room.
        limits.max_hw_discard = Sectors::ZERO;
        limits.max_write_zeroes = Sectors::ZERO;
    }

    fn copies(&self, at: Sector, len: Sectors) -> u16 {
        self.origin.device.copies(at, len)
    }

    fn extents(&self, at: Sector, len: Sectors) -> LocalFuture<'_, Result<Extents, Status>> {
        Box::pin(self.origin.device.extents(at, len))
    }

    fn submit(&self, bio: Bio) -> IoFuture<'_> {
        match bio.op {
            Op::Read | Op::Flush => self.origin.device.submit(bio),
            Op::Write | Op::WriteZeroes => self.origin.submit(bio),
            Op::Discard => IoFuture::failed(Status::NotSupported),
        }
    }
}
