//! Arrays on simulated disks.
#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test uses its part")]

use std::sync::Arc;
use std::time::Duration;

use ashlar_block::{BioResult, Buffer, Flags, Gateway, Runtime, Sector, Sectors};
use ashlar_md::create::{CreatedArray, NewDevice, create};
use ashlar_md::ondisk::create::{CreateSpec, DEFAULT_DAEMON_SLEEP, NewBitmap, NewMember};
use ashlar_md::ondisk::{DeviceFlags, Level, Version};
use ashlar_md::{Array, AssembleError, Candidate, Options, plan, probe};
use ashlar_sim::{Media, Model, Sim, SimDisk, SimRuntime};
use uuid::Uuid;

/// The array to create: level, layout word (`None` for the default), chunk in KiB, members.
#[derive(Clone, Debug)]
pub struct Shape {
    pub level: Level,
    pub layout: Option<u32>,
    pub chunk_kib: u64,
    pub members: usize,
    pub version: Version,
}

impl Shape {
    pub fn new(level: Level, layout: Option<u32>, chunk_kib: u64, members: usize) -> Self {
        Self { level, layout, chunk_kib, members, version: Version::V1_2 }
    }
}

/// Empty media for the members of an array.
pub fn media(n: usize, size: Sectors) -> Vec<Media> {
    (0..n).map(|_| Media::new(size)).collect()
}

/// Disks over the media, as after a boot.
pub fn disks(media: &[Media]) -> Vec<SimDisk> {
    media.iter().enumerate().map(|(i, m)| SimDisk::over(format!("d{i}"), m.clone())).collect()
}

/// Disks whose requests have a deadline, with the model of each slot.
pub fn disks_with_timeout(
    media: &[Media],
    timeout: Duration,
    model: impl Fn(usize) -> Model,
) -> Vec<SimDisk> {
    let disk = |(at, medium): (usize, &Media)| {
        let model = model(at);
        let name = format!("d{at}");
        SimDisk::with_io_timeout(name, medium.clone(), model.limits(), model, timeout)
    };
    media.iter().enumerate().map(disk).collect()
}

pub fn spec(shape: &Shape, sizes: &[Sectors]) -> CreateSpec {
    let striped = shape.level != Level::Raid1;
    CreateSpec {
        version: shape.version,
        level: shape.level,
        layout: shape.layout,
        chunk: striped.then(|| Sectors(shape.chunk_kib * 2)),
        raid_devices: shape.members as u32,
        members: sizes
            .iter()
            .enumerate()
            .map(|(i, device)| {
                Some(NewMember {
                    device: *device,
                    device_uuid: Uuid::from_u128(100 + i as u128),
                    flags: DeviceFlags::default(),
                })
            })
            .collect(),
        size: None,
        // Small, so that arrays fit on small disks regardless of the version's default.
        data_offset: (shape.version != Version::V1_0).then_some(Sectors(256)),
        set_uuid: Uuid::from_u128(7),
        name: "sim:0".into(),
        ctime: 1_700_000_000,
        assume_clean: true,
        bitmap: NewBitmap::None,
        write_behind: 0,
        daemon_sleep: DEFAULT_DAEMON_SLEEP,
        ppl: false,
        bad_block_log: false,
        numbers: Default::default(),
    }
}

/// Creates the array on the disks.
pub async fn make(shape: &Shape, disks: &[SimDisk]) -> CreatedArray {
    let sizes: Vec<Sectors> = disks.iter().map(|d| d.disk().capacity()).collect();
    make_with(&spec(shape, &sizes), disks).await
}

/// Creates the array of `spec` on the disks.
pub async fn make_with(spec: &CreateSpec, disks: &[SimDisk]) -> CreatedArray {
    create(spec, &new_devices(disks)).await.expect("create")
}

/// The disks as new members.
pub fn new_devices(disks: &[SimDisk]) -> Vec<Option<NewDevice>> {
    let device = |disk: &SimDisk| NewDevice {
        gateway: disk.gateway(),
        path: disk.disk().name().to_owned(),
        known_zero: true,
        wiped: Vec::new(),
    };
    disks.iter().map(|disk| Some(device(disk))).collect()
}

/// The disks that have a superblock, as candidates.
pub async fn candidates(disks: &[impl std::borrow::Borrow<SimDisk>]) -> Vec<Candidate> {
    let mut found = Vec::new();
    for disk in disks {
        let disk = disk.borrow();
        let gateway = disk.gateway();
        if let Ok(Some(sb)) = probe(&gateway).await {
            found.push(Candidate { path: disk.disk().name().to_owned(), gateway, sb });
        }
    }
    found
}

/// Assembles and starts the array on the disks.
pub async fn start(
    sim: &Sim,
    disks: &[impl std::borrow::Borrow<SimDisk>],
    options: &Options,
) -> Result<Arc<Array>, AssembleError> {
    let plan = plan(candidates(disks).await, options).await?;
    Ok(Array::start(plan, "md0", sim.runtime()))
}

pub fn gateway(array: &Arc<Array>) -> Gateway {
    Gateway::new(array.clone())
}

/// Sectors of a member's superblock, version 1.2: one logical block of 512 bytes.
pub const SUPERBLOCK: std::ops::Range<u64> = 8..9;
/// Where data begins on members of [`spec`].
pub const DATA: u64 = 256;

/// Bytes that identify their sector and generation.
pub fn stamped(sector: u64, len: u64, generation: u8) -> Vec<u8> {
    let stamp = |i| {
        let mut bytes = [generation; 512];
        bytes[..8].copy_from_slice(&u64::to_le_bytes(sector + i));
        bytes
    };
    (0..len).map(stamp).collect::<Vec<[u8; 512]>>().into_flattened()
}

/// Writes stamped sectors.
pub async fn write(volume: &Gateway, sector: u64, len: u64, generation: u8) -> BioResult {
    let mut data = Buffer::from_slice(&stamped(sector, len, generation));
    volume.write(Sector(sector), &mut data, Flags::empty()).await
}

/// Whether all superblocks on the disks now say clean.
pub async fn all_clean(disks: &[SimDisk]) -> bool {
    candidates(disks).await.iter().all(|c| c.sb.is_clean())
}

/// Array sectors whose copies on in-sync members differ.
pub async fn differing(array: &Array, media: &[Media], len: u64) -> Vec<u64> {
    let in_sync: Vec<bool> = array.status().await.members.iter().map(|m| m.in_sync).collect();
    let bytes = |slot: usize, sector: Sector| media[slot].peek(sector + Sectors(DATA));
    let differs = |sector: &u64| {
        let copies = array.personality().map(Sector(*sector));
        let mut present = copies.iter().filter(|at| in_sync[at.disk]);
        let first = present.next().map(|at| bytes(at.disk, at.sector));
        present.any(|at| Some(bytes(at.disk, at.sector)) != first)
    };
    (0..len).filter(differs).collect()
}

/// The virtual time that an I/O takes.
pub async fn took(io: impl Future<Output = ()>) -> Duration {
    let start_ns = SimRuntime.now_ns();
    io.await;
    Duration::from_nanos(SimRuntime.now_ns() - start_ns)
}
