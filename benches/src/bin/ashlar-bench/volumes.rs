//! The volumes of the measurement: a logical volume on a disk, a file on it, and a snapshot.
//!
//! The volumes are made as in the test case, by `ashlar lvm` commands on the image file, and activated by the code that
//! `serve` runs. The result:
//!
//! ```text
//!   disk --linear--> secvol-seclv-real --snapshot-origin--> secvol-seclv
//!     |                      |
//!     +--linear--> secvol-tmp_backup1-cow --snapshot P 8--> secvol-tmp_backup1
//! ```

use std::path::Path;

use ashlar_block::{Buffer, Flags, Gateway, Sector, Sectors};
use ashlar_commands::error::{Error, Result};
use ashlar_disks as disks;
use ashlar_stack::assemble::{Disk, Options, Refused, Stack, assemble, probe_all};

use crate::program;
use crate::readahead::PAGE;

/// Placeholder for the image file in [`VOLUME`] and [`SNAPSHOT`].
const DISK: &str = "DISK";
/// The commands that create the volume, without `ashlar`. No copies of the metadata are kept: the group is temporary.
pub(crate) const VOLUME: [&str; 3] = [
    "lvm pvcreate DISK",
    "lvm vgcreate -A n secvol DISK",
    "lvm lvcreate -A n --devices DISK --name seclv -l 80%FREE secvol",
];
/// The command that takes the snapshot.
pub(crate) const SNAPSHOT: [&str; 1] =
    ["lvm lvcreate -A n --devices DISK --snapshot secvol/seclv \
                                         --name tmp_backup1 --extents 90%FREE --chunksize 4k"];

/// The volume, before there is a snapshot.
pub(crate) const VOLUME_NAME: &str = "secvol-seclv";
/// The volume's data device once there is a snapshot: the same table, and reads that pass no other target.
pub(crate) const PLAIN_NAME: &str = "secvol-seclv-real";
/// The snapshot.
pub(crate) const SNAPSHOT_NAME: &str = "secvol-tmp_backup1";

/// The position of the file on the volume: after the area that a file system uses at its beginning.
pub(crate) const FILE_START: Sector = Sector(64 << 11);
/// Size of the writes that fill the file.
const FILL: Sectors = Sectors(2048);

/// A disk size of which 80 % hold a file of size `file`. The image is sparse: extra space costs nothing.
pub(crate) fn disk_size(file: Sectors) -> Sectors {
    Sectors(2 * (FILE_START.0 + file.0))
}

/// Runs commands on the image file, which must be closed: each command opens it.
///
/// # Errors
/// One of them failed.
pub(crate) fn run(commands: &[&str], image: &Path) -> Result<()> {
    let (dir, name) = (image.parent(), image.file_name().and_then(|name| name.to_str()));
    // Only the file name: a path may contain a comma, which ends a disk's name in --devices.
    let (dir, name) = (dir.unwrap_or(Path::new(".")), name.unwrap_or_default());
    for command in commands {
        let words = command.split_whitespace();
        let words: Vec<&str> = words.map(|word| if word == DISK { name } else { word }).collect();
        program::run_ashlar(&words, dir)?;
    }
    Ok(())
}

/// The active volumes on a disk.
pub(crate) struct Volumes(Stack);

impl Volumes {
    /// Activates all volumes on `disk`, which is at `path`.
    pub(crate) async fn activate(path: &Path, disk: &Gateway) -> Self {
        let disk = Disk { path: path.to_owned(), gateway: disk.clone() };
        let probed = probe_all(vec![disk]).await;
        Self(assemble(&probed, Options::default(), &disks::runtime()).await)
    }

    /// The device-mapper device of this name.
    ///
    /// # Errors
    /// It could not be made.
    pub(crate) fn find(&self, name: &str) -> Result<Gateway> {
        let link = format!("mapper/{name}");
        let devices = self.0.devices.all();
        let found = devices.iter().find(|device| device.links.contains(&link));
        found.map(|device| device.gateway().clone()).ok_or_else(|| {
            let refused = self.0.refusals(Refused::Volume);
            let refused = refused.map(|refused| format!("{}: {}", refused.name, refused.why));
            let notes = self.0.notes.iter().map(ToString::to_string);
            let why: Vec<String> = refused.chain(notes).collect();
            Error::new("cannot make", name, why.join("; "))
        })
    }

    /// Stops all volumes, and flushes the written data to the disk.
    ///
    /// # Errors
    /// One of them could not be stopped.
    pub(crate) async fn stop(self) -> Result<()> {
        self.0.stop().await.map_err(|failed| {
            let failed = failed.iter().map(ToString::to_string);
            Error::plain("not stopped cleanly", failed.collect::<Vec<_>>().join(", "))
        })
    }
}

/// Writes the file to `volume`, each page with its number, and flushes it.
///
/// # Errors
/// The volume is too small, or writing failed.
pub(crate) async fn fill(volume: &Gateway, file: Sectors) -> Result<()> {
    let failed = |error| Error::new("cannot write the file", volume.disk().name(), error);
    let mut buffer = Buffer::zeroed(FILL.bytes() as usize);
    for done in (0..file.0).step_by(FILL.0 as usize) {
        let pages = buffer.as_mut_slice().chunks_mut(PAGE as usize);
        for (page, number) in pages.zip(Sectors(done).bytes() / PAGE..) {
            page.fill(number as u8);
            page[..8].copy_from_slice(&number.to_le_bytes());
        }
        let at = FILE_START + Sectors(done);
        volume.write(at, &mut buffer, Flags::empty()).await.map_err(failed)?;
    }
    volume.flush().await.map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// LVM's extent size, and where the first extent begins.
    const EXTENT: u64 = 8192;
    const DATA_START: u64 = 2048;

    #[test]
    fn the_volume_has_room_for_the_file() {
        for mib in [2, 64, 512, 4096] {
            let file = Sectors(mib << 11);
            let extents = (disk_size(file).0 - DATA_START) / EXTENT;
            let volume = extents * 80 / 100 * EXTENT;
            assert!((FILE_START + file).0 <= volume, "{mib} MiB");
        }
    }
}
