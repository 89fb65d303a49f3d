//! One change of a stack at a time.
//!
//! Whoever changes which arrays run, which disks are their members, what shape they have, or what a volume group is made of
//! holds the [`Turn`] of the stack, from its first check to its last write. What changes them takes the turn, so that a caller
//! without it does not compile: the changes of an [`ArrayView`](crate::view::ArrayView), a
//! [`Claim`](crate::devices::Claim), and all of the [`Collector`](crate::incremental::Collector), which has the waiting arrays and the
//! volume groups. A turn is of any `T`, so that these may name it: the registry and the arrays are below the collector.
//!
//! Invariants: what a change has checked holds until its end, apart from failures of devices; after each change the registry says
//! of each disk which array has it ([`Settles`]).
//!
//! Not under a turn are failures of members, which arrays record themselves, syncs and their speeds, and the datasets of pools:
//! each pool has a turn of its own.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use ashlar_block::Runtime;
use futures_util::future::{Either, select};
use futures_util::lock::{Mutex, MutexGuard, OwnedMutexGuard};
use thiserror::Error;

use crate::canary::{Rule, broken};

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

/// What only one change at a time may use.
pub trait Settles: Send {
    /// Makes the registry agree with what has changed: at the end of each turn.
    fn settle(&self);
}

/// Gives the turns of one stack.
pub struct Turns<T> {
    value: Arc<Mutex<T>>,
    rules: Arc<Rules>,
}

/// What holds for all turns of a stack.
struct Rules {
    /// Called at the end of each turn, after what it changed was settled.
    after: Box<dyn Fn() + Send + Sync>,
    /// Whether no change may begin any more.
    is_over: Box<dyn Fn() -> bool + Send + Sync>,
    runtime: Arc<dyn Runtime>,
}

impl<T: Settles> Turns<T> {
    /// Turns of `value`. `after` is called at the end of each; no turn begins once `is_over` returns true.
    pub(crate) fn of(
        value: T,
        after: impl Fn() + Send + Sync + 'static,
        is_over: impl Fn() -> bool + Send + Sync + 'static,
        runtime: Arc<dyn Runtime>,
    ) -> Self {
        let rules = Rules { after: Box::new(after), is_over: Box::new(is_over), runtime };
        Self { value: Arc::new(Mutex::new(value)), rules: Arc::new(rules) }
    }

    /// Waits until no other change is under way.
    ///
    /// # Errors
    /// [`NoTurn::Ending`] or [`NoTurn::Busy`].
    pub async fn take(&self) -> Result<Turn<T>, NoTurn> {
        let locked = Arc::clone(&self.value).lock_owned();
        let value = match select(locked, self.rules.runtime.sleep(PATIENCE)).await {
            Either::Left((value, _)) => value,
            Either::Right(((), _)) => return Err(NoTurn::Busy),
        };
        if (self.rules.is_over)() && !broken(Rule::EndComesLast) {
            return Err(NoTurn::Ending);
        }
        Ok(Turn { value, rules: Arc::clone(&self.rules) })
    }

    /// Looks at the value between two changes.
    pub async fn look(&self) -> impl Deref<Target = T> {
        struct Look<'a, T>(MutexGuard<'a, T>);
        impl<T> Deref for Look<'_, T> {
            type Target = T;
            fn deref(&self) -> &T {
                &self.0
            }
        }
        Look(self.value.lock().await)
    }
}

/// The right to change the stack: there is one at a time.
pub struct Turn<T: Settles> {
    value: OwnedMutexGuard<T>,
    rules: Arc<Rules>,
}

impl<T: Settles> Deref for Turn<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: Settles> DerefMut for Turn<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T: Settles> Drop for Turn<T> {
    fn drop(&mut self) {
        if !broken(Rule::RegistryIsSettled) {
            self.value.settle();
        }
        (self.rules.after)();
    }
}
