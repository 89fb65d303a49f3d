//! What maps a piece of a device: the interface of all targets.

mod arguments;
pub mod delay;
pub mod error;
pub mod flakey;
pub mod linear;
pub mod log_writes;
mod lower;
pub mod striped;
pub mod zero;

use std::sync::Arc;

use ashlar_block::{
    Bio, BioResult, Disk, Gateway, IoFuture, Limits, LocalFuture, Op, Runtime, Sector, Sectors,
    Status,
};
use thiserror::Error;

use crate::snapshot::{MergeTarget, OriginTarget, Origins, SnapshotTarget};

pub use arguments::{Arguments, TargetError};
pub use delay::Delay;
pub use flakey::Flakey;
pub use linear::Linear;
pub use log_writes::LogWrites;
pub use lower::Lower;
pub use striped::Striped;
pub use zero::Zero;

/// The devices that tables may name.
pub trait Devices: Send + Sync {
    /// The device that a table calls `name`.
    fn find(&self, name: &str) -> Option<Gateway>;
}

/// What targets are made with.
pub struct Context<'a> {
    /// Who knows the devices that the table names.
    pub devices: &'a dyn Devices,
    /// Time and tasks.
    pub runtime: Arc<dyn Runtime>,
    /// Which devices have snapshots: the same for all tables that may name the same devices.
    pub origins: Arc<Origins>,
}

/// Why a message was not taken (dmsetup's `message`).
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum MessageError {
    /// The target takes none, or not this one.
    #[error("target {target} does not know the message '{message}'")]
    Unknown {
        /// The target's type.
        target: &'static str,
        /// The first word.
        message: String,
    },
    /// It knows the message, but not so.
    #[error("{0}")]
    Invalid(String),
}

/// A piece of a device. Bios arrive with sectors counted from the start of the piece; those of a
/// flush carry none. A target matches every [`Op`](ashlar_block::Op) explicitly.
pub trait Target: Send + Sync + 'static {
    /// The type, as a table line has it: `linear`.
    fn type_name(&self) -> &'static str;

    /// The arguments behind the type, as they would make this target again (`dmsetup table`).
    fn arguments(&self) -> String;

    /// What `dmsetup status` prints behind the type; nothing for most.
    fn status(&self) -> String {
        String::new()
    }

    /// No bio crosses a multiple of this, counted from the start of the piece; zero for no such bound.
    fn max_io_len(&self) -> Sectors {
        Sectors::ZERO
    }

    /// The same for discards and write-zeroes, which carry no data.
    fn max_range_len(&self) -> Sectors {
        self.max_io_len()
    }

    /// Narrows `limits`, which allow anything at first, to what this target and the devices below it
    /// can do. Without discards ([`Limits::max_hw_discard`] zero in the end) the device has none.
    fn stack_limits(&self, limits: &mut Limits);

    /// Maps and submits `bio`.
    fn submit(&self, bio: Bio) -> IoFuture<'_>;

    /// Whether nothing that was written here will ever be read again, and all I/O says so. It is flushed
    /// before a suspension like all others, but that need not succeed.
    fn is_lost(&self) -> bool {
        false
    }

    /// Tells `seen` what `bio` comes to on which lower devices, for trace points: nothing is submitted.
    /// Targets that do other I/O than what they are given need not tell of it.
    fn remaps(&self, _bio: &Bio, _seen: &mut dyn FnMut(&Disk, &Bio)) {}

    /// A read or write that [`Self::submit`] was given for `sector` failed. For those who count.
    fn failed(&self, _op: Op, _sector: Sector, _status: Status) {}

    /// Called when the device was suspended, or after [`Self::resuming`] if another target of the table
    /// could not begin: no I/O is in flight, none comes.
    fn suspended(&self) -> LocalFuture<'_, BioResult> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Called before the first I/O, and before the first one after a suspension. If it succeeds
    /// [`Self::resumed`] follows, or, if another target of the table could not begin,
    /// [`Self::suspended`]: so what cannot be undone is not to be done here.
    fn resuming(&self) -> LocalFuture<'_, BioResult> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Called when all targets of the table could begin: I/O comes next.
    fn resumed(&self) -> LocalFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Takes a message; what it answers.
    ///
    /// # Errors
    /// See [`MessageError`].
    fn message<'a>(
        &'a self,
        words: &'a [&'a str],
    ) -> LocalFuture<'a, Result<String, MessageError>> {
        let message = words.first().copied().unwrap_or_default().to_owned();
        let target = self.type_name();
        Box::pin(std::future::ready(Err(MessageError::Unknown { target, message })))
    }
}

/// What a target is made from.
pub struct New<'a> {
    /// How long the piece is.
    pub len: Sectors,
    /// What the line says behind the type.
    pub args: Arguments<'a>,
    /// The devices it may name, and the runtime.
    pub context: &'a Context<'a>,
}

/// A target that table lines make.
pub(crate) trait Construct: Target + Sized {
    /// The type, as a table line has it.
    const NAME: &'static str;

    /// Makes the target.
    async fn construct(new: New<'_>) -> Result<Self, TargetError>;
}

type Made<'a> = LocalFuture<'a, Result<Box<dyn Target>, TargetError>>;
type Constructor = for<'a> fn(New<'a>) -> Made<'a>;

fn make<T: Construct>(new: New<'_>) -> Made<'_> {
    Box::pin(async move { Ok(Box::new(T::construct(new).await?) as Box<dyn Target>) })
}

/// Every type of target.
const TYPES: &[(&str, Constructor)] = &[
    (Delay::NAME, make::<Delay>),
    (error::Error::NAME, make::<error::Error>),
    (Flakey::NAME, make::<Flakey>),
    (Linear::NAME, make::<Linear>),
    (LogWrites::NAME, make::<LogWrites>),
    (MergeTarget::NAME, make::<MergeTarget>),
    (OriginTarget::NAME, make::<OriginTarget>),
    (SnapshotTarget::NAME, make::<SnapshotTarget>),
    (Striped::NAME, make::<Striped>),
    (Zero::NAME, make::<Zero>),
];

/// The types that table lines may name.
pub fn type_names() -> impl Iterator<Item = &'static str> {
    TYPES.iter().map(|(name, _)| *name)
}

/// Makes the target of a line, if there is such a type.
pub(crate) fn construct<'a>(kind: &str, new: New<'a>) -> Option<Made<'a>> {
    let (_, make) = TYPES.iter().find(|(name, _)| *name == kind)?;
    Some(make(new))
}
