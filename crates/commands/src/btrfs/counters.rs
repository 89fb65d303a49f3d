//! The errors that the kernel has counted on the devices of a file system.

use std::sync::Arc;

use ashlar_btrfs::ondisk::items::DevStats;
use ashlar_btrfs::volume::FileSystem;
use serde::Serialize;

use crate::error::{Error, Result};

/// The counters of a device.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceCounters {
    /// The device.
    pub device: String,
    /// Its number.
    pub devid: u64,
    /// Failed writes.
    pub write_io_errs: u64,
    /// Failed reads.
    pub read_io_errs: u64,
    /// Failed flushes.
    pub flush_io_errs: u64,
    /// Blocks with wrong checksums or contents.
    pub corruption_errs: u64,
    /// Tree blocks of another generation than the one that was expected.
    pub generation_errs: u64,
}

impl DeviceCounters {
    /// Whether a counter is not zero.
    pub fn is_any(&self) -> bool {
        self.all().iter().any(|(_, count)| *count > 0)
    }

    /// The counters, as `btrfs device stats` prints them.
    pub fn text(&self) -> String {
        let line = |(name, count)| format!("[{}].{name:<16} {count}\n", self.device);
        self.all().map(line).concat()
    }

    fn all(&self) -> [(&'static str, u64); 5] {
        [
            ("write_io_errs", self.write_io_errs),
            ("read_io_errs", self.read_io_errs),
            ("flush_io_errs", self.flush_io_errs),
            ("corruption_errs", self.corruption_errs),
            ("generation_errs", self.generation_errs),
        ]
    }
}

/// The counters of all devices.
///
/// # Errors
/// The tree with the counters is damaged.
pub async fn device_counters(fs: &Arc<FileSystem>) -> Result<Vec<DeviceCounters>> {
    let mut all = Vec::new();
    for device in fs.devices() {
        let stats = fs.device_stats(device.devid).await;
        let stats = stats.map_err(|why| Error::plain("cannot read the counters", why))?;
        let DevStats { write_errs, read_errs, flush_errs, corruption_errs, generation_errs } =
            stats;
        all.push(DeviceCounters {
            device: device.name.clone(),
            devid: device.devid.0,
            write_io_errs: write_errs,
            read_io_errs: read_errs,
            flush_io_errs: flush_errs,
            corruption_errs,
            generation_errs,
        });
    }
    Ok(all)
}
