//! `ashlar-bench lvm-snapshot`: a file read from an LVM snapshot, with merging and without.
//!
//! The test case of Launchpad bug 1833319: a snapshot with chunks of 4 KiB splits every read into pieces of that size.
//! A queue that merges them again gives the disk a few large requests; a queue that does not, like NVMe's in Linux 4.4,
//! passes on all the small ones, which is expensive where I/Os are counted.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use ashlar_block::{Gateway, Sectors};
use ashlar_commands::error::{Error, Result};
use ashlar_disks::size;
use ashlar_disks::{self as disks, Access, Opener};
use ashlar_engine::now_ns;
use ashlar_sim::model::NamedModel;
use ashlar_sim::modelled;
use ashlar_terminal as output;
use clap::Args;
use serde::Serialize;

use crate::mounted::Site;
use crate::readahead;
use crate::volumes::{self, FILE_START, PLAIN_NAME, SNAPSHOT_NAME, VOLUME_NAME, Volumes};

/// Target: merging must be at least this many times as fast on the modelled disk.
const WANTED_GAIN: f64 = 20.0;
/// Target: the snapshot must have at least this share of the plain volume's rate.
const WANTED_OF_PLAIN: f64 = 0.9;

/// The longest readahead window on ashlar's own volumes: one request of the modelled disk.
const WINDOW: Sectors = Sectors(256 << 1);
/// The same with a loop device and FUSE in between.
const MOUNTED_WINDOW: Sectors = Sectors(4 << 11);

/// Read a file from an LVM snapshot, with merging and without
///
/// The test case of https://bugs.launchpad.net/bugs/1833319, step by step: pvcreate, vgcreate,
/// lvcreate of 80 % of the disk, a file on the volume, lvcreate of a snapshot with chunks of 4 KiB;
/// the file is read from the snapshot with queue/nomerges 2 and 0, and from the volume. It runs
/// once on an image file as it is, and once on a model of the bug report's disk.
///
/// An ordinary user can run it: it issues the reads of the kernel's page cache for cat to ashlar's
/// own volumes, without a mounted file system. With --mounted the volume has an ext4 file system,
/// mounted through a loop device, and the file is read from the mounted snapshot.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar-bench lvm-snapshot
  ashlar-bench lvm-snapshot --quick --model hdd
  ashlar-bench lvm-snapshot --model gp2:16000iops,bandwidth=1000M --json
  sudo ashlar-bench lvm-snapshot --mounted")]
pub(crate) struct LvmSnapshot {
    /// Read 64 MiB, not 512 MiB
    #[arg(long)]
    quick: bool,

    /// The disk to model: see ashlar serve --model. The default's bandwidth is that of the reads in
    /// the bug report
    #[arg(long, value_name = "MODEL", default_value = "gp2:3000iops,bandwidth=290M")]
    model: NamedModel,

    /// Make a file system, mount it, and read the file there; as root
    #[arg(long)]
    mounted: bool,

    /// Directory for the image file, which is removed at the end [default: the temporary directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,

    /// The longest window that is read ahead, as blockdev --setra sets it: KiB, or with K or M [default:
    /// 256K; with --mounted 4M, since each window also passes a loop device and FUSE there, and while it does
    /// a disk may have nothing to do: long windows make that rare]
    #[arg(long, value_name = "SIZE", value_parser = readahead_size)]
    readahead: Option<Sectors>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn readahead_size(text: &str) -> std::result::Result<Sectors, String> {
    let size = size::size(text)?;
    let page = Sectors::from_bytes_floor(readahead::PAGE);
    let possible = size >= page && size.0.is_multiple_of(page.0) && size.bytes() <= 1 << 30;
    possible.then_some(size).ok_or_else(|| format!("`{text}` is not 4K to 1024M in steps of 4K"))
}

/// The volume that is read.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "lowercase")]
enum Source {
    Snapshot,
    Volume,
}

impl Source {
    fn name(self) -> &'static str {
        match self {
            Self::Snapshot => "snapshot",
            Self::Volume => "plain volume",
        }
    }

    /// The name of its device, also when it is mounted.
    fn device(self) -> &'static str {
        match self {
            Self::Snapshot => SNAPSHOT_NAME,
            Self::Volume => PLAIN_NAME,
        }
    }
}

/// The rows: source and `nomerges`. The others are compared with the last one.
const ROWS: [(Source, u64); 3] =
    [(Source::Snapshot, 2), (Source::Snapshot, 0), (Source::Volume, 0)];
/// The bug report's figures for them, in seconds.
const SEED: [Option<f64>; 3] = [Some(42.693), Some(1.773), None];
/// The size of its file.
const SEED_MIB: u64 = 512;

/// The result of one read.
#[derive(Clone, Copy, Serialize)]
struct Row {
    source: Source,
    nomerges: u64,
    seconds: f64,
    megabytes_per_second: f64,
    /// Requests that reached the disk.
    ios: u64,
    /// I/Os that were merged into another.
    merges: u64,
}

/// The rows of a disk.
#[derive(Serialize)]
struct DiskFigures {
    disk: String,
    rows: Vec<Row>,
    /// The time without merging divided by the time with merging.
    gain: f64,
    /// The rate of the snapshot with merging, divided by the plain volume's rate.
    of_plain: f64,
}

/// The full report.
#[derive(Serialize)]
struct Report {
    mounted: bool,
    bytes: u64,
    readahead: u64,
    disks: Vec<DiskFigures>,
    wanted_gain: f64,
    wanted_of_plain: f64,
    /// Whether the modelled disk meets the targets.
    met: bool,
}

impl LvmSnapshot {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let mib = if self.quick { 64 } else { SEED_MIB };
        let file = Sectors(mib << 11);
        if !self.json {
            output::print(&self.heading(mib))?;
        }
        let site = self.site()?;
        let image = Image::make(self.dir.as_deref(), volumes::disk_size(file))?;
        volumes::run(&volumes::VOLUME, &image.0)?;
        // Commands open the image themselves, so it is closed in between.
        disks::reactor()?.block_on(self.fill(&image.0, file, site))?;
        volumes::run(&volumes::SNAPSHOT, &image.0)?;
        let site = self.site()?;
        let disks = disks::reactor()?.block_on(self.measure(&image.0, file, site))?;
        let met = disks.last().is_some_and(|modelled| {
            modelled.gain >= WANTED_GAIN && modelled.of_plain >= WANTED_OF_PLAIN
        });
        if self.json {
            output::print_json(&Report {
                mounted: self.mounted,
                bytes: file.bytes(),
                readahead: self.readahead().bytes(),
                disks,
                wanted_gain: WANTED_GAIN,
                wanted_of_plain: WANTED_OF_PLAIN,
                met,
            })?;
        } else {
            let met = if met { "met" } else { "NOT met" };
            output::print(&format!(
                "\nwanted of the model: {WANTED_GAIN} times as long without merging, {WANTED_OF_PLAIN} of \
                 the plain volume's rate with it: {met}\n"
            ))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// The longest readahead window.
    fn readahead(&self) -> Sectors {
        self.readahead.unwrap_or(if self.mounted { MOUNTED_WINDOW } else { WINDOW })
    }

    /// A site for mounts, with `--mounted`.
    fn site(&self) -> Result<Option<Arc<Site>>> {
        if self.mounted { Site::new().map(Some) } else { Ok(None) }
    }

    fn heading(&self, mib: u64) -> String {
        let how = if self.mounted {
            "from a mounted file system"
        } else {
            "two at a time: ashlar's own volumes, no file system mounted"
        };
        let mut text = format!(
            "A file of {mib} MiB read from a snapshot with chunks of 4 KiB, in windows of {} KiB, {how}.\n\n\
             The volumes, of which the file is written before the snapshot is taken:\n",
            self.readahead().0 / 2,
        );
        for command in volumes::VOLUME.iter().chain(&volumes::SNAPSHOT) {
            text += &format!("  ashlar {command}\n");
        }
        text += &format!(
            "\nLaunchpad bug 1833319: Linux 4.4 on a c5.large with a gp2 volume, {SEED_MIB} MiB\n"
        );
        for ((source, nomerges), seconds) in ROWS.into_iter().zip(SEED) {
            if let Some(seconds) = seconds {
                let rate = (SEED_MIB << 20) as f64 / 1e6 / seconds;
                text += &line(source, nomerges, &format!("{seconds:>9.3} s {rate:>9.1} MB/s"));
            }
        }
        if let [Some(slow), Some(quick), _] = SEED {
            text += &format!("  {:.1} times as long without merging\n", slow / quick);
        }
        text
    }

    /// Writes the file to the volume, before there is a snapshot.
    async fn fill(&self, image: &Path, file: Sectors, site: Option<Arc<Site>>) -> Result<()> {
        let disk = Opener::new(Access::Write).one(image)?.gateway;
        let volumes = Volumes::activate(image, &disk).await;
        let volume = volumes.find(VOLUME_NAME)?;
        match site {
            None => volumes::fill(&volume, file).await?,
            Some(site) => {
                site.show(VOLUME_NAME, &volume);
                site.fill(VOLUME_NAME, file).await?;
                site.end().await?;
            }
        }
        volumes.stop().await
    }

    /// Measures the image directly, and then with the model.
    async fn measure(
        &self,
        image: &Path,
        file: Sectors,
        site: Option<Arc<Site>>,
    ) -> Result<Vec<DiskFigures>> {
        let disk = Opener::new(Access::Write).one(image)?.gateway;
        // In this order, because the disk below a model gets other settings.
        let name = "the image file as it is, direct I/O where it can be had";
        let real = self.measure_disk(name, (image, &disk), file, site.as_ref()).await?;
        let unreadable = self.model.unreadable.clone();
        let model = modelled(disk, self.model.model, unreadable, disks::runtime());
        let model = Gateway::new(Arc::new(model));
        let name = format!("the image file as {}", self.model);
        let modelled = self.measure_disk(&name, (image, &model), file, site.as_ref()).await?;
        if let Some(site) = site {
            site.end().await?;
        }
        Ok(vec![real, modelled])
    }

    async fn measure_disk(
        &self,
        name: &str,
        (image, disk): (&Path, &Gateway),
        file: Sectors,
        site: Option<&Arc<Site>>,
    ) -> Result<DiskFigures> {
        if !self.json {
            output::print(&format!("\n{name}\n"))?;
        }
        let volumes = Volumes::activate(image, disk).await;
        let mut rows = Vec::new();
        for (source, nomerges) in ROWS {
            let volume = volumes.find(source.device())?;
            if let Some(site) = site {
                site.show(source.device(), &volume);
            }
            let row = self.read(disk, &volume, file, (source, nomerges), site).await?;
            if !self.json {
                let Row { seconds, megabytes_per_second, ios, merges, .. } = row;
                let figures = format!(
                    "{seconds:>9.3} s {megabytes_per_second:>9.1} MB/s {ios:>9} I/Os {merges:>9} merges"
                );
                output::print(&line(source, nomerges, &figures))?;
            }
            rows.push(row);
        }
        volumes.stop().await?;
        let rate = |row: usize| rows.get(row).map_or(f64::NAN, |row| row.megabytes_per_second);
        let (gain, of_plain) = (rate(1) / rate(0), rate(1) / rate(2));
        if !self.json {
            output::print(&format!(
                "  {gain:.1} times as long without merging, {of_plain:.2} of the plain volume's rate \
                 with it\n"
            ))?;
        }
        Ok(DiskFigures { disk: name.to_owned(), rows, gain, of_plain })
    }

    /// Reads the file once.
    async fn read(
        &self,
        disk: &Gateway,
        volume: &Gateway,
        file: Sectors,
        (source, nomerges): (Source, u64),
        site: Option<&Arc<Site>>,
    ) -> Result<Row> {
        let failed = |error: &dyn std::fmt::Display| {
            Error::new("cannot read the file", volume.disk().name(), error)
        };
        disk.disk().set_nomerges(nomerges).map_err(|error| failed(&error))?;
        let before = disk.disk().stats().totals().read;
        let took = match site {
            Some(site) => site.read(source.device(), file, self.readahead()).await?,
            None => {
                let begun_ns = now_ns();
                let done = readahead::read(volume, FILE_START, file, self.readahead()).await;
                done.map_err(|error| failed(&error))?;
                Duration::from_nanos(now_ns() - begun_ns)
            }
        };
        let after = disk.disk().stats().totals().read;
        let seconds = took.as_secs_f64();
        Ok(Row {
            source,
            nomerges,
            seconds,
            megabytes_per_second: file.bytes() as f64 / 1e6 / seconds,
            ios: after.ios - before.ios,
            merges: after.merges - before.merges,
        })
    }
}

/// A row of a table.
fn line(source: Source, nomerges: u64, figures: &str) -> String {
    format!("  {:<14} nomerges {nomerges} {figures}\n", source.name())
}

/// An image file, removed when dropped.
struct Image(PathBuf);

impl Image {
    fn make(dir: Option<&Path>, size: Sectors) -> Result<Self> {
        let dir = dir.map_or_else(std::env::temp_dir, Path::to_owned);
        let path = dir.join(format!("ashlar-bench-{}.img", std::process::id()));
        let failed = |error| Error::new("cannot make the image file", path.display(), error);
        let file = File::create_new(&path).map_err(failed)?;
        let image = Self(path.clone());
        file.set_len(size.bytes()).map_err(failed)?;
        Ok(image)
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.0) {
            tracing::warn!(path = %self.0.display(), %error, "the image file could not be removed");
        }
    }
}
