//! A process that stands still under its requests: healthy devices fail none of them, and silent ones are noticed.

use std::sync::Arc;
use std::time::Duration;

use ashlar_block::{
    BlockDevice, Disk, Driver, Extents, Gateway, Limits, LocalFuture, Queue, Request, Sector,
    Sectors, Status, plug,
};
use ashlar_sim::{Media, Model, Sim, SimDisk, Standing, stand_still};
use futures_util::future::join;

use crate::common::{read, write};
use crate::deadlines::{LATE, NOTICED, TIMEOUT, now, sleep};

const MS: Duration = Duration::from_millis(1);
const STOPS: [Duration; 4] =
    [Duration::from_millis(5), MS.saturating_mul(2200), TIMEOUT, Duration::from_secs(86_400)];
const BOTH: [Standing; 2] = [Standing::Process, Standing::Machine];

/// Runs with a disk that takes this long for a read.
fn on_a_disk(takes: Duration, seed: u64, work: impl AsyncFn(&Media, &Gateway)) {
    let sim = Sim::new(seed);
    let media = Media::new(Sectors(1 << 16));
    let mut model = Model::nvme();
    model.read_ns = takes.as_nanos() as u64;
    let disk = SimDisk::with_io_timeout("disk", media.clone(), model.limits(), model, TIMEOUT);
    sim.block_on(work(&media, &disk.gateway()));
}

#[test]
fn no_stop_makes_a_request_late() {
    for stop in STOPS {
        for who in BOTH {
            // When it stops, while the request is under way.
            for at in [0, 1, 200, 400] {
                on_a_disk(MS * 500, at, async |_, disk| {
                    let stops = async {
                        sleep(MS * at as u32).await;
                        stand_still(stop, who);
                    };
                    let (read, ()) = join(disk.submit(read(0, 8)), stops).await;
                    assert_eq!(read, Ok(()), "{stop:?} {who:?} at {at} ms");
                });
            }
        }
    }
}

#[test]
fn a_request_after_a_stop_has_its_whole_time() {
    for stop in STOPS {
        for who in BOTH {
            on_a_disk(MS * 500, 1, async |_, disk| {
                // In the same turn: by its clock the stop has not been.
                stand_still(stop, who);
                assert_eq!(disk.submit(read(0, 8)).await, Ok(()), "{stop:?} {who:?}");
                let first = disk.submit(read(0, 8));
                plug::flush_current();
                let second = async {
                    sleep(MS * 10).await;
                    stand_still(stop, who);
                    disk.submit(read(80, 8)).await
                };
                assert_eq!(join(first, second).await, (Ok(()), Ok(())), "{stop:?} {who:?}");
            });
        }
    }
}

#[test]
fn many_stops_make_no_request_late() {
    on_a_disk(MS * 500, 1, async |_, disk| {
        let stops = async {
            for n in 0..20 {
                sleep(MS * 40).await;
                stand_still(STOPS[n % 4], BOTH[n % 2]);
            }
        };
        assert_eq!(join(disk.submit(read(0, 8)), stops).await.0, Ok(()));
    });
}

#[test]
fn a_silent_device_is_noticed_after_a_stop() {
    let step = NOTICED - TIMEOUT;
    for stop in STOPS {
        for who in BOTH {
            on_a_disk(MS, 1, async |media, disk| {
                media.fall_silent();
                let start = now();
                let stops = async {
                    sleep(MS * 500).await;
                    stand_still(stop, who);
                    // Its time begins now, not before the stop.
                    let start = now();
                    assert_eq!(disk.submit(write(80, 8)).await, LATE);
                    let took = now() - start;
                    assert!((TIMEOUT..NOTICED + step).contains(&took), "{took:?} {stop:?}");
                };
                let first = async {
                    assert_eq!(disk.submit(read(0, 8)).await, LATE);
                    now() - start
                };
                let (took, ()) = join(first, stops).await;
                assert!((stop..stop + NOTICED + 2 * step).contains(&took), "{took:?} {stop:?}");
            });
        }
    }
}

/// As long as it stops again and again, a process has no whole step.
#[test]
fn a_silent_device_is_noticed_by_a_process_that_stops_all_the_time() {
    on_a_disk(MS, 1, async |media, disk| {
        media.fall_silent();
        let stops = async {
            for _ in 0..200 {
                sleep(MS).await;
                stand_still(TIMEOUT, Standing::Process);
            }
        };
        let start = now();
        let first = async {
            assert_eq!(disk.submit(read(0, 8)).await, LATE);
            assert!(now() - start < TIMEOUT * 100, "{:?}", now() - start);
        };
        join(first, stops).await;
    });
}

/// Tells of extents after several answers.
struct Slow;

impl Driver for Slow {
    fn queue_rq(&self, rq: Request) {
        rq.complete(Ok(()));
    }

    fn extents(&self, at: Sector, len: Sectors) -> LocalFuture<'_, Result<Extents, Status>> {
        Box::pin(async move {
            for _ in 0..9 {
                sleep(MS * 100).await;
            }
            Ok(Extents::data(at, len))
        })
    }
}

#[test]
fn no_stop_makes_a_question_for_extents_late() {
    for stop in STOPS {
        let sim = Sim::new(1);
        let disk = Disk::new("slow", Sectors(1 << 20), Limits::default());
        let queue = Arc::new(Queue::with_deadline(disk, Slow, sim.runtime()));
        BlockDevice::disk(&*queue).set_io_timeout_ms(TIMEOUT.as_millis() as u64).unwrap();
        let disk = Gateway::new(queue);
        sim.block_on(async {
            let stops = async {
                sleep(MS * 350).await;
                stand_still(stop, Standing::Process);
            };
            let (told, ()) = join(disk.extents(Sector(0), Sectors(8)), stops).await;
            assert!(told.is_ok(), "{stop:?}: {told:?}");
        });
    }
}
