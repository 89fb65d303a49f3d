//! Connections that break under a write, and what becomes of it.

use std::time::Duration;

use ashlar_block::{BioResult, Buffer, Flags, Gateway, Runtime, Sector, Sectors, Status};
use ashlar_sim::{Break, Media, Model, Sim, SimDisk, SimRuntime};

/// The deadline of requests.
const DEADLINE: Duration = Duration::from_secs(1);
/// How long the disk executes commands after a break.
const WITHIN: Duration = Duration::from_secs(4);
const OLD: [u8; 512] = [1; 512];
const NEW: [u8; 512] = [2; 512];

async fn write(gateway: &Gateway, data: [u8; 512]) -> BioResult {
    gateway.write(Sector(7), &mut Buffer::from_slice(&data), Flags::empty()).await
}

/// What the disk did with a write of [`OLD`], during which the connection broke, and with a later write of [`NEW`] to the same sector.
#[derive(Debug)]
struct Seen {
    first: BioResult,
    /// When the disk took the second write, in ns after the break.
    taken_ns: u64,
    /// When the first one had taken effect.
    landed_ns: Option<u64>,
    /// What the disk holds in the end.
    last: [u8; 512],
}

/// Breaks the connection under a write; another one stands a millisecond later.
fn break_under_a_write(seed: u64, breaks: impl AsyncFn(&Media)) -> Seen {
    let sim = Sim::new(seed);
    let media = Media::new(Sectors(100));
    let model = Model { write_ns: 50_000_000, ..Model::nvme() };
    let disk = SimDisk::with_io_timeout("d", media.clone(), model.limits(), model, DEADLINE);
    sim.block_on(async {
        let gateway = disk.gateway();
        let first = sim.start({
            let gateway = gateway.clone();
            async move { write(&gateway, OLD).await }
        });
        SimRuntime.sleep(Duration::from_millis(10)).await;
        let began_ns = SimRuntime.now_ns();
        breaks(&media).await;
        SimRuntime.sleep(Duration::from_millis(1)).await;
        media.reconnect();
        let watched = sim.start({
            let media = media.clone();
            async move {
                let mut landed_ns = None;
                for _ in 0..6000 {
                    if landed_ns.is_none() && media.peek(Sector(7)) == OLD {
                        landed_ns = Some(SimRuntime.now_ns() - began_ns);
                    }
                    SimRuntime.sleep(Duration::from_millis(1)).await;
                }
                landed_ns
            }
        });
        let first = first.await;
        while write(&gateway, NEW).await.is_err() {
            assert!(gateway.holds_changes(), "seed {seed}: it is refused for another reason");
            SimRuntime.sleep(Duration::from_millis(1)).await;
        }
        let taken_ns = SimRuntime.now_ns() - began_ns;
        let landed_ns = watched.await;
        Seen { first, taken_ns, landed_ns, last: media.peek(Sector(7)) }
    })
}

#[test]
fn what_was_in_flight_happens_before_it_fails_or_never() {
    let mut landed = [false; 2];
    for seed in 0..20 {
        let seen = break_under_a_write(seed, async |media| media.cut_off(Break::Ended));
        assert_eq!((seen.first, seen.last), (Err(Status::Transport), NEW), "seed {seed}");
        landed[usize::from(seen.landed_ns.is_some())] = true;
    }
    assert_eq!(landed, [true; 2]);
}

#[test]
fn a_late_write_is_kept_until_it_has_happened_or_never_will() {
    let (mut in_time, mut overdue, mut landed_late) = (0, 0, 0);
    for seed in 0..60 {
        let how = Break::Late { within: WITHIN };
        let seen = break_under_a_write(seed, async |media| media.cut_off(how));
        match seen.first {
            Err(Status::Transport) => in_time += 1,
            Err(Status::Timeout) => overdue += 1,
            other => panic!("seed {seed}: {other:?}"),
        }
        assert_eq!(seen.last, NEW, "seed {seed}: an older write won, {seen:?}");
        assert!(seen.taken_ns < WITHIN.as_nanos() as u64 + 200_000_000, "{seen:?}");
        if let Some(landed_ns) = seen.landed_ns {
            assert!(landed_ns <= seen.taken_ns, "seed {seed}: {seen:?}");
            landed_late += u64::from(landed_ns > DEADLINE.as_nanos() as u64);
        }
    }
    assert!(in_time > 5 && overdue > 20 && landed_late > 5, "{in_time} {overdue} {landed_late}");
}

#[test]
fn a_late_write_that_is_given_up_overtakes_what_follows_it() {
    let overtaken = (0..20).filter(|seed| {
        let how = Break::LateAndForgotten { within: WITHIN };
        let seen = break_under_a_write(*seed, async |media| media.cut_off(how));
        assert_eq!(seen.first, Err(Status::Transport));
        seen.last == OLD
    });
    assert!(overtaken.count() > 3);
}

#[test]
fn a_restart_ends_what_was_late() {
    for how in [Break::Late { within: WITHIN }, Break::LateAndForgotten { within: WITHIN }] {
        for seed in 0..20 {
            let seen = break_under_a_write(seed, async |media| {
                media.cut_off(how);
                media.cut_off(Break::Restart);
            });
            assert_eq!((seen.landed_ns, seen.last), (None, NEW), "seed {seed}");
        }
    }
}
