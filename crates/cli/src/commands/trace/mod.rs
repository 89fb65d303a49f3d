//! `ashlar trace`: events of bios, as btrace prints them.

mod files;
mod picture;
mod printer;

use std::future::Future;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::ExitCode;
use std::time::Duration;

use ashlar_block::disk::DeviceNumber;
use ashlar_client::interface;
use ashlar_client::trace_stream::TraceStream;
use ashlar_commands::trace::{
    NamesOnDisk, TraceFiles, host_and_kernel, recorded_devices, recorded_items,
};
use ashlar_daemon::error::{Error, Result};
use ashlar_disks::{self as disks, Access};
use ashlar_engine::signal::{self, Signal};
use ashlar_engine::sleep;
use ashlar_plot::trace::Categories;
use ashlar_plot::trace::binary::{Item, PlacedItem};
use ashlar_terminal::bulk::BulkError;
use clap::Args;
use futures_util::future::select;

use super::Daemon;
use files::FileSums;
use picture::Picture;
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
///
/// With --plot it draws a picture instead of the lines: for each device offsets, throughput,
/// completions and merges, latencies and queue depth over time, how latencies are spread, and their
/// percentiles. The heading says when, on which host and by which command the trace was made. With
/// --files it names the files of a btrfs behind each I/O on the devices of that file system: those of
/// now, not of the time of the I/O.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 done, 1 no daemon, no such device, or the output cannot be written, 2 wrong usage.

Examples:
  ashlar trace md0
  ashlar trace -w 10 -a write -a discard vg/home disk0.img
  ashlar trace -o slow md0 && blkparse -i slow
  ashlar trace -o - md0 disk0.img | blkparse -i -
  ashlar trace -i slow
  ashlar trace -w 10 --plot slow.svg md0 disk0.img disk1.img
  ashlar trace -i slow --plot slow.html --files disk0.img disk1.img")]
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

    /// Print the contents of FILE.blktrace.0 and so on, as written by --output or by blktrace; without
    /// such a file, those of FILE.DEVICE.blktrace.0 for all devices
    #[arg(
        short,
        long,
        value_name = "FILE",
        conflicts_with_all = ["output", "actions", "stopwatch", "control"]
    )]
    input: Option<PathBuf>,

    /// Draw a picture at the end: FILE.svg, or FILE.html with the numbers in tables. Replaces the
    /// lines, but not those of --json; goes together with --output
    #[arg(long, value_name = "FILE", value_parser = picture::ending)]
    plot: Option<PathBuf>,

    /// Name the files behind each I/O, of the btrfs on these disks, which are only read; print I/O by
    /// file at the end. A live trace reads the disks that the daemon uses
    #[arg(long, value_name = "DISK", num_args = 1..)]
    files: Vec<PathBuf>,

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
struct Output {
    printer: Option<Printer>,
    /// Whether the printer prints events, too.
    has_lines: bool,
    files: Option<TraceFiles>,
    bytes: Option<io::StdoutLock<'static>>,
    picture: Option<Picture>,
    names: Option<(NamesOnDisk, FileSums)>,
}

/// The result of a step of a trace.
type Step = std::result::Result<(), BulkError>;

impl Output {
    async fn put(&mut self, item: &Item) -> Step {
        let mut occupants = Vec::new();
        if let Item::Event(record) = item
            && let Some((names, sums)) = &mut self.names
        {
            occupants = names.of(record).await;
            sums.add(record, &occupants);
        }
        if let Some(picture) = &mut self.picture {
            picture.add(item);
        }
        match &mut self.printer {
            Some(printer) if self.has_lines => printer.put(item, &occupants)?,
            Some(printer) => printer.count(item),
            None => {}
        }
        Ok(())
    }

    async fn put_placed(&mut self, placed: &PlacedItem) -> Step {
        if let Some(files) = &mut self.files {
            files.put(placed)?;
        }
        if let Some(out) = &mut self.bytes {
            out.write_all(&placed.bytes)?;
        }
        self.put(&placed.item).await
    }

    fn flush(&mut self) -> Step {
        if let Some(files) = &mut self.files {
            files.flush()?;
        }
        if let Some(out) = &mut self.bytes {
            out.flush()?;
        }
        if let Some(printer) = &mut self.printer {
            printer.flush()?;
        }
        Ok(())
    }

    /// Ends the output, with the picture and the totals.
    async fn finish(mut self) -> Step {
        self.flush()?;
        let mut sums = None;
        if let Some((names, found)) = self.names {
            names.close().await?;
            sums = Some(found);
        }
        if let Some(picture) = self.picture {
            let rows = sums.as_ref().map(FileSums::rows).unwrap_or_default();
            picture.finish(&files::shown(rows))?;
        }
        if let Some(printer) = self.printer {
            printer.finish(sums.as_ref())?;
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
        let devices = recorded_devices(base)?;
        let print = async || {
            let mut output = self.output(devices, Access::Read).await?;
            for item in recorded_items(base)? {
                output.put(&item?).await?;
            }
            output.finish().await
        };
        disks::reactor()?.block_on(print())
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
            let mut stream = TraceStream::begin(self.daemon.connect()?, &at)?;
            let mut output = self.output(stream.devices().to_vec(), Access::Look).await?;
            tracing::debug!(devices = self.devices.join(", "), "tracing");
            let mut stop = Some(end(&signals, self.stopwatch));
            while let Some(items) = stream.next(&mut stop).await? {
                for placed in &items {
                    output.put_placed(placed).await?;
                }
                output.flush()?;
            }
            if stream.lost() > 0 {
                tracing::warn!(lost = stream.lost(), "events came faster than they were taken");
            }
            output.finish().await
        })
    }

    async fn output(&self, devices: Vec<(DeviceNumber, String)>, access: Access) -> Result<Output> {
        let names = match &self.files[..] {
            [] => None,
            disks => Some(NamesOnDisk::open(disks.to_vec(), access, &devices).await?),
        };
        // Files do not say on which host they were made.
        let host = || self.input.is_none().then(host_and_kernel);
        let picture = self.plot.as_ref().map(|path| Picture::new(path, devices.clone(), host()));
        let picture = picture.transpose()?;
        let to_pipe = self.output.as_deref() == Some(Path::new("-"));
        let base = self.output.as_deref().filter(|_| !to_pipe);
        let files = base.map(|base| TraceFiles::create(base, &devices)).transpose()?;
        Ok(Output {
            has_lines: files.is_none() && (picture.is_none() || self.json),
            printer: (!to_pipe).then(|| Printer::new(self.json, devices)),
            files,
            bytes: to_pipe.then(|| io::stdout().lock()),
            picture,
            names: names.map(|names| (names, FileSums::default())),
        })
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
