//! A sample of everything: the one place where counters and states are gathered.

use std::time::Duration;

use ashlar_block::limiter::{Delays, Limiter};
use ashlar_block::stats::{GroupTotals, Stats};
use ashlar_block::{Op, Presence, Sectors};
use ashlar_client::interface::{
    ArraySample, DelaySample, DeviceSample, LimitSample, MemberSample, OperationSample, RunSample,
    Sample, SyncSample,
};
use ashlar_disks::options::BackEnd;
use ashlar_engine::timeout;
use ashlar_md::MemberStatus;
use ashlar_stack::arrays::{Volume, WaitingArray};
use ashlar_stack::devices::{Device, Role};
use ashlar_stack::snapshots::Snapshots;
use ashlar_view::detail::INACTIVE;
use ashlar_view::progress::{Progress, Run, Step};
use rustix::time::{ClockId, clock_gettime};

use crate::service::Service;

/// How long the list of jobs may take. A pool that does not answer takes 2 s; scrapers wait for 10.
const PATIENCE: Duration = Duration::from_secs(3);

impl Service {
    /// Counters and states of everything.
    pub(crate) async fn sample(&self) -> Sample {
        // First, because it may take long; the rest is of one moment.
        let jobs = timeout(PATIENCE, self.job_list()).await;
        let arrays = &self.stack.arrays;
        let (running, waiting) = (arrays.running(), arrays.waiting());
        let devices = self.stack.devices.all();
        let snapshots = Snapshots::among(&devices);
        let mut sample = Sample {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            io: BackEnd::used().name().to_owned(),
            now_ns: monotonic_ns(),
            uptime_ns: nanoseconds(self.begun.elapsed()),
            latency_bounds_us: Sample::bounds_us(),
            devices: devices.iter().map(|it| self.device(it, &snapshots)).collect(),
            arrays: running.iter().map(array).chain(waiting.iter().map(waiting_array)).collect(),
            pools: self.pool_statuses(),
            jobs,
            ..Sample::default()
        };
        self.clients.front_ends.each(|front_end| front_end.sample(&mut sample));
        sample
    }

    fn device(&self, device: &Device, snapshots: &Snapshots<'_>) -> DeviceSample {
        let disk = device.gateway().disk();
        let stats = disk.stats();
        let totals = stats.totals();
        let mut sample = DeviceSample {
            name: device.name.clone(),
            path: device.path.clone(),
            alias: device.links.last().cloned(),
            kind: device.kind.name().to_owned(),
            usage: usage(device.role).to_owned(),
            below: device.below.clone(),
            size_bytes: device.bytes.size_bytes(),
            read_only: disk.is_read_only(),
            state: presence(disk.presence()).to_owned(),
            snapshot: snapshots.of(device).map(Into::into),
            in_flight: totals.in_flight(),
            busy_ns: totals.io_ticks_ns,
            read: operation(stats, Op::Read, totals.read),
            write: operation(stats, Op::Write, totals.write),
            discard: operation(stats, Op::Discard, totals.discard),
            flush: operation(stats, Op::Flush, totals.flush),
            errors: stats.errors(),
            limits: limits(device.bytes.limiter()),
            ..DeviceSample::default()
        };
        let front_ends = &self.clients.front_ends;
        front_ends.each(|front_end| front_end.clients(&device.bytes, &mut sample.clients));
        sample
    }
}

/// The clock of the timestamps of samples.
fn monotonic_ns() -> u64 {
    let now = Duration::try_from(clock_gettime(ClockId::Monotonic));
    // The clock begins when the machine starts.
    now.map_or(0, nanoseconds)
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn operation(stats: &Stats, op: Op, group: GroupTotals) -> OperationSample {
    let mut latencies = stats.latencies(op).to_vec();
    while latencies.pop_if(|last| *last == 0).is_some() {}
    OperationSample {
        ios: group.ios,
        merges: group.merges,
        bytes: group.sectors.saturating_mul(512),
        time_ns: group.ticks_ns,
        latencies,
    }
}

/// Rate limits; `None` of a volume without limits for which no request ever waited.
pub(crate) fn limits(limiter: &Limiter) -> Option<LimitSample> {
    let (max, (read, write)) = (limiter.max(), limiter.delays());
    if max.is_none() && read.requests + write.requests == 0 {
        return None;
    }
    let of = |Delays { waiting, requests, time_ns }| DelaySample { waiting, requests, time_ns };
    Some(LimitSample {
        rbps: max.rbps(),
        wbps: max.wbps(),
        riops: max.riops(),
        wiops: max.wiops(),
        burst_ms: max.burst_ms(),
        read: of(read),
        write: of(write),
    })
}

const fn usage(role: Role) -> &'static str {
    match role {
        Role::Volume => "volume",
        Role::Member(_) | Role::Former => "member",
        Role::Partitioned => "partitioned",
        Role::Held(_, usage) => usage,
        Role::Refused => "none",
    }
}

/// The word for whether a device responds.
pub(super) const fn presence(presence: Presence) -> &'static str {
    match presence {
        Presence::Answering => "answering",
        Presence::Silent => "silent",
        Presence::Gone => "gone",
    }
}

fn array(volume: &Volume) -> ArraySample {
    let (status, progress) = (volume.view.status(), Progress::of(&volume.view));
    let here = || status.members.iter().filter(|member| member.index.is_some());
    let (active, failed) =
        (here().filter(|m| m.in_sync).count(), here().filter(|m| m.faulty).count());
    let run = match progress.step {
        Step::Running(run) => Some(run),
        Step::None | Step::Pending => progress.paused.map(|(_, run)| run),
    };
    let barrier = volume.view.barrier_totals();
    let sync = SyncSample {
        action: progress.action.name().to_owned(),
        mismatched_bytes: progress.mismatches.bytes(),
        barrier_waits: barrier.waits,
        barrier_raises: barrier.raises,
        barrier_freezes: barrier.freezes,
        run: run.as_ref().map(sync_run),
    };
    let members = here().filter_map(|it| Some(member(volume.view.member_name(it)?, it))).collect();
    ArraySample {
        device: volume.name.device(),
        level: status.level.to_string(),
        state: status.state.name().to_owned(),
        required: status.raid_disks as u64,
        active: active as u64,
        failed: failed as u64,
        spare: (here().count() - failed).saturating_sub(active) as u64,
        degraded: status.degraded as u64,
        unsynced: status.unsynced,
        sync: status.level.is_redundant().then_some(sync),
        members,
    }
}

fn sync_run(run: &Run) -> RunSample {
    RunSample {
        done_bytes: run.done.bytes(),
        total_bytes: run.total.bytes(),
        bytes_per_second: run.speed_kib.saturating_mul(1024),
        seconds_left: run.left.map(|left| left.as_secs()),
    }
}

fn member(name: String, member: &MemberStatus) -> MemberSample {
    let state = match (member.faulty, member.in_sync) {
        (true, _) => "failed",
        (false, true) => "active",
        (false, false) => "spare",
    };
    MemberSample {
        name,
        state: state.to_owned(),
        read_errors: member.read_errors,
        corrected_bytes: Sectors(member.corrected).bytes(),
    }
}

/// An array that waits for members.
fn waiting_array(array: &WaitingArray) -> ArraySample {
    let (required, here) = (u64::from(array.raid_disks), array.members.len() as u64);
    ArraySample {
        device: array.name.device(),
        level: array.level.to_string(),
        state: INACTIVE.to_owned(),
        required,
        active: 0,
        failed: 0,
        spare: here,
        degraded: required.saturating_sub(here),
        unsynced: false,
        sync: None,
        members: Vec::new(),
    }
}
