//! The rate of a merge: a snapshot whose exceptions are merged into its origin, while nothing else uses the devices.
//!
//! Exceptions of consecutive chunks make long runs; scattered ones are a run each, and cost the most. The origin and
//! the exceptions are on one file, as in a volume group on one disk, or on one RAM disk, where a flush takes no time.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ashlar_block::{Buffer, Flags, Gateway, Sector, Status};
use ashlar_dm::Device;
use ashlar_engine::Engine;
use futures_util::future::join_all;

use crate::common::{Files, Outcome, Settings, block_on, cpu_time, open_disk};
use crate::devices::ram;
use crate::load::Score;
use crate::mapped::Mapper;
use crate::report::{Grid, Unit};

/// The size of the origin.
const BYTES: u64 = 256 << 20;
/// The size of the disk: the origin, exceptions for half of it, and their metadata.
const DISK_BYTES: u64 = BYTES + BYTES / 2 + (8 << 20);
/// Bytes in consecutive exceptions.
const CONSECUTIVE: u64 = 128 << 20;
/// Number of scattered exceptions.
const SCATTERED: u64 = 1024;
/// Exceptions that are made at a time before the measurement.
const AT_ONCE: usize = 256;

const COLUMNS: [&str; 4] = ["file, cons.", "file, scat.", "RAM, cons.", "RAM, scat."];
const ROWS: [&str; 3] = ["chunks of 4 KiB", "chunks of 16 KiB", "chunks of 64 KiB"];
const CHUNKS: [u64; 3] = [8, 32, 128];

/// The chunks that get exceptions, in this order.
fn chunks(chunk: u64, scattered: bool) -> Vec<u64> {
    if scattered {
        // A permutation that never takes two steps in the same direction by one.
        (0..SCATTERED).map(|n| n * 389 % SCATTERED * 2).collect()
    } else {
        (0..CONSECUTIVE / (chunk * 512)).collect()
    }
}

/// Makes the exceptions of a new snapshot, by writes that fill chunks.
async fn fill(snapshot: &Gateway, chunk: u64, chunks: &[u64]) -> Result<(), Status> {
    for some in chunks.chunks(AT_ONCE) {
        let writes = some.iter().map(async |number| {
            let mut data = Buffer::zeroed(chunk as usize * 512);
            snapshot.write(Sector(number * chunk), &mut data, Flags::empty()).await
        });
        join_all(writes).await.into_iter().collect::<Result<(), _>>()?;
    }
    snapshot.flush().await
}

/// Waits for the end of a merge, which its status tells.
fn merged(device: &Device) -> Outcome {
    loop {
        let status = device.status();
        // START LENGTH snapshot-merge ALLOCATED/TOTAL METADATA
        let words: Vec<&str> = status.split_whitespace().collect();
        let [_, _, _, used, metadata] = words[..] else { return Err(status.into()) };
        if used.split_once('/').is_some_and(|(allocated, _)| allocated == metadata) {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(1));
    }
}

fn measure(disk: &Gateway, chunk: u64, scattered: bool) -> Outcome<Score> {
    let (engine, mapper) = (Engine::start(1)?, Mapper::default());
    mapper.add("disk", disk);
    let (sectors, cow) = (BYTES / 512, (DISK_BYTES - BYTES) / 512);
    mapper.map(&engine, "real", &format!("0 {sectors} linear disk 0"))?;
    let cow = mapper.map(&engine, "cow", &format!("0 {cow} linear disk {sectors}"))?;
    let erased = engine.handles()[0].spawn_on(move || async move {
        cow.write(Sector::ZERO, &mut Buffer::zeroed(4096), Flags::empty()).await
    });
    block_on(erased)??;
    let snapshot =
        mapper.map(&engine, "snapshot", &format!("0 {sectors} snapshot real cow P {chunk}"))?;
    let chunks: Arc<[u64]> = chunks(chunk, scattered).into();
    let listed = Arc::clone(&chunks);
    let filled =
        engine.handles()[0].spawn_on(move || async move { fill(&snapshot, chunk, &listed).await });
    block_on(filled)??;
    let (begun, cpu) = (Instant::now(), cpu_time());
    let table = format!("0 {sectors} snapshot-merge real cow P {chunk}");
    let device = mapper.device(&engine, "merged", &table)?;
    merged(&device)?;
    Ok(Score::new(chunks.len() as u64, chunk * 512, begun.elapsed(), cpu_time() - cpu))
}

/// Prints the table.
///
/// # Errors
/// An I/O failed, or a reactor could not be started.
pub(crate) fn run(settings: Settings) -> Outcome {
    let files = Files::make(1, DISK_BYTES)?;
    let disks = [open_disk(&files.paths()[0], true), ram(1, DISK_BYTES)?.remove(0)];
    let unit = Unit::Megabytes;
    let grid = Grid::measure(&COLUMNS, &ROWS, unit, settings.rounds, |_, row, column| {
        measure(&disks[column / 2], CHUNKS[row], column % 2 == 1)
    })?;
    grid.print("Merge of a snapshot into its origin")?;
    grid.print_cpu();
    Ok(())
}
