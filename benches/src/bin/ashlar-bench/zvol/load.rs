//! I/O on a volume: streams that read or write it sequentially, and random I/O.

use std::future::poll_fn;
use std::ops::Range;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use ashlar_block::{Bio, Buffer, Gateway, Sector, Status, plug};
use ashlar_commands::error::{Error, Result};
use ashlar_engine::{Engine, now_ns, yield_now};
use futures_util::future::{join_all, maybe_done, try_join_all};

const SECTOR_BYTES: u64 = 512;
/// How much a stream submits at a time.
pub(super) const BATCH_BYTES: u64 = 1 << 20;

/// Reading or writing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Write,
    Read,
}

impl Way {
    pub(super) const ALL: [Self; 2] = [Self::Write, Self::Read];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
        }
    }

    fn bio(self, at_bytes: u64, buffer: &mut Buffer) -> Bio {
        let at = Sector(at_bytes / SECTOR_BYTES);
        match self {
            Self::Write => Bio::write_from(at, buffer),
            Self::Read => Bio::read_into(at, buffer),
        }
    }
}

/// Streams that each cover a part of the volume, like parallel dd processes.
#[derive(Clone, Copy)]
pub(super) struct Streams {
    pub(super) way: Way,
    /// Size of a bio, bytes; a stream submits [`BATCH_BYTES`] of them at a time.
    pub(super) bio_bytes: u64,
    pub(super) streams: u64,
    /// Batches that each stream has in flight.
    pub(super) depth: u64,
    pub(super) size_bytes: u64,
}

impl Streams {
    /// Runs the streams on the reactors; returns the nanoseconds until the last I/O has ended.
    ///
    /// # Errors
    /// An I/O failed.
    pub(super) async fn run(self, volume: &Gateway, engine: &Engine) -> Result<u64> {
        let batches = self.size_bytes / BATCH_BYTES;
        let begun_ns = now_ns();
        let running = (0..self.streams).zip(engine.handles().iter().cycle()).map(|(at, handle)| {
            let part = batches * at / self.streams..batches * (at + 1) / self.streams;
            let volume = volume.clone();
            handle.spawn_on(move || self.stream(volume, part))
        });
        ended(
            volume,
            join_all(running).await.into_iter().map(|end| end.unwrap_or(Err(Status::Io))),
        )?;
        Ok(now_ns() - begun_ns)
    }

    async fn stream(self, volume: Gateway, batches: Range<u64>) -> std::result::Result<(), Status> {
        let lanes = (0..self.depth).map(|lane| {
            let batches = batches.clone().skip(lane as usize).step_by(self.depth as usize);
            self.lane(&volume, batches)
        });
        try_join_all(lanes).await.map(drop)
    }

    /// One batch after the other. Each bio of a batch has its own pages, like those of a page cache.
    async fn lane(
        self,
        volume: &Gateway,
        batches: impl Iterator<Item = u64>,
    ) -> std::result::Result<(), Status> {
        let mut pages: Vec<Buffer> =
            (0..BATCH_BYTES / self.bio_bytes).map(|_| filled(self.bio_bytes)).collect();
        for batch in batches {
            let start_bytes = batch * BATCH_BYTES;
            let bios = (start_bytes..).step_by(self.bio_bytes as usize).zip(&mut pages);
            let submitted =
                bios.map(|(at_bytes, page)| volume.submit(self.way.bio(at_bytes, page)));
            let mut all = pin!(maybe_done(join_all(submitted)));
            // The first poll submits all of them; that is where the kernel ends its plug.
            poll_fn(|cx| Poll::Ready(all.as_mut().poll(cx).is_ready())).await;
            plug::flush_current();
            all.as_mut().await;
            let results = all.take_output().unwrap_or_default();
            results.into_iter().collect::<std::result::Result<(), Status>>()?;
        }
        Ok(())
    }
}

/// Random I/O, aligned to its size.
#[derive(Clone, Copy)]
pub(super) struct Random {
    pub(super) way: Way,
    pub(super) bio_bytes: u64,
    /// I/Os in flight, over all reactors.
    pub(super) depth: u64,
    pub(super) size_bytes: u64,
    pub(super) time: Duration,
}

impl Random {
    /// Runs it on the reactors; returns I/Os per second.
    ///
    /// # Errors
    /// An I/O failed.
    pub(super) async fn run(self, volume: &Gateway, engine: &Engine) -> Result<f64> {
        let begun_ns = now_ns();
        let end_ns = begun_ns + self.time.as_nanos() as u64;
        let running = (1..=self.depth).zip(engine.handles().iter().cycle()).map(|(at, handle)| {
            let volume = volume.clone();
            handle.spawn_on(move || self.lane(volume, at, end_ns))
        });
        let mut done = 0;
        let count = |end: std::result::Result<_, _>| {
            end.unwrap_or(Err(Status::Io)).map(|ios: u64| done += ios)
        };
        ended(volume, join_all(running).await.into_iter().map(count))?;
        Ok(done as f64 * 1e9 / (now_ns() - begun_ns) as f64)
    }

    async fn lane(
        self,
        volume: Gateway,
        seed: u64,
        end_ns: u64,
    ) -> std::result::Result<u64, Status> {
        let mut page = filled(self.bio_bytes);
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut done = 0;
        while now_ns() < end_ns {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let at_bytes = random % (self.size_bytes / self.bio_bytes) * self.bio_bytes;
            volume.submit(self.way.bio(at_bytes, &mut page)).await?;
            done += 1;
            yield_now().await;
        }
        Ok(done)
    }
}

/// Requests of [`BATCH_BYTES`] in `segments` segments that are not adjacent in memory, one at a time; returns the
/// nanoseconds of each.
///
/// # Errors
/// An I/O failed.
pub(super) async fn in_segments(volume: &Gateway, way: Way, segments: u64) -> Result<Vec<u64>> {
    const REQUESTS: u64 = 48;
    let part_bytes = BATCH_BYTES / segments;
    // Every second buffer is unused, so no two segments are adjacent.
    let mut pages: Vec<Buffer> = (0..2 * segments).map(|_| filled(part_bytes)).collect();
    let mut took_ns = Vec::new();
    for request in 0..REQUESTS.min((volume.capacity().bytes()) / BATCH_BYTES) {
        let parts = pages.iter_mut().step_by(2).map(Buffer::whole);
        let parts: ashlar_block::bio::Segments = parts.collect();
        let at = Sector(request * BATCH_BYTES / SECTOR_BYTES);
        let bio = match way {
            Way::Write => Bio::write(at, parts),
            Way::Read => Bio::read(at, parts),
        };
        let begun_ns = now_ns();
        ended(volume, [volume.submit(bio).await].into_iter())?;
        took_ns.push(now_ns() - begun_ns);
    }
    Ok(took_ns)
}

/// Memory with nonzero contents.
fn filled(bytes: u64) -> Buffer {
    let mut buffer = Buffer::zeroed(bytes as usize);
    buffer.as_mut_slice().fill(0xa5);
    buffer
}

fn ended(
    volume: &Gateway,
    mut results: impl Iterator<Item = std::result::Result<(), Status>>,
) -> Result<()> {
    let result = results.try_for_each(|result| result);
    result.map_err(|status| Error::new("I/O failed on", volume.disk().name(), status))
}
