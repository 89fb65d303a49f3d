//! The initial state of a scrub, and its record while it runs.

use std::collections::BTreeMap;
use std::time::Instant;

use ashlar_btrfs::scrub::{Counters, Scrub, State};
use ashlar_btrfs::units::{DevId, Physical};
use ashlar_btrfs::volume::{Device, FileSystem};
use ashlar_engine::wall_clock;
use ashlar_files::size;

use super::records::{DeviceRecord, DeviceState, EarlierRuns, ScrubRecord};

/// What is known of a scrub from its start.
pub(super) struct Origin {
    start: ScrubRecord,
    since: Instant,
    /// The devices that are scrubbed, and where each continues.
    pub(super) open: BTreeMap<DevId, Physical>,
}

impl Origin {
    /// A scrub that continues `last`, or a new one.
    ///
    /// A device continues where it was if it is still the same disk; a new device starts from the beginning, and the
    /// record of a missing device is kept.
    pub(super) fn new(fs: &FileSystem, read_only: bool, last: Option<ScrubRecord>) -> Self {
        let now = wall_clock().as_secs();
        let pid = std::process::id();
        let mut start = match last {
            Some(last) => {
                let before =
                    EarlierRuns { duration: last.duration, passed_bytes: last.passed_bytes() };
                ScrubRecord { resumed: Some(now), pid, before, error: None, ..last }
            }
            None => ScrubRecord {
                fsid: fs.superblock().fsid(),
                started: now,
                resumed: None,
                duration: 0.0,
                read_only,
                pid,
                before: EarlierRuns::default(),
                devices: Vec::new(),
                error: None,
                short: Vec::new(),
                lost: Vec::new(),
            },
        };
        let mut open = BTreeMap::new();
        for device in fs.devices() {
            let known = start.devices.iter_mut().find(|known| known.uuid == device.uuid);
            match known {
                Some(known) if known.state == DeviceState::Finished => {}
                Some(known) => {
                    known.state = DeviceState::Running;
                    open.insert(device.devid, Physical(known.counters.last_physical));
                }
                None => {
                    start.devices.retain(|other| other.devid != device.devid.0);
                    start.devices.push(DeviceRecord {
                        devid: device.devid.0,
                        uuid: device.uuid,
                        name: device.name.clone(),
                        counters: Counters::default(),
                        total_bytes: 0,
                        passed_bytes: 0,
                        state: DeviceState::Running,
                    });
                    open.insert(device.devid, Physical(0));
                }
            }
        }
        start.devices.sort_by_key(|device| device.devid);
        start.short = fs.devices().iter().filter_map(short).collect();
        Self { start, since: Instant::now(), open }
    }

    /// The scrub's current record.
    pub(super) fn record(&self, scrub: &Scrub) -> ScrubRecord {
        let mut record = self.start.clone();
        record.duration = self.start.before.duration + self.since.elapsed().as_secs_f64();
        for progress in scrub.progress() {
            let mut devices = record.devices.iter_mut();
            let Some(device) = devices.find(|device| device.devid == progress.devid.0) else {
                continue;
            };
            device.state = match progress.state {
                // It has no progress yet.
                State::Waiting => continue,
                State::Running => DeviceState::Running,
                State::Finished => DeviceState::Finished,
                State::Cancelled => DeviceState::Cancelled,
                State::Failed => DeviceState::Aborted,
            };
            device.counters = progress.counters.plus(&device.counters);
            device.total_bytes = progress.bytes_total;
            device.passed_bytes = progress.bytes_scanned;
        }
        record
    }
}

/// The message about a device that is smaller than its file system says; the file system may not use the missing bytes at all.
fn short(device: &Device) -> Option<String> {
    let Device { name, devid, total_bytes, .. } = device;
    let here = device.gateway.capacity().bytes();
    let (has, wanted) = (size(here as f64), size(*total_bytes as f64));
    (here < *total_bytes).then(|| {
        format!("{name} (id {devid}) has {has} ({here} bytes), and its file system says {wanted} ({total_bytes}): Linux does not mount it")
    })
}
