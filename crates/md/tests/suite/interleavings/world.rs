//! Small arrays, and their state after a power cut.

use std::sync::Arc;
use std::time::Duration;

use ashlar_block::{Runtime, Sector, Sectors};
use ashlar_md::ondisk::create::{CreateSpec, NewBitmap};
use ashlar_md::ondisk::{DeviceFlags, Level};
use ashlar_md::{Array, FlagChange, Index, MemberFlag, Options};
use ashlar_sim::{Media, Sim, SimDisk, SimRuntime};

use crate::common::{Shape, disks, gateway, make_with, spec, stamped, start, write};

pub(crate) const DISK: Sectors = Sectors(4096);
/// Sectors of data written at the beginning.
pub(crate) const LEN: u64 = 512;
/// Sectors of a chunk of the bitmap.
pub(crate) const CHUNK: u64 = 128;
pub(crate) const RW: Options = Options { run: false, read_only: false, force: false };
pub(crate) const RUN: Options = Options { run: true, read_only: false, force: false };
pub(crate) const INTERNAL: NewBitmap = NewBitmap::Internal { chunk: Some(CHUNK * 512) };

/// An array whose members keep logs of bad blocks, without a bitmap.
pub(crate) fn plain(shape: &Shape) -> CreateSpec {
    let mut spec = spec(shape, &vec![DISK; shape.members]);
    spec.bad_block_log = true;
    spec.daemon_sleep = 1;
    spec
}

/// A RAID1.
pub(crate) fn mirror(members: usize) -> CreateSpec {
    plain(&Shape::new(Level::Raid1, None, 0, members))
}

pub(crate) fn with_bitmap(mut spec: CreateSpec) -> CreateSpec {
    spec.bitmap = INTERNAL;
    spec
}

pub(crate) fn with_flags(mut spec: CreateSpec, slot: usize, flags: DeviceFlags) -> CreateSpec {
    spec.members[slot].as_mut().expect("a member").flags = flags;
    spec
}

/// A RAID1 with write-behind whose second member is write-mostly.
pub(crate) fn write_behind() -> CreateSpec {
    let last = DeviceFlags { write_mostly: true, failfast: false };
    let mut spec = with_flags(with_bitmap(mirror(2)), 1, last);
    spec.write_behind = 256;
    spec
}

/// Creates and starts an array, and writes generation 1.
pub(crate) async fn begin(sim: &Sim, spec: &CreateSpec, media: &[Media]) -> Arc<Array> {
    let disks = disks(media);
    make_with(spec, &disks).await;
    begin_on(sim, &disks).await
}

/// As [`begin`], with an existing array.
pub(crate) async fn begin_on(sim: &Sim, disks: &[SimDisk]) -> Arc<Array> {
    let array = start(sim, disks, &RUN).await.expect("an array");
    flushed(&array, 0, LEN, 1).await;
    array
}

/// Writes and flushes.
pub(crate) async fn flushed(array: &Arc<Array>, sector: u64, len: u64, generation: u8) {
    write(&gateway(array), sector, len, generation).await.expect("a write");
    gateway(array).flush().await.expect("a flush");
}

/// Sets a flag, which writes the superblocks.
pub(crate) async fn write_superblocks(array: &Array, index: Index) {
    let change = FlagChange { flag: MemberFlag::Failfast, on: true };
    array.set_flag(index, change).await.expect("a flag");
}

pub(crate) async fn sleep_us(micros: u64) {
    SimRuntime.sleep(Duration::from_micros(micros)).await;
}

pub(crate) async fn read(array: &Arc<Array>, sector: u64, len: u64) -> Vec<u8> {
    let got = gateway(array).read(Sector(sector), Sectors(len)).await.expect("a read");
    got.as_slice().to_vec()
}

/// Asserts the array's contents.
pub(crate) async fn check(array: &Arc<Array>, sector: u64, len: u64, generation: u8, what: &str) {
    let got = read(array, sector, len).await;
    let first = got.chunks(512).position(|s| s[8] != generation);
    let found = first.map(|at| (sector + at as u64, got[at * 512 + 8]));
    assert!(got == stamped(sector, len, generation), "{what}: {found:?}, not {generation}");
}

/// The media after a power cut now that keeps everything in the caches, but nothing in flight. Their
/// faults are removed.
pub(crate) fn cut(media: &[Media]) -> Vec<Media> {
    let copies: Vec<Media> = media.iter().map(Media::copy).collect();
    copies.iter().for_each(Media::heal);
    copies
}

/// Loses the cache of a medium. No simulation may be running.
pub(crate) fn lose(medium: &Media) {
    medium.fail_nth_flush(0);
    let sim = Sim::new(0);
    let disk = SimDisk::over("gone", medium.clone());
    assert!(sim.block_on(disk.gateway().flush()).is_err());
}
