//! Metrics of the snapshots of logical volumes.

use ashlar_client::interface::{DeviceSample, SnapshotSample};
use ashlar_stack::snapshots::SnapshotState;

use super::page::{Labels, Row, Subject, Values};

/// A snapshot with the device that it is, or into which it is merged.
#[derive(Debug)]
pub(super) struct SnapshotOf {
    device: String,
    snapshot: SnapshotSample,
}

impl SnapshotOf {
    /// That of a device, if there is one.
    pub(super) fn of(device: &DeviceSample) -> Option<Self> {
        let snapshot = device.snapshot.clone()?;
        Some(Self { device: device.name.clone(), snapshot })
    }
}

impl Subject for SnapshotOf {
    const ROWS: &'static [Row<Self>] = &[
        Row::gauge("ashlar_snapshot_state", "1 for the state of the snapshot.", |of| {
            Values::states("state", &SnapshotState::ALL, &of.snapshot.state, SnapshotState::name)
        }),
        Row::gauge(
            "ashlar_snapshot_used_bytes",
            "The used part of the snapshot's space with the metadata, if that is known.",
            |of| Values::some(of.snapshot.used_bytes),
        ),
        Row::gauge("ashlar_snapshot_size_bytes", "The size of the snapshot's space.", |of| {
            Values::One(of.snapshot.size_bytes.into())
        }),
    ];

    fn labels(&self) -> Labels {
        vec![("device", self.device.clone()), ("origin", self.snapshot.origin.clone())]
    }
}
