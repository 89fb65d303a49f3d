//! The cost of the barrier in reads and writes of whole arrays, lock-free compared with locked.
//!
//! Sequential I/O of 64 KiB at depth 128, each job on its own thread. The members are RAM disks that were written
//! before, or hollow ones that move no data. `devices` explains the second barrier in series. The ratio of interest is
//! that of the two arrays with a second barrier, with as many processors as contending threads.
//!
//! With `--nbd`, fio reads the array through the NBD server, a connection for each job, as `behind_nbd` has it.

use std::sync::Arc;

use ashlar_block::{Gateway, Sectors};
use ashlar_engine::Engine;
use ashlar_md::internals::barrier::Barrier;
use ashlar_md::ondisk::Level;

use crate::arrays::{self, Recipe};
use crate::behind_nbd;
use crate::common::{Outcome, Settings};
use crate::devices::{ExtraBarrier, GuardedArray, HollowMember, ram};
use crate::load::{JobEnd, Load, Order, on_engine};
use crate::locked_barrier::LockedBarrier;
use crate::report::{Grid, Unit};

const GIB: u64 = 1 << 30;
const COLUMNS: [&str; 4] = ["1 job", "2 jobs", "4 jobs", "40 jobs"];
const JOBS: [usize; 4] = [1, 2, 4, 40];
const ROWS: [&str; 3] = ["md", "md, a lock-free barrier", "md, a locked barrier"];

struct Case {
    title: &'static str,
    level: Level,
    members: usize,
    hollow: bool,
    write: bool,
}

/// Prints the tables.
///
/// # Errors
/// An I/O failed, or a reactor could not be started.
pub(crate) fn run(settings: Settings) -> Outcome {
    let case = |title, level, members, hollow, write| Case { title, level, members, hollow, write };
    for case in [
        case("reads, RAID1 of 2 RAM disks", Level::Raid1, 2, false, false),
        case("reads, RAID10 n2 of 4 RAM disks", Level::Raid10, 4, false, false),
        case("reads, RAID1 of 2 hollow disks", Level::Raid1, 2, true, false),
        case("reads, RAID10 n2 of 4 hollow disks", Level::Raid10, 4, true, false),
        case("writes, RAID1 of 2 hollow disks", Level::Raid1, 2, true, true),
    ] {
        table(settings, &case)?;
    }
    Ok(())
}

/// Prints the tables with the NBD server between the jobs and the array.
///
/// # Errors
/// An I/O failed, or a reactor or fio could not be started.
pub(crate) fn run_behind_nbd(settings: Settings) -> Outcome {
    for (title, hollow) in [("RAID1 of RAM disks", false), ("RAID1 of hollow disks", true)] {
        let case = Case { title, level: Level::Raid1, members: 2, hollow, write: false };
        let home = Engine::start(1)?;
        let (subjects, load, _) = subjects(&home, &case, settings)?;
        behind_nbd::tables(title, &ROWS, &subjects, &load, settings, (1, 2))?;
    }
    Ok(())
}

/// The array of a case, for each row; the load for it; and the second barrier that takes no lock. The array's own tasks run on
/// `home`.
fn subjects(
    home: &Engine,
    case: &Case,
    settings: Settings,
) -> Outcome<([Gateway; 3], Load, Arc<Barrier>)> {
    let members = if case.hollow {
        let member = |_| HollowMember::gateway("hollow", Sectors::from_bytes_floor(GIB));
        (0..case.members).map(member).collect::<Outcome<_>>()?
    } else {
        ram(case.members, GIB)?
    };
    let array = arrays::on(home, Recipe::clean(case.level), members)?;
    let load = Load {
        write: case.write,
        bytes: 64 << 10,
        depth: 128,
        order: Order::Sequential,
        span: 0..array.capacity().bytes() >> 26 << 26,
        until: JobEnd::Passed(settings.run),
    };
    if !case.hollow {
        let until = JobEnd::Moved(load.span.end);
        let fill = Load { write: true, bytes: 1 << 20, depth: 4, until, ..load.clone() };
        on_engine(home, &[(&array, fill)])?;
    }
    let second = Arc::new(Barrier::default());
    let subjects = [
        GuardedArray::before(array.clone(), ExtraBarrier::Nothing),
        GuardedArray::before(array.clone(), ExtraBarrier::LockFree(Arc::clone(&second))),
        GuardedArray::before(array, ExtraBarrier::Locked(LockedBarrier::new(1024))),
    ];
    Ok((subjects, load, second))
}

fn table(settings: Settings, case: &Case) -> Outcome {
    let home = Engine::start(1)?;
    let (subjects, load, second) = subjects(&home, case, settings)?;
    let grid = Grid::measure(&COLUMNS, &ROWS, Unit::Kiops, settings.rounds, |_, row, column| {
        let engine = Engine::start(JOBS[column])?;
        on_engine(&engine, &vec![(&subjects[row], load.clone()); JOBS[column]])
    })?;
    grid.print(&format!("{} of 64 KiB, sequential, depth 128 for each job", case.title))?;
    grid.print_cpu();
    grid.print_ratio(1, 2, Some(1.7));
    grid.print_ratio(0, 2, None);
    println!("  locks taken by the lock-free barrier: {}", second.lock_acquisitions());
    Ok(())
}
