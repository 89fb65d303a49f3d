//! Reports about a scrub, in the words of `btrfs scrub` (btrfs-progs 6.2).

use std::fmt::Write as _;
use std::time::Duration;

use ashlar_btrfs::scrub::Counters;
use ashlar_files::size;
use ashlar_md::ondisk::text::CTime;

use super::records::{DeviceState, ScrubRecord};

/// The subject of a text: one device, or all.
struct Subject {
    counters: Counters,
    total_bytes: u64,
    state: DeviceState,
}

/// How much a report says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReportForm {
    /// The numbers of each device, not their sums.
    pub per_device: bool,
    /// All counters, by the kernel's names.
    pub raw: bool,
}

/// When a report is printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Occasion {
    /// The scrub has just ended: `scrub start -B`.
    Done,
    /// The user asks: `scrub status`.
    Asked {
        /// Whether a process is running the scrub.
        is_running: bool,
        /// The current time, seconds since the epoch.
        now: u64,
        /// The limit of each device, bytes per second; `None` means no limit.
        limit: Option<u64>,
    },
}

impl ScrubRecord {
    /// The report about it, as `btrfs scrub` prints it.
    pub fn report(&self, form: ReportForm, occasion: Occasion) -> String {
        report(self, form, occasion)
    }

    /// Its progress: `27.00% of 1.00GiB, 95.30MiB/s, 0:00:07 left, 3 errors`.
    pub fn progress(&self) -> String {
        progress(self)
    }

    /// The part that is scanned, in percent.
    pub fn percent(&self) -> f64 {
        percent(self.passed_bytes(), self.total_bytes())
    }
}

fn report(record: &ScrubRecord, form: ReportForm, occasion: Occasion) -> String {
    let mut text = String::new();
    let done = occasion == Occasion::Done;
    match (done, form.per_device) {
        (true, false) => line(&mut text, format_args!("scrub done for {}", record.fsid)),
        (true, true) => {}
        (false, _) => line(&mut text, format_args!("UUID:             {}", record.fsid)),
    }
    if !form.per_device {
        let part = Subject {
            counters: record.counters(),
            total_bytes: record.total_bytes(),
            state: worst(record),
        };
        text += &part_text(record, &part, form.raw, occasion);
        return text + &short(record) + &lost(record, occasion);
    }
    for device in &record.devices {
        let word = match (done, device.state) {
            (true, DeviceState::Cancelled) => "canceled",
            (true, _) => "done",
            (false, DeviceState::Running) => "status",
            (false, _) => "history",
        };
        text.push('\n');
        line(&mut text, format_args!("Scrub device {} (id {}) {word}", device.name, device.devid));
        let part = Subject {
            counters: device.counters,
            total_bytes: device.total_bytes,
            state: device.state,
        };
        text += &part_text(record, &part, form.raw, occasion);
    }
    text + &short(record) + &lost(record, occasion)
}

/// The devices that are too small.
fn short(record: &ScrubRecord) -> String {
    record.short.iter().map(|device| format!("Too small:        {device}\n")).collect()
}

/// The losses, and why the scrub ended early, for `scrub status`.
fn lost(record: &ScrubRecord, occasion: Occasion) -> String {
    if occasion == Occasion::Done {
        return String::new();
    }
    let error = record.error.iter().map(|error| format!("Ended by:         {error}\n"));
    error.chain(record.lost.iter().map(|line| format!("{line}\n"))).collect()
}

/// The combined state of all devices.
fn worst(record: &ScrubRecord) -> DeviceState {
    let any = |state| record.devices.iter().any(|device| device.state == state);
    [DeviceState::Running, DeviceState::Aborted, DeviceState::Cancelled]
        .into_iter()
        .find(|state| any(*state))
        .unwrap_or(DeviceState::Finished)
}

fn line(text: &mut String, words: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    if text.write_fmt(words).is_ok() {
        text.push('\n');
    }
}

fn part_text(record: &ScrubRecord, part: &Subject, raw: bool, occasion: Occasion) -> String {
    let mut text = String::new();
    let is_running = matches!(occasion, Occasion::Asked { is_running: true, .. })
        && part.state == DeviceState::Running;
    let word = match part.state {
        DeviceState::Running if is_running => "running",
        DeviceState::Running => "interrupted",
        DeviceState::Finished => "finished",
        DeviceState::Cancelled | DeviceState::Aborted => "aborted",
    };
    let (verb, since) = match record.resumed {
        Some(resumed) => ("resumed: ", resumed),
        None => ("started: ", record.started),
    };
    line(&mut text, format_args!("Scrub {verb}   {}", CTime(since)));
    line(&mut text, format_args!("Status:           {word}"));
    line(&mut text, format_args!("Duration:         {}", clock(record.duration)));
    if raw {
        for (name, value) in part.counters.named() {
            line(&mut text, format_args!("\t{name}: {value}"));
        }
        return text;
    }
    if let (true, Occasion::Asked { now, .. }, Some(left)) =
        (is_running, occasion, record.seconds_left())
    {
        line(&mut text, format_args!("Time left:        {}", clock(left)));
        let eta = now.saturating_add(left as u64);
        line(&mut text, format_args!("ETA:              {}", CTime(eta)));
    }
    line(&mut text, format_args!("Total to scrub:   {}", size(part.total_bytes as f64)));
    if part.state != DeviceState::Finished {
        // As btrfs-progs: of the bytes to scrub, not of the way through the devices.
        let done = part.counters.bytes();
        let percent = percent(done, part.total_bytes);
        let done = size(done as f64);
        line(&mut text, format_args!("Bytes scrubbed:   {done}  ({percent:.2}%)"));
    }
    let limit = match occasion {
        Occasion::Asked { limit: Some(limit), .. } => {
            format!(" (limit {}/s for each device)", size(limit as f64))
        }
        Occasion::Done | Occasion::Asked { .. } => String::new(),
    };
    let rate = size(rate(part.counters.bytes(), record.duration));
    line(&mut text, format_args!("Rate:             {rate}/s{limit}"));
    text + &summary(&part.counters, record.read_only)
}

/// The errors; a scrub that is `read_only` has corrected nothing.
fn summary(counters: &Counters, read_only: bool) -> String {
    if !counters.has_errors() {
        return "Error summary:    no errors found\n".to_owned();
    }
    let kinds = [
        ("read", counters.read_errors),
        ("super", counters.super_errors),
        ("verify", counters.verify_errors),
        ("csum", counters.csum_errors),
    ];
    let kinds: Vec<String> = kinds
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .map(|(name, count)| format!("{name}={count}"))
        .collect();
    format!(
        "Error summary:    {}\n  {:<16}{}\n  Uncorrectable:  {}\n  Unverified:     {}\n",
        kinds.join(" "),
        if read_only { "Correctable:" } else { "Corrected:" },
        counters.corrected_errors,
        counters.uncorrectable_errors,
        counters.unverified_errors,
    )
}

/// Bytes per second.
fn rate(bytes: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { bytes as f64 / seconds } else { 0.0 }
}

/// The percentage of `total` that is done, at most 100.
fn percent(done: u64, total: u64) -> f64 {
    if total == 0 { 100.0 } else { (done.min(total) as f64) * 100.0 / total as f64 }
}

/// `0:01:02`.
fn clock(seconds: f64) -> String {
    let seconds = Duration::try_from_secs_f64(seconds).unwrap_or_default().as_secs();
    format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// `27.00% of 1.00GiB, 95.30MiB/s, 0:00:07 left, 3 errors`.
fn progress(record: &ScrubRecord) -> String {
    let counters = record.counters();
    let share = record.percent();
    let total = size(record.total_bytes() as f64);
    let rate = size(rate(counters.bytes(), record.duration));
    let left = record.seconds_left().map(|left| format!(", {} left", clock(left)));
    let errors = counters.read_errors + counters.csum_errors + counters.verify_errors;
    let errors = match errors + counters.super_errors {
        0 => String::new(),
        1 => ", 1 error".to_owned(),
        errors => format!(", {errors} errors"),
    };
    format!("{share:.2}% of {total}, {rate}/s{}{errors}", left.unwrap_or_default())
}
