//! The measurements of a volume.

use std::time::Duration;

use ashlar_commands::error::{Error, Result};
use ashlar_engine::{Engine, now_ns};
use ashlar_terminal as output;
use serde::Serialize;

use super::load::{self, BATCH_BYTES, Random, Streams, Way};
use super::site::{Site, Volume};
use super::table::{self, LARGE, Row, SMALL, median, size};

/// Sizes of random I/Os, bytes.
const RANDOM_BYTES: [u64; 3] = [4 << 10, 8 << 10, 16 << 10];
/// Random I/Os in flight.
const RANDOM_DEPTH: u64 = 32;
/// The duration of each turn of random I/O: with short turns all variants see the same disturbances.
const RANDOM_TIME: Duration = Duration::from_millis(80);
/// Numbers of segments in a MiB.
const SEGMENTS: [u64; 5] = [1, 4, 16, 64, 256];
/// Writes of 1 MiB in flight, compared with the plain loop.
const CEILING_DEPTH: u64 = 4;
/// Rounds of this comparison for each other round: one takes tens of milliseconds.
const CEILING_ROUNDS: usize = 3;

/// The settings of the measurements.
pub(super) struct Bench {
    /// The reactors that run the streams.
    pub(super) engine: Engine,
    /// The size of a volume.
    pub(super) size_bytes: u64,
    pub(super) streams: u64,
    pub(super) rounds: usize,
    /// Also measures reads from the disks.
    pub(super) is_full: bool,
    /// Prints nothing.
    pub(super) is_quiet: bool,
}

/// Random I/O.
#[derive(Serialize)]
pub(super) struct RandomRates {
    pub(super) way: &'static str,
    pub(super) io_bytes: u64,
    /// I/Os per second with the queue off.
    off_iops: f64,
    on_iops: f64,
    /// The median of the rounds' ratios.
    pub(super) on_of_off: f64,
}

/// A MiB in this many segments.
#[derive(Serialize)]
pub(super) struct SegmentTimes {
    segments: u64,
    write_microseconds: f64,
    read_microseconds: f64,
}

/// Writes of 1 MiB compared with a plain loop of dmu_write().
#[derive(Serialize)]
pub(super) struct Ceiling {
    /// Until the last write has ended.
    pub(super) answered: PlainShare,
    /// Until all data are on the disks.
    pub(super) on_the_disks: PlainShare,
}

/// MB/s.
#[derive(Serialize)]
pub(super) struct PlainShare {
    plain: f64,
    off: f64,
    on: f64,
    /// `off` as a share of `plain`: the median of the rounds' shares, because a machine may be slower for a while.
    pub(super) off_of_plain: f64,
    /// `on` as a share of `plain`, likewise.
    pub(super) on_of_plain: f64,
}

impl PlainShare {
    /// From samples of the plain loop, the queue off and the queue on, one of each per round.
    fn of(samples: [Vec<f64>; 3]) -> Self {
        let [plain, off, on] = &samples;
        let share =
            |of: &[f64]| median(of.iter().zip(plain).map(|(of, plain)| of / plain).collect());
        let [off_of_plain, on_of_plain] = [share(off), share(on)];
        let [plain, off, on] = samples.map(median);
        Self { plain, off, on, off_of_plain, on_of_plain }
    }

    fn lines(&self) -> String {
        let Self { plain, off, on, off_of_plain, on_of_plain } = self;
        format!(
            "  a plain loop of dmu_write() {plain:>6.0}\n  queue off {off:>24.0}, {off_of_plain:.2} of libzpool's own rate\n  \
             queue on {on:>25.0}, {on_of_plain:.2} of libzpool's own rate\n"
        )
    }
}

/// A volume's figures.
#[derive(Serialize)]
pub(super) struct VolumeFigures {
    pub(super) volblocksize_bytes: u64,
    pub(super) writes: Vec<Row>,
    pub(super) reads_from_memory: Vec<Row>,
    pub(super) reads_from_disks: Vec<Row>,
    pub(super) random: Vec<RandomRates>,
    pub(super) segments: Vec<SegmentTimes>,
    pub(super) ceiling: Ceiling,
}

impl VolumeFigures {
    /// The queue's gain for small bios.
    pub(super) fn small_gain(&self, rows: &[Row]) -> f64 {
        table::gain(rows, SMALL).unwrap_or(f64::NAN)
    }
}

/// Rows in the order of the pull request's tables: queue, bio size.
const ROWS: [(bool, u64); 4] = [(false, SMALL), (false, LARGE), (true, SMALL), (true, LARGE)];

/// Off and on; the first alternates between rounds.
fn in_turn(round: usize) -> [bool; 2] {
    let first_on = !round.is_multiple_of(2);
    [first_on, !first_on]
}

impl Bench {
    /// Prints, unless the output is JSON.
    pub(super) fn say(&self, text: &str) -> Result<()> {
        if self.is_quiet { Ok(()) } else { output::print(text) }
    }

    fn streams(&self, way: Way, bio_bytes: u64) -> Streams {
        let Self { streams, size_bytes, .. } = *self;
        Streams { way, bio_bytes, streams, depth: 1, size_bytes }
    }

    fn rate(&self, nanoseconds: f64) -> f64 {
        self.size_bytes as f64 * 1e3 / nanoseconds
    }

    /// Creates a volume, and measures it.
    ///
    /// # Errors
    /// The pool refused something, or I/O failed.
    pub(super) async fn volume(
        &self,
        site: Site,
        block_bytes: u64,
    ) -> Result<(Site, VolumeFigures)> {
        let mut site = site;
        site.make_volume(block_bytes, self.size_bytes).await?;
        let volume = site.open(block_bytes).await?;
        // The measured writes are overwrites.
        self.streams(Way::Write, LARGE).run(&volume.gateway, &self.engine).await?;
        site.sync().await?;
        let title = |what: &str| format!("volblocksize {}, {what}", size(block_bytes));
        let writes = self.sequential(&site, &volume, Way::Write).await?;
        self.tell(&title("write"), &writes)?;
        let reads_from_memory = self.sequential(&site, &volume, Way::Read).await?;
        self.tell(&title("read from memory"), &reads_from_memory)?;
        let random = self.random(&site, &volume).await?;
        let segments = self.segments(&site, &volume).await?;
        let ceiling = self.ceiling(&site, &volume).await?;
        site.close(volume).await?;
        let mut reads_from_disks = Vec::new();
        if self.is_full {
            (site, reads_from_disks) = self.reads_uncached(site, block_bytes).await?;
            self.tell(&title("read from the disks"), &reads_from_disks)?;
        }
        let measured = VolumeFigures {
            volblocksize_bytes: block_bytes,
            writes,
            reads_from_memory,
            reads_from_disks,
            random,
            segments,
            ceiling,
        };
        self.tell_rest(&measured)?;
        Ok((site, measured))
    }

    fn tell(&self, title: &str, rows: &[Row]) -> Result<()> {
        let is_synced = rows.iter().any(|row| row.synced_seconds.is_some());
        self.say(&(table::heading(title, is_synced) + &table::body(rows)))
    }

    fn tell_rest(&self, measured: &VolumeFigures) -> Result<()> {
        let block = size(measured.volblocksize_bytes);
        let mut text = format!(
            "\nvolblocksize {block}, at random places, {RANDOM_DEPTH} at a time, I/Os in a second\n"
        );
        for RandomRates { way, io_bytes, off_iops, on_iops, on_of_off } in &measured.random {
            let io = size(*io_bytes);
            text += &format!(
                "  {way:<5} {io:>4}  off {off_iops:>8.0}  on {on_iops:>8.0}  on / off {on_of_off:.2}\n"
            );
        }
        text +=
            &format!("\nvolblocksize {block}, a request of 1 MiB, one at a time, microseconds\n");
        let first = measured.segments.first();
        for SegmentTimes { segments, write_microseconds, read_microseconds } in &measured.segments {
            let each = |now: f64, first: Option<f64>| {
                let first = first.filter(|_| *segments > 1);
                first.map_or_else(String::new, |first| {
                    format!("{:+.2} each", (now - first) / (segments - 1) as f64)
                })
            };
            text += &format!(
                "  {segments:>3} segments  write {write_microseconds:>7.0} {:<12} read {read_microseconds:>7.0} {}\n",
                each(*write_microseconds, first.map(|first| first.write_microseconds)),
                each(*read_microseconds, first.map(|first| first.read_microseconds)),
            );
        }
        let Ceiling { answered, on_the_disks } = &measured.ceiling;
        for (until, of_plain) in [("answered", answered), ("on the disks", on_the_disks)] {
            text += &format!(
                "\nvolblocksize {block}, writes of 1 MiB, one stream, {CEILING_DEPTH} at a time, MB/s until all is {until}\n"
            );
            text += &of_plain.lines();
        }
        self.say(&text)
    }

    /// All streams, with small and large bios, queue off and on.
    async fn sequential(&self, site: &Site, volume: &Volume, way: Way) -> Result<Vec<Row>> {
        if way == Way::Read {
            self.streams(way, LARGE).run(&volume.gateway, &self.engine).await?;
        }
        let mut samples: [Vec<Row>; 4] = Default::default();
        for round in 0..self.rounds {
            for bio_bytes in [SMALL, LARGE] {
                for queue in in_turn(round) {
                    let row = self.once(site, volume, (way, bio_bytes, queue)).await?;
                    keep(&mut samples, row);
                }
            }
        }
        Ok(samples.map(|rows| middle(&rows)).into())
    }

    /// As [`Self::sequential`], but reads with empty caches.
    async fn reads_uncached(&self, site: Site, block_bytes: u64) -> Result<(Site, Vec<Row>)> {
        let mut site = site;
        let mut samples: [Vec<Row>; 4] = Default::default();
        for round in 0..self.rounds {
            for bio_bytes in [SMALL, LARGE] {
                for queue in in_turn(round) {
                    site = site.forget().await?;
                    let volume = site.open(block_bytes).await?;
                    let row = self.once(&site, &volume, (Way::Read, bio_bytes, queue)).await?;
                    keep(&mut samples, row);
                    site.close(volume).await?;
                }
            }
        }
        Ok((site, samples.map(|rows| middle(&rows)).into()))
    }

    async fn once(
        &self,
        site: &Site,
        volume: &Volume,
        (way, bio_bytes, queue): (Way, u64, bool),
    ) -> Result<Row> {
        volume.zvol.set_use_blk_mq(queue);
        let (cpu, begun_ns) = (site.cpu_time()?, now_ns());
        let took_ns = self.streams(way, bio_bytes).run(&volume.gateway, &self.engine).await?;
        let cpu = site.cpu_time()? - cpu;
        let synced_seconds = match way {
            Way::Read => None,
            Way::Write => {
                let flushed = volume.gateway.flush().await;
                flushed.map_err(|status| Error::plain("a flush failed", status))?;
                site.sync().await?;
                Some((now_ns() - begun_ns) as f64 / 1e9)
            }
        };
        let row = Row {
            queue,
            bio_bytes,
            megabytes_per_second: self.rate(took_ns as f64),
            seconds: took_ns as f64 / 1e9,
            system_seconds: cpu.system,
            user_seconds: cpu.user,
            synced_seconds,
        };
        tracing::debug!(way = way.name(), ?row, "measured");
        Ok(row)
    }

    async fn random(&self, site: &Site, volume: &Volume) -> Result<Vec<RandomRates>> {
        let mut all = Vec::new();
        for way in Way::ALL {
            for io_bytes in RANDOM_BYTES {
                let random = Random {
                    way,
                    bio_bytes: io_bytes,
                    depth: RANDOM_DEPTH,
                    size_bytes: self.size_bytes,
                    time: RANDOM_TIME,
                };
                // Off, on, and their ratio.
                let mut samples: [Vec<f64>; 3] = Default::default();
                for turn in 0..self.rounds * random_turns(way) {
                    let mut iops = [0.0; 2];
                    for queue in in_turn(turn) {
                        volume.zvol.set_use_blk_mq(queue);
                        iops[usize::from(queue)] =
                            random.run(&volume.gateway, &self.engine).await?;
                        // After a sync the first write to a block copies all of it; without one, the second variant
                        // would find blocks that the first has already copied.
                        if way == Way::Write {
                            site.sync().await?;
                        }
                    }
                    let figures = [iops[0], iops[1], iops[1] / iops[0]];
                    samples.iter_mut().zip(figures).for_each(|(all, figure)| all.push(figure));
                }
                let [off_iops, on_iops, on_of_off] = samples.map(median);
                all.push(RandomRates { way: way.name(), io_bytes, off_iops, on_iops, on_of_off });
            }
        }
        Ok(all)
    }

    async fn segments(&self, site: &Site, volume: &Volume) -> Result<Vec<SegmentTimes>> {
        volume.zvol.set_use_blk_mq(true);
        let mut all = Vec::new();
        for segments in SEGMENTS {
            let mut microseconds = [0.0; 2];
            for (way, to) in Way::ALL.into_iter().zip(&mut microseconds) {
                let took_ns = self.request_times(volume, way, segments).await?;
                *to = median(took_ns.into_iter().map(|ns| ns as f64 / 1e3).collect());
                if way == Way::Write {
                    site.sync().await?;
                }
            }
            let [write_microseconds, read_microseconds] = microseconds;
            all.push(SegmentTimes { segments, write_microseconds, read_microseconds });
        }
        Ok(all)
    }

    async fn request_times(&self, volume: &Volume, way: Way, segments: u64) -> Result<Vec<u64>> {
        let Some(handle) = self.engine.handles().first() else { return Ok(Vec::new()) };
        let gateway = volume.gateway.clone();
        let made = handle
            .spawn_on(move || async move { load::in_segments(&gateway, way, segments).await });
        made.await.unwrap_or_else(|_| Err(Error::failed("a reactor has ended")))
    }

    async fn ceiling(&self, site: &Site, volume: &Volume) -> Result<Ceiling> {
        let one = Streams { streams: 1, depth: CEILING_DEPTH, ..self.streams(Way::Write, LARGE) };
        // The plain loop, off, on. A round may or may not end before a transaction group is written: hence the median
        // of many.
        let (mut answered, mut on_the_disks): ([Vec<f64>; 3], [Vec<f64>; 3]) = Default::default();
        for round in 0..self.rounds * CEILING_ROUNDS {
            let [first, second] = in_turn(round);
            for queue in [None, Some(first), Some(second)] {
                let begun_ns = now_ns();
                let (sample, took_ns) = match queue {
                    None => (0, site.write_plainly(volume, BATCH_BYTES as u32).await?),
                    Some(on) => {
                        volume.zvol.set_use_blk_mq(on);
                        (1 + usize::from(on), one.run(&volume.gateway, &self.engine).await?)
                    }
                };
                site.sync().await?;
                answered[sample].push(self.rate(took_ns as f64));
                on_the_disks[sample].push(self.rate((now_ns() - begun_ns) as f64));
            }
        }
        let (answered, on_the_disks) = (PlainShare::of(answered), PlainShare::of(on_the_disks));
        Ok(Ceiling { answered, on_the_disks })
    }
}

/// Turns of random I/O for each other round. Detecting a difference of 5 % takes many; but after a turn of writes the
/// whole volume may have to be written to the disks.
fn random_turns(way: Way) -> usize {
    match way {
        Way::Write => 3,
        Way::Read => 8,
    }
}

/// Adds a row to those of its kind.
fn keep(samples: &mut [Vec<Row>; 4], row: Row) {
    let kinds = ROWS.iter().zip(samples);
    if let Some((_, rows)) = kinds
        .into_iter()
        .find(|((queue, bio_bytes), _)| *queue == row.queue && *bio_bytes == row.bio_bytes)
    {
        rows.push(row);
    }
}

/// The row with the median time; `rows` must not be empty.
fn middle(rows: &[Row]) -> Row {
    let mut rows = rows.to_vec();
    rows.sort_by(|one, other| one.seconds.total_cmp(&other.seconds));
    rows[rows.len() / 2]
}
