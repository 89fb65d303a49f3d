//! The control interface: its methods, their parameters and errors, as data.
//!
//! `DESCRIPTION` is sent to clients that ask for it; the other types are the messages. A test checks that they
//! agree.

mod description;
mod messages;
mod replies;
mod sample;
mod status;

pub use description::DESCRIPTION;
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
pub use status::{ModelStatus, NbdClient, PoolStatus, SnapshotSample, Status, VolumeStatus};

/// The interface's name.
pub const NAME: &str = "io.ashlar.Control";

#[cfg(test)]
mod tests {
    use ashlar_stack::detail::Detail;

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
        let client = NbdClient { peer: String::new(), connections: 0 };
        check("NbdClient", serde_json::to_value(&client).unwrap());
        let volume = VolumeStatus {
            name: String::new(),
            alias: None,
            level: String::new(),
            size: 0,
            state: String::new(),
            raid_devices: 0,
            degraded: 0,
            snapshot: None,
            nbd_clients: vec![client.clone()],
        };
        check("Volume", serde_json::to_value(volume).unwrap());
        let status = Status {
            version: String::new(),
            pid: 1,
            io: String::new(),
            sandbox: String::new(),
            mount: None,
            nbd: Vec::new(),
            metrics: None,
            models: Vec::new(),
            pools: Vec::new(),
            volumes: Vec::new(),
            stopping: None,
        };
        check("Status", serde_json::to_value(status).unwrap());
        let model = ModelStatus { disk: String::new(), model: String::new() };
        check("Model", serde_json::to_value(model).unwrap());
        let pool = PoolStatus { name: String::new(), pid: 1, release: String::new(), ended: None };
        check("Pool", serde_json::to_value(pool).unwrap());
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
        let member = ashlar_stack::detail::DetailMember {
            number: None,
            slot: None,
            state: String::new(),
            replacement: false,
            path: None,
            read_errors: 0,
            corrected: 0,
        };
        check("Member", serde_json::to_value(&member).unwrap());
        let sync = ashlar_stack::detail::DetailSync {
            kind: String::new(),
            percent: 0,
            done_kib: 0,
            total_kib: 0,
            speed_kib: 0,
            seconds_left: None,
        };
        check("Sync", serde_json::to_value(&sync).unwrap());
        let reshape = ashlar_stack::detail::DetailReshape {
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
        let operation = OperationSample::default();
        check("OperationSample", serde_json::to_value(&operation).unwrap());
        let run =
            RunSample { done_bytes: 0, total_bytes: 0, bytes_per_second: 0, seconds_left: None };
        check("RunSample", serde_json::to_value(&run).unwrap());
        let sync = SyncSample {
            action: String::new(),
            mismatched_bytes: 0,
            barrier_waits: 0,
            barrier_raises: 0,
            barrier_freezes: 0,
            run: Some(run),
        };
        check("SyncSample", serde_json::to_value(&sync).unwrap());
        let member = MemberSample {
            name: String::new(),
            state: String::new(),
            read_errors: 0,
            corrected_bytes: 0,
        };
        check("MemberSample", serde_json::to_value(&member).unwrap());
        let array = ArraySample {
            device: String::new(),
            level: String::new(),
            state: String::new(),
            required: 0,
            active: 0,
            failed: 0,
            spare: 0,
            degraded: 0,
            unsynced: false,
            sync: Some(sync),
            members: vec![member],
        };
        check("ArraySample", serde_json::to_value(&array).unwrap());
        let snapshot = SnapshotSample {
            origin: String::new(),
            state: String::new(),
            used_percent: None,
            used_bytes: None,
            size_bytes: 0,
        };
        check("SnapshotSample", serde_json::to_value(&snapshot).unwrap());
        let device = DeviceSample {
            name: String::new(),
            path: String::new(),
            alias: None,
            kind: String::new(),
            usage: String::new(),
            below: Vec::new(),
            size_bytes: 0,
            read_only: false,
            state: String::new(),
            snapshot: Some(snapshot),
            in_flight: 0,
            busy_ns: 0,
            read: operation.clone(),
            write: operation.clone(),
            discard: operation.clone(),
            flush: operation,
            errors: 0,
            nbd_clients: Vec::new(),
        };
        check("DeviceSample", serde_json::to_value(&device).unwrap());
        let thread = ThreadSample { name: String::new(), nbd_connections: 0 };
        check("ThreadSample", serde_json::to_value(&thread).unwrap());
        let sample = Sample {
            version: String::new(),
            io: String::new(),
            now_ns: 0,
            uptime_ns: 0,
            latency_bounds_us: Sample::bounds_us(),
            threads: vec![thread],
            nbd_connections_limit: None,
            devices: vec![device],
            arrays: vec![array],
            pools: Vec::new(),
            jobs: None,
        };
        check("Sample", serde_json::to_value(sample).unwrap());
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
