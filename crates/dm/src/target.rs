//! What maps a piece of a device: the interface of all targets.

use std::sync::Arc;

use ashlar_block::{Bio, BioResult, Gateway, IoFuture, Limits, LocalFuture, Runtime, Sectors};
use thiserror::Error;

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

    /// Narrows `limits`, those of the whole device, to what this target and the devices below it can do.
    fn stack_limits(&self, limits: &mut Limits);

    /// Maps and submits `bio`.
    fn submit(&self, bio: Bio) -> IoFuture<'_>;

    /// Called when the device was suspended: no I/O is in flight, none comes.
    fn suspended(&self) -> LocalFuture<'_, BioResult> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Called before the first I/O, and before the first one after a suspension.
    fn resuming(&self) -> LocalFuture<'_, BioResult> {
        Box::pin(std::future::ready(Ok(())))
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
