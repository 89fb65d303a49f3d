//! Metrics of md arrays and their members: `ashlar_md_*`.

use ashlar_block::Sectors;
use ashlar_md::{ArrayState, MemberStatus, SyncAction};
use ashlar_stack::arrays::{Volume, WaitingArray};
use ashlar_stack::progress::{Run, Step};

use super::page::{Labels, Row, Subject, Values};

/// An array at one moment.
#[derive(Debug)]
pub(super) struct ArraySample {
    device: String,
    level: String,
    state: ArrayState,
    required: usize,
    active: usize,
    failed: usize,
    spare: usize,
    degraded: usize,
    is_unsynced: bool,
    /// What only a running array with redundancy has.
    sync: Option<SyncSample>,
}

#[derive(Debug)]
struct SyncSample {
    action: SyncAction,
    /// How far the action is that runs, or that is paused.
    run: Option<Run>,
    mismatches: Sectors,
}

const STATES: [ArrayState; 5] = [
    ArrayState::Inactive,
    ArrayState::ReadOnly,
    ArrayState::ReadAuto,
    ArrayState::Clean,
    ArrayState::Active,
];

const ACTIONS: [SyncAction; 6] = [
    SyncAction::Idle,
    SyncAction::Frozen,
    SyncAction::Resync,
    SyncAction::Recover,
    SyncAction::Check,
    SyncAction::Repair,
];

impl ArraySample {
    /// Samples of an array and its members.
    pub(super) fn of(volume: &Volume) -> (Self, Vec<MemberSample>) {
        let (status, progress) = (volume.view.status(), volume.view.progress());
        let device = volume.name.device();
        let here = || status.members.iter().filter(|member| member.index.is_some());
        let (active, failed) =
            (here().filter(|m| m.in_sync).count(), here().filter(|m| m.faulty).count());
        let run = match progress.step {
            Step::Running(run) => Some(run),
            Step::None | Step::Pending => progress.paused.map(|(_, run)| run),
        };
        let sync = SyncSample { action: progress.action, run, mismatches: progress.mismatches };
        let members = here().filter_map(|member| {
            Some(MemberSample::new(&device, volume.view.member_name(member)?, member))
        });
        let members = members.collect();
        let sample = Self {
            level: status.level.to_string(),
            state: status.state,
            required: status.raid_disks,
            active,
            failed,
            spare: (here().count() - failed).saturating_sub(active),
            degraded: status.degraded,
            is_unsynced: status.unsynced,
            sync: status.level.is_redundant().then_some(sync),
            device,
        };
        (sample, members)
    }

    /// An array that waits for members.
    pub(super) fn waiting(array: &WaitingArray) -> Self {
        let (required, here) = (array.raid_disks as usize, array.members.len());
        Self {
            device: array.name.device(),
            level: array.level.to_string(),
            state: ArrayState::Inactive,
            required,
            active: 0,
            failed: 0,
            spare: here,
            degraded: required.saturating_sub(here),
            is_unsynced: false,
            sync: None,
        }
    }

    fn sync(&self, values: impl FnOnce(&SyncSample) -> Values) -> Values {
        self.sync.as_ref().map_or(Values::None, values)
    }
}

impl Subject for ArraySample {
    const ROWS: &'static [Row<Self>] = &[
        Row::gauge("ashlar_md_state", "1 for the state of the array, in the words of md.", |a| {
            Values::states("state", &STATES, a.state, ArrayState::name)
        }),
        Row::gauge(
            "ashlar_md_disks",
            "Members: active ones are in sync, spare ones are neither that nor failed, and may be under recovery.",
            |a| {
                let all = [("active", a.active), ("failed", a.failed), ("spare", a.spare)];
                Values::By("state", all.map(|(state, count)| (state, count.into())).into())
            },
        ),
        Row::gauge("ashlar_md_disks_required", "Members of the complete array.", |a| {
            Values::One(a.required.into())
        }),
        Row::gauge("ashlar_md_degraded", "Places of the array without a working member.", |a| {
            Values::One(a.degraded.into())
        }),
        Row::gauge(
            "ashlar_md_unsynced",
            "Whether copies may differ, because the array was not stopped cleanly or a write failed.",
            |a| Values::One(a.is_unsynced.into()),
        ),
        Row::gauge(
            "ashlar_md_sync_action",
            "1 for what the array does by itself, in the words of sync_action.",
            |a| a.sync(|s| Values::states("action", &ACTIONS, s.action, SyncAction::name)),
        ),
        Row::gauge(
            "ashlar_md_sync_completed_bytes",
            "How far the sync is that runs or is paused.",
            |a| a.sync(|s| Values::some(s.run.map(|run| run.done.bytes()))),
        ),
        Row::gauge("ashlar_md_sync_size_bytes", "What that sync goes through in all.", |a| {
            a.sync(|s| Values::some(s.run.map(|run| run.total.bytes())))
        }),
        Row::gauge(
            "ashlar_md_mismatched_bytes",
            "Where the last check or repair found copies to differ.",
            |a| a.sync(|s| Values::One(s.mismatches.bytes().into())),
        ),
    ];

    fn labels(&self) -> Labels {
        vec![("device", self.device.clone()), ("level", self.level.clone())]
    }
}

/// A member of an array at one moment.
#[derive(Debug)]
pub(super) struct MemberSample {
    array: String,
    name: String,
    state: &'static str,
    read_errors: u64,
    corrected: Sectors,
}

const MEMBER_STATES: [&str; 3] = ["active", "failed", "spare"];

impl MemberSample {
    fn new(array: &str, name: String, member: &MemberStatus) -> Self {
        let state = match (member.faulty, member.in_sync) {
            (true, _) => "failed",
            (false, true) => "active",
            (false, false) => "spare",
        };
        let (read_errors, corrected) = (member.read_errors, Sectors(member.corrected));
        Self { array: array.to_owned(), name, state, read_errors, corrected }
    }
}

impl Subject for MemberSample {
    const ROWS: &'static [Row<Self>] = &[
        Row::gauge("ashlar_md_member_state", "1 for the state of the member.", |m| {
            Values::states("state", &MEMBER_STATES, m.state, |state| state)
        }),
        Row::counter(
            "ashlar_md_member_read_errors_total",
            "Reads of the member that failed.",
            |m| Values::One(m.read_errors.into()),
        ),
        Row::counter(
            "ashlar_md_member_corrected_bytes_total",
            "Bytes of the member that were written again from other copies after they could not be read.",
            |m| Values::One(m.corrected.bytes().into()),
        ),
    ];

    fn labels(&self) -> Labels {
        vec![("device", self.array.clone()), ("member", self.name.clone())]
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// An array that recovers its second member.
    pub(in crate::metrics) fn recovering() -> (ArraySample, Vec<MemberSample>) {
        let run = Run { done: Sectors(2), total: Sectors(8), speed_kib: 1, left: None };
        let action = SyncAction::Recover;
        let array = ArraySample {
            device: "md0".to_owned(),
            level: "raid1".to_owned(),
            state: ArrayState::Active,
            required: 2,
            active: 1,
            failed: 1,
            spare: 1,
            degraded: 1,
            is_unsynced: false,
            sync: Some(SyncSample { action, run: Some(run), mismatches: Sectors(3) }),
        };
        let status = MemberStatus { read_errors: 5, corrected: 6, ..MemberStatus::default() };
        (array, vec![MemberSample::new("md0", "sda".to_owned(), &status)])
    }
}
