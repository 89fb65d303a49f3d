//! Allocations of the layers for each I/O of 4 KiB: one I/O at a time, on one thread.
//!
//! The chunks of the snapshot and of its origin are copied before, and the array is active. RAM disks answer at once; the I/O of files passes
//! the queue, and comes from a client of the NBD server in the last row.

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ashlar_block::{Bio, Buffer, Gateway, Sector, Sectors};
use ashlar_engine::Engine;
use ashlar_export::nbd::transmission::{Command, Header, REQUEST_LEN};
use ashlar_export::nbd::wire::{
    FLAG_FIXED_NEWSTYLE, FLAG_NO_ZEROES, OPT_EXPORT_NAME, OPTS_MAGIC, SIMPLE_REPLY_MAGIC,
};
use ashlar_md::ondisk::Level;

use crate::arrays::{self, Recipe};
use crate::behind_nbd::Server;
use crate::common::{Files, Outcome, Settings, block_on};
use crate::devices::ram;
use crate::mapped::Mapper;
use crate::report::record;

/// Bytes of a disk.
const BYTES: u64 = 32 << 20;
/// I/Os of a row, in different places.
const IOS: u64 = 1000;
/// Bytes of an I/O.
const PAGE: usize = 4096;
/// Bytes of a simple reply without its payload.
const REPLY: usize = 16;

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
        let mut page = Buffer::zeroed(PAGE);
        transfer(&disk, true, &mut page).await?;
        let before = ALLOCATIONS.load(Relaxed);
        transfer(&disk, write, &mut page).await?;
        Ok((ALLOCATIONS.load(Relaxed) - before) as f64 / IOS as f64)
    }))?
}

/// Sends requests to an NBD server, one at a time, and allocates nothing.
fn ask(stream: &mut UnixStream, command: Command) -> Outcome {
    let is_write = command == Command::Write;
    let (mut request, mut reply) = ([0; REQUEST_LEN + PAGE], [0; REPLY + PAGE]);
    let good = SIMPLE_REPLY_MAGIC.to_be_bytes();
    for cookie in 0..IOS {
        let (number, offset, length) = (command as u16, cookie * PAGE as u64, PAGE as u32);
        let header = Header { flags: 0, number, cookie, offset, length };
        request[..REQUEST_LEN].copy_from_slice(&header.encode());
        let (sent, received) = if is_write { (PAGE, 0) } else { (0, PAGE) };
        stream.write_all(&request[..REQUEST_LEN + sent])?;
        stream.read_exact(&mut reply[..REPLY + received])?;
        if reply[..4] != good || reply[4..8] != [0; 4] {
            return Err("a request over NBD failed".into());
        }
    }
    Ok(())
}

/// As [`count`], of reads and writes over NBD, with the server's allocations.
fn count_over_nbd(disk: &Gateway) -> Outcome<[f64; 2]> {
    let server = Server::start(1, disk)?;
    let mut stream = UnixStream::connect(server.socket())?;
    stream.read_exact(&mut [0; 18])?;
    let mut option = u32::from(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES).to_be_bytes().to_vec();
    option.extend(OPTS_MAGIC.to_be_bytes());
    option.extend([OPT_EXPORT_NAME, 0].map(u32::to_be_bytes).concat());
    stream.write_all(&option)?;
    stream.read_exact(&mut [0; 10])?;
    ask(&mut stream, Command::Write)?;
    let mut row = [0.0; 2];
    for (command, count) in [Command::Read, Command::Write].into_iter().zip(&mut row) {
        let before = ALLOCATIONS.load(Relaxed);
        ask(&mut stream, command)?;
        *count = (ALLOCATIONS.load(Relaxed) - before) as f64 / IOS as f64;
    }
    Ok(row)
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
    let files = Files::make(4, BYTES)?;
    let on_files = arrays::on(&engine, Recipe::clean(Level::Raid10), files.disks())?;
    let disks = [
        ("a RAM disk", ram(1, BYTES)?.remove(0)),
        ("RAID0 of 2", array(Level::Raid0, 2)?),
        ("RAID1 of 2", array(Level::Raid1, 2)?),
        ("RAID10 n2 of 4", array(Level::Raid10, 4)?),
        ("RAID10 n2 of 4 files", on_files.clone()),
        ("linear", linear),
        ("snapshot over linear, copied", snapshot),
        ("origin over linear, copied", origin),
    ];
    let mut rows = Vec::new();
    println!("Allocations for each I/O of 4 KiB\n\n{:<44}{:>12}{:>12}", "", "reads", "writes");
    let mut add = |name, row: [f64; 2]| {
        println!("{name:<44}{:>12.2}{:>12.2}", row[0], row[1]);
        rows.push((name, row.to_vec()));
    };
    for (name, disk) in &disks {
        add(*name, [count(&engine, disk, false)?, count(&engine, disk, true)?]);
    }
    add("RAID10 n2 of 4 files, over NBD", count_over_nbd(&on_files)?);
    record("Allocations for each I/O of 4 KiB", "allocations", &["reads", "writes"], &rows)
}
