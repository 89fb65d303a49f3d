//! Metrics of md arrays and their members: `ashlar_md_*`.

use ashlar_client::interface::{ArraySample, MemberSample, RunSample, SyncSample};
use ashlar_md::{ArrayState, SyncAction};

use super::page::{Labels, Row, Subject, Values};

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

fn sync(array: &ArraySample, values: impl FnOnce(&SyncSample) -> Values) -> Values {
    array.sync.as_ref().map_or(Values::None, values)
}

fn run(array: &ArraySample, bytes: impl FnOnce(&RunSample) -> u64) -> Values {
    sync(array, |sync| Values::some(sync.run.as_ref().map(bytes)))
}

impl Subject for ArraySample {
    const ROWS: &'static [Row<Self>] = &[
        Row::gauge("ashlar_md_state", "1 for the state of the array, in the words of md.", |a| {
            Values::states("state", &STATES, &a.state, ArrayState::name)
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
            |a| Values::One(a.unsynced.into()),
        ),
        Row::gauge(
            "ashlar_md_sync_action",
            "1 for what the array does by itself, in the words of sync_action.",
            |a| sync(a, |s| Values::states("action", &ACTIONS, &s.action, SyncAction::name)),
        ),
        Row::gauge(
            "ashlar_md_sync_completed_bytes",
            "How far the sync is that runs or is paused.",
            |a| run(a, |run| run.done_bytes),
        ),
        Row::gauge("ashlar_md_sync_size_bytes", "What that sync goes through in all.", |a| {
            run(a, |run| run.total_bytes)
        }),
        Row::gauge(
            "ashlar_md_mismatched_bytes",
            "Where the last check or repair found copies to differ.",
            |a| sync(a, |s| Values::One(s.mismatched_bytes.into())),
        ),
        Row::counter(
            "ashlar_md_barrier_waits_total",
            "How often I/O of clients waited for a sync or a change of the array.",
            |a| sync(a, |s| Values::One(s.barrier_waits.into())),
        ),
        Row::counter(
            "ashlar_md_barrier_raises_total",
            "Windows of syncs, and corrections, that kept writes out of their part of the array.",
            |a| sync(a, |s| Values::One(s.barrier_raises.into())),
        ),
        Row::counter(
            "ashlar_md_barrier_freezes_total",
            "Changes of the array that kept all I/O out for a moment.",
            |a| sync(a, |s| Values::One(s.barrier_freezes.into())),
        ),
    ];

    fn labels(&self) -> Labels {
        vec![("device", self.device.clone()), ("level", self.level.clone())]
    }
}

/// A member, with the array that it is in.
#[derive(Debug)]
pub(super) struct MemberOf {
    array: String,
    member: MemberSample,
}

impl MemberOf {
    /// The members of an array.
    pub(super) fn all(array: &ArraySample) -> impl Iterator<Item = Self> {
        let of =
            |member: &MemberSample| Self { array: array.device.clone(), member: member.clone() };
        array.members.iter().map(of)
    }
}

const MEMBER_STATES: [&str; 3] = ["active", "failed", "spare"];

impl Subject for MemberOf {
    const ROWS: &'static [Row<Self>] = &[
        Row::gauge("ashlar_md_member_state", "1 for the state of the member.", |m| {
            Values::states("state", &MEMBER_STATES, &m.member.state, |state| state)
        }),
        Row::counter(
            "ashlar_md_member_read_errors_total",
            "Reads of the member that failed.",
            |m| Values::One(m.member.read_errors.into()),
        ),
        Row::counter(
            "ashlar_md_member_corrected_bytes_total",
            "Bytes of the member that were written again from other copies after they could not be read.",
            |m| Values::One(m.member.corrected_bytes.into()),
        ),
    ];

    fn labels(&self) -> Labels {
        vec![("device", self.array.clone()), ("member", self.member.name.clone())]
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// An array that recovers its second member.
    pub(in crate::metrics) fn recovering() -> ArraySample {
        let run = RunSample {
            done_bytes: 1024,
            total_bytes: 4096,
            bytes_per_second: 1024,
            seconds_left: None,
        };
        let member = MemberSample {
            name: "sda".to_owned(),
            state: "spare".to_owned(),
            read_errors: 5,
            corrected_bytes: 3072,
        };
        let action = SyncAction::Recover.name().to_owned();
        ArraySample {
            device: "md0".to_owned(),
            level: "raid1".to_owned(),
            state: ArrayState::Active.name().to_owned(),
            required: 2,
            active: 1,
            failed: 1,
            spare: 1,
            degraded: 1,
            unsynced: false,
            sync: Some(SyncSample {
                action,
                mismatched_bytes: 1536,
                barrier_waits: 6,
                barrier_raises: 7,
                barrier_freezes: 8,
                run: Some(run),
            }),
            members: vec![member],
        }
    }
}
