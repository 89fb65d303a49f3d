//! `linear DEVICE OFFSET`: the piece is an area of another device.

use ashlar_block::{
    Bio, Disk, Extents, Gateway, IoFuture, Limits, LocalFuture, Sector, Sectors, Status,
};

use super::{Lower, TableTarget, Target, TargetError, TargetParameters};

/// See the module text.
pub struct Linear {
    lower: Lower,
}

impl Linear {
    /// Maps the piece to `lower`.
    pub fn new(lower: Lower) -> Self {
        Self { lower }
    }
}

impl TableTarget for Linear {
    const NAME: &'static str = "linear";

    async fn construct(mut parameters: TargetParameters<'_>) -> Result<Self, TargetError> {
        let lower = Lower::take(&mut parameters.args, parameters.context, parameters.len)?;
        parameters.args.end()?;
        Ok(Self { lower })
    }
}

impl Target for Linear {
    fn type_name(&self) -> &'static str {
        Self::NAME
    }

    fn arguments(&self) -> String {
        self.lower.to_string()
    }

    fn iterate_devices(&self, seen: &mut dyn FnMut(&Gateway)) {
        seen(self.lower.gateway());
    }

    fn stack_limits(&self, limits: &mut Limits) {
        self.lower.stack(limits);
    }

    fn copies(&self, at: Sector, len: Sectors) -> u16 {
        self.lower.copies(at, len)
    }

    fn extents(&self, at: Sector, len: Sectors) -> LocalFuture<'_, Result<Extents, Status>> {
        Box::pin(self.lower.extents(at, len))
    }

    fn submit(&self, bio: Bio) -> IoFuture<'_> {
        self.lower.submit(bio)
    }

    fn remaps(&self, bio: &Bio, seen: &mut dyn FnMut(&Disk, &Bio)) {
        self.lower.remaps(bio, seen);
    }
}
