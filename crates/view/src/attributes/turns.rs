//! Where writes that change the stack get their turns, and what ends arrays: both are there once the stack is served.

use std::sync::{Arc, OnceLock, Weak};

use ashlar_block::LocalFuture;
use ashlar_stack::incremental::{Turn, Turns};
use ashlar_stack::turn::NoTurn;

use super::AttributeError;

/// Where the turns of a stack will come from, once it is served. It does not keep the stack alive.
#[derive(Default)]
pub(crate) struct TurnSource(OnceLock<Weak<Turns>>);

impl TurnSource {
    /// Later calls have no effect.
    pub(super) fn set(&self, turns: &Arc<Turns>) {
        self.0.get_or_init(|| Arc::downgrade(turns));
    }

    /// See [`Turns::take`].
    ///
    /// # Errors
    /// [`NoTurn`].
    pub(super) async fn take(&self) -> Result<Turn, NoTurn> {
        let turns = self.0.get().ok_or(NoTurn::NotServed)?;
        turns.upgrade().ok_or(NoTurn::Ending)?.take().await
    }
}

/// What ends of an array that nothing uses, by the word that a user writes to its `array_state`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The array: its members are released (`clear`).
    Clear,
    /// The array: its members wait to be one again (`inactive`).
    Inactive,
    /// Its writes (`readonly`, or `read-auto`: until the next one).
    Writes(&'static str),
}

/// Ends the array of this name, which runs or waits, or its writes, if nothing uses it.
pub type Ender =
    dyn Fn(&str, End, Turn) -> LocalFuture<'static, Result<(), AttributeError>> + Send + Sync;

/// Set by the daemon, which knows the clients of the arrays.
#[derive(Default)]
pub(crate) struct EnderSource(OnceLock<Box<Ender>>);

impl EnderSource {
    /// Later calls have no effect.
    pub(super) fn set(&self, ender: Box<Ender>) {
        self.0.get_or_init(|| ender);
    }

    /// Ends the array called `name`, or its writes.
    ///
    /// # Errors
    /// The array is in use, or there is no function that ends arrays.
    pub(super) async fn end(&self, name: &str, how: End, turn: Turn) -> Result<(), AttributeError> {
        match self.0.get() {
            Some(ender) => ender(name, how, turn).await,
            None => Err(AttributeError::Busy(format!("{name} is not served yet"))),
        }
    }
}
