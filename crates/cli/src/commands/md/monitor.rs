//! `ashlar md monitor`: events of running arrays, as mdadm --monitor reports them.

use std::process::ExitCode;
use std::time::Duration;

use ashlar_commands::md::running_arrays;
use ashlar_daemon::error::{FAILURE, Result};
use ashlar_view::events::{Event, Monitor};
use clap::Args;
use serde_json::json;

use super::ArrayName;
use super::alert::AlertArgs;
use crate::commands::Daemon;
use crate::output;

/// Print events of running arrays
///
/// Prints a line for each event, with mdadm's names: NewArray, DegradedArray, Fail, FailSpare,
/// SpareActive, RebuildStarted, Rebuild20 and so on, RebuildFinished, DeviceDisappeared,
/// TestMessage. With --program or --mail these learn of the events instead, and nothing is printed without --json. Runs until it is
/// interrupted; without a daemon, its arrays count as disappeared.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 done with --oneshot, regardless of the events, 1 no daemon, no such array, or with --oneshot an alert that was
not sent, 2 wrong usage.

Examples:
  ashlar md monitor
  ashlar md monitor --json md0 | while read -r event; do notify \"$event\"; done
  ashlar md monitor --scan --mail root@localhost --program /usr/local/bin/page --syslog
  ashlar md monitor --oneshot --test --mail root@localhost")]
pub(crate) struct MonitorCommand {
    /// The arrays: md0, /dev/md0 or /dev/md/NAME [default: all]
    arrays: Vec<ArrayName>,

    /// All arrays, also beside those that are named
    #[arg(short, long)]
    scan: bool,

    #[command(flatten)]
    alerts: AlertArgs,

    /// Print JSON, a line for each event
    #[arg(long)]
    json: bool,

    /// Check once, print the notable events, and end
    #[arg(short = '1', long)]
    oneshot: bool,

    /// First print an event TestMessage for each array
    #[arg(short, long)]
    test: bool,

    /// Seconds between two checks (mdadm's default is 60)
    #[arg(short, long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    delay: u64,

    #[command(flatten)]
    daemon: Daemon,
}

impl MonitorCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let Self { arrays, scan, alerts, json, oneshot, test, delay, daemon } = self;
        let alerts = alerts.check()?;
        let arrays = if scan { Vec::new() } else { arrays };
        let is_printed = json || !alerts.is_told_elsewhere();
        let mut code = ExitCode::SUCCESS;
        let mut monitor = Monitor::default();
        let mut test = test;
        // The first look must succeed.
        let mut client = Some(daemon.connect()?);
        let mut first = true;
        loop {
            let now = match client.as_mut().map(|client| running_arrays(client, &arrays)) {
                Some(Ok(now)) => now,
                Some(Err(error)) if first => return Err(error),
                Some(Err(_)) | None => {
                    client = None;
                    Vec::new()
                }
            };
            first = false;
            let tests = if std::mem::take(&mut test) { Event::tests(&now) } else { Vec::new() };
            for event in tests.into_iter().chain(monitor.look(&now)) {
                if is_printed {
                    output::print(&line(&event, json))?;
                }
                let mdstat = || client.as_mut().and_then(|client| client.get("proc/mdstat").ok());
                for failure in alerts.send(&event, mdstat) {
                    output::report(&failure);
                    code = ExitCode::from(FAILURE);
                }
            }
            if oneshot {
                return Ok(code);
            }
            std::thread::sleep(Duration::from_secs(delay));
            if client.is_none() {
                client = daemon.connect().ok();
            }
        }
    }
}

fn line(event: &Event, json: bool) -> String {
    if json { format!("{}\n", json!(event)) } else { format!("{event}\n") }
}
