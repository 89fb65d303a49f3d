//! One change of a stack at a time.
//!
//! Whoever changes which arrays run, which disks are their members, what shape they have, or what a volume group is made of
//! holds the [`Turn`] of the stack, from its first check to its last write. What changes them takes the turn, so that a caller
//! without it does not compile: the changes of an [`ArrayView`](crate::view::ArrayView), a
//! [`Claim`](crate::devices::Claim), and all of the [`Collector`], which has the waiting arrays and the volume groups.
//!
//! Invariants: what a change has checked holds until its end, apart from failures of devices; after each change the registry says
//! of each disk which array has it ([`Collector::settle`]).
//!
//! Not under a turn are failures of members, which arrays record themselves, syncs and their speeds, and the datasets of pools:
//! each pool has a turn of its own.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use ashlar_block::Runtime;
use futures_util::future::{Either, select};
use futures_util::lock::{Mutex, MutexGuard, OwnedMutexGuard};
use thiserror::Error;

use crate::attributes::{AttributeError, Attributes};
use crate::canary::{Rule, broken};
use crate::incremental::Collector;

/// How long a change waits for the others.
const PATIENCE: Duration = Duration::from_secs(60);

/// Why a change cannot begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum NoTurn {
    /// No change begins any more.
    #[error("the daemon is shutting down")]
    Ending,
    /// Another one has not ended within a minute.
    #[error("another change is under way")]
    Busy,
    /// No daemon serves the stack.
    #[error("it is not served yet")]
    NotServed,
}

impl From<NoTurn> for AttributeError {
    fn from(why: NoTurn) -> Self {
        Self::Busy(why.to_string())
    }
}

/// Gives the turns of one stack.
pub struct Turns {
    collector: Arc<Mutex<Collector>>,
    attributes: Arc<Attributes>,
    /// Whether no change may begin any more.
    is_over: Box<dyn Fn() -> bool + Send + Sync>,
    runtime: Arc<dyn Runtime>,
}

impl Turns {
    /// The turns of the stack whose later members `collector` collects and whose attributes are `attributes`: from now on those
    /// can be written that change the stack. No change begins once `is_over` returns true.
    pub fn new(
        collector: Collector,
        attributes: &Arc<Attributes>,
        is_over: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Arc<Self> {
        let this = Arc::new(Self {
            runtime: Arc::clone(collector.runtime()),
            collector: Arc::new(Mutex::new(collector)),
            attributes: Arc::clone(attributes),
            is_over: Box::new(is_over),
        });
        attributes.turns().set(&this);
        this
    }

    /// Waits until no other change is under way.
    ///
    /// # Errors
    /// [`NoTurn::Ending`] or [`NoTurn::Busy`].
    pub async fn take(&self) -> Result<Turn, NoTurn> {
        let locked = Arc::clone(&self.collector).lock_owned();
        let collector = match select(locked, self.runtime.sleep(PATIENCE)).await {
            Either::Left((collector, _)) => collector,
            Either::Right(((), _)) => return Err(NoTurn::Busy),
        };
        if (self.is_over)() && !broken(Rule::EndComesLast) {
            return Err(NoTurn::Ending);
        }
        Ok(Turn { collector, attributes: Arc::clone(&self.attributes) })
    }

    /// Looks at waiting arrays and groups between two changes.
    pub async fn look(&self) -> impl Deref<Target = Collector> {
        struct Look<'a>(MutexGuard<'a, Collector>);
        impl Deref for Look<'_> {
            type Target = Collector;
            fn deref(&self) -> &Collector {
                &self.0
            }
        }
        Look(self.collector.lock().await)
    }
}

/// The right to change the stack: there is one at a time.
pub struct Turn {
    collector: OwnedMutexGuard<Collector>,
    attributes: Arc<Attributes>,
}

impl Deref for Turn {
    type Target = Collector;

    fn deref(&self) -> &Collector {
        &self.collector
    }
}

impl DerefMut for Turn {
    fn deref_mut(&mut self) -> &mut Collector {
        &mut self.collector
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !broken(Rule::RegistryIsSettled) {
            self.collector.settle();
        }
        self.attributes.release_old();
    }
}

/// Where the turns of a stack will come from, once it is served.
#[derive(Default)]
pub(crate) struct TurnSource(OnceLock<Weak<Turns>>);

impl TurnSource {
    fn set(&self, turns: &Arc<Turns>) {
        self.0.get_or_init(|| Arc::downgrade(turns));
    }

    /// See [`Turns::take`].
    ///
    /// # Errors
    /// [`NoTurn`].
    pub(crate) async fn take(&self) -> Result<Turn, NoTurn> {
        let turns = self.0.get().ok_or(NoTurn::NotServed)?;
        turns.upgrade().ok_or(NoTurn::Ending)?.take().await
    }
}
