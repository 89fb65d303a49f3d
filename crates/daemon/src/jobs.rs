//! The jobs of the daemon, in one list: syncs of arrays, merges of snapshots, moves of extents, scrubs and resilvers of pools,
//! and scrubs of btrfs.
//!
//! The list has no state: each kind of work reports its current state, and a job is named after its device, which does one such
//! thing at a time. Only the speeds of merges and moves are measured here, because the device mapper does not measure them.
//!
//! | work | paused by | continues | cancelled by |
//! |---|---|---|---|
//! | check, repair | freezing the array | where it was | idle, and the next one begins at the start |
//! | resync, recovery | freezing the array | at its checkpoint | never: the array needs it |
//! | merge | a message to the target | where it was; also when the daemon starts again | never: the origin has part of it |
//! | move of extents | a message to the target | the piece begins anew when the daemon starts again | `pvmove --abort` |
//! | scrub of a pool | the pool, which remembers it | where it was | the pool |
//! | resilver | never | | never |
//! | scrub of btrfs | ending it early: its volumes can be opened | where it was; by a new scrub that resumes when the daemon has ended | ending it early |

use std::pin::pin;
use std::time::Duration;

use ashlar_block::Sectors;
use ashlar_client::interface::{Job, JobAction, JobControl, JobKind, JobState, Lvm, Zfs, refused};
use ashlar_control::varlink::Reply;
use ashlar_lvm::command::Command as LvmCommand;
use ashlar_md::{SyncAction, SyncRequest};
use ashlar_stack::arrays::Volume;
use ashlar_stack::volume_groups::{MovingState, ServedMerge, ServedMove};
use ashlar_view::progress::{Progress, Run, Step};
use ashlar_zfs::protocol::{self, Command, ScanStatus};
use futures_util::future::{Either, join_all, select};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::machine::now;
use crate::service::Service;

/// How long a pool may take to answer before it is left out of the list.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a check may take to end, and how often to look.
const END: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(10);
/// A job, and the object that does its work.
enum Work {
    Sync(Volume),
    Merge(ServedMerge),
    Move(ServedMove),
    Scan,
    Scrub(Uuid),
}

impl Service {
    /// The jobs, for `Jobs`.
    pub(crate) async fn jobs(&self) -> Result<Value, Reply> {
        Ok(json!({ "jobs": self.job_list().await }))
    }

    /// The jobs. Waits while the stack changes, and briefly for a pool that does not respond.
    pub(crate) async fn job_list(&self) -> Vec<Job> {
        self.works().await.into_iter().map(|(job, _)| job).collect()
    }

    /// Pauses, resumes or cancels a job.
    pub(crate) async fn control_job(&self, at: &JobControl) -> Result<Value, Reply> {
        let JobControl { name, action } = at;
        let short = name.strip_prefix("/dev/").unwrap_or(name);
        let is_meant = |job: &Job| job.name == short || job.alias.as_deref() == Some(short);
        let found = self.works().await.into_iter().find(|(job, _)| is_meant(job));
        let Some((job, work)) = found else {
            let why = format!("{name} has no job");
            return Err(refused(why, Some("ashlar jobs lists the jobs")));
        };
        let kind = job.kind.name();
        if Some(job.state) == action.result() {
            return Err(refused(
                format_args!("the {kind} of {short} is {} already", job.state),
                None,
            ));
        }
        if !job.actions.contains(action) {
            return Err(refuse(&job, *action));
        }
        match work {
            Work::Sync(volume) => self.control_sync(&volume, &job, *action).await?,
            Work::Merge(merging) => {
                let told = match action {
                    JobAction::Pause => merging.copying.pause().await,
                    JobAction::Resume => merging.copying.resume().await,
                    JobAction::Cancel => return Err(refuse(&job, *action)),
                };
                told.map_err(|why| refused(why, None))?;
            }
            Work::Move(moving) => match action {
                JobAction::Pause | JobAction::Resume => self.pause_move(&moving, *action).await?,
                JobAction::Cancel => {
                    let command = LvmCommand::AbortMove { from: Some(moving.source) };
                    let line = "pvmove --abort".to_owned();
                    let (group, confirmed, archive) = (moving.group, Some(true), None);
                    self.lvm(Lvm { group, command, confirmed, archive, line }).await?;
                }
            },
            Work::Scrub(fsid) => self.scrubs.control(fsid, *action).await?,
            Work::Scan => {
                let scrub = match action {
                    JobAction::Pause => protocol::Scrub::Pause,
                    JobAction::Resume => protocol::Scrub::Start,
                    JobAction::Cancel => protocol::Scrub::Stop,
                };
                self.zfs(Zfs { pool: job.name.clone(), command: Command::Scrub(scrub) }).await?;
            }
        }
        Ok(json!({}))
    }

    /// Pauses or resumes a move, at any piece.
    async fn pause_move(&self, moving: &ServedMove, action: JobAction) -> Result<(), Reply> {
        let name = moving.full_name();
        // While this is locked, no other piece begins.
        let turn = self.turn().await?;
        let moving = turn.moving().into_iter().find(|moving| moving.full_name() == name);
        let moving = moving.ok_or_else(|| refused(format_args!("{name} has ended"), None))?;
        let told = match action {
            JobAction::Pause => moving.copying.pause().await,
            JobAction::Resume | JobAction::Cancel => moving.copying.resume().await,
        };
        told.map_err(|why| refused(why, None))
    }

    async fn works(&self) -> Vec<(Job, Work)> {
        let running = self.stack.arrays.running();
        let syncs = running.into_iter().filter_map(|volume| {
            let job = sync_job(&volume)?;
            Some((job, Work::Sync(volume)))
        });
        let mut all: Vec<(Job, Work)> = syncs.collect();
        let (merges, moves) = {
            let collector = self.turns.look().await;
            (collector.merging(), collector.moving())
        };
        for moving in moves {
            all.push((self.move_job(&moving).await, Work::Move(moving)));
        }
        for merging in merges {
            let job = self.merge_job(&merging).await;
            all.extend(job.map(|job| (job, Work::Merge(merging))));
        }
        let pools = self.stack.pools.all();
        let scans = join_all(pools.iter().map(|served| async {
            let status = pin!(served.pool.call(Command::PoolStatus));
            match select(status, self.machine.runtime().sleep(PATIENCE)).await {
                Either::Left((Ok(protocol::Reply::Pool(pool)), _)) => {
                    scan_job(&pool.name, &pool.scan?)
                }
                Either::Left((Ok(_) | Err(_), _)) => None,
                Either::Right(_) => {
                    tracing::warn!(pool = served.pool.name(), "its worker does not respond");
                    None
                }
            }
        }));
        all.extend(scans.await.into_iter().flatten().map(|job| (job, Work::Scan)));
        all.extend(self.scrubs.jobs().into_iter().map(|(job, fsid)| (job, Work::Scrub(fsid))));
        all
    }

    async fn control_sync(
        &self,
        volume: &Volume,
        job: &Job,
        action: JobAction,
    ) -> Result<(), Reply> {
        let array = &volume.view;
        let request = match (action, job.kind) {
            (JobAction::Pause, _) => SyncRequest::Frozen,
            (JobAction::Resume, JobKind::Check) => SyncRequest::Check,
            (JobAction::Resume, JobKind::Repair) => SyncRequest::Repair,
            (JobAction::Resume | JobAction::Cancel, _) => SyncRequest::Idle,
        };
        let failed = |error: ashlar_md::SyncError| refused(error, None);
        array.request_sync(request).map_err(failed)?;
        if action != JobAction::Cancel {
            return Ok(());
        }
        // The check records its position when it ends.
        let runtime = self.machine.runtime();
        let end = now(runtime) + END;
        while matches!(array.sync_status().action, SyncAction::Check | SyncAction::Repair) {
            if now(runtime) > end {
                return Err(refused("it has not ended yet: a member does not answer", None));
            }
            runtime.sleep(LOOK).await;
        }
        array.set_sync_bounds(Sectors::ZERO, array.sync_settings().sync_max()).map_err(failed)
    }

    async fn move_job(&self, moving: &ServedMove) -> Job {
        let state = if moving.has_failed().await || moving.state == MovingState::NotRecorded {
            JobState::Failed
        } else if moving.copying.is_paused().await {
            JobState::Paused
        } else {
            JobState::Running
        };
        let name = moving.full_name();
        let left = moving.total - moving.done;
        let (_, rate) = self.speeds.borrow().of(&name, left);
        let rate = rate.filter(|_| state == JobState::Running);
        Job {
            alias: None,
            kind: JobKind::Move,
            done_bytes: moving.done.bytes(),
            total_bytes: moving.total.bytes(),
            bytes_per_second: rate,
            seconds_left: rate.map(|rate| left.bytes() / rate),
            actions: match state {
                JobState::Running => vec![JobAction::Pause, JobAction::Cancel],
                JobState::Paused => vec![JobAction::Resume, JobAction::Cancel],
                JobState::Failed => vec![JobAction::Cancel],
            },
            name,
            state,
        }
    }

    async fn merge_job(&self, merging: &ServedMerge) -> Option<Job> {
        let left = match merging.left {
            Some(Sectors::ZERO) => return None,
            left => left,
        };
        let state = match left {
            None => JobState::Failed,
            Some(_) if merging.copying.is_paused().await => JobState::Paused,
            Some(_) => JobState::Running,
        };
        let name = merging.name();
        let (total, rate) = self.speeds.borrow().of(&name, left.unwrap_or_default());
        let rate = rate.filter(|_| state == JobState::Running);
        let left_bytes = left.unwrap_or(total).bytes();
        Some(Job {
            alias: None,
            kind: JobKind::Merge,
            done_bytes: total.bytes() - left_bytes,
            total_bytes: total.bytes(),
            bytes_per_second: rate,
            seconds_left: rate.map(|rate| left_bytes / rate),
            actions: match state {
                JobState::Running => vec![JobAction::Pause],
                JobState::Paused => vec![JobAction::Resume],
                JobState::Failed => Vec::new(),
            },
            name,
            state,
        })
    }
}

/// The refusal of an action that a job does not know in its present state.
fn refuse(job: &Job, action: JobAction) -> Reply {
    let Job { name, kind, state, .. } = job;
    let (kind, verb) = (kind.name(), action.name());
    let hint = match (job.kind, action) {
        (JobKind::Resync | JobKind::Recover, JobAction::Cancel) => {
            "the array needs it: pause it; it continues when the array is assembled again"
        }
        (JobKind::Merge, JobAction::Cancel) => {
            "part of it is in the origin: pause it; it continues when the daemon starts again"
        }
        (JobKind::Resilver, _) => "the pool needs it, and OpenZFS does not stop it",
        (
            JobKind::Resync
            | JobKind::Recover
            | JobKind::Check
            | JobKind::Repair
            | JobKind::Merge
            | JobKind::Move
            | JobKind::Scrub,
            JobAction::Pause | JobAction::Resume | JobAction::Cancel,
        ) => "see the daemon's log",
    };
    refused(format_args!("cannot {verb} the {kind} of {name}, which is {state}"), Some(hint))
}

/// The sync of an array, if there is one.
fn sync_job(volume: &Volume) -> Option<Job> {
    let progress = Progress::of(&volume.view);
    let (action, run, state) = match (progress.step, progress.paused) {
        (Step::Running(run), _) => (progress.action, run, JobState::Running),
        (Step::None | Step::Pending, Some((action, run))) => (action, run, JobState::Paused),
        (Step::None | Step::Pending, None) => return None,
    };
    let kind = match action {
        SyncAction::Resync => JobKind::Resync,
        SyncAction::Recover => JobKind::Recover,
        SyncAction::Check => JobKind::Check,
        SyncAction::Repair => JobKind::Repair,
        SyncAction::Idle | SyncAction::Frozen => return None,
    };
    let is_necessary = matches!(kind, JobKind::Resync | JobKind::Recover);
    let Run { done, total, speed_kib, left } = run;
    let is_running = state == JobState::Running;
    let change = if is_running { JobAction::Pause } else { JobAction::Resume };
    Some(Job {
        name: volume.name.device(),
        alias: volume.name.alias.as_ref().map(|alias| format!("md/{alias}")),
        kind,
        state,
        done_bytes: done.bytes(),
        total_bytes: total.bytes(),
        bytes_per_second: (is_running && speed_kib > 0).then_some(speed_kib << 10),
        seconds_left: left.map(|left| left.as_secs()).filter(|_| is_running),
        actions: match is_necessary {
            true => vec![change],
            false => vec![change, JobAction::Cancel],
        },
    })
}

/// The scrub or resilver of a pool, if it has not ended.
fn scan_job(pool: &str, scan: &ScanStatus) -> Option<Job> {
    let state = match scan.state.as_str() {
        "scanning" => JobState::Running,
        "paused" => JobState::Paused,
        _ => return None,
    };
    let kind = if scan.function == "resilver" { JobKind::Resilver } else { JobKind::Scrub };
    let (done, total) = (scan.examined_bytes, scan.to_examine_bytes);
    let since = ashlar_engine::wall_clock().as_secs().saturating_sub(scan.start_time);
    let rate = (since > 0 && state == JobState::Running).then(|| done / since);
    let rate = rate.filter(|rate| *rate > 0);
    let change = if state == JobState::Running { JobAction::Pause } else { JobAction::Resume };
    Some(Job {
        name: pool.to_owned(),
        alias: None,
        kind,
        state,
        done_bytes: done,
        total_bytes: total,
        bytes_per_second: rate,
        seconds_left: rate.map(|rate| total.saturating_sub(done) / rate),
        actions: match kind == JobKind::Resilver {
            true => Vec::new(),
            false => vec![change, JobAction::Cancel],
        },
    })
}
