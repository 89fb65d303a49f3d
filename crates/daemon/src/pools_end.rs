//! Pools at the daemon's shutdown: the daemon abandons a pool whose disks have failed, so that it can stop everything else.
//!
//! A client, a command or an export that waits for such a pool waits until the daemon ends the pool's worker. Data
//! written since the last flush is lost then, as in a power cut; a pool that OpenZFS has suspended would lose it in any
//! case, so the daemon does not wait for it.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use ashlar_client::stop::Stop;
use ashlar_engine::sleep;
use ashlar_stack::assemble::Stack;
use ashlar_stack::pools::ServedPool;
use ashlar_zfs::client::CallError;
use futures_util::future::{Either, join_all, select};

/// How often a pool's state is read.
const INTERVAL: Duration = Duration::from_millis(500);
/// How long a pool may continue writing after the end is forced.
const GRACE: Duration = Duration::from_secs(5);

/// Abandons pools once the shutdown has begun: a suspended pool at once, any other some time after the shutdown was `forced`.
pub(crate) async fn give_up(stack: Arc<Stack>, begun: Stop, forced: Stop) {
    begun.await;
    join_all(stack.pools.all().iter().map(|served| watch(served, forced.clone()))).await;
}

async fn watch(served: &Arc<ServedPool>, forced: Stop) {
    let by_force = pin!(async {
        forced.await;
        sleep(GRACE).await;
    });
    let why = match select(pin!(is_suspended(served)), by_force).await {
        Either::Left((false, _)) => return,
        Either::Left((true, _)) => "its disks have failed, and OpenZFS has suspended it",
        Either::Right(_) if served.pool.worker().end().is_some() => return,
        Either::Right(_) => "it did not end in time when the end was forced",
    };
    let pool = served.pool.name();
    tracing::error!(pool, why, "pool abandoned: data written since the last flush is lost");
    served.pool.worker().give_up(why);
}

/// Waits until a pool is suspended (true), or its worker has ended (false).
async fn is_suspended(served: &ServedPool) -> bool {
    loop {
        match served.pool.is_suspended().await {
            Ok(true) => return true,
            Err(CallError::Dead(_)) => return false,
            // The worker has no pool any more.
            Ok(false) | Err(CallError::Refused(_) | CallError::NotUnderstood(_)) => {
                sleep(INTERVAL).await;
            }
        }
    }
}
