//! The volumes of the measurement: a logical volume on a disk, a file on it, and a snapshot.
//!
//! The devices are those that LVM's tables make of a physical volume:
//!
//! ```text
//!   disk --linear--> secvol-seclv-real --snapshot-origin--> secvol-seclv
//!     |                      |
//!     +--linear--> secvol-tmp_backup1-cow --snapshot P 8--> secvol-tmp_backup1
//! ```

use std::sync::{Arc, Mutex, PoisonError};

use ashlar_block::{Buffer, Flags, Gateway, Sector, Sectors};
use ashlar_dm::snapshot::Origins;
use ashlar_dm::{Context, Device, Devices, Table, text};

use super::readahead::PAGE;
use crate::disks;
use crate::error::{Error, Result};

/// An extent (LVM's default).
const EXTENT: Sectors = Sectors(8192);
/// Where the first extent begins (LVM's default).
const DATA_START: Sectors = Sectors(2048);
/// A chunk of the snapshot (LVM's default).
const CHUNK: Sectors = Sectors(8);
/// Where the file lies on the volume: behind what a file system keeps at its beginning.
pub(super) const FILE_START: Sector = Sector(64 << 11);
/// Bytes of a write that fills the file.
const FILL: Sectors = Sectors(2048);

/// How the disk is shared out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Layout {
    /// The size of the volume: 80 % of the extents.
    volume: Sectors,
    /// The size of the snapshot's exception store: 90 % of what is left.
    cow: Sectors,
}

impl Layout {
    fn of(disk: Sectors) -> Self {
        let extents = disk.0.saturating_sub(DATA_START.0) / EXTENT.0;
        let volume = extents * 80 / 100;
        let cow = (extents - volume) * 90 / 100;
        Self { volume: Sectors(volume * EXTENT.0), cow: Sectors(cow * EXTENT.0) }
    }
}

/// A disk on which there is room for a file of `file`.
pub(super) fn disk_size(file: Sectors) -> Sectors {
    let volume = FILE_START.0 + file.0;
    let extents = volume.div_ceil(EXTENT.0) * 100 / 80 + 2;
    Sectors(DATA_START.0 + extents * EXTENT.0)
}

/// Devices by their names, as tables find them.
#[derive(Default)]
struct Named(Mutex<Vec<(&'static str, Gateway)>>);

impl Devices for Named {
    fn find(&self, name: &str) -> Option<Gateway> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().find(|(known, _)| *known == name).map(|(_, gateway)| gateway.clone())
    }
}

/// A volume with a file on it.
pub(super) struct Volumes {
    named: Named,
    origins: Arc<Origins>,
    layout: Layout,
    /// The volume, without a snapshot.
    pub(super) plain: Gateway,
}

impl Volumes {
    /// Makes the volume on `disk`.
    ///
    /// # Errors
    /// The disk is too small.
    pub(super) async fn make(disk: &Gateway) -> Result<Self> {
        let layout = Layout::of(disk.capacity());
        let named = Named(Mutex::new(vec![("disk", disk.clone())]));
        let mut this = Self { named, origins: Arc::default(), layout, plain: disk.clone() };
        let table = format!("0 {} linear disk {DATA_START}", layout.volume);
        this.plain = this.map("secvol-seclv-real", &table).await?;
        Ok(this)
    }

    /// Takes the snapshot of the volume.
    ///
    /// # Errors
    /// Writing its metadata failed.
    pub(super) async fn snapshot(&self) -> Result<Gateway> {
        let Layout { volume, cow } = self.layout;
        let at = DATA_START + volume;
        self.map("secvol-tmp_backup1-cow", &format!("0 {cow} linear disk {at}")).await?;
        self.map("secvol-seclv", &format!("0 {volume} snapshot-origin secvol-seclv-real")).await?;
        let devices = "secvol-seclv-real secvol-tmp_backup1-cow";
        let table = format!("0 {volume} snapshot {devices} P {CHUNK}");
        self.map("secvol-tmp_backup1", &table).await
    }

    /// Makes a device from a table.
    async fn map(&self, name: &'static str, table: &str) -> Result<Gateway> {
        let failed = |why: &dyn std::fmt::Display| Error::new("cannot make", name, why);
        let lines = text::parse(table).map_err(|error| failed(&error))?;
        let (runtime, origins) = (disks::runtime(), Arc::clone(&self.origins));
        let context = Context { devices: &self.named, runtime: Arc::clone(&runtime), origins };
        let table = Table::load(&lines, &context).await.map_err(|error| failed(&error))?;
        let device = Device::start(name, table, runtime).await.map_err(|error| failed(&error))?;
        let gateway = Gateway::new(device);
        let mut all = self.named.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push((name, gateway.clone()));
        Ok(gateway)
    }

    /// Writes the file, each page with its number, and has it all on the disk.
    ///
    /// # Errors
    /// Writing failed.
    pub(super) async fn fill(&self, file: Sectors) -> Result<()> {
        let failed = |error| Error::new("cannot write the file", self.plain.disk().name(), error);
        let mut buffer = Buffer::zeroed(FILL.bytes() as usize);
        for done in (0..file.0).step_by(FILL.0 as usize) {
            let pages = buffer.as_mut_slice().chunks_mut(PAGE as usize);
            for (page, number) in pages.zip(Sectors(done).bytes() / PAGE..) {
                page.fill(number as u8);
                page[..8].copy_from_slice(&number.to_le_bytes());
            }
            let at = FILE_START + Sectors(done);
            self.plain.write(at, &mut buffer, Flags::empty()).await.map_err(failed)?;
        }
        self.plain.flush().await.map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_are_shared_out_as_by_lvcreate() {
        // 255 extents: lvcreate -l 80%FREE, then --snapshot --extents 90%FREE of the 51 left.
        let layout = Layout::of(Sectors(1 << 21));
        assert_eq!((layout.volume.0 / EXTENT.0, layout.cow.0 / EXTENT.0), (204, 45));
        assert_eq!(Layout::of(Sectors(10)).volume, Sectors::ZERO);
    }

    #[test]
    fn the_disk_has_room_for_the_file() {
        for mib in [2, 64, 512, 4096] {
            let file = Sectors(mib << 11);
            let (disk, end) = (disk_size(file), FILE_START + file);
            let layout = Layout::of(disk);
            assert!(end.0 <= layout.volume.0, "{mib} MiB");
            assert!(
                layout.cow >= EXTENT && DATA_START.0 + layout.volume.0 + layout.cow.0 <= disk.0
            );
            assert!(disk.0 < 2 * file.0 + (256 << 11), "{mib} MiB");
        }
    }
}
