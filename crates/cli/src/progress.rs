//! Follows long work to its end: a bar on a terminal, lines at intervals elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use ashlar_host::client::Client;
use ashlar_host::error::Result;
use ashlar_stack::detail::{Detail, DetailSync};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;

use crate::output;

/// How often the daemon is asked.
const POLL: Duration = Duration::from_millis(200);

/// How progress is shown.
#[derive(clap::Args, Clone, Copy, Debug)]
pub(crate) struct Shown {
    /// Print JSON, a line each time
    #[arg(long)]
    json: bool,

    /// Seconds between progress lines (with --json, or if standard error is not a terminal)
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    interval: u64,
}

/// The form of the progress output.
pub(crate) enum Display {
    Bar(ProgressBar),
    Lines { json: bool, interval: Duration, last: Option<Instant> },
}

/// The progress at one moment.
pub(crate) struct Moment {
    /// What is being done.
    pub(crate) title: String,
    /// How much of it is done, in parts of 1000.
    pub(crate) parts: u64,
    /// The progress in words.
    pub(crate) words: String,
    /// The progress as JSON.
    pub(crate) json: serde_json::Value,
}

/// A bar of 1000 parts on standard error; `None` if that is not a terminal.
pub(crate) fn bar() -> Option<ProgressBar> {
    if output::is_quiet() || !std::io::stderr().is_terminal() {
        return None;
    }
    let bar = ProgressBar::with_draw_target(Some(1000), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{prefix} [{bar:30}] {msg}");
    // If the style cannot be parsed, indicatif's default is used.
    if let Ok(style) = style {
        bar.set_style(style.progress_chars("=>."));
    }
    Some(bar)
}

impl Display {
    pub(crate) fn new(shown: Shown) -> Self {
        if let Some(bar) = bar().filter(|_| !shown.json) {
            return Self::Bar(bar);
        }
        let interval = Duration::from_secs(shown.interval);
        Self::Lines { json: shown.json, interval, last: None }
    }

    /// Prints the first line only after an interval: work that ends before prints only its result.
    pub(crate) fn patient(shown: Shown) -> Self {
        match Self::new(shown) {
            Self::Lines { json, interval, .. } => {
                Self::Lines { json, interval, last: Some(Instant::now()) }
            }
            bar @ Self::Bar(_) => bar,
        }
    }

    /// # Errors
    /// Standard output failed.
    pub(crate) fn show(&mut self, moment: &Moment) -> Result<()> {
        match self {
            Self::Bar(bar) => {
                bar.set_prefix(moment.title.clone());
                bar.set_position(moment.parts);
                bar.set_message(moment.words.clone());
                bar.tick();
            }
            Self::Lines { json, interval, last } => {
                if last.is_some_and(|last| last.elapsed() < *interval) {
                    return Ok(());
                }
                *last = Some(Instant::now());
                match json {
                    true => output::print(&format!("{}\n", moment.json))?,
                    false => output::tell(&format!("{} {}\n", moment.title, moment.words))?,
                }
            }
        }
        Ok(())
    }

    /// Prints other output while a bar is shown.
    pub(crate) fn beside<T>(&self, print: impl FnOnce() -> T) -> T {
        match self {
            Self::Bar(bar) => bar.suspend(print),
            Self::Lines { .. } => print(),
        }
    }

    /// Prints the result.
    ///
    /// # Errors
    /// Standard output failed.
    pub(crate) fn end(self, words: String, json: &serde_json::Value) -> Result<()> {
        match self {
            Self::Bar(bar) => {
                bar.finish_and_clear();
                output::tell(&(words + "\n"))
            }
            Self::Lines { json: false, .. } => output::tell(&(words + "\n")),
            Self::Lines { json: true, .. } => output::print(&format!("{json}\n")),
        }
    }
}

impl Moment {
    fn of(detail: &Detail, sync: &DetailSync) -> Self {
        let action = &detail.sync_action;
        Self {
            title: format!("{}: {action}", short(detail)),
            parts: sync.done_kib * 1000 / sync.total_kib.max(1),
            words: words(sync),
            json: json!({ "array": detail.device, "action": action, "progress": sync }),
        }
    }
}

/// `md0`.
fn short(detail: &Detail) -> &str {
    detail.device.strip_prefix("/dev/").unwrap_or(&detail.device)
}

/// `27% (286592/1047552 KiB), 95530 KiB/s, 0:07 left`.
fn words(sync: &DetailSync) -> String {
    let DetailSync { percent, done_kib, total_kib, speed_kib, seconds_left, .. } = sync;
    let text = format!("{percent}% ({done_kib}/{total_kib} KiB), {speed_kib} KiB/s");
    match seconds_left {
        Some(seconds) => format!("{text}, {} left", clock(*seconds)),
        None => text,
    }
}

/// `1:02:03`, or `2:03` below an hour.
pub(crate) fn clock(seconds: u64) -> String {
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 {
        format!("{hours}:{minutes:02}:{seconds:02}")
    } else {
        format!("{minutes}:{seconds:02}")
    }
}

/// The result of the work.
fn conclusion(detail: &Detail) -> String {
    let (array, action) = (short(detail), detail.last_sync_action.as_str());
    let found = detail.mismatch_count;
    let state = &detail.state;
    match (action, found) {
        ("check", 0) => format!("{array}: check ended, all copies are the same; {state}"),
        ("check", found) => format!(
            "{array}: check ended, {found} sectors differ; `ashlar md action {array} repair` makes \
             them the same; {state}"
        ),
        ("repair", found) => format!("{array}: repair ended, {found} sectors differed; {state}"),
        ("recover", _) => format!("{array}: recovery ended; {state}"),
        (action, _) => format!("{array}: {action} ended; {state}"),
    }
}

/// Shows the background work of the array `name` until it ends; false if there was none.
///
/// # Errors
/// The daemon is gone.
pub(crate) fn follow(client: &mut Client, name: &str, shown: Shown) -> Result<bool> {
    let mut detail = client.detail(name)?;
    if !detail.sync_busy {
        return Ok(false);
    }
    let mut display = Display::new(shown);
    while detail.sync_busy {
        if let Some(sync) = &detail.sync {
            display.show(&Moment::of(&detail, sync))?;
        }
        std::thread::sleep(POLL);
        detail = client.detail(name)?;
    }
    let Detail { last_sync_action: last, mismatch_count: found, .. } = &detail;
    let json = json!({ "array": detail.device, "ended": last, "mismatch_count": found });
    display.end(conclusion(&detail), &json)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_reads_as_a_sentence() {
        let sync = DetailSync {
            kind: "Check".to_owned(),
            percent: 27,
            done_kib: 286_592,
            total_kib: 1_047_552,
            speed_kib: 95_530,
            seconds_left: Some(7),
        };
        assert_eq!(words(&sync), "27% (286592/1047552 KiB), 95530 KiB/s, 0:07 left");
        let unknown = DetailSync { seconds_left: None, ..sync };
        assert_eq!(words(&unknown), "27% (286592/1047552 KiB), 95530 KiB/s");
        assert_eq!(clock(59), "0:59");
        assert_eq!(clock(3723), "1:02:03");
    }
}
