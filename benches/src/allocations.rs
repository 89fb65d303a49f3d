//! Allocations of the layers for each I/O of 4 KiB, on RAM disks: one I/O at a time, on one thread.
//!
//! The chunks of the snapshot and of its origin are copied before, and the array is active.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ashlar_block::{Bio, Buffer, Gateway, Sector, Sectors};
use ashlar_engine::Engine;
use ashlar_md::ondisk::Level;

use crate::arrays::{self, Recipe};
use crate::common::{Outcome, Settings, block_on};
use crate::devices::ram;
use crate::mapped::Mapper;
use crate::report::record;

/// Bytes of a disk.
const BYTES: u64 = 32 << 20;
/// I/Os of a row, in different places.
const IOS: u64 = 1000;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

/// The system's allocator, which counts.
struct CountingAllocator;

// SAFETY: all calls go to the system's allocator.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: as the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as the caller's.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: CountingAllocator = CountingAllocator;

async fn transfer(disk: &Gateway, write: bool, page: &mut Buffer) -> Outcome {
    for n in 0..IOS {
        let at = Sector(n * 8);
        let bio = if write { Bio::write_from(at, page) } else { Bio::read_into(at, page) };
        disk.submit(bio).await?;
    }
    Ok(())
}

/// Allocations for each I/O, once all of them were done before.
fn count(engine: &Engine, disk: &Gateway, write: bool) -> Outcome<f64> {
    let disk = disk.clone();
    block_on(engine.handles()[0].spawn_on(move || async move {
        let mut page = Buffer::zeroed(4096);
        transfer(&disk, true, &mut page).await?;
        let before = ALLOCATIONS.load(Relaxed);
        transfer(&disk, write, &mut page).await?;
        Ok((ALLOCATIONS.load(Relaxed) - before) as f64 / IOS as f64)
    }))?
}

/// Prints the table.
///
/// # Errors
/// An I/O failed, or a reactor could not be started.
pub(crate) fn run(_: Settings) -> Outcome {
    let engine = Engine::start(1)?;
    let mapper = Mapper::default();
    mapper.add("disk", &ram(1, 2 * BYTES + (1 << 20))?[0]);
    let (sectors, cow) = (Sectors::from_bytes_floor(BYTES).0, (BYTES + (1 << 20)) / 512);
    let linear = mapper.map(&engine, "real", &format!("0 {sectors} linear disk 0"))?;
    mapper.map(&engine, "cow", &format!("0 {cow} linear disk {sectors}"))?;
    let snapshot =
        mapper.map(&engine, "snapshot", &format!("0 {sectors} snapshot real cow N 8"))?;
    let origin = mapper.map(&engine, "origin", &format!("0 {sectors} snapshot-origin real"))?;
    let array = |level, members| arrays::on(&engine, Recipe::clean(level), ram(members, BYTES)?);
    let disks = [
        ("a RAM disk", ram(1, BYTES)?.remove(0)),
        ("RAID0 of 2", array(Level::Raid0, 2)?),
        ("RAID1 of 2", array(Level::Raid1, 2)?),
        ("RAID10 n2 of 4", array(Level::Raid10, 4)?),
        ("linear", linear),
        ("snapshot over linear, copied", snapshot),
        ("origin over linear, copied", origin),
    ];
    let mut rows = Vec::new();
    println!("Allocations for each I/O of 4 KiB\n\n{:<44}{:>12}{:>12}", "", "reads", "writes");
    for (name, disk) in &disks {
        let row = [count(&engine, disk, false)?, count(&engine, disk, true)?];
        println!("{name:<44}{:>12.2}{:>12.2}", row[0], row[1]);
        rows.push((*name, row.to_vec()));
    }
    record("Allocations for each I/O of 4 KiB", "allocations", &["reads", "writes"], &rows)
}
