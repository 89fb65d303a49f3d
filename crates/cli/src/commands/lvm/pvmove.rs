//! `ashlar lvm pvmove`: the extents of a physical volume go to others.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use ashlar_engine::signal;
use ashlar_engine::sleep;
use ashlar_host::client::Client;
use ashlar_host::disks::Access;
use ashlar_host::error::{Error, Result};
use ashlar_host::interface::{JobKind, JobState};
use ashlar_host::lvm::archive::Archives;
use ashlar_lvm::activate::dm_name;
use ashlar_lvm::command::{Command, Move, PhysicalPart, PolicyName};
use ashlar_stack::volume_groups::mirror_progress;
use clap::Args;

use super::groups::{Groups, not_found};
use super::lvconvert::{SIGNALS, either};
use super::session::{self, Session, with};
use super::{Changing, Devices, split_name, warn};
use crate::output;

/// How often the progress is read.
const POLL: Duration = Duration::from_millis(100);

/// Move extents from one physical volume to others
///
/// The volumes may be in use: the daemon copies their extents, and writes go to both places meanwhile. Piece after piece, the new
/// place counts once everything is durable there. The metadata is LVM's, so after a crash a daemon that serves the group goes on, and
/// so does LVM. Without a physical volume the command follows the moves under way.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar lvm pvmove a.img
  ashlar lvm pvmove -n vg/data a.img b.img
  ashlar lvm pvmove a.img:0-99 b.img:200-299
  ashlar lvm pvmove --abort
  ashlar lvm pvmove --devices a.img,b.img a.img")]
pub(crate) struct Pvmove {
    #[command(flatten)]
    disks: Devices,

    #[command(flatten)]
    changing: Changing,

    /// End the moves under way: what has moved stays at its new place, the rest at the old one
    #[arg(long, conflicts_with_all = ["name", "background", "alloc", "to"])]
    abort: bool,

    /// Do not wait. Without a daemon the extents move when the group is served, or by another pvmove
    #[arg(short, long)]
    background: bool,

    /// Seconds between two reports of the progress
    #[arg(short, long, value_name = "SECONDS", default_value_t = 15)]
    interval: u64,

    /// Move only the extents of this volume, and of those that it is made of
    #[arg(short, long, value_name = "LV")]
    name: Option<String>,

    /// Allocation policy: contiguous keeps each piece in one, normal divides it where there is no room
    #[arg(long, value_name = "POLICY", default_value = "normal", value_parser = ["contiguous", "normal"])]
    alloc: String,

    /// The physical volume that is left, or ranges of its extents
    #[arg(value_name = "PV[:PE[-PE]]")]
    from: Option<PhysicalPart>,

    /// Where the extents go [default: any others of the group]
    #[arg(value_name = "PV[:PE[-PE]]")]
    to: Vec<PhysicalPart>,
}

/// A move that the command follows.
struct Followed {
    /// `vg/pvmove0`.
    job: String,
    /// The path of the physical volume that is left.
    source: String,
}

/// Prints the progress of moves, as LVM does.
struct Reports {
    interval: Duration,
    last: Option<Instant>,
}

impl Reports {
    fn new(interval: u64) -> Self {
        Self { interval: Duration::from_secs(interval), last: None }
    }

    /// Whether a report is due.
    fn are_due(&mut self) -> bool {
        let are_due = self.last.is_none_or(|last| last.elapsed() >= self.interval);
        if are_due {
            self.last = Some(Instant::now());
        }
        are_due
    }
}

fn report(source: &str, done: u64, total: u64) -> Result<()> {
    let percent = done as f64 * 100.0 / total.max(1) as f64;
    output::tell(&format!("  {source}: Moved: {percent:.2}%\n"))
}

fn detected(path: &str) -> Result<()> {
    output::tell(&format!("  Detected pvmove in progress for {path}.\n"))?;
    warn("Ignoring remaining command line arguments.");
    Ok(())
}

impl Pvmove {
    pub(crate) fn run(self) -> Result<ExitCode> {
        if self.disks.devices.is_empty() {
            self.served()?;
        } else {
            self.on_disks()?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn command(&self, from: &PhysicalPart) -> Result<Command> {
        let volume = self.name.as_deref().map(|name| match split_name(name)? {
            (_, Some(volume)) => Ok::<_, Error>(volume.to_owned()),
            (volume, None) => Ok(volume.to_owned()),
        });
        let (volume, to) = (volume.transpose()?, self.to.clone());
        let policy = (self.alloc == "contiguous").then_some(PolicyName::Contiguous);
        Ok(Command::Move(Move { from: from.clone(), volume, to, policy }))
    }

    /// Has the daemon move, and follows it.
    fn served(&self) -> Result<()> {
        let mut client = self.disks.connect()?;
        let source = self.from.as_ref().map(|from| &*from.path);
        let groups = Groups::served(client.groups()?)?;
        let mut moving: Vec<String> = groups
            .moves(source)
            .iter()
            .map(|(group, ..)| group.metadata.group.name.clone())
            .collect();
        moving.dedup();
        if self.abort {
            let command = Command::AbortMove { from: source.map(str::to_owned) };
            for group in moving {
                session::served(&mut client, &self.changing, &group, &command)?;
            }
            return Ok(());
        }
        if let Some(from) = &self.from {
            if moving.is_empty() {
                let group = groups.group_at(&from.path)?;
                let group = &group.metadata.group.name;
                session::served(&mut client, &self.changing, group, &self.command(from)?)?;
            } else {
                detected(&from.path)?;
            }
        }
        if self.background {
            return Ok(());
        }
        let groups = Groups::served(client.groups()?)?;
        let followed = groups.moves(source).into_iter().map(|(group, moving, source)| Followed {
            job: format!("{}/{}", group.metadata.group.name, moving.name()),
            source: source.to_owned(),
        });
        self.follow(&mut client, followed.collect())
    }

    /// Waits until the moves have ended.
    fn follow(&self, client: &mut Client, mut followed: Vec<Followed>) -> Result<()> {
        let mut reports = Reports::new(self.interval);
        while !followed.is_empty() {
            let jobs = client.jobs()?;
            let are_due = reports.are_due();
            for index in (0..followed.len()).rev() {
                let Followed { job, source } = &followed[index];
                let found =
                    jobs.iter().find(|found| found.kind == JobKind::Move && found.name == *job);
                match found {
                    None => {
                        report(source, 1, 1)?;
                        followed.remove(index);
                    }
                    Some(found) if found.state == JobState::Failed => {
                        let why = "a disk has failed, or the metadata could not be written: see the daemon's log";
                        return Err(Error::new("The move cannot go on", job, why)
                            .hint("ashlar lvm pvmove --abort gives it up"));
                    }
                    Some(found) if are_due => report(source, found.done_bytes, found.total_bytes)?,
                    Some(_) => {}
                }
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// Moves on disks that no daemon serves.
    fn on_disks(&self) -> Result<()> {
        let archives = self.changing.archives()?;
        signal::block(&SIGNALS).map_err(|error| Error::plain("cannot block signals", error))?;
        with(&self.disks.devices, Access::Write, async |session| {
            let source = self.from.as_ref().map(|from| &*from.path);
            let source = match source {
                None => None,
                Some(path) => Some(session.pv(path).ok_or_else(|| not_found(path))?),
            };
            let groups = session.found.groups.iter();
            let meant = groups.filter(|group| {
                let is_source = |index: usize| group.members.get(index)?.usable();
                let mut sources =
                    group.metadata.group.moves().filter_map(|moving| is_source(moving.source()?));
                sources.any(|index| source.is_none_or(|source| source == index))
            });
            let mut moving: Vec<String> =
                meant.map(|group| group.metadata.group.name.clone()).collect();
            if self.abort {
                let from = self.from.as_ref().map(|from| from.path.clone());
                for group in moving {
                    let mut draft = session.draft(&group).await?;
                    draft.apply(session, &Command::AbortMove { from: from.clone() })?;
                    session.commit(draft, &[], &archives).await?;
                }
                return Ok(());
            }
            if let (Some(from), Some(source)) = (&self.from, source) {
                if moving.is_empty() {
                    let group = session.group_of(source).ok_or_else(|| not_found(&from.path))?;
                    let group = group.metadata.group.name.clone();
                    let mut draft = session.draft(&group).await?;
                    let effect = draft.apply(session, &self.command(from)?)?;
                    effect.notes.iter().try_for_each(|line| output::tell(&format!("{line}\n")))?;
                    session.commit(draft, &[], &archives).await?;
                    moving.push(group);
                } else {
                    detected(&from.path)?;
                }
            }
            if self.background {
                let text = "  The extents move when the group is served, or by another pvmove.\n";
                return output::tell(text);
            }
            let mut reports = Reports::new(self.interval);
            for group in moving {
                while self.carry(session, &group, &archives, &mut reports).await? {}
            }
            Ok(())
        })
    }

    /// Copies a piece of a group's moves, and records that its new place counts; false if there is none.
    async fn carry(
        &self,
        session: &mut Session,
        group: &str,
        archives: &Archives,
        reports: &mut Reports,
    ) -> Result<bool> {
        let mut draft = session.draft(group).await?;
        let vg = &draft.group;
        let Some((moving, running)) = vg.moves().find_map(|it| Some((it, it.running()?))) else {
            return Ok(false);
        };
        let (name, device) = (moving.name().to_owned(), dm_name(&vg.name, moving.name(), None));
        let source = moving.source().and_then(|index| draft.members.get(index));
        let source = source.and_then(|index| session.pvs.get(*index));
        let source = source.map_or_else(String::new, |pv| pv.path.clone());
        let (moved, total) = (u64::from(moving.moved()), u64::from(moving.extents()));
        let (piece, at) = (running.segment().count, running.segment().start);
        let at = vg.sectors(at).as_end();
        let mut volumes = session.volumes(vg, &draft.members);
        volumes.make(std::slice::from_ref(&device)).await?;
        let copied = async {
            let Some(made) = volumes.device(&device) else { return Ok(()) };
            let mut interrupted = Box::pin(signal::wait(&SIGNALS));
            loop {
                let status = made.status();
                let progress = status.lines().find_map(mirror_progress);
                let progress = progress.filter(|progress| progress.is_alive);
                let failed = made.message(at, &["has_failed"]).await;
                let Some(progress) = progress.filter(|_| failed.as_deref() == Ok("0")) else {
                    return Err(Error::new("The move cannot go on", &name, status.trim())
                        .hint("ashlar lvm pvmove --abort gives it up"));
                };
                if progress.is_synced() {
                    let verified = made.message(at, &["verify"]).await;
                    verified.map_err(|why| Error::new("The move cannot go on", &name, why))?;
                    return Ok(());
                }
                if reports.are_due() {
                    report(&source, moved + progress.of(piece.into()), total)?;
                }
                if let Some(next) = either(sleep(POLL), interrupted.as_mut()).await {
                    next.map_err(|error| Error::plain("cannot wait for signals", error))?;
                    let text = format!("The move of {source} was interrupted");
                    let hint = "ashlar lvm pvmove goes on with it, --abort gives it up";
                    return Err(Error::failed(text).hint(hint));
                }
            }
        };
        let copied = copied.await;
        let ended = volumes.end().await;
        copied.and(ended)?;
        let advanced = draft.group.advance_move(&name);
        advanced.map_err(|error| Error::new("The move cannot go on", &name, error))?;
        session.commit(draft, &[], archives).await?;
        if moved + u64::from(piece) == total {
            report(&source, 1, 1)?;
        }
        Ok(true)
    }
}
