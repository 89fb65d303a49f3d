//! The lines above the table: the daemon, sums, degraded arrays, jobs.

use ashlar_block::text::one_line;
use ashlar_client::interface::{ArraySample, Job, JobState, SnapshotSample};
use ashlar_terminal::progress::clock;
use ashlar_view::graph::human_size;

use crate::format::{bar, megabytes, rate};
use crate::rates::{DeviceRates, Interval};

/// The greatest number of degraded arrays, of limited volumes, and of jobs, that get a line each.
const MOST: usize = 4;
/// A snapshot at least this full, in percent, is shown as a defect: the threshold of LVM's dmeventd.
const NEARLY_FULL: f64 = 80.0;
/// The width of a bar.
const BAR_WIDTH: usize = 32;

/// The meaning of a line, for its colour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tone {
    /// A title.
    Title,
    /// Nothing special.
    Plain,
    /// A defect.
    Bad,
    /// A running job.
    Work,
}

/// The lines.
pub(crate) fn lines(interval: &Interval) -> Vec<(Tone, String)> {
    let mut lines = vec![(Tone::Title, daemon(interval)), (Tone::Plain, sums(interval))];
    let degraded = interval.arrays.iter().filter(|array| array.degraded > 0);
    let degraded = degraded.map(|array| (Tone::Bad, degraded_array(interval, array)));
    lines.extend(limited(degraded.collect(), "degraded arrays"));
    let silent = interval.devices.iter().filter(|device| device.state != "answering");
    let silent = silent.map(|it| (Tone::Bad, format!("{} is {}", one_line(it.title()), it.state)));
    lines.extend(limited(silent.collect(), "devices that do not answer"));
    lines.extend(limited(snapshots(interval), "snapshots"));
    lines.extend(limited(rate_limits(interval), "limited volumes"));
    match &interval.jobs {
        Some(jobs) => {
            let jobs = jobs.iter().map(|job| {
                (if job.state == JobState::Failed { Tone::Bad } else { Tone::Work }, work(job))
            });
            lines.extend(limited(jobs.collect(), "jobs"));
        }
        None => lines.push((Tone::Bad, "the daemon could not list its jobs in time".to_owned())),
    }
    lines
}

/// The first lines, and how many more there are.
fn limited(mut lines: Vec<(Tone, String)>, what: &str) -> Vec<(Tone, String)> {
    if lines.len() > MOST {
        let more = lines.len() - (MOST - 1);
        let tone = lines[MOST - 1].0;
        lines.truncate(MOST - 1);
        lines.push((tone, format!("and {more} more {what}")));
    }
    lines
}

fn daemon(interval: &Interval) -> String {
    let Interval { version, io, uptime_seconds, .. } = interval;
    format!("ashlar {version}, I/O by {io}, up {}", clock(*uptime_seconds as u64))
}

/// The I/O of clients: volumes only, because the devices below repeat it.
fn sums(interval: &Interval) -> String {
    let volumes = || interval.devices.iter().filter(|device| device.usage == "volume");
    let sum = |number: fn(&DeviceRates) -> f64| volumes().map(number).sum::<f64>();
    format!(
        "{} devices, {} volumes: {} reads/s, {} MB/s; {} writes/s, {} MB/s",
        interval.devices.len(),
        volumes().count(),
        rate(sum(|device| device.read.ios_per_second)),
        megabytes(sum(|device| device.read.bytes_per_second)),
        rate(sum(|device| device.write.ios_per_second)),
        megabytes(sum(|device| device.write.bytes_per_second)),
    )
}

fn degraded_array(interval: &Interval, array: &ArraySample) -> String {
    let device = interval.devices.iter().find(|device| device.name == array.device);
    let name = one_line(device.map_or(&array.device, DeviceRates::title));
    let working = array.required.saturating_sub(array.degraded);
    let (level, required) = (&array.level, array.required);
    format!("{name}: {level}, degraded, {working} of {required} members work")
}

/// A line for each snapshot, those first that are lost, and then the fullest. One that is being merged is a job.
fn snapshots(interval: &Interval) -> Vec<(Tone, String)> {
    let all = interval.devices.iter();
    let all = all.filter_map(|device| Some((device, device.snapshot.as_ref()?)));
    let mut all: Vec<(&DeviceRates, &SnapshotSample)> =
        all.filter(|(_, snapshot)| snapshot.is_active() || snapshot.is_lost()).collect();
    let used = |snapshot: &SnapshotSample| snapshot.used_percent.unwrap_or(100.0);
    all.sort_by(|(_, one), (_, other)| {
        let lost = other.is_lost().cmp(&one.is_lost());
        lost.then(used(other).total_cmp(&used(one)))
    });
    let line = |(device, snapshot): (&DeviceRates, &SnapshotSample)| {
        let bad = snapshot.is_lost() || used(snapshot) >= NEARLY_FULL;
        let name = one_line(device.title());
        let text = match snapshot.is_active() {
            true => format!("{name}: {snapshot}"),
            false => format!("{name}: {}, {snapshot}", snapshot.state),
        };
        (if bad { Tone::Bad } else { Tone::Plain }, one_line(&text))
    };
    all.into_iter().map(line).collect()
}

/// A line for each volume with rate limits, those first for which the most requests wait.
fn rate_limits(interval: &Interval) -> Vec<(Tone, String)> {
    let of = |device: &DeviceRates| {
        let limits = device.limits.as_ref()?;
        let text = format!("{}: {}", device.title(), limits.text()?);
        Some((limits.waiting(), (Tone::Plain, one_line(&text))))
    };
    let mut all: Vec<(u64, (Tone, String))> = interval.devices.iter().filter_map(of).collect();
    all.sort_by_key(|(waiting, _)| std::cmp::Reverse(*waiting));
    all.into_iter().map(|(_, line)| line).collect()
}

fn work(job: &Job) -> String {
    let name = one_line(job.alias.as_deref().unwrap_or(&job.name));
    let share = job.done_bytes as f64 / job.total_bytes.max(1) as f64;
    let mut line = format!("{name} {} {}", job.kind.name(), bar(share, BAR_WIDTH));
    match job.state {
        JobState::Running => {
            line.extend(job.bytes_per_second.map(|speed| format!(" {}/s", human_size(speed))));
            line.extend(job.seconds_left.map(|left| format!(", {} left", clock(left))));
        }
        JobState::Paused | JobState::Failed => line += &format!(" {}", job.state),
    }
    line
}
