//! Mapped devices on simulated disks.
#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test uses its part")]

use std::sync::Arc;
use std::task::Poll;

use ashlar_block::{Buffer, Flags, Gateway, Limits, Sector, Sectors};
use ashlar_dm::{Context, Device, Devices, LoadError, Table, text};
use ashlar_sim::{Media, Model, Sim, SimDisk};

/// Disks with the names `d0`, `d1` ... in tables.
pub struct Disks(pub Vec<Gateway>);

impl Devices for Disks {
    fn find(&self, name: &str) -> Option<Gateway> {
        self.0.iter().find(|gateway| gateway.disk().name() == name).cloned()
    }
}

/// New disks over the media, as after a boot.
pub fn disks(media: &[Media]) -> Disks {
    disks_with(media, |_, limits| limits)
}

/// Disks with other limits.
pub fn disks_with(media: &[Media], limits: impl Fn(usize, Limits) -> Limits) -> Disks {
    let disk = |(index, medium): (usize, &Media)| {
        let model = Model::nvme();
        let limits = limits(index, model.limits());
        SimDisk::with(format!("d{index}"), medium.clone(), limits, model).gateway()
    };
    Disks(media.iter().enumerate().map(disk).collect())
}

pub fn media(n: usize, size: u64) -> Vec<Media> {
    (0..n).map(|_| Media::new(Sectors(size))).collect()
}

/// Loads a table from text.
pub async fn table(sim: &Sim, disks: &Disks, table: &str) -> Result<Table, LoadError> {
    let lines = text::parse(table).expect("lines");
    Table::load(
        &lines,
        &Context { devices: disks, runtime: sim.runtime(), origins: Arc::default() },
    )
    .await
}

/// Starts a device with a table.
pub async fn device(sim: &Sim, disks: &Disks, text: &str) -> Arc<Device> {
    let table = table(sim, disks, text).await.expect("a table");
    Device::start("dm-0", table, sim.runtime()).await.expect("a device")
}

pub fn gateway(device: &Arc<Device>) -> Gateway {
    Gateway::new(device.clone())
}

/// Bytes that encode their sector and generation.
pub fn stamped(sector: u64, len: u64, generation: u8) -> Vec<u8> {
    (0..len).map(|i| stamp(sector + i, generation)).collect::<Vec<[u8; 512]>>().into_flattened()
}

/// One stamped sector.
pub fn stamp(sector: u64, generation: u8) -> [u8; 512] {
    let mut bytes = [generation; 512];
    bytes[..8].copy_from_slice(&sector.to_le_bytes());
    bytes
}

/// Writes stamped sectors.
pub async fn write(volume: &Gateway, sector: u64, len: u64, generation: u8, flags: Flags) {
    let mut data = Buffer::from_slice(&stamped(sector, len, generation));
    volume.write(Sector(sector), &mut data, flags).await.expect("a write");
}

/// Polls a future once, and drops it. Returns whether it had ended.
pub async fn give_up<T>(future: impl Future<Output = T>) -> bool {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_ready())).await
}
