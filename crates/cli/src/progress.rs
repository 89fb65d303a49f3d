//! Follows the background work of an array to its end.

use std::time::Duration;

use ashlar_client::client::Client;
use ashlar_commands::md::await_action;
use ashlar_daemon::error::Result;
pub(crate) use ashlar_terminal::progress::bar;
use ashlar_terminal::progress::{Moment, ProgressDisplay, clock};
use ashlar_view::detail::{Detail, DetailSync};
use serde_json::json;

/// How progress is shown.
#[derive(clap::Args, Clone, Copy, Debug)]
pub(crate) struct ProgressArgs {
    /// Print JSON, a line each time
    #[arg(long)]
    json: bool,

    /// Seconds between progress lines (with --json, or if standard error is not a terminal)
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    interval: u64,
}

impl ProgressArgs {
    /// The display of the progress.
    fn display(self) -> ProgressDisplay {
        ProgressDisplay::new(self.json, Duration::from_secs(self.interval))
    }

    /// A display that prints the first line only after an interval: work that ends before prints only its result.
    pub(crate) fn patient_display(self) -> ProgressDisplay {
        ProgressDisplay::patient(self.json, Duration::from_secs(self.interval))
    }
}

fn moment(detail: &Detail, sync: &DetailSync) -> Moment {
    let action = &detail.sync_action;
    Moment {
        title: format!("{}: {action}", short(detail)),
        parts: sync.done_kib * 1000 / sync.total_kib.max(1),
        words: words(sync),
        json: json!({ "array": detail.device, "action": action, "progress": sync }),
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
pub(crate) fn follow(client: &mut Client, name: &str, shown: ProgressArgs) -> Result<bool> {
    let mut display = shown.display();
    let ended = await_action(client, name, |detail, sync| display.show(&moment(detail, sync)))?;
    let Some(detail) = ended else { return Ok(false) };
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
    }
}
