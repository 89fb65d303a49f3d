//! The cost of snapshots: reads of a snapshot compared with reads of its origin, and writes to an origin whose chunks
//! have all been copied compared with writes to a volume without snapshots.
//!
//! A file holds the volume and the exceptions, as a volume group on one disk does. Chunks are 64 KiB: the state after
//! copying is measured, and larger chunks reach it sooner.

use ashlar_block::Gateway;
use ashlar_engine::Engine;

use crate::common::{Files, Outcome, Settings, open_disk};
use crate::load::{JobEnd, Load, Order, Score, on_engine};
use crate::mapped::Mapper;
use crate::report::{Grid, Unit};

/// The size of the volume, and of the space for its exceptions.
const BYTES: u64 = 256 << 20;
const CHUNK_SECTORS: u64 = 128;
const READS: [&str; 3] = ["origin", "snapshot, nothing copied", "snapshot, all copied"];
const WRITES: [&str; 2] = ["plain volume", "origin, all copied"];

/// A volume on a file, its origin and its snapshot.
struct Volumes {
    plain: Gateway,
    origin: Gateway,
    snapshot: Gateway,
}

fn volumes(engine: &Engine, disk: &Gateway) -> Outcome<Volumes> {
    let mapper = Mapper::default();
    mapper.add("disk", disk);
    let (sectors, cow) = (BYTES / 512, (disk.capacity().bytes() - BYTES) / 512);
    let plain = mapper.map(engine, "real", &format!("0 {sectors} linear disk 0"))?;
    mapper.map(engine, "cow", &format!("0 {cow} linear disk {sectors}"))?;
    let table = format!("0 {sectors} snapshot real cow N {CHUNK_SECTORS}");
    let snapshot = mapper.map(engine, "snapshot", &table)?;
    let origin = mapper.map(engine, "origin", &format!("0 {sectors} snapshot-origin real"))?;
    Ok(Volumes { plain, origin, snapshot })
}

fn load(write: bool, bytes: u64, order: Order, until: JobEnd) -> Load {
    Load { write, bytes, depth: 32, order, span: 0..BYTES, until }
}

/// Copies every chunk, by writing to all of them.
fn copy_all(engine: &Engine, volumes: &Volumes) -> Outcome {
    let all = load(true, CHUNK_SECTORS * 512, Order::Sequential, JobEnd::Moved(BYTES));
    on_engine(engine, &[(&volumes.origin, all)])?;
    Ok(())
}

/// Prints the tables.
///
/// # Errors
/// An I/O failed, or a reactor could not be started.
pub(crate) fn run(settings: Settings) -> Outcome {
    // A full copy, and a chunk for alignment.
    let files = Files::make(1, 2 * BYTES + (1 << 20))?;
    let measure = |write, row, copied, column| -> Outcome<Score> {
        let engine = Engine::start(1)?;
        let volumes = volumes(&engine, &open_disk(&files.paths()[0], true))?;
        if copied {
            copy_all(&engine, &volumes)?;
        }
        let disk = match row {
            0 if write => &volumes.plain,
            0 => &volumes.origin,
            _ if write => &volumes.origin,
            _ => &volumes.snapshot,
        };
        let (bytes, order) =
            if column == 0 { (4096, Order::Random) } else { (64 << 10, Order::Sequential) };
        let until = JobEnd::Passed(settings.run);
        on_engine(&engine, &[(disk, load(write, bytes, order, until))])
    };
    let columns = ["random 4K", "seq. 64K"];
    let reads = Grid::measure(&columns, &READS, Unit::Kiops, settings.rounds, |_, row, column| {
        measure(false, row, row == 2, column)
    })?;
    reads.print("Reads of a snapshot and its origin, depth 32, one thread, direct I/O")?;
    reads.print_cpu();
    reads.print_ratio(1, 0, Some(0.9));
    reads.print_ratio(2, 0, Some(0.9));
    let writes =
        Grid::measure(&columns, &WRITES, Unit::Kiops, settings.rounds, |_, row, column| {
            measure(true, row, true, column)
        })?;
    writes.print("Writes to an origin after the first copy, depth 32, one thread, direct I/O")?;
    writes.print_cpu();
    writes.print_ratio(1, 0, Some(0.9));
    Ok(())
}
