//! The control interface: its methods, their parameters and errors, as data.
//!
//! `DESCRIPTION` is sent to clients that ask for it; the other types are the messages. A test checks that they
//! agree.

mod description;
pub mod front_ends;
mod limits;
mod messages;
mod replies;
mod sample;
mod status;

pub use description::DESCRIPTION;
pub use limits::{DelaySample, LimitSample, LimitedVolume};
pub use messages::{
    Activate, ActivateReply, ArrayReference, Attach, DiskReference, DoneReply, Entry, EntryKind,
    FileSystemReply, GroupsReply, Grow, Job, JobAction, JobControl, JobKind, JobState, Lvm,
    LvmMembers, LvmReply, Manage, ManageAction, MetricsReply, Scrub, Setting, SizeReply,
    StartedReply, Stop, StopReply, Trace, TraceReply, TracedDevice, TreePath, VolumeNames, Zfs,
    ZfsReply, disk_for_daemon,
};
pub(crate) use messages::{DetailReply, EntriesReply, JobsReply, StatusReply, ValueReply};
pub use replies::{control_error, refused, refused_by, refused_with, reply};
pub use sample::{
    ArraySample, DeviceSample, MemberSample, OperationSample, RunSample, Sample, SampleReply,
    SyncSample, ThreadSample,
};
pub use status::{ModelStatus, PoolStatus, SnapshotSample, Status, VolumeStatus};

/// The interface's name.
pub const NAME: &str = "io.ashlar.Control";

#[cfg(test)]
mod tests {
    use ashlar_view::detail::Detail;

    use super::front_ends::{NbdClient, UblkDevice, VhostUserClient};
    use super::*;

    /// The fields of `type NAME (...)` in the description.
    fn described(name: &str) -> Vec<String> {
        let start = DESCRIPTION.find(&format!("type {name} (")).unwrap();
        let body = &DESCRIPTION[start..];
        let (_, body) = body.split_once('(').unwrap();
        let body = body.split("\n)").next().unwrap();
        let fields = body.split([',', '\n']).filter_map(|part| part.split_once(':'));
        fields.map(|(field, _)| field.trim().to_owned()).collect()
    }

    fn sent(value: serde_json::Value) -> Vec<String> {
        let mut names: Vec<String> = value.as_object().unwrap().keys().cloned().collect();
        names.sort_unstable();
        names
    }

    fn check(name: &str, value: serde_json::Value) {
        let mut described = described(name);
        described.sort_unstable();
        assert_eq!(described, sent(value), "{name}");
    }

    #[test]
    fn the_description_has_the_fields_that_are_sent() {
        check("NbdClient", serde_json::to_value(NbdClient::default()).unwrap());
        check("UblkDevice", serde_json::to_value(UblkDevice::default()).unwrap());
        check("VhostUserClient", serde_json::to_value(VhostUserClient::default()).unwrap());
        check("Volume", serde_json::to_value(VolumeStatus::default()).unwrap());
        check("Status", serde_json::to_value(Status::default()).unwrap());
        check("Model", serde_json::to_value(ModelStatus::default()).unwrap());
        check("LimitedVolume", serde_json::to_value(LimitedVolume::default()).unwrap());
        check("Pool", serde_json::to_value(PoolStatus::default()).unwrap());
        let job = Job {
            name: String::new(),
            alias: None,
            kind: JobKind::Merge,
            state: JobState::Running,
            done_bytes: 0,
            total_bytes: 0,
            bytes_per_second: None,
            seconds_left: None,
            actions: Vec::new(),
        };
        check("Job", serde_json::to_value(job).unwrap());
        let member = ashlar_view::detail::DetailMember {
            number: None,
            slot: None,
            state: String::new(),
            replacement: false,
            path: None,
            read_errors: 0,
            corrected: 0,
        };
        check("Member", serde_json::to_value(&member).unwrap());
        let sync = ashlar_view::detail::DetailSync {
            kind: String::new(),
            percent: 0,
            done_kib: 0,
            total_kib: 0,
            speed_kib: 0,
            seconds_left: None,
        };
        check("Sync", serde_json::to_value(&sync).unwrap());
        let reshape = ashlar_view::detail::DetailReshape {
            percent: 0,
            position_kib: 0,
            delta_devices: 0,
            new_layout: None,
            new_chunk_kib: None,
        };
        check("Reshape", serde_json::to_value(&reshape).unwrap());
        let detail = Detail {
            device: String::new(),
            alias: None,
            version: String::new(),
            created: 0,
            level: String::new(),
            size_kib: 0,
            used_dev_size_kib: None,
            raid_devices: 0,
            preferred_minor: None,
            updated: 0,
            intent_bitmap: None,
            state: String::new(),
            total_devices: 0,
            active_devices: 0,
            working_devices: 0,
            failed_devices: 0,
            spare_devices: 0,
            layout: None,
            chunk_kib: None,
            consistency_policy: String::new(),
            sync_action: String::new(),
            sync: Some(sync.clone()),
            reshape: Some(reshape),
            sync_busy: false,
            last_sync_action: String::new(),
            mismatch_count: 0,
            name: String::new(),
            uuid: String::new(),
            events: 0,
            members: vec![member],
            notes: Vec::new(),
        };
        check("Detail", serde_json::to_value(detail).unwrap());
    }

    #[test]
    fn the_description_has_the_fields_of_samples() {
        check("OperationSample", serde_json::to_value(OperationSample::default()).unwrap());
        check("RunSample", serde_json::to_value(RunSample::default()).unwrap());
        check("SyncSample", serde_json::to_value(SyncSample::default()).unwrap());
        check("DelaySample", serde_json::to_value(DelaySample::default()).unwrap());
        check("LimitSample", serde_json::to_value(LimitSample::default()).unwrap());
        check("MemberSample", serde_json::to_value(MemberSample::default()).unwrap());
        check("ArraySample", serde_json::to_value(ArraySample::default()).unwrap());
        check("SnapshotSample", serde_json::to_value(SnapshotSample::default()).unwrap());
        check("DeviceSample", serde_json::to_value(DeviceSample::default()).unwrap());
        check("ThreadSample", serde_json::to_value(ThreadSample::default()).unwrap());
        check("Sample", serde_json::to_value(Sample::default()).unwrap());
    }

    #[test]
    fn the_description_has_the_parameters_that_are_taken() {
        for (method, parameters) in [
            ("Manage", serde_json::to_value(Manage::default()).unwrap()),
            ("Grow", serde_json::to_value(Grow::default()).unwrap()),
            ("Stop", serde_json::to_value(Stop::default()).unwrap()),
            ("Attach", serde_json::to_value(Attach::default()).unwrap()),
            ("Detach", serde_json::to_value(DiskReference::default()).unwrap()),
            ("Trace", serde_json::to_value(Trace::default()).unwrap()),
            ("ControlJob", {
                let action = JobAction::Pause;
                serde_json::to_value(JobControl { name: String::new(), action }).unwrap()
            }),
            ("Zfs", {
                let command = ashlar_zfs::protocol::Command::PoolStatus;
                serde_json::to_value(Zfs { pool: String::new(), command }).unwrap()
            }),
        ] {
            let start = DESCRIPTION.find(&format!("method {method}(")).unwrap();
            let (_, body) = DESCRIPTION[start..].split_once('(').unwrap();
            let body = body.split(") ->").next().unwrap();
            let fields = body.split([',', '\n']).filter_map(|part| part.split_once(':'));
            let mut fields: Vec<String> =
                fields.map(|(field, _)| field.trim().to_owned()).collect();
            fields.sort_unstable();
            assert_eq!(fields, sent(parameters), "{method}");
        }
    }
}
