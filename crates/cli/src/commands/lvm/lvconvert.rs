//! `ashlar lvm lvconvert --merge`: merges a snapshot into its origin.
//!
//! The snapshot is marked first; from then on the origin reads as the snapshot. Then the device mapper's merge runs on
//! the disks, as it would in an active group, and finally the snapshot is removed from the group. Between any two steps
//! the command may end or crash: the next run continues where it stopped.

use std::future::Future;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use ashlar_block::Gateway;
use ashlar_client::client::Client;
use ashlar_commands::lvm::archive::Archives;
use ashlar_commands::lvm::names::volume_name;
use ashlar_commands::lvm::{Draft, SIGNALS, Session, Volumes, block_signals};
use ashlar_daemon::error::{Error, Result};
use ashlar_disks::Access;
use ashlar_dm::snapshot::examine;
use ashlar_engine::signal;
use ashlar_engine::sleep;
use ashlar_lvm::VolumeGroup;
use ashlar_lvm::activate::dm_name;
use ashlar_lvm::command::{Command, merges_later};
use ashlar_stack::volume_groups::left_to_merge;
use clap::Args;
use futures_util::future::{Either, select};
use indicatif::ProgressBar;

use super::session::{self, described, with};
use super::{ChangeOptions, Devices};
use crate::{output, progress};

/// How often the progress of the merge is read.
const POLL: Duration = Duration::from_millis(100);

/// Merge a snapshot back into its origin
///
/// The origin gets the snapshot's contents, and the snapshot is removed. In a served group the merge begins when neither is open: if one
/// is, when the origin is activated again (lvchange -an and -ay, or a new daemon). The origin shows the snapshot's contents from
/// then on, and may be used while the daemon merges. After an interruption by a signal or a crash, the same command continues the
/// merge; so do the daemon and the kernel when they activate the group.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar lvm lvconvert --merge vg/before
  ashlar lvm lvconvert --devices a.img,b.img --merge vg/before
  ashlar lvm lvconvert --devices a.img,b.img --merge --background vg/before")]
pub(crate) struct Lvconvert {
    #[command(flatten)]
    disks: Devices,

    #[command(flatten)]
    change_options: ChangeOptions,

    /// Merge: the only supported conversion
    #[arg(long, alias = "mergesnapshot", required = true)]
    merge: bool,

    /// Do not wait for the merge. Without a daemon the snapshot is only marked, to be merged when the group is served,
    /// or the kernel activates it
    #[arg(short, long)]
    background: bool,

    /// The snapshot
    #[arg(value_name = "VG/SNAPSHOT")]
    name: String,
}

/// How a merge ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum MergeEnd {
    Merged,
    Interrupted,
}

impl Lvconvert {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let (group, name) = volume_name(&self.name)?;
        if self.disks.devices.is_empty() {
            return self.served(group, name);
        }
        let archives = self.change_options.archives()?;
        block_signals()?;
        with(&self.disks.devices, Access::Write, async |session| {
            let origin = self.mark(session, group, name, &archives).await?;
            if self.background {
                return session::tell(&[merges_later(group, &origin, name)]);
            }
            let ended = merge(session, &session.draft(group).await?, &origin, name).await?;
            if ended == MergeEnd::Interrupted {
                let text = format!("Merging of {group}/{name} was interrupted");
                return Err(Error::failed(text).hint("the same command continues where it was"));
            }
            let mut draft = session.draft(group).await?;
            let failed = |error| Error::new("Cannot end the merge", name, error);
            draft.group.finish_merge(&origin).map_err(failed)?;
            session.commit(draft, &[], &archives).await?;
            output::tell(&finished(group, &origin, name))
        })?;
        Ok(ExitCode::SUCCESS)
    }

    /// Has the daemon merge, and follows it.
    fn served(&self, group: &str, name: &str) -> Result<ExitCode> {
        let mut client = self.disks.connect()?;
        let command = Command::Merge { snapshot: name.to_owned() };
        let (origin, is_merging) = origin(&mut client, group, name)?;
        if !is_merging {
            session::served(&mut client, &self.change_options, group, &command)?;
        }
        let mut bar = MergeBar::new(name);
        let mut is_told = !is_merging;
        loop {
            match MergeState::of(&mut client, group, &origin)? {
                MergeState::Left(left) => {
                    if !std::mem::replace(&mut is_told, true) {
                        output::tell(&format!(
                            "  Merging of {group}/{name} continues where it was.\n"
                        ))?;
                    }
                    if self.background {
                        return Ok(ExitCode::SUCCESS);
                    }
                    bar.show(left);
                }
                MergeState::Failed => {
                    let why = "the merge has failed: see the daemon's log";
                    return Err(Error::new("The merge cannot continue", name, why));
                }
                // The daemon has said so, if it was asked just now.
                MergeState::PutOff => {
                    if !is_told {
                        session::tell(&[merges_later(group, &origin, name)])?;
                    }
                    return Ok(ExitCode::SUCCESS);
                }
                // The daemon has removed the merged snapshot.
                MergeState::Ended if self.background => return Ok(ExitCode::SUCCESS),
                MergeState::Ended => break,
            }
            std::thread::sleep(POLL);
        }
        bar.end();
        output::tell(&finished(group, &origin, name))?;
        Ok(ExitCode::SUCCESS)
    }

    /// Makes sure that the snapshot is marked; returns its origin.
    async fn mark(
        &self,
        session: &mut Session,
        group: &str,
        name: &str,
        archives: &Archives,
    ) -> Result<String> {
        let mut draft = session.draft(group).await?;
        let merging = draft.group.snapshot_in(name).map(|found| found.snapshot);
        if let Some(snapshot) = merging.filter(|snapshot| snapshot.merging) {
            output::tell(&format!("  Merging of {group}/{name} continues where it was.\n"))?;
            return Ok(snapshot.origin.clone());
        }
        let before = draft.group.clone();
        let failed = |error| Error::new("Cannot merge", name, error);
        let origin = draft.group.start_merge(name).map_err(failed)?;
        check_stores(session, &before, &draft, &origin, name).await?;
        session.commit(draft, &[], archives).await?;
        output::tell(&format!("  Merging of volume {group}/{name} started.\n"))?;
        Ok(origin)
    }
}

/// How far a merge in the daemon is.
enum MergeState {
    /// So many sectors are left.
    Left(u64),
    /// It has failed.
    Failed,
    /// It begins when the origin is activated again.
    PutOff,
    /// It has ended.
    Ended,
}

impl MergeState {
    /// The progress of the merge into `origin`.
    fn of(client: &mut Client, group: &str, origin: &str) -> Result<Self> {
        for served in client.groups()?.groups {
            let metadata = described(&served)?;
            if metadata.group.name != group {
                continue;
            }
            if !metadata.group.snapshots_of(origin).any(|found| found.snapshot.merging) {
                return Ok(Self::Ended);
            }
            let volume = served.volumes.into_iter().find(|volume| volume.name == origin);
            let Some(volume) = volume else { return Ok(Self::PutOff) };
            return Ok(match left_to_merge(&volume.status) {
                Some(left) => Self::Left(left),
                None if volume.status.ends_with("failed") => Self::Failed,
                None => Self::PutOff,
            });
        }
        Err(Error::failed(format_args!("{group}/{origin} is not served any more")))
    }
}

/// The last words about a merge.
fn finished(group: &str, origin: &str, name: &str) -> String {
    format!(
        "  Merge of snapshot into logical volume {group}/{origin} has finished.\n  Logical volume \
         \"{name}\" successfully removed.\n"
    )
}

/// The origin of a snapshot in the daemon, and whether it is being merged.
fn origin(client: &mut Client, group: &str, name: &str) -> Result<(String, bool)> {
    for served in client.groups()?.groups {
        let metadata = described(&served)?;
        let found = metadata.group.snapshot_in(name).map(|found| found.snapshot);
        if let Some(snapshot) = found.filter(|_| metadata.group.name == group) {
            return Ok((snapshot.origin.clone(), snapshot.merging));
        }
    }
    Err(Error::failed(format_args!("Failed to find snapshot logical volume \"{group}/{name}\"")))
}

/// The progress of a merge on a terminal.
struct MergeBar {
    bar: Option<ProgressBar>,
    first: Option<u64>,
}

impl MergeBar {
    fn new(name: &str) -> Self {
        let bar = progress::bar();
        bar.iter().for_each(|bar| bar.set_prefix(format!("{name} merge")));
        Self { bar, first: None }
    }

    fn show(&mut self, left: u64) {
        let all = *self.first.get_or_insert(left);
        if let Some(bar) = &self.bar {
            bar.set_position((all - left.min(all)) * 1000 / all.max(1));
            bar.set_message(format!("{left} sectors left"));
            bar.tick();
        }
    }

    fn end(&self) {
        self.bar.iter().for_each(ProgressBar::finish_and_clear);
    }
}

/// Refuses a snapshot that has become invalid, before it is marked; and one whose origin has other snapshots that
/// cannot be read, since merging changes the origin.
async fn check_stores(
    session: &Session,
    group: &VolumeGroup,
    draft: &Draft,
    origin: &str,
    name: &str,
) -> Result<()> {
    let size = group.lv(origin).map(|lv| group.size(lv)).unwrap_or_default();
    let mut volumes = session.volumes(group, &draft.members);
    for snapshot in group.snapshots_of(origin).map(|found| found.snapshot) {
        let cow = dm_name(&group.name, &snapshot.cow, Some("cow"));
        volumes.make(std::slice::from_ref(&cow)).await?;
        let Some(device) = volumes.device(&cow) else { continue };
        let store = examine(&Gateway::new(Arc::clone(device) as _), size).await;
        let failed = |error| Error::plain(format!("Cannot merge {name}: {}", snapshot.cow), error);
        // Without a store nothing was ever written to it or to its origin.
        let is_valid = store.map_err(failed)?.is_none_or(|store| store.valid);
        if snapshot.cow == name && !is_valid {
            let why = "the snapshot is invalid: its space had run out";
            return Err(Error::new("Cannot merge", name, why));
        }
    }
    volumes.end().await
}

/// Merges until nothing is left, or a signal arrives.
async fn merge(session: &Session, draft: &Draft, origin: &str, name: &str) -> Result<MergeEnd> {
    let group = &draft.group;
    let mut volumes = session.volumes(group, &draft.members);
    // Merging changes the origin: the other snapshots must be active first, to save the old data.
    let others = group.snapshots_of(origin).filter(|found| !found.snapshot.merging);
    let others: Vec<String> =
        others.map(|found| dm_name(&group.name, &found.snapshot.cow, None)).collect();
    let merged = dm_name(&group.name, origin, None);
    volumes.make(&others).await?;
    volumes.make(std::slice::from_ref(&merged)).await?;
    let ended = watch(&volumes, &merged, name).await;
    // Once this has ended, the merged data is durable.
    volumes.end().await?;
    ended
}

async fn watch(volumes: &Volumes, merged: &str, name: &str) -> Result<MergeEnd> {
    let Some(device) = volumes.device(merged) else { return Ok(MergeEnd::Interrupted) };
    let mut interrupted = Box::pin(signal::wait(&SIGNALS));
    let mut bar = MergeBar::new(name);
    loop {
        let status = device.status();
        match left_to_merge(&status) {
            Some(0) => {
                bar.end();
                return Ok(MergeEnd::Merged);
            }
            Some(left) => bar.show(left),
            None => {
                let state = status.split_ascii_whitespace().skip(3).collect::<Vec<_>>().join(" ");
                return Err(Error::new("The merge cannot continue", name, state)
                    .hint("see the log; the same command continues where it was"));
            }
        }
        if let Some(next) = either(sleep(POLL), interrupted.as_mut()).await {
            next.map_err(|error| Error::plain("cannot wait for signals", error))?;
            return Ok(MergeEnd::Interrupted);
        }
    }
}

/// The output of `second`, if it ends before `first`.
async fn either<T>(first: impl Future, second: impl Future<Output = T> + Unpin) -> Option<T> {
    match select(Box::pin(first), second).await {
        Either::Left(_) => None,
        Either::Right((ended, _)) => Some(ended),
    }
}
