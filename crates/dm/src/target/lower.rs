//! An area of a lower device.

use std::fmt;

use ashlar_block::{
    Bio, Buffer, Disk, Extents, Gateway, IoFuture, Limits, Op, Sector, Sectors, Status,
};

use super::{Arguments, Context, TargetError};
use crate::text::QuotedArgument;

/// A lower device by its name in the table, and the start of the area.
#[derive(Clone)]
pub struct Lower {
    name: String,
    gateway: Gateway,
    start: Sector,
}

impl Lower {
    /// The area of `len` sectors from `start` on, on the device `name`.
    ///
    /// # Errors
    /// There is no such device, it is too small, or start or length are not whole blocks of it.
    pub fn find(
        context: &Context<'_>,
        name: &str,
        start: Sector,
        len: Sectors,
    ) -> Result<Self, TargetError> {
        let gateway =
            context.devices.find(name).ok_or_else(|| TargetError::NoDevice(name.to_owned()))?;
        let size = gateway.capacity();
        if start.checked_add(len).is_none_or(|end| end > size.as_end()) {
            return Err(TargetError::TooSmall { name: name.to_owned(), size, start, len });
        }
        let lower = Self { name: name.to_owned(), gateway, start };
        lower.check_aligned("the offset", start.0)?;
        lower.check_aligned("the length", len.0)?;
        Ok(lower)
    }

    /// The same, with device and offset from the next two arguments.
    ///
    /// # Errors
    /// An argument is missing or wrong; see [`Self::find`].
    pub fn take(
        args: &mut Arguments<'_>,
        context: &Context<'_>,
        len: Sectors,
    ) -> Result<Self, TargetError> {
        let name = args.word("the device")?;
        let start = Sector(args.number("the offset")?);
        Self::find(context, name, start, len)
    }

    /// Checks that `sectors` are whole logical blocks of the device.
    ///
    /// # Errors
    /// [`TargetError::Unaligned`].
    pub fn check_aligned(&self, what: &'static str, sectors: u64) -> Result<(), TargetError> {
        let block = self.gateway.disk().limits().logical_block();
        if sectors.is_multiple_of(block.0) {
            return Ok(());
        }
        Err(TargetError::Unaligned { what, sectors, block, name: self.name.clone() })
    }

    /// The device's name in the table.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Start of the area.
    pub fn start(&self) -> Sector {
        self.start
    }

    /// The whole device.
    pub fn gateway(&self) -> &Gateway {
        &self.gateway
    }

    /// Narrows `limits` to those of the device.
    pub fn stack(&self, limits: &mut Limits) {
        limits.stack(self.gateway.disk().limits(), self.start);
    }

    /// Narrows `limits` to those of several devices, over which I/O is spread: discards need all of them.
    pub(super) fn stack_all<'a>(all: impl Iterator<Item = &'a Self>, limits: &mut Limits) {
        let mut all_discard = true;
        for lower in all {
            lower.stack(limits);
            all_discard &= !lower.gateway.disk().limits().max_hw_discard.is_zero();
        }
        if !all_discard {
            limits.max_hw_discard = Sectors::ZERO;
        }
    }

    /// Remaps `bio`, whose sectors count from the start of the area, to the device.
    #[inline]
    fn mapped(&self, mut bio: Bio) -> Bio {
        match bio.op {
            Op::Flush => {}
            Op::Read | Op::Write | Op::Discard | Op::WriteZeroes => {
                bio.sector += Sectors(self.start.0);
            }
        }
        bio
    }

    /// The copies of a range, counted from the start of the area, that a read can name.
    pub fn copies(&self, at: Sector, len: Sectors) -> u16 {
        self.gateway.copies(at + Sectors(self.start.0), len)
    }

    /// What is known of a range of the area without reading it.
    ///
    /// # Errors
    /// The device's.
    pub async fn extents(&self, at: Sector, len: Sectors) -> Result<Extents, Status> {
        let from = at + Sectors(self.start.0);
        let len = len.min(self.gateway.capacity().as_end() - from);
        Ok(self.gateway.extents(from, len).await?.moved_to(at))
    }

    /// Submits `bio`, whose sectors count from the start of the area.
    #[inline]
    pub fn submit(&self, bio: Bio) -> IoFuture<'_> {
        self.gateway.submit(self.mapped(bio))
    }

    /// Reads sectors, counted from the start of the area.
    ///
    /// # Errors
    /// The device's.
    pub async fn read(&self, at: Sector, len: Sectors) -> Result<Buffer, Status> {
        self.gateway.read(at + Sectors(self.start.0), len).await
    }

    /// Calls `seen` with the bio that [`Self::submit`] would submit.
    pub fn remaps(&self, bio: &Bio, seen: &mut dyn FnMut(&Disk, &Bio)) {
        seen(self.gateway.disk(), &self.mapped(bio.clone()));
    }
}

/// Device and offset, as in arguments.
impl fmt::Display for Lower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", QuotedArgument(&self.name), self.start)
    }
}
