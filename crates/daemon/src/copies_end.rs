//! Merges and moves that run while their volumes are served: records the finished ones in the metadata of their groups.

use std::rc::Rc;
use std::time::{Duration, Instant};

use ashlar_commands::lvm::archive;
use ashlar_stack::incremental::Turn;
use ashlar_stack::turn::NoTurn;
use ashlar_stack::volume_groups::{MergeIdentity, MovingState, ServedMerge, ServedMove};

use crate::groups::apply;
use crate::service::Service;

/// How often to check for finished ones.
const INTERVAL: Duration = Duration::from_secs(1);
/// The same while extents move: a move may have many pieces, copied one at a time.
const BETWEEN_PIECES: Duration = Duration::from_millis(20);

/// Records ends until the daemon is about to end.
pub(crate) async fn record_ends(service: Rc<Service>) {
    loop {
        // The daemon's shutdown waits for a running commit.
        let mut turn = match service.turns.take().await {
            Ok(turn) => turn,
            Err(NoTurn::Busy) => continue,
            Err(NoTurn::Ending | NoTurn::NotServed) => return,
        };
        let (merging, moving) = (turn.merging(), turn.moving());
        let merges = merging.iter().filter_map(|it| Some((it.name(), it.left?)));
        let moves = moving.iter().map(|it| (it.full_name(), it.total - it.done));
        service.speeds.borrow_mut().note(merges.chain(moves).collect(), Instant::now());
        for ServedMerge { merged, copying, .. } in
            merging.into_iter().filter(ServedMerge::has_ended)
        {
            let MergeIdentity { group, origin, snapshot, .. } = &merged;
            match end(&service, &mut turn, &merged).await {
                Ok(()) => tracing::info!(
                    "the merge of {group}/{snapshot} into {group}/{origin} has ended: the snapshot is removed"
                ),
                Err(why) => {
                    turn.was_told(&copying);
                    tracing::warn!(
                        "the merge of {group}/{snapshot} into {group}/{origin} has ended, but the snapshot could not be removed: \
                         {why}; once the daemon has stopped, this removes it: {}",
                        command(&service, &merged)
                    );
                }
            }
        }
        turn.hide_put_off();
        let interval = if moving.is_empty() { INTERVAL } else { BETWEEN_PIECES };
        for moving in moving.iter().filter(|it| it.state == MovingState::Copied) {
            // A paused move records nothing: otherwise it would continue with the next piece.
            if moving.copying.is_paused().await {
                continue;
            }
            let (name, source) = (moving.full_name(), &moving.source);
            match advance(&service, &mut turn, moving).await {
                Ok(()) => tracing::info!("{name}: a piece of {source} has moved"),
                Err(why) => {
                    turn.was_told(&moving.copying);
                    tracing::warn!(
                        "{name}: a piece of {source} was copied, but could not be moved: {why}; restart the daemon to continue \
                         the move, or cancel it with ashlar lvm pvmove --abort"
                    );
                }
            }
        }
        drop(turn);
        service.machine.runtime().sleep(interval).await;
    }
}

/// Records that a piece of a move counts at its new place.
async fn advance(service: &Service, turn: &mut Turn, moving: &ServedMove) -> Result<(), String> {
    let change = turn.prepare_advance(moving)?;
    let applied = apply(&*service.machine, turn, change, (&archive::command(), true)).await?;
    applied.unsure.map_or(Ok(()), Err)
}

/// Removes a merged snapshot, and archives the metadata as the commands do.
async fn end(service: &Service, turn: &mut Turn, merged: &MergeIdentity) -> Result<(), String> {
    let change = turn.prepare_end(merged)?;
    let applied = apply(&*service.machine, turn, change, (&archive::command(), true)).await?;
    applied.unsure.map_or(Ok(()), Err)
}

/// The command that finishes a merge without a daemon.
fn command(service: &Service, MergeIdentity { group, snapshot, .. }: &MergeIdentity) -> String {
    let devices = service.stack.devices.all();
    let disks = devices.iter().filter(|device| device.kind.is_disk());
    let disks: Vec<&str> = disks.map(|disk| disk.path.as_str()).collect();
    let disks = disks.join(",");
    format!("ashlar lvm lvconvert --devices {disks} --merge {group}/{snapshot}")
}
