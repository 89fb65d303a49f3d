//! `ashlar-bench zvol`: volumes of a ZFS pool, with the request queue and without.
//!
//! The benchmark of OpenZFS's pull request 12664, which brought blk-mq to zvols: parallel dd, through the page cache
//! and with `O_DIRECT`. Here the bios that result from these are submitted to the volume's device in this process: the
//! whole path of an I/O, but without an export. The page cache writes back bios of one page under a plug: 4 KiB each, 1
//! MiB at a time. With `--mounted` and `--nbd` real clients do the I/O, of a daemon that serves the volume.

mod clients;
mod cpu;
mod load;
mod measure;
mod site;
mod table;

use std::num::NonZero;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;

use ashlar_commands::error::{Error, Result};
use ashlar_commands::pools::absolute;
use ashlar_disks as disks;
use ashlar_disks::size::bytes;
use ashlar_engine::Engine;
use ashlar_terminal as output;
use clap::Args;
use serde::Serialize;

use clients::{ClientFigures, Clients, Front};
use load::BATCH_BYTES;
use measure::{Bench, Ceiling, VolumeFigures};
use site::{Directory, Files, Site};
use table::size;

/// Target: gain of the queue for small bios.
const WANTED_WRITES: f64 = 2.5;
const WANTED_READS: f64 = 1.2;
/// Target: share of the random I/O rate that remains with the queue.
const WANTED_RANDOM: f64 = 0.95;
/// Target: share of libzpool's own rate for sequential writes.
const WANTED_OF_CEILING: f64 = 0.8;

/// Write and read ZFS volumes, with the request queue and without
///
/// Makes a pool in files (or on disks that are empty), volumes without compression in it, and measures each with
/// use_blk_mq off and on, in turn: streams that write and read in bios of 4 KiB, as the page cache makes them, and
/// of 1 MiB, as dd bs=1M makes them with O_DIRECT; I/O at random places; a MiB in one segment to 256; and a plain loop of
/// dmu_write() calls in the worker's own process, which is the most that libzpool can do.
///
/// MB/s and elapsed end with the last acknowledged write, as for dd; "on the disks" includes a
/// flush and the end of the transaction group. With --mounted and --nbd the clients are real: dd on
/// a loop device, as in the pull request, or fio, of a daemon that serves the volume; with their
/// processor time, and the daemon's. Reads from memory find all data in libzpool's cache; reads from
/// the disks (with --full) follow an export and an import, and find nothing cached, even in the page
/// cache of the files: there the queue's gain depends on the disks.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar-bench zvol
  ashlar-bench zvol --volblocksize 16K --streams 8 --set zfs_dirty_data_max=4294967296
  sudo ashlar-bench zvol --mounted
  ashlar-bench zvol --nbd --volblocksize 128K
  ashlar-bench zvol --full --mirror --dir /var/tmp --json")]
pub(crate) struct Zvol {
    /// Volume block sizes, with commas between them [default: 1M,16K; with --full 1M,8K,16K,128K]
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = volblocksize)]
    volblocksize: Vec<u64>,

    /// Size of a volume; each measurement writes or reads all of it [default: 256M; with --full 1G]
    #[arg(long, value_name = "SIZE", value_parser = volume_size)]
    size: Option<u64>,

    /// Streams, each with its part of the volume [default: two for each processor, 4 at least]
    #[arg(long, value_name = "N")]
    streams: Option<NonZero<u32>>,

    /// Number of rounds; medians are printed [default: 3; with --full 5]
    #[arg(long, value_name = "N")]
    rounds: Option<NonZero<usize>>,

    /// Measure dd on a loop device on the mounted volume, through the page cache and with O_DIRECT, as
    /// the pull request did; as root
    #[arg(long, conflicts_with_all = ["full", "tunables", "nbd"])]
    mounted: bool,

    /// Measure fio as a client of NBD, with small, middle and large requests
    #[arg(long, conflicts_with_all = ["full", "tunables"])]
    nbd: bool,

    /// Measure more: reads from the disks, all block sizes, larger volumes, more rounds
    #[arg(long)]
    full: bool,

    /// A mirror of two files; disks are mirrored in pairs
    #[arg(long)]
    mirror: bool,

    /// Where to make the pool's files, which are removed at the end [default: the temporary directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,

    /// Make the pool of these empty disks, with commas between them; the pool stays on them, exported
    #[arg(long, value_name = "DISK", value_delimiter = ',', conflicts_with = "dir")]
    disks: Vec<PathBuf>,

    /// Set a module parameter of OpenZFS in the worker (may be repeated)
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = tunable)]
    tunables: Vec<(String, u64)>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn volblocksize(text: &str) -> std::result::Result<u64, String> {
    let bytes = bytes(text)?;
    let possible = bytes.is_power_of_two() && (512..=16 << 20).contains(&bytes);
    possible.then_some(bytes).ok_or_else(|| format!("`{text}` is not a power of two, 512 to 16M"))
}

fn volume_size(text: &str) -> std::result::Result<u64, String> {
    let bytes = bytes(text)?;
    let possible = bytes >= 16 << 20 && bytes.is_multiple_of(16 << 20);
    possible.then_some(bytes).ok_or_else(|| format!("`{text}` is not a multiple of 16M"))
}

fn tunable(text: &str) -> std::result::Result<(String, u64), String> {
    let bad = || format!("`{text}` is not NAME=VALUE with a number");
    let (name, value) = text.split_once('=').ok_or_else(bad)?;
    Ok((name.to_owned(), value.parse().map_err(|_| bad())?))
}

/// A check against a target.
#[derive(Serialize)]
struct Check {
    what: String,
    measured: f64,
    wanted: f64,
    met: bool,
}

/// The full report.
#[derive(Serialize)]
struct Report {
    release: String,
    size_bytes: u64,
    streams: u64,
    rounds: usize,
    volumes: Vec<VolumeFigures>,
    checks: Vec<Check>,
}

/// The report on real clients.
#[derive(Serialize)]
struct ClientReport {
    front: Front,
    size_bytes: u64,
    streams: u64,
    rounds: usize,
    volumes: Vec<ClientFigures>,
}

impl Zvol {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let blocks = match (&self.volblocksize[..], self.full) {
            ([], false) => vec![1 << 20, 16 << 10],
            ([], true) => vec![1 << 20, 8 << 10, 16 << 10, 128 << 10],
            (given, _) => given.to_vec(),
        };
        let size_bytes = self.size.unwrap_or(if self.full { 1 << 30 } else { 256 << 20 });
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        let default_streams = (2 * processors as u64).max(4);
        let streams = self.streams.map_or(default_streams, |streams| streams.get().into());
        if streams > size_bytes / BATCH_BYTES {
            return Err(Error::usage(format_args!(
                "{streams} streams have not a MiB each of a volume of {}",
                size(size_bytes)
            )));
        }
        if self.mirror && !self.disks.len().is_multiple_of(2) {
            return Err(Error::usage("mirrors are of two disks each"));
        }
        // Sparse. libzpool counts written data 24 times until it knows better, and throttles writers if a pool has no
        // room for that: a small pool would measure this throttling.
        let file_bytes = (64 << 30) + 4 * size_bytes * blocks.len() as u64;
        let files = match self.disks[..] {
            [] => {
                let count = if self.mirror { 2 } else { 1 };
                Some(Files::make(self.dir.as_deref(), count, file_bytes)?)
            }
            _ => None,
        };
        let paths = files.as_ref().map_or(&self.disks[..], Files::paths);
        let rounds = self.rounds.map_or(if self.full { 5 } else { 3 }, NonZero::get);
        let front = [(self.mounted, Front::Mounted), (self.nbd, Front::Nbd)];
        if let Some((_, front)) = front.into_iter().find(|(is_wanted, _)| *is_wanted) {
            let disks = paths.iter().map(|path| absolute(path)).collect::<Result<_>>()?;
            let is_mirrored = self.mirror;
            let clients = Clients { front, disks, is_mirrored, size_bytes, streams, rounds };
            return self.measure_clients(&clients, &blocks);
        }
        let failed = |error| Error::plain("cannot start the reactors", error);
        let bench = Bench {
            engine: Engine::start(processors.min(streams as usize)).map_err(failed)?,
            size_bytes,
            streams,
            rounds,
            is_full: self.full,
            is_quiet: self.json,
        };
        let report = disks::reactor()?.block_on(self.measure(&bench, paths, &blocks))?;
        if self.json {
            output::print_json(&report)?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Measures real clients, in a directory for the sockets and the mount.
    fn measure_clients(&self, clients: &Clients, blocks: &[u64]) -> Result<ExitCode> {
        if clients.front == Front::Mounted && !rustix::process::geteuid().is_root() {
            let error = Error::usage("--mounted mounts, and makes loop devices, which takes root");
            return Err(error.hint("--nbd measures clients that need no root"));
        }
        let say = |text: &str| if self.json { Ok(()) } else { output::print(text) };
        say(&format!(
            "{}\nashlar, {} streams, volumes of {}, medians of {}, until all is acknowledged\n",
            table::seed(),
            clients.streams,
            size(clients.size_bytes),
            clients.rounds,
        ))?;
        let dir = Directory::make(self.dir.as_deref())?;
        let volumes = clients.run(dir.path(), blocks, say)?;
        if self.json {
            let Clients { front, size_bytes, streams, rounds, .. } = *clients;
            output::print_json(&ClientReport { front, size_bytes, streams, rounds, volumes })?;
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn measure(&self, bench: &Bench, paths: &[PathBuf], blocks: &[u64]) -> Result<Report> {
        let mut site = Site::make(paths, self.mirror, &self.tunables).await?;
        let release = site.release().to_owned();
        bench.say(&format!(
            "{}\nashlar, OpenZFS {release}: {} streams, volumes of {}, medians of {}\n",
            table::seed(),
            bench.streams,
            size(bench.size_bytes),
            bench.rounds,
        ))?;
        let mut volumes = Vec::new();
        for block_bytes in blocks {
            let measured;
            (site, measured) = bench.volume(site, *block_bytes).await?;
            volumes.push(measured);
        }
        site.end().await?;
        let checks = checks(&volumes);
        bench.say("\n")?;
        for Check { what, measured, wanted, met } in &checks {
            let met = if *met { "met" } else { "NOT met" };
            bench.say(&format!("  {what:<66} {measured:>6.2}, wanted {wanted}: {met}\n"))?;
        }
        let Bench { size_bytes, streams, rounds, .. } = *bench;
        Ok(Report { release, size_bytes, streams, rounds, volumes, checks })
    }
}

fn checks(volumes: &[VolumeFigures]) -> Vec<Check> {
    let mut checks = Vec::new();
    let mut check = |block_bytes, what: &str, measured: f64, wanted: f64| {
        let what = format!("volblocksize {}: {what}", size(block_bytes));
        checks.push(Check { what, measured, wanted, met: measured >= wanted });
    };
    for volume in volumes {
        let block = volume.volblocksize_bytes;
        check(block, "small writes, on / off", volume.small_gain(&volume.writes), WANTED_WRITES);
        let reads = volume.small_gain(&volume.reads_from_memory);
        check(block, "small reads from memory, on / off", reads, WANTED_READS);
        for random in &volume.random {
            let what = format!("random {}s of {}, on / off", random.way, size(random.io_bytes));
            check(block, &what, random.on_of_off, WANTED_RANDOM);
        }
        let Ceiling { answered, on_the_disks } = &volume.ceiling;
        for (until, of_plain) in [("", answered), (", on the disks", on_the_disks)] {
            for (queue, share) in [("off", of_plain.off_of_plain), ("on", of_plain.on_of_plain)] {
                let what = format!("1 MiB writes{until}, queue {queue}, of dmu_write's rate");
                check(block, &what, share, WANTED_OF_CEILING);
            }
        }
    }
    checks
}
