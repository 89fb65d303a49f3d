//! Regular I/O during a resync in other buckets, with md's barrier and with a global one.
//!
//! The array is created out of sync, so that it is resynced from its start; regular I/O of 64 KiB, sequential, is only
//! in the second half. "No resync" is the same array with the resync frozen: in both cases reads go to the first copy.
//! The global barrier is in series with md's (see `devices`).

use std::sync::Arc;
use std::time::Duration;

use ashlar_block::{Gateway, Runtime, Sector, Sectors};
use ashlar_engine::{Engine, EngineRuntime};
use ashlar_md::internals::barrier::Barrier;
use ashlar_md::ondisk::Level;
use ashlar_md::{Array, SyncAction, SyncRequest};
use ashlar_sim::{Media, Model, Sim, SimDisk};

use crate::arrays::{self, DATA_OFFSET, Recipe};
use crate::common::{Outcome, Settings, block_on};
use crate::devices::{ExtraBarrier, GuardedArray, RaisingMember, ram};
use crate::load::{JobEnd, Load, Loads, Order, Score, in_sim, on_engine};
use crate::report::{Grid, Unit};

/// The size of the part that is resynced, and of the part for regular I/O.
const HALF: u64 = 1 << 30;
const SLOW: Option<u64> = Some(1000);
const FAST: Option<u64> = Some(50 << 10);
/// The rows: name, speed of the resync in KiB/s, and whether the barrier is global.
const ROWS: [(&str, Option<u64>, bool); 6] = [
    ("md, no resync", None, false),
    ("md, resync of 1,000 KiB/s", SLOW, false),
    ("md, resync of 50 MiB/s", FAST, false),
    ("global, no resync", None, true),
    ("global, resync of 1,000 KiB/s", SLOW, true),
    ("global, resync of 50 MiB/s", FAST, true),
];
/// Simulated runs are slow.
const SIM_RUN: Duration = Duration::from_millis(250);

/// Name, number of jobs, and whether they write.
type Column = (&'static str, usize, bool);

/// Prints the tables.
///
/// # Errors
/// An I/O failed, a reactor could not be started, or the resync ended too early.
pub(crate) fn run(settings: Settings) -> Outcome {
    let rams = ram(2, 2 * HALF)?;
    let fill = load(true, 1, JobEnd::Moved(HALF));
    let engine = Engine::start(1)?;
    on_engine(&engine, &[(&rams[0], fill.clone()), (&rams[1], fill)])?;
    let columns: [Column; 5] = [
        ("1 reads", 1, false),
        ("2 read", 2, false),
        ("4 read", 4, false),
        ("40 read", 40, false),
        ("2 write", 2, true),
    ];
    table("RAID1 of 2 RAM disks, jobs of depth 128", settings, &columns, |_, row, column| {
        let (_, jobs, write) = columns[column];
        let load = load(write, 128, JobEnd::Passed(settings.run));
        let engine = Engine::start(jobs)?;
        let subject = Subject::new(row, &rams);
        let subject = block_on(
            engine.handles()[0].spawn_on(move || subject.start(Arc::new(EngineRuntime))),
        )??;
        let score = on_engine(&engine, &vec![(&subject.volume, load); jobs])?;
        subject.check()?;
        Ok(score)
    })?;
    let columns: [Column; 4] = [
        ("NVMe, reads", 1, false),
        ("NVMe, writes", 1, true),
        ("SATA, reads", 1, false),
        ("SATA, writes", 1, true),
    ];
    let title = "RAID1 of 2 SSDs in virtual time, depth 128";
    table(title, settings, &columns, |round, row, column| {
        let sim = Sim::new(round as u64);
        let model = if column < 2 { Model::nvme() } else { Model::sata_ssd() };
        let disk = |name| {
            let media = Media::new(Sectors::from_bytes_floor(2 * HALF));
            SimDisk::with(name, media, model.limits(), model).gateway()
        };
        let subject = Subject::new(row, &[disk("sim0"), disk("sim1")]);
        let subject = sim.block_on(subject.start(sim.runtime()))?;
        let load = load(columns[column].2, 128, JobEnd::Passed(SIM_RUN));
        let loads: Loads<'_> = &[(&subject.volume, load)];
        let score = in_sim(&sim, loads)?;
        subject.check()?;
        Ok(score)
    })
}

fn load(write: bool, depth: usize, until: JobEnd) -> Load {
    // The members' superblocks take some of the second half.
    let span = HALF..2 * HALF - (64 << 20);
    Load { write, bytes: 64 << 10, depth, order: Order::Sequential, span, until }
}

fn table(
    title: &str,
    settings: Settings,
    columns: &[Column],
    run: impl FnMut(usize, usize, usize) -> Outcome<Score>,
) -> Outcome {
    let columns: Vec<&str> = columns.iter().map(|column| column.0).collect();
    let rows = ROWS.map(|row| row.0);
    let grid = Grid::measure(&columns, &rows, Unit::Kiops, settings.rounds, run)?;
    grid.print(title)?;
    grid.print_ratio(1, 0, Some(0.8));
    grid.print_ratio(2, 0, Some(0.8));
    grid.print_ratio(4, 3, None);
    grid.print_ratio(5, 3, None);
    Ok(())
}

/// An array to be created.
struct Subject {
    members: Vec<Gateway>,
    global: Option<Arc<Barrier>>,
    speed_kib: Option<u64>,
}

/// A running array, and its volume.
struct RunningArray {
    array: Arc<Array>,
    volume: Gateway,
    resync: bool,
}

impl Subject {
    fn new(row: usize, members: &[Gateway]) -> Self {
        let (_, speed_kib, is_global) = ROWS[row];
        let global = is_global.then(|| Arc::new(Barrier::default()));
        let synced = DATA_OFFSET.as_end()..Sector(HALF / 512) + DATA_OFFSET;
        let raising =
            |member: &Gateway| RaisingMember::over(member.clone(), synced.clone(), global.clone());
        Self { members: members.iter().map(raising).collect(), global, speed_kib }
    }

    async fn start(self, runtime: Arc<dyn Runtime>) -> Outcome<RunningArray> {
        let recipe = Recipe { assume_clean: false, ..Recipe::clean(Level::Raid1) };
        // The resync does not begin before this task waits.
        let array = arrays::make(recipe, &self.members, runtime).await?;
        array.set_sync_bounds(Sectors::ZERO, Sectors::from_bytes_floor(HALF))?;
        match self.speed_kib {
            None => array.request_sync(SyncRequest::Frozen)?,
            Some(kib) => {
                array.sync_settings().set_speed_min_kib(Some(kib));
                array.sync_settings().set_speed_max_kib(Some(kib));
            }
        }
        let inner = Gateway::new(Arc::<Array>::clone(&array));
        let extra = self.global.map_or(ExtraBarrier::Nothing, ExtraBarrier::Global);
        let volume = GuardedArray::before(inner, extra);
        Ok(RunningArray { array, volume, resync: self.speed_kib.is_some() })
    }
}

impl RunningArray {
    /// Fails unless there was a resync the whole time, or none.
    fn check(&self) -> Outcome {
        let status = self.array.sync_status();
        if status.done >= Sectors::from_bytes_floor(HALF) {
            return Err("the resync came to its end: take shorter runs".into());
        }
        if (status.action == SyncAction::Resync) != self.resync
            || (self.resync && status.done.is_zero())
        {
            return Err(format!("the resync did not run as it should: {status:?}").into());
        }
        Ok(())
    }
}
