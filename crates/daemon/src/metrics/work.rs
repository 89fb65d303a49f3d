//! Metrics of the daemon, its threads, its long work and its ZFS pools.

use ashlar_client::interface::front_ends::ConnectionLimits;
use ashlar_client::interface::{Job, JobState, PoolStatus, ThreadSample};

use super::page::{Labels, Row, Subject, Values};

/// The program.
#[derive(Debug)]
pub(super) struct Build;

impl Subject for Build {
    const ROWS: &'static [Row<Self>] =
        &[Row::gauge("ashlar_build_info", "1, with the version of the program.", |_| {
            Values::One(1_u64.into())
        })];

    fn labels(&self) -> Labels {
        vec![("version", env!("CARGO_PKG_VERSION").to_owned())]
    }
}

/// How the daemon asks the kernel for I/O.
#[derive(Debug)]
pub(super) struct Backend(pub(super) String);

impl Subject for Backend {
    const ROWS: &'static [Row<Self>] = &[Row::gauge(
        "ashlar_io_backend",
        "1, with the way in which the daemon asks the kernel for I/O: io_uring or threads.",
        |_| Values::One(1_u64.into()),
    )];

    fn labels(&self) -> Labels {
        vec![("backend", self.0.clone())]
    }
}

impl Subject for ThreadSample {
    const ROWS: &'static [Row<Self>] = &[Row::gauge(
        "ashlar_nbd_connections",
        "Connections on which the thread serves NBD clients, those in the handshake not counted.",
        |thread| Values::One(thread.connections.nbd_connections.into()),
    )];

    fn labels(&self) -> Labels {
        vec![("thread", self.name.clone())]
    }
}

impl Subject for ConnectionLimits {
    const ROWS: &'static [Row<Self>] = &[Row::gauge(
        "ashlar_nbd_connections_limit",
        "The most connections that each NBD address serves.",
        |limits| Values::some(limits.nbd_connections_limit),
    )];

    fn labels(&self) -> Labels {
        Vec::new()
    }
}

/// Whether the jobs could be listed in time.
#[derive(Debug)]
pub(super) struct JobsListed(pub(super) bool);

impl Subject for JobsListed {
    const ROWS: &'static [Row<Self>] = &[Row::gauge(
        "ashlar_scrape_collector_success",
        "Whether these metrics could be collected in time; if not, they are left out.",
        |listed| Values::One(listed.0.into()),
    )];

    fn labels(&self) -> Labels {
        vec![("collector", "jobs".to_owned())]
    }
}

const JOB_STATES: [JobState; 3] = [JobState::Running, JobState::Paused, JobState::Failed];

impl Subject for Job {
    const ROWS: &'static [Row<Self>] = &[
        Row::gauge("ashlar_job_state", "1 for the state of the long work.", |job| {
            Values::states("state", &JOB_STATES, job.state.name(), JobState::name)
        }),
        Row::gauge("ashlar_job_progress_ratio", "How much of it is done, from 0 to 1.", |job| {
            let total = Some(job.total_bytes).filter(|total| *total > 0);
            Values::some(total.map(|total| job.done_bytes.min(total) as f64 / total as f64))
        }),
        Row::gauge("ashlar_job_completed_bytes", "How much of it is done.", |job| {
            Values::One(job.done_bytes.into())
        }),
        Row::gauge("ashlar_job_size_bytes", "How much there is to do in all.", |job| {
            Values::One(job.total_bytes.into())
        }),
        Row::gauge("ashlar_job_bytes_per_second", "Its speed of late, if that is known.", |job| {
            Values::some(job.bytes_per_second)
        }),
        Row::gauge(
            "ashlar_job_remaining_seconds",
            "The time that it still takes at this speed, if that is known.",
            |job| Values::some(job.seconds_left),
        ),
    ];

    fn labels(&self) -> Labels {
        // Not `job`, which Prometheus uses itself.
        vec![("name", self.name.clone()), ("kind", self.kind.name().to_owned())]
    }
}

impl Subject for PoolStatus {
    const ROWS: &'static [Row<Self>] = &[Row::gauge(
        "ashlar_zfs_pool_up",
        "Whether the process that has the ZFS pool runs.",
        |pool| Values::One(pool.ended.is_none().into()),
    )];

    fn labels(&self) -> Labels {
        vec![("pool", self.name.clone()), ("release", self.release.clone())]
    }
}
