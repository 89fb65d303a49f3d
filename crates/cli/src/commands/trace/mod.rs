//! `ashlar trace`: events of bios, as btrace prints them.

mod printer;

use std::future::Future;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::ExitCode;
use std::time::Duration;

use ashlar_block::disk::DeviceNumber;
use ashlar_engine::signal::{self, Signal};
use ashlar_engine::sleep;
use ashlar_host::disks;
use ashlar_host::error::{Error, Result};
use ashlar_host::interface;
use ashlar_host::trace::{TraceFiles, recorded_devices, recorded_items};
use ashlar_stack::trace::Categories;
use ashlar_stack::trace::binary::PlacedItem;
use ashlar_terminal::bulk::BulkError;
use clap::Args;
use futures_util::future::select;

use super::Daemon;
use printer::Printer;

/// Trace I/O on devices of a running daemon
///
/// Prints a line for each step of each I/O, like btrace(8): device, thread, sequence number, time,
/// process, action, kind, sector and length, name of the thread. The actions: A from a device
/// above, Q queued, X split, G became a request, P plugged, M and F merged behind and before
/// another, U unplugged, I inserted, D sent to the driver, C completed, R failed and retried in
/// parts. The kinds: R read, W write, D discard, F flush (behind W: written through), N nothing;
/// then A ahead, S sync, M metadata.
///
/// Ends when it is interrupted, when the time is over, or with the daemon, and then prints sums
/// like blkparse(1). Tracing never delays I/O: events that arrive too fast are lost, and counted.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 done, 1 no daemon, no such device, or the output cannot be written, 2 wrong usage.

Examples:
  ashlar trace md0
  ashlar trace -w 10 -a write -a discard vg/home disk0.img
  ashlar trace -o slow md0 && blkparse -i slow
  ashlar trace -o - md0 disk0.img | blkparse -i -
  ashlar trace -i slow")]
pub(crate) struct Trace {
    /// The devices: md0, md/NAME, vg/lv, or a disk's name as in sys/block
    #[arg(required_unless_present = "input", conflicts_with = "input", value_name = "DEVICE")]
    devices: Vec<String>,

    /// Only actions in any of these categories: read, write, flush, sync, queue, requeue, issue,
    /// complete, fs, pc, notify, ahead, meta, discard, drv_data, fua
    #[arg(short, long, value_name = "CATEGORY", value_delimiter = ',', value_parser = category)]
    actions: Vec<String>,

    /// End after this number of seconds
    #[arg(short = 'w', long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    stopwatch: Option<u64>,

    /// Write blktrace's files instead: FILE.blktrace.0 and so on, for several devices
    /// FILE.DEVICE.blktrace.0; with - the same bytes to standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Print the contents of FILE.blktrace.0 and so on, as written by --output
    #[arg(
        short,
        long,
        value_name = "FILE",
        conflicts_with_all = ["output", "actions", "stopwatch", "control"]
    )]
    input: Option<PathBuf>,

    /// Print JSON, a line for each action, and one with the sums
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    daemon: Daemon,
}

/// Checks the name of a category.
fn category(name: &str) -> std::result::Result<String, String> {
    let known = Categories::named(name).map_err(|error| error.to_string());
    known.map(|_| name.to_owned())
}

/// The output of a trace.
enum Output {
    Lines(Printer),
    Files(TraceFiles, Printer),
    Bytes(io::StdoutLock<'static>),
}

/// The result of a step of a trace.
type Step = std::result::Result<(), BulkError>;

impl Output {
    fn put(&mut self, placed: &PlacedItem) -> Step {
        match self {
            Self::Lines(printer) => printer.put(&placed.item)?,
            Self::Files(files, printer) => {
                printer.count(&placed.item);
                files.put(placed)?;
            }
            Self::Bytes(out) => out.write_all(&placed.bytes)?,
        }
        Ok(())
    }

    fn flush(&mut self) -> Step {
        match self {
            Self::Lines(printer) => printer.flush()?,
            Self::Files(files, _) => files.flush()?,
            Self::Bytes(out) => out.flush()?,
        }
        Ok(())
    }

    /// Ends the output, with the totals.
    fn finish(mut self) -> Step {
        self.flush()?;
        match self {
            Self::Lines(printer) | Self::Files(_, printer) => printer.finish()?,
            Self::Bytes(_) => {}
        }
        Ok(())
    }
}

impl Trace {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let done = match &self.input {
            Some(input) => self.print_files(input),
            None => self.print_live(),
        };
        match done {
            Ok(()) | Err(BulkError::Gone) => Ok(ExitCode::SUCCESS),
            Err(BulkError::Failed(error)) => Err(error),
        }
    }

    fn print_files(&self, base: &Path) -> Step {
        let mut printer = Printer::new(self.json, recorded_devices(base)?);
        for item in recorded_items(base)? {
            printer.put(&item?)?;
        }
        Ok(printer.finish()?)
    }

    fn print_live(&self) -> Step {
        let signals = [Signal::TERM, Signal::INT];
        signal::block(&signals).map_err(|error| Error::plain("cannot block signals", error))?;
        let reactor = disks::reactor()?;
        let at = interface::Trace {
            devices: self.devices.clone(),
            actions: (!self.actions.is_empty()).then(|| self.actions.clone()),
        };
        reactor.block_on(async {
            let mut stream = self.daemon.connect()?.trace(&at)?;
            let mut output = self.output(stream.devices().to_vec())?;
            tracing::debug!(devices = self.devices.join(", "), "tracing");
            let mut stop = Some(end(&signals, self.stopwatch));
            while let Some(items) = stream.next(&mut stop).await? {
                for placed in &items {
                    output.put(placed)?;
                }
                output.flush()?;
            }
            if stream.lost() > 0 {
                tracing::warn!(lost = stream.lost(), "events came faster than they were taken");
            }
            output.finish()
        })
    }

    fn output(&self, devices: Vec<(DeviceNumber, String)>) -> Result<Output> {
        match &self.output {
            None => Ok(Output::Lines(Printer::new(self.json, devices))),
            Some(path) if path == Path::new("-") => Ok(Output::Bytes(io::stdout().lock())),
            Some(base) => {
                let files = TraceFiles::create(base, &devices)?;
                Ok(Output::Files(files, Printer::new(self.json, devices)))
            }
        }
    }
}

/// Ends on a signal, or after some seconds.
fn end(signals: &[Signal], stopwatch: Option<u64>) -> Pin<Box<dyn Future<Output = ()> + '_>> {
    Box::pin(async move {
        let signal = Box::pin(signal::wait(signals));
        let passed = Box::pin(async move {
            match stopwatch {
                Some(seconds) => sleep(Duration::from_secs(seconds)).await,
                None => std::future::pending().await,
            }
        });
        // Either one ends the trace.
        drop(select(signal, passed).await);
    })
}
