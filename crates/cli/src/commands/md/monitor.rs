//! `ashlar md monitor`: events of running arrays, as mdadm --monitor reports them.

use std::process::ExitCode;
use std::time::Duration;

use ashlar_host::error::Result;
use ashlar_host::md::running_arrays;
use ashlar_stack::events::{Event, Monitor};
use clap::Args;
use serde_json::json;

use super::ArrayName;
use crate::commands::Daemon;
use crate::output;

/// Print events of running arrays
///
/// Prints a line for each event, with mdadm's names: NewArray, DegradedArray, Fail, FailSpare,
/// SpareActive, RebuildStarted, Rebuild20 and so on, RebuildFinished, DeviceDisappeared,
/// TestMessage. Runs until it is interrupted; without a daemon, its arrays count as disappeared.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 done with --oneshot, regardless of the events, 1 no daemon or no such array, 2 wrong usage.

Examples:
  ashlar md monitor
  ashlar md monitor --json md0 | while read -r event; do notify \"$event\"; done
  ashlar md monitor --oneshot")]
pub(crate) struct MonitorCommand {
    /// The arrays: md0, /dev/md0 or /dev/md/NAME [default: all]
    arrays: Vec<ArrayName>,

    /// Print JSON, a line for each event
    #[arg(long)]
    json: bool,

    /// Check once, print the notable events, and end
    #[arg(short = '1', long)]
    oneshot: bool,

    /// First print an event TestMessage for each array
    #[arg(short, long)]
    test: bool,

    /// Seconds between two checks
    #[arg(short, long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    delay: u64,

    #[command(flatten)]
    daemon: Daemon,
}

impl MonitorCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let mut monitor = Monitor::default();
        let mut test = self.test;
        // The first look must succeed.
        let mut client = Some(self.daemon.connect()?);
        let mut first = true;
        loop {
            let now = match client.as_mut().map(|client| running_arrays(client, &self.arrays)) {
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
                output::print(&self.line(&event))?;
            }
            if self.oneshot {
                return Ok(ExitCode::SUCCESS);
            }
            std::thread::sleep(Duration::from_secs(self.delay));
            if client.is_none() {
                client = self.daemon.connect().ok();
            }
        }
    }

    fn line(&self, event: &Event) -> String {
        if self.json { format!("{}\n", json!(event)) } else { format!("{event}\n") }
    }
}
