//! `ashlar lvm pvmove`: the extents of a physical volume go to others.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use ashlar_client::client::Client;
use ashlar_client::interface::{JobKind, JobState};
use ashlar_commands::lvm::names::split_name;
use ashlar_commands::lvm::{Groups, MoveProgress, block_signals};
use ashlar_daemon::error::{Error, Result};
use ashlar_disks::Access;
use ashlar_lvm::command::{Command, Move, PhysicalPart, PolicyName};
use clap::Args;

use super::session::{self, with};
use super::{ChangeOptions, Devices, warn};
use crate::output;

/// How often the progress is read.
const POLL: Duration = Duration::from_millis(100);

/// Move extents from one physical volume to others
///
/// The volumes may be in use: the daemon copies their extents, and writes go to both places meanwhile. Piece after piece, the new
/// place counts once everything is durable there. The metadata is LVM's, so after a crash a daemon that serves the group continues, and
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
    change_options: ChangeOptions,

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
struct FollowedMove {
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
                session::served(&mut client, &self.change_options, &group, &command)?;
            }
            return Ok(());
        }
        if let Some(from) = &self.from {
            if moving.is_empty() {
                let group = groups.group_at(&from.path)?;
                let group = &group.metadata.group.name;
                session::served(&mut client, &self.change_options, group, &self.command(from)?)?;
            } else {
                detected(&from.path)?;
            }
        }
        if self.background {
            return Ok(());
        }
        let groups = Groups::served(client.groups()?)?;
        let followed =
            groups.moves(source).into_iter().map(|(group, moving, source)| FollowedMove {
                job: format!("{}/{}", group.metadata.group.name, moving.name()),
                source: source.to_owned(),
            });
        self.follow(&mut client, followed.collect())
    }

    /// Waits until the moves have ended.
    fn follow(&self, client: &mut Client, mut followed: Vec<FollowedMove>) -> Result<()> {
        let mut reports = Reports::new(self.interval);
        while !followed.is_empty() {
            let jobs = client.jobs()?;
            let are_due = reports.are_due();
            for index in (0..followed.len()).rev() {
                let FollowedMove { job, source } = &followed[index];
                let found =
                    jobs.iter().find(|found| found.kind == JobKind::Move && found.name == *job);
                match found {
                    None => {
                        report(source, 1, 1)?;
                        followed.remove(index);
                    }
                    Some(found) if found.state == JobState::Failed => {
                        let why = "a disk has failed, or the metadata could not be written: see the daemon's log";
                        return Err(Error::new("The move cannot continue", job, why)
                            .hint("ashlar lvm pvmove --abort cancels it"));
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
        let archives = self.change_options.archives()?;
        block_signals()?;
        with(&self.disks.devices, Access::Write, async |session| {
            let from = self.from.as_ref().map(|from| &*from.path);
            let mut moving = session.moving_groups(from)?;
            if self.abort {
                let command = Command::AbortMove { from: from.map(str::to_owned) };
                for group in moving {
                    session.change(&group, &command, &archives).await?;
                }
                return Ok(());
            }
            if let Some(from) = &self.from {
                if moving.is_empty() {
                    let group = session.group_at(&from.path)?.metadata.group.name.clone();
                    session.change(&group, &self.command(from)?, &archives).await?;
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
            let mut observer = |MoveProgress { source, moved, total }: MoveProgress<'_>| {
                let is_wanted = moved == total || reports.are_due();
                if is_wanted { report(source, moved, total) } else { Ok(()) }
            };
            for group in moving {
                session.carry_on(&group, &archives, &mut observer).await?;
            }
            Ok(())
        })
    }
}
