//! The interface of all targets, which map pieces of a device.

mod arguments;
pub mod delay;
pub mod flakey;
pub mod linear;
pub mod log_writes;
mod lower;
pub mod mirror;
pub mod striped;
mod types;
pub mod zero;

use std::sync::Arc;

use ashlar_block::{
    Bio, BioResult, Disk, Extents, Gateway, IoFuture, Limits, LocalFuture, Op, Runtime, Sector,
    Sectors, Status,
};
use thiserror::Error;

use crate::snapshot::{Changes, Origins};

pub use arguments::{Arguments, TargetError};
pub use delay::Delay;
pub use flakey::Flakey;
pub use linear::Linear;
pub use log_writes::LogWrites;
pub use lower::Lower;
pub use mirror::Mirror;
pub use striped::Striped;
pub(crate) use types::construct;
pub use types::type_names;
pub use zero::Zero;

/// The devices available to tables.
pub trait Devices: Send + Sync {
    /// The device that a table names `name`.
    fn find(&self, name: &str) -> Option<Gateway>;
}

/// The environment for constructing targets.
pub struct Context<'a> {
    /// Resolves the devices that the table names.
    pub devices: &'a dyn Devices,
    /// Time and tasks.
    pub runtime: Arc<dyn Runtime>,
    /// The devices with snapshots: the same instance for all tables that may use the same devices.
    pub origins: Arc<Origins>,
}

/// Why a message was refused (dmsetup's `message`).
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum MessageError {
    /// The target does not know this message.
    #[error("target {target} does not know the message '{message}'")]
    Unknown {
        /// The target's type.
        target: &'static str,
        /// The first word.
        message: String,
    },
    /// The message is known, but has invalid arguments.
    #[error("{0}")]
    Invalid(String),
}

/// The reply to a message.
pub type Reply<'a> = LocalFuture<'a, Result<String, MessageError>>;

/// A target for a piece of a device. The sectors of bios count from the start of the piece; those
/// of a flush are meaningless. A target matches every [`Op`] explicitly.
pub trait Target: Send + Sync + 'static {
    /// The type, as in a table line: `linear`.
    fn type_name(&self) -> &'static str;

    /// The arguments after the type, which would construct this target again (`dmsetup table`).
    fn arguments(&self) -> String;

    /// The text after the type in `dmsetup status`; empty for most targets.
    fn status(&self) -> String {
        String::new()
    }

    /// No bio crosses a multiple of this, counted from the start of the piece; zero for no limit.
    fn max_io_len(&self) -> Sectors {
        Sectors::ZERO
    }

    /// The same for discards and write-zeroes, which carry no data.
    fn max_range_len(&self) -> Sectors {
        self.max_io_len()
    }

    /// Narrows `limits`, initially unlimited, to those of this target and the devices below it. If
    /// [`Limits::max_hw_discard`] ends as zero, the device does not support discards.
    fn stack_limits(&self, limits: &mut Limits);

    /// Calls `seen` with each device below.
    fn iterate_devices(&self, seen: &mut dyn FnMut(&Gateway));

    /// How many copies of the range a read can name, as
    /// [`BlockDevice::copies`](ashlar_block::BlockDevice::copies) counts them. A target that says
    /// more than 1 passes a read's copy on to the device with the data.
    fn copies(&self, _at: Sector, _len: Sectors) -> u16 {
        1
    }

    /// What is known of a range of the piece without reading it; see
    /// [`BlockDevice::extents`](ashlar_block::BlockDevice::extents).
    ///
    /// # Errors
    /// A device below failed: nothing is known.
    fn extents(&self, at: Sector, len: Sectors) -> LocalFuture<'_, Result<Extents, Status>> {
        Box::pin(std::future::ready(Ok(Extents::data(at, len))))
    }

    /// Where a snapshot may differ from its origin, if the target is a snapshot.
    fn changes(&self) -> Option<Changes> {
        None
    }

    /// Maps and submits `bio`.
    fn submit(&self, bio: Bio) -> IoFuture<'_>;

    /// Whether all data written here is lost, and all I/O fails accordingly. Such a target is also
    /// flushed before a suspension, but an error is ignored.
    fn is_lost(&self) -> bool {
        false
    }

    /// Calls `seen` with each lower device and the remapped bio, for trace points: nothing is
    /// submitted. Targets with other I/O than the given bios need not report it.
    fn remaps(&self, _bio: &Bio, _seen: &mut dyn FnMut(&Disk, &Bio)) {}

    /// Called when a read or write given to [`Self::submit`] failed at `sector`, for error counters.
    fn failed(&self, _op: Op, _sector: Sector, _status: Status) {}

    /// Called when the device was suspended, or after [`Self::resuming`] if another target of the
    /// table could not start: no I/O is in flight, and none arrives.
    fn suspended(&self) -> LocalFuture<'_, BioResult> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Called before the first I/O, and before the first one after a suspension. If it succeeds,
    /// [`Self::resumed`] follows, or, if another target of the table could not start,
    /// [`Self::suspended`]: so it must not do anything irreversible.
    fn resuming(&self) -> LocalFuture<'_, BioResult> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Called when all targets of the table could start: I/O comes next.
    fn resumed(&self) -> LocalFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Handles a message; returns the reply.
    ///
    /// # Errors
    /// See [`MessageError`].
    fn message<'a>(&'a self, words: &'a [&'a str]) -> Reply<'a> {
        let message = words.first().copied().unwrap_or_default().to_owned();
        let target = self.type_name();
        Box::pin(std::future::ready(Err(MessageError::Unknown { target, message })))
    }
}

/// The parameters for constructing a target.
pub struct TargetParameters<'a> {
    /// Length of the piece.
    pub len: Sectors,
    /// The text after the type in the line.
    pub args: Arguments<'a>,
    /// The available devices, and the runtime.
    pub context: &'a Context<'a>,
}

/// A target that table lines can construct.
pub(crate) trait TableTarget: Target + Sized {
    /// The type, as in a table line.
    const NAME: &'static str;

    /// Constructs the target.
    async fn construct(parameters: TargetParameters<'_>) -> Result<Self, TargetError>;
}
