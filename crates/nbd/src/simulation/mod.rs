//! Disks on the simulator, with servers that hang, restart and close connections, and a process that stands still: each command
//! ends, no connection is left for what another one did, no acknowledged and flushed write is lost.

mod server;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ashlar_block::canary::{break_rule, broken};
use ashlar_block::{
    BlockDevice, Buffer, Flags, Gateway, Presence, Queue, Runtime, Sector, Sectors, Status,
};
use ashlar_sim::{Rng, Sim, SimRuntime, Standing, seeds, stand_still};
use futures_util::future::join_all;

use self::server::{SECTORS, Server, Simulated};
use crate::canary::Rule;
use crate::disk::{NbdDriver, disk, queue};
use crate::link::LinkHandle;
use crate::session::Losses;
use crate::uri::Uri;

/// The deadline of a request.
const DEADLINE: Duration = Duration::from_secs(1);
/// Each has some sectors of its own.
const WRITERS: usize = 4;

async fn open() -> Queue<NbdDriver<Simulated>> {
    let uri = Uri::parse("nbd://server").unwrap();
    let losses = Arc::<Losses>::default();
    let (link, info) =
        LinkHandle::<Simulated>::here(uri.clone(), (), Arc::clone(&losses)).await.unwrap();
    let disk = disk(&info, &uri.address, "disk", false).unwrap();
    let queue = queue(disk, link, None, &losses, Arc::new(SimRuntime));
    BlockDevice::disk(&queue).set_io_timeout_ms(DEADLINE.as_millis() as u64).unwrap();
    queue
}

/// What a sector may hold.
struct Values {
    /// The values since the last flush, the oldest first, which is durable.
    all: Vec<u64>,
    /// The losses that the disk knew of when the last one was submitted; `None` if it failed.
    acknowledged: Option<u64>,
    /// The place of the last acknowledged one.
    last: usize,
}

impl Default for Values {
    fn default() -> Self {
        Self { all: vec![0], acknowledged: None, last: 0 }
    }
}

/// What goes wrong.
#[derive(Clone, Copy, Default, Debug)]
struct Faults {
    hangs: bool,
    cuts: bool,
    stops: bool,
}

/// What happened in a run.
#[derive(Default)]
struct Sums {
    failed: Cell<usize>,
    opened: Cell<usize>,
    left: Cell<usize>,
    wrongly_left: Cell<usize>,
}

async fn write_some(disk: Gateway, writer: usize, mut rng: Rng, failed: Rc<Cell<usize>>) {
    let count = SECTORS / WRITERS;
    let mut sectors: Vec<Values> = (0..count).map(|_| Values::default()).collect();
    for round in 1..40_u64 {
        let at = rng.below(count as u64) as usize;
        let sector = Sector((writer * count + at) as u64);
        let values = &mut sectors[at];
        match rng.below(10) {
            0..5 => {
                let fua = rng.below(5) == 0;
                let value = round << 8 | writer as u64;
                let mut data = Buffer::from_slice(&value.to_le_bytes().repeat(64));
                values.all.push(value);
                values.acknowledged = None;
                let flags = if fua { Flags::FUA } else { Flags::empty() };
                let losses = disk.disk().losses();
                match disk.write(sector, &mut data, flags).await {
                    Ok(()) => {
                        // One that is acknowledged during a loss may be lost with it.
                        values.acknowledged = Some(losses);
                        values.last = values.all.len() - 1;
                        if fua {
                            values.all.drain(..std::mem::take(&mut values.last));
                        }
                    }
                    Err(_) => failed.set(failed.get() + 1),
                }
            }
            5..8 => match disk.read(sector, Sectors(1)).await {
                Ok(read) => {
                    let found = u64::from_le_bytes(read.as_slice()[..8].try_into().unwrap());
                    assert!(values.all.contains(&found), "{found} in {sector} of {:?}", values.all);
                    if values.acknowledged == Some(disk.disk().losses()) {
                        assert_eq!(Some(&found), values.all.last(), "an older value in {sector}");
                    }
                }
                Err(_) => failed.set(failed.get() + 1),
            },
            8 => match disk.flush().await {
                Ok(()) => {
                    for values in &mut sectors {
                        values.all.drain(..std::mem::take(&mut values.last));
                    }
                }
                Err(_) => {
                    failed.set(failed.get() + 1);
                    // The flush reports a loss: the writes before it may be lost, and later flushes do not cover them either.
                    sectors.iter_mut().for_each(|values| values.last = 0);
                }
            },
            _ => SimRuntime.sleep(Duration::from_nanos(rng.below(500_000_000))).await,
        }
    }
}

async fn break_things(server: Rc<Server>, faults: Faults, mut rng: Rng, is_over: Rc<Cell<bool>>) {
    while !is_over.get() {
        SimRuntime.sleep(Duration::from_nanos(rng.below(1_500_000_000))).await;
        if faults.cuts && rng.below(4) == 0 {
            server.cut(rng.below(2) == 0);
        }
        if faults.stops && rng.below(3) == 0 {
            let longest = [50_000_000, 5_000_000_000, 86_400_000_000_000][rng.below(3) as usize];
            let who = if rng.below(2) == 0 { Standing::Process } else { Standing::Machine };
            stand_still(Duration::from_nanos(rng.below(longest)), who);
        }
    }
}

fn simulate(seed: u64, faults: Faults, sums: &Sums) {
    let sim = Sim::new(seed);
    let server = Server::start(sim.rng());
    // A connection with nothing late on it must not be left.
    server.patience.set(DEADLINE - Duration::from_millis(50));
    server.hangs_in.set(if faults.hangs { 25 } else { 0 });
    let failed = Rc::new(Cell::new(0));
    sim.block_on(async {
        let disk = Gateway::new(Arc::new(open().await));
        let is_over = Rc::new(Cell::new(false));
        let breaks = break_things(Rc::clone(&server), faults, sim.rng(), Rc::clone(&is_over));
        sim.spawn(breaks);
        let writers = (0..WRITERS)
            .map(|n| sim.start(write_some(disk.clone(), n, sim.rng(), Rc::clone(&failed))));
        join_all(writers.collect::<Vec<_>>()).await;
        is_over.set(true);
        // What is overdue ends when the server has closed its connection.
        SimRuntime.sleep(Duration::from_secs(30)).await;
        assert_eq!(disk.disk().stats().totals().in_flight(), 0);
        assert_ne!(disk.disk().presence(), Presence::Silent);
    });
    sums.failed.set(sums.failed.get() + failed.get());
    sums.opened.set(sums.opened.get() + server.opened.get());
    sums.left.set(sums.left.get() + server.left.get());
    sums.wrongly_left.set(sums.wrongly_left.get() + server.wrongly_left.get());
}

/// Releases a disk in use; returns how many connections ended with the client's word, and without it.
fn release(seed: u64, faults: Faults) -> [usize; 2] {
    let sim = Sim::new(seed);
    let server = Server::start(sim.rng());
    server.hangs_in.set(if faults.hangs { 25 } else { 0 });
    sim.block_on(async {
        let disk = Gateway::new(Arc::new(open().await));
        let is_over = Rc::new(Cell::new(false));
        sim.spawn(break_things(Rc::clone(&server), faults, sim.rng(), Rc::clone(&is_over)));
        let failed = Rc::<Cell<usize>>::default();
        let writers = (0..WRITERS)
            .map(|n| sim.start(write_some(disk.clone(), n, sim.rng(), Rc::clone(&failed))));
        let writers = writers.collect::<Vec<_>>();
        SimRuntime.sleep(Duration::from_nanos(sim.rng().below(5_000_000_000))).await;
        disk.release();
        let opened = server.opened.get();
        join_all(writers).await;
        is_over.set(true);
        // A hung command takes less, after the time for which the link waits.
        SimRuntime.sleep(Duration::from_secs(30)).await;
        assert_eq!(disk.disk().stats().totals().in_flight(), 0, "seed {seed}");
        assert_eq!(disk.read(Sector(0), Sectors(1)).await.err(), Some(Status::Offline));
        assert_eq!(server.clients(), 0, "seed {seed}");
        // One may have been in its handshake.
        assert!(server.opened.get() <= opened + 1, "seed {seed}: it connects again");
    });
    [server.farewells.get(), server.left.get()]
}

fn all(faults: Faults, default: u64) -> Sums {
    let sums = Sums::default();
    for seed in seeds(default) {
        simulate(seed, faults, &sums);
        let is_right = sums.wrongly_left.get() == 0 || broken(Rule::AbortReachesItsConnectionOnly);
        assert!(is_right, "seed {seed}: a connection was left on which nothing was late");
    }
    sums
}

#[test]
fn no_stop_fails_a_request_or_ends_a_connection() {
    let sums = all(Faults { stops: true, ..Faults::default() }, 60);
    assert_eq!((sums.failed.get(), sums.left.get()), (0, 0));
}

#[test]
fn only_connections_on_which_something_is_late_are_left() {
    let sums = all(Faults { hangs: true, ..Faults::default() }, 100);
    assert!(sums.left.get() > 50 && sums.opened.get() > 100, "{}", sums.left.get());
}

#[test]
fn what_was_flushed_survives_all_that_can_happen() {
    let sums = all(Faults { hangs: true, cuts: true, stops: true }, 150);
    assert!(sums.failed.get() > 100 && sums.left.get() > 20 && sums.opened.get() > 300);
}

#[test]
fn a_disk_that_is_released_during_io_leaves_its_server() {
    let (mut said, mut unsaid) = (0, 0);
    for faults in [
        Faults::default(),
        Faults { stops: true, ..Faults::default() },
        Faults { hangs: true, cuts: true, stops: true },
    ] {
        for seed in seeds(60) {
            let [farewells, left] = release(seed, faults);
            assert!(faults.hangs || (farewells, left) == (1, 0), "seed {seed}");
            (said, unsaid) = (said + farewells, unsaid + left);
        }
    }
    assert!(said > 130 && unsaid > 10, "{said} {unsaid}");
}

#[test]
fn an_abort_that_reaches_any_connection_is_found() {
    let _broken = break_rule(Rule::AbortReachesItsConnectionOnly);
    let sums = all(Faults { hangs: true, ..Faults::default() }, 100);
    assert!(sums.wrongly_left.get() > 5, "the simulation does not notice");
}
