//! Whether another host uses an array, where no lock keeps that host away from the members ([`Disk::is_shared`]).
//!
//! Superblocks have no owner. But an array that is being written says active, and while it has such members it
//! renews its superblocks every [`RENEWAL`]. So an active array whose superblocks stay the same for
//! [`PATIENCE`] is one whose host has died. One that is clean may start on several hosts: whichever writes first
//! raises the event count, and the others notice that before they write
//! (see [`superblocks`](crate::membership::superblocks)).
//!
//! This keeps mistakes from becoming losses. It does not fence the other host: one that stalls for longer and then continues may
//! write until its next renewal.
//!
//! [`Disk::is_shared`]: ashlar_block::Disk::is_shared

use std::sync::Arc;
use std::time::Duration;

use ashlar_block::Runtime;
use futures_util::future::join_all;
use tracing::warn;

use super::error::AssembleError;
use super::newest;
use crate::probe::{Candidate, probe};

/// How often an active array on shared devices renews its superblocks.
pub(crate) const RENEWAL: Duration = Duration::from_secs(2);
/// How long superblocks of an active array must stay the same until its host counts as dead.
const PATIENCE: Duration = Duration::from_secs(8);

/// Waits, if an array is active and has shared members, until it is known whether another host is writing it. To be called before it
/// [starts](crate::Array::start) to be written.
///
/// # Errors
/// [`AssembleError::UsedElsewhere`].
pub async fn wait_for_others(
    candidates: &[Candidate],
    runtime: &Arc<dyn Runtime>,
) -> Result<(), AssembleError> {
    if newest(candidates).is_none_or(|candidate| candidate.sb.is_clean()) {
        return Ok(());
    }
    let shared = candidates.iter().filter(|candidate| candidate.gateway.disk().is_shared());
    let shared: Vec<&Candidate> = shared.collect();
    let Some(first) = shared.first() else { return Ok(()) };
    let seconds = PATIENCE.as_secs();
    warn!(
        member = first.path,
        seconds, "not stopped cleanly, and other hosts can use it: waiting to see whether one does"
    );
    runtime.sleep(PATIENCE).await;
    let later = shared.iter().map(|candidate| probe(&candidate.gateway));
    for (candidate, later) in shared.iter().zip(join_all(later).await) {
        // An error concerns the assembly, which reads it, too.
        if let Ok(Some(later)) = later
            && (later.events, later.utime) != (candidate.sb.events, candidate.sb.utime)
        {
            return Err(AssembleError::UsedElsewhere(candidate.path.clone()));
        }
    }
    Ok(())
}
