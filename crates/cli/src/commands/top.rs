//! `ashlar top`: what the devices of a running daemon do.

use std::io::Write;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use ashlar_client::client::Client;
use ashlar_daemon::error::Result;
use ashlar_top::{Column, Interval, Options, report};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgGroup, Args};

use super::Daemon;
use crate::output;
use crate::output::bulk::{self, written};

/// Show what the devices of a running daemon do: rates, latencies, queues, merges, long work
#[derive(Args, Debug)]
#[command(
    group = ArgGroup::new("form").args(["json", "batch"]),
    after_help = "\
Keys: F1 h help, F3 / search, F4 \\ filter, F5 t tree, F6 > < sort, I invert, 0 hide idle devices,
+ - d time between samples, space hold, F10 q quit.

Exit codes: 0 done, 1 no daemon, or it has ended, 2 wrong usage.

Environment: NO_COLOR leaves out colours.

Examples:
  ashlar top
  ashlar top --batch -n 3 -d 1 --sort written-bytes
  ashlar top --json --filter md/data"
)]
pub(crate) struct Top {
    /// Print one interval as JSON
    #[arg(long)]
    json: bool,

    /// Print tables, one after the other
    #[arg(short, long)]
    batch: bool,

    /// How many tables to print [default: no end]
    #[arg(
        short = 'n',
        long,
        value_name = "COUNT",
        requires = "batch",
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    iterations: Option<u64>,

    /// The time between two samples, from 0.1 to 3600 seconds
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = delay)]
    delay: Duration,

    /// The column to sort by: words from the first, numbers from the greatest
    #[arg(long, value_name = "COLUMN", default_value = "device", value_parser = column())]
    sort: Column,

    /// Only devices with this text in their name, kind or use
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    filter: String,

    #[command(flatten)]
    daemon: Daemon,
}

fn delay(text: &str) -> std::result::Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("`{text}` is not a number of seconds"))?;
    if (0.1..=3600.0).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err("from 0.1 to 3600 seconds are possible".to_owned())
    }
}

fn column() -> impl TypedValueParser<Value = Column> {
    let keys = PossibleValuesParser::new(Column::ALL.map(Column::key));
    keys.try_map(|key| Column::named(&key).ok_or("there is no such column"))
}

impl Top {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let mut client = self.daemon.connect()?;
        let options = Options { delay: self.delay, sort: self.sort, filter: self.filter };
        if self.json {
            let before = client.sample()?;
            thread::sleep(options.delay);
            let mut interval = Interval::between(&before, &client.sample()?);
            interval.arrange(&options);
            output::print_json(&interval)?;
        } else if self.batch {
            batch(&mut client, &options, self.iterations)?;
        } else {
            ashlar_top::run(client, &options)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn batch(client: &mut Client, options: &Options, count: Option<u64>) -> Result<()> {
    let mut out = bulk::text_output();
    let mut before = client.sample()?;
    let mut printed = 0;
    while count.is_none_or(|count| printed < count) {
        thread::sleep(options.delay);
        let after = client.sample()?;
        let text = report::text(&Interval::between(&before, &after), options);
        let gap = if printed > 0 { "\n" } else { "" };
        let result = out.write_all(format!("{gap}{text}").as_bytes()).and_then(|()| out.flush());
        let has_reader = result.is_ok();
        written(result)?;
        if !has_reader {
            break;
        }
        (before, printed) = (after, printed + 1);
    }
    Ok(())
}
