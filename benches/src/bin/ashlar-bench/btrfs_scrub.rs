//! `ashlar-bench btrfs-scrub`: a file system scrubbed by the kernel and by ashlar, and by ashlar on models of other
//! disks with each kind of readahead.
//!
//! The figures for comparison come from the patches that replaced the kernel's scrub readahead with path readahead
//! (linux-btrfs, December 2021).

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use ashlar_btrfs::csum::ChecksumKind;
use ashlar_btrfs::readahead::Reada;
use ashlar_btrfs::scrub::{Options, Scrub};
use ashlar_btrfs::volume::{FileSystem, OpenOptions, Source};
use ashlar_engine::now_ns;
use ashlar_host::btrfs::Selection;
use ashlar_host::disks::{self, Access};
use ashlar_host::error::{Error, Result};
use ashlar_host::sandbox::Sandbox;
use ashlar_sim::Sim;
use ashlar_sim::model::{Model, Seek};
use ashlar_terminal as output;
use clap::Args;
use serde::Serialize;

use crate::loops::{LoopDevice, drop_caches};
use crate::modelled;
use crate::populated::Image;
use crate::program::run;

/// Target: this share of the kernel's rate.
const WANTED_OF_KERNEL: f64 = 1.0;

/// A modelled disk.
struct ModelDisk {
    name: &'static str,
    model: Model,
    /// The patches' figures before and after, MiB/s.
    seed: (f64, f64),
    /// Target: the default's share of the ideal rate.
    wanted: f64,
}

/// The disks of the patches: a SATA SSD, and a disk of 5400 rpm.
fn model_disks() -> [ModelDisk; 2] {
    let slow = Model {
        bytes_per_second: 120_000_000,
        seek: Some(Seek { min_ns: 1_500_000, full_stroke_ns: 20_000_000, turn_ns: 11_111_111 }),
        ..Model::hdd()
    };
    let seed = [(455.3, 466.332), (103.927, 98.012)];
    [
        ModelDisk { name: "sata-ssd", model: Model::sata_ssd(), seed: seed[0], wanted: 0.97 },
        ModelDisk { name: "hdd, 5400 rpm", model: slow, seed: seed[1], wanted: 0.94 },
    ]
}

/// Scrub a btrfs file system, beside the kernel and on models of other disks
///
/// As root, makes an image file with the files of the patches' benchmark (fio, four jobs of files
/// of 2 to 512 KiB written at random, one of sixteen removed); the kernel and ashlar then scrub it
/// in turn through a loop device, with none of it in memory. Then ashlar scrubs it on models of a
/// SATA SSD and of a disk of 5400 turns a minute, in virtual time: without readahead, with each
/// kind, and with all trees in memory.
///
/// With --image, scrubs an existing file system, and makes and mounts nothing: an ordinary user can
/// do that.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  sudo ashlar-bench btrfs-scrub
  sudo ashlar-bench btrfs-scrub --files 16384 --dir /var/tmp
  ashlar-bench btrfs-scrub --image disk.img --json")]
pub(crate) struct BtrfsScrub {
    /// Files of each of the four jobs; the benchmark had 16384, which take 16 GiB
    #[arg(long, value_name = "N", default_value_t = 1024)]
    files: u32,

    /// Number of rounds; medians are printed
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: usize,

    /// The checksum algorithm, as mkfs.btrfs names it: crc32c, xxhash, sha256, blake2
    #[arg(long, value_name = "NAME", default_value = "crc32c")]
    csum: String,

    /// Directory for the image file, which is removed at the end [default: the temporary directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,

    /// Use this image, and leave it unchanged
    #[arg(long, value_name = "FILE", conflicts_with_all = ["files", "csum", "dir"])]
    image: Option<PathBuf>,

    /// Omit the models
    #[arg(long)]
    no_models: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The result of a scrub.
#[derive(Clone, Copy, Serialize)]
struct ScrubTime {
    bytes: u64,
    seconds: f64,
}

impl ScrubTime {
    fn mib_per_second(self) -> f64 {
        self.bytes as f64 / f64::from(1 << 20) / self.seconds
    }
}

/// Rates of a modelled disk, MiB/s.
#[derive(Serialize)]
struct ModelRates {
    disk: &'static str,
    none: f64,
    forward: f64,
    forward_always: f64,
    /// The default.
    scan: f64,
    /// With all trees in memory.
    ideal: f64,
    /// The default's share of the ideal.
    of_ideal: f64,
    wanted: f64,
}

/// The full report.
#[derive(Serialize)]
struct Report {
    /// How many files the image was made with, and the algorithm of its checksums; `None` of an image that was given.
    files: Option<u32>,
    csum: Option<String>,
    kernel: Option<f64>,
    ashlar: Option<f64>,
    of_kernel: Option<f64>,
    models: Vec<ModelRates>,
    checksums: Vec<(&'static str, f64)>,
}

impl BtrfsScrub {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let made = match &self.image {
            Some(_) => None,
            None => Some(Image::make(self.dir.as_deref(), self.files, &self.csum)?),
        };
        let path = match (&self.image, &made) {
            (Some(path), _) => path.clone(),
            (None, Some(made)) => made.path().to_owned(),
            (None, None) => return Err(Error::usage("no image")),
        };
        self.say(&seed_table())?;
        let mut report = Report {
            files: made.as_ref().map(|_| self.files),
            csum: made.as_ref().map(|_| self.csum.clone()),
            kernel: None,
            ashlar: None,
            of_kernel: None,
            models: Vec::new(),
            checksums: checksum_speeds(),
        };
        if let Some(image) = &made {
            self.beside_kernel(image, &mut report)?;
        }
        if !self.no_models {
            self.on_models(&path, &mut report)?;
        }
        self.say("\nchecksums of 4 KiB, GiB/s\n")?;
        for (name, rate) in &report.checksums {
            self.say(&format!("  {name:<28} {rate:>8.2}\n"))?;
        }
        if self.json {
            output::print_json(&report)?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Prints, unless the output is JSON.
    fn say(&self, text: &str) -> Result<()> {
        if self.json { Ok(()) } else { output::print(text) }
    }

    /// The kernel and ashlar alternately on one loop device.
    fn beside_kernel(&self, image: &Image, report: &mut Report) -> Result<()> {
        self.say(&format!("\n{}, through a loop device, MiB/s\n", image.what()))?;
        let (mut theirs, mut ours) = (Vec::new(), Vec::new());
        for _ in 0..self.rounds.max(1) {
            theirs.push(kernel_scrub(image)?);
            ours.push(ashlar_scrub(image)?);
        }
        // Both read the same bytes, and count them in the same way.
        let bytes = ours.first().map_or(0, |took: &ScrubTime| took.bytes);
        let theirs = median(theirs.into_iter().map(|seconds| ScrubTime { bytes, seconds }));
        let ours = median(ours.into_iter());
        let ratio = ours / theirs;
        self.say(&format!("  {:<28} {theirs:>8.1}\n", "the kernel"))?;
        self.say(&format!("  {:<28} {ours:>8.1}\n", "ashlar"))?;
        self.say(&format!("  {ratio:.2} of the kernel's rate, wanted {WANTED_OF_KERNEL}\n"))?;
        (report.kernel, report.ashlar, report.of_kernel) = (Some(theirs), Some(ours), Some(ratio));
        Ok(())
    }

    /// Each modelled disk with each kind of readahead.
    fn on_models(&self, path: &Path, report: &mut Report) -> Result<()> {
        self.say("\nashlar on models of disks, virtual time, MiB/s\n")?;
        self.say(&format!(
            "  {:<16} {:>8} {:>8} {:>15} {:>8} {:>8}\n",
            "", "none", "forward", "forward-always", "scan", "ideal"
        ))?;
        for ModelDisk { name, model, wanted, .. } in model_disks() {
            let rate = |reada, warm| scrub_model(path, model, reada, warm);
            let none = rate(Reada::None, false)?;
            let forward = rate(Reada::Forward, false)?;
            let forward_always = rate(Reada::ForwardAlways, false)?;
            let scan = rate(Reada::Scan, false)?;
            let ideal = rate(Reada::None, true)?;
            let of_ideal = scan / ideal;
            self.say(&format!(
                "  {name:<16} {none:>8.1} {forward:>8.1} {forward_always:>15.1} {scan:>8.1} {ideal:>8.1}   scan has \
                 {of_ideal:.3} of the ideal, wanted {wanted}\n"
            ))?;
            report.models.push(ModelRates {
                disk: name,
                none,
                forward,
                forward_always,
                scan,
                ideal,
                of_ideal,
                wanted,
            });
        }
        Ok(())
    }
}

fn seed_table() -> String {
    let mut text =
        "linux-btrfs, December 2021: scrub with the old readahead, and with that of paths, MiB/s\n"
            .to_owned();
    for ModelDisk { name, seed: (old, new), .. } in model_disks() {
        let change = (new / old - 1.0) * 100.0;
        text += &format!("  {name:<16} {old:>8.1} {new:>8.1}   {change:+.2} %\n");
    }
    text
}

fn median(all: impl Iterator<Item = ScrubTime>) -> f64 {
    let mut rates: Vec<f64> = all.map(ScrubTime::mib_per_second).collect();
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The seconds that the kernel's scrub takes.
fn kernel_scrub(image: &Image) -> Result<f64> {
    let device = LoopDevice::attach(image.path(), false)?;
    let mounted = image.mount(&device)?;
    drop_caches()?;
    let begun_ns = now_ns();
    run("btrfs", &["scrub", "start", "-B", &mounted.path().to_string_lossy()])?;
    let took = (now_ns() - begun_ns) as f64 / 1e9;
    mounted.end()?;
    device.end()?;
    Ok(took)
}

/// The result of ashlar's scrub, timed from opening the file system.
fn ashlar_scrub(image: &Image) -> Result<ScrubTime> {
    let device = LoopDevice::attach(image.path(), false)?;
    drop_caches()?;
    let selection = Selection { devices: vec![device.name().into()], ..Selection::default() };
    let took = disks::reactor()?.block_on(async {
        let begun_ns = now_ns();
        let opened = selection.open(Access::Write, Sandbox::none()).await?;
        let bytes = scrub(&opened.fs, Options::default()).await?;
        let seconds = (now_ns() - begun_ns) as f64 / 1e9;
        opened.close().await?;
        Ok(ScrubTime { bytes, seconds })
    })?;
    device.end()?;
    Ok(took)
}

/// Scrubs; returns the number of bytes verified.
///
/// # Errors
/// The scrub failed, or found errors.
async fn scrub(fs: &Arc<FileSystem>, options: Options) -> Result<u64> {
    let reports = Scrub::new(Arc::clone(fs), options).run(&()).await;
    let reports = reports.map_err(|error| Error::plain("cannot scrub", error))?;
    if reports.iter().any(|report| report.counters.has_errors()) {
        return Err(Error::failed("the scrub found errors in the file system that was just made"));
    }
    let bytes = reports
        .iter()
        .map(|report| report.counters.data_bytes_scrubbed + report.counters.tree_bytes_scrubbed);
    Ok(bytes.sum())
}

/// The rate on a modelled disk; with `warm` all trees are in memory.
///
/// # Errors
/// The image cannot be opened or scrubbed, or the scrub found errors.
fn scrub_model(path: &Path, model: Model, reada: Reada, warm: bool) -> Result<f64> {
    let sim = Sim::new(1);
    let gateway = modelled::open(path, model, &sim)
        .map_err(|error| Error::new("cannot open", path.display(), error))?;
    let options =
        Options { read_only: true, extent_reada: reada, csum_reada: reada, ..Options::default() };
    let took = sim.block_on(async {
        let source = Source { name: "disk".to_owned(), gateway };
        let open = FileSystem::open(vec![source], OpenOptions::default(), sim.runtime()).await;
        let fs = open.map_err(|error| Error::plain("cannot open the file system", error))?;
        if warm {
            scrub(&fs, options.clone()).await?;
        }
        let begun_ns = sim.now_ns();
        let bytes = scrub(&fs, options).await?;
        Ok::<_, Error>(ScrubTime { bytes, seconds: (sim.now_ns() - begun_ns) as f64 / 1e9 })
    })?;
    Ok(took.mib_per_second())
}

/// The speed of each algorithm on blocks of 4 KiB.
fn checksum_speeds() -> Vec<(&'static str, f64)> {
    const BLOCKS: usize = 256;
    let data = vec![0x5a_u8; BLOCKS * 4096];
    let speed = |kind: ChecksumKind| {
        let (mut rounds, begun_ns) = (0_u64, now_ns());
        loop {
            for block in data.chunks(4096) {
                std::hint::black_box(kind.compute(std::hint::black_box(block)));
            }
            rounds += 1;
            let took_ns = now_ns() - begun_ns;
            if took_ns > 200_000_000 {
                let bytes = rounds * data.len() as u64;
                return bytes as f64 / f64::from(1 << 30) / (took_ns as f64 / 1e9);
            }
        }
    };
    ChecksumKind::ALL.map(|kind| (kind.name(), speed(kind))).into()
}
