//! Snapshot merges that end while their volumes are served: updates their groups' metadata.

use std::rc::Rc;
use std::time::{Duration, Instant};

use ashlar_engine::sleep;
use ashlar_stack::incremental::Collector;
use ashlar_stack::volume_groups::{Applied, Change, Merged, Merging};

use crate::control::Service;
use crate::error::Error;
use crate::lvm::archive::{self, Archives};

/// How often the merges are checked.
const INTERVAL: Duration = Duration::from_secs(1);

/// Finishes merges until the daemon is about to end.
pub(crate) async fn end_merges(service: Rc<Service>) {
    loop {
        // Holds the collector's lock: nothing else changes the stack meanwhile, and the daemon's end waits for a
        // running commit.
        let mut collector = service.collector.lock().await;
        if service.ending.draining().is_stopped() {
            return;
        }
        let merging = collector.merging();
        service.merge_speeds.borrow_mut().note(&merging, Instant::now());
        for Merging { merged, .. } in merging.into_iter().filter(Merging::has_ended) {
            let Merged { group, origin, snapshot, .. } = &merged;
            match end(&mut collector, &merged).await {
                Ok(()) => tracing::info!(
                    "the merge of {group}/{snapshot} into {group}/{origin} has ended: the snapshot is removed"
                ),
                Err(why) => {
                    collector.was_told(&merged);
                    tracing::warn!(
                        "the merge of {group}/{snapshot} into {group}/{origin} has ended, but the snapshot could not be removed: \
                         {why}; once the daemon has stopped, this removes it: {}",
                        command(&service, &merged)
                    );
                }
            }
        }
        drop(collector);
        sleep(INTERVAL).await;
    }
}

/// Removes a merged snapshot, and archives the metadata as the commands do.
async fn end(collector: &mut Collector, merged: &Merged) -> Result<(), String> {
    let change = collector.prepare_end(merged)?;
    let applied = apply(collector, change, &archive::command(), true).await?;
    applied.unsure.map_or(Ok(()), Err)
}

/// Applies a planned change that `command` asked for, and archives the metadata before and after.
///
/// # Errors
/// The reason.
pub(crate) async fn apply(
    collector: &mut Collector,
    change: Change,
    command: &str,
    keep: bool,
) -> Result<Applied, String> {
    let text = |error: Error| error.into_parts().0;
    let archives = Archives::new(keep, command).map_err(text)?;
    archives.before(Some(&change.before)).map_err(text)?;
    let header = archive::header(format!("Write from {command}."));
    let applied = collector.apply(change, header).await?;
    for (pv, status) in &applied.stale {
        tracing::warn!("PV {pv} still has the old metadata: {status}");
    }
    for note in &applied.notes {
        tracing::error!("{note}");
    }
    if let Err(error) = archives.after(&applied.metadata) {
        tracing::warn!("{}", text(error));
    }
    Ok(applied)
}

/// The command that finishes a merge without a daemon.
fn command(service: &Service, Merged { group, snapshot, .. }: &Merged) -> String {
    let devices = service.stack.devices.all();
    let disks = devices.iter().filter(|device| device.kind.is_disk());
    let disks: Vec<&str> = disks.map(|disk| disk.path.as_str()).collect();
    let disks = disks.join(",");
    format!("ashlar lvm lvconvert --devices {disks} --merge {group}/{snapshot}")
}
