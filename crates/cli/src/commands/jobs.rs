//! `ashlar jobs`: long work of a running daemon.

use std::process::ExitCode;

use ashlar_client::client::Client;
use ashlar_client::interface::{Job, JobAction};
use ashlar_daemon::error::Result;
use ashlar_terminal::progress::clock;
use ashlar_terminal::table::Column;
use ashlar_view::graph::human_size;
use clap::{Args, Subcommand};
use serde_json::json;

use super::Daemon;
use crate::output;

/// Show and control long work: resyncs, rebuilds, checks, merges, moves and scrubs
///
/// A job is named after its device: md0 or md/NAME, vg/lv, or a pool; the scrub of a btrfs file
/// system after its UUID.
#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Exit codes: 0 done, 1 refused or no daemon, 2 wrong usage.

A paused merge continues when the daemon is started again, and so do a resync and a rebuild; a paused
scrub of a pool stays paused. Clients can open the volumes of a paused scrub of btrfs; once the daemon
has ended, ashlar btrfs scrub resume continues it.

Examples:
  ashlar jobs
  ashlar jobs --json
  ashlar jobs pause md/data
  ashlar jobs resume md/data
  ashlar jobs cancel tank"
)]
pub(crate) struct Jobs {
    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    daemon: Daemon,

    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Have it wait until it is resumed
    #[command(after_help = "\
Examples:
  ashlar jobs pause md/data")]
    Pause(Target),
    /// Resume it
    #[command(after_help = "\
Examples:
  ashlar jobs resume vg/lv")]
    Resume(Target),
    /// End a check, a repair, a move of extents, or a scrub
    #[command(after_help = "\
Examples:
  ashlar jobs cancel tank")]
    Cancel(Target),
}

#[derive(Args, Debug)]
struct Target {
    /// The job, by its device: md0, md/NAME, vg/lv, or a pool; or a file system, by its UUID
    job: String,

    #[command(flatten)]
    daemon: Daemon,
}

impl Target {
    fn run(&self, action: JobAction) -> Result<ExitCode> {
        self.daemon.connect()?.control_job(&self.job, action)?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Jobs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match &self.action {
            None => self.list(&mut self.daemon.connect()?),
            Some(Action::Pause(target)) => target.run(JobAction::Pause),
            Some(Action::Resume(target)) => target.run(JobAction::Resume),
            Some(Action::Cancel(target)) => target.run(JobAction::Cancel),
        }
    }

    fn list(&self, client: &mut Client) -> Result<ExitCode> {
        let jobs = client.jobs()?;
        if self.json {
            output::print_json(&json!({ "jobs": jobs }))?;
        } else if jobs.is_empty() {
            output::tell("no long work is under way\n")?;
        } else {
            output::print(&table(&jobs))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn table(jobs: &[Job]) -> String {
    let headings = ["JOB", "WORK", "STATE", "DONE", "SIZE", "SPEED", "LEFT"];
    // Words to the left, numbers to the right.
    let columns = headings.iter().enumerate();
    let columns: Vec<Column> = columns
        .map(|(index, heading)| Column { heading: (*heading).to_owned(), right: index > 2 })
        .collect();
    let rows = jobs.iter().map(|job| {
        // 100 % is said only of what is done.
        let per_mille = u128::from(job.done_bytes) * 1000 / u128::from(job.total_bytes.max(1));
        let speed = job.bytes_per_second.map(|rate| format!("{}/s", human_size(rate)));
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        vec![
            job.alias.clone().unwrap_or_else(|| job.name.clone()),
            job.kind.name().to_owned(),
            job.state.to_string(),
            format!("{}.{}%", per_mille / 10, per_mille % 10),
            human_size(job.total_bytes),
            or_dash(speed),
            or_dash(job.seconds_left.map(clock)),
        ]
    });
    output::table::table(&columns, &rows.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use ashlar_client::interface::{JobKind, JobState};

    use super::*;

    #[test]
    fn the_table_has_a_line_for_each_job() {
        let resync = Job {
            name: "md127".to_owned(),
            alias: Some("md/data".to_owned()),
            kind: JobKind::Resync,
            state: JobState::Running,
            done_bytes: 999,
            total_bytes: 1000,
            bytes_per_second: Some(150 << 20),
            seconds_left: Some(3723),
            actions: vec![JobAction::Pause],
        };
        let merge = Job {
            name: "vg/lv".to_owned(),
            alias: None,
            kind: JobKind::Merge,
            state: JobState::Paused,
            done_bytes: 0,
            total_bytes: 1 << 30,
            bytes_per_second: None,
            seconds_left: None,
            actions: vec![JobAction::Resume],
        };
        let expected = "\
JOB      WORK    STATE     DONE   SIZE   SPEED     LEFT
md/data  resync  running  99.9%  1000B  150M/s  1:02:03
vg/lv    merge   paused    0.0%     1G       -        -
";
        assert_eq!(table(&[resync, merge]), expected);
    }
}
