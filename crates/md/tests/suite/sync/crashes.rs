//! Power cuts at many steps of the array's own I/O: the first, the last and some between.
//!
//! After any cut, the array starts with all flushed data, claims no more than its disks hold, and syncs
//! until all copies are the same.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use ashlar_block::{Sector, Sectors};
use ashlar_md::ondisk::create::NewBitmap;
use ashlar_md::{Array, SyncRequest};
use ashlar_sim::{Media, Rng, Sim, Stop};
use futures_util::future::{Either, select};

use crate::common::{DATA, Shape, disks, gateway, make_with, media, spec, stamped, start, write};
use crate::sync::world::{
    RUN, crash, empty_out, fill, raid1, raid10, read_all, replacement, start_on, superblock,
    write_all,
};

const DISK: Sectors = Sectors(4 * 2048);
const USED: u64 = 3 * 2048;
/// Number of ranges that get writes of generation 2 in turn, and the sectors of each.
const WRITES: u64 = 16;
const LEN: u64 = 16;
/// Number of cuts at the first steps, the last steps, and between.
const FIRST: u64 = 6;
const BETWEEN: u64 = 12;
const LAST: u64 = 12;

fn shapes() -> [Shape; 3] {
    [raid1(2), raid10(0x102, 4, 64), raid10(0x102, 3, 64)]
}

/// An array in the initial state of a test.
struct Case {
    shape: Shape,
    media: Vec<Media>,
    /// Its contents.
    expected: Vec<u8>,
}

/// One run, to be cut.
struct Run<'a> {
    sim: &'a Sim,
    media: &'a [Media],
    /// Number of flushed writes.
    flushed: &'a Cell<u64>,
}

impl Run<'_> {
    async fn start(&self) -> Arc<Array> {
        let array = start_on(self.sim, self.media).await;
        // Slow, so that windows end, and are recorded, one after the other.
        array.sync_settings().set_speed_max_kib(Some(32 << 10));
        array.sync_settings().set_speed_min_kib(Some(32 << 10));
        array
    }

    /// Waits for the sync while writing and flushing in the middle of the array.
    async fn write_until_synced(&self, array: &Arc<Array>) {
        let volume = gateway(array);
        let from = volume.capacity().0 / 2;
        let writer = async {
            for n in 0.. {
                let at = from + n % WRITES * LEN;
                if write(&volume, at, LEN, 2).await.is_err() || volume.flush().await.is_err() {
                    break;
                }
                self.flushed.set((n + 1).min(WRITES));
            }
        };
        let synced = array.sync_ended();
        match select(std::pin::pin!(synced), std::pin::pin!(writer)).await {
            Either::Left(_) => {}
            Either::Right(_) => panic!("a write failed"),
        }
    }
}

/// The disks of the in-sync members in each slot.
async fn places(array: &Array) -> Vec<Vec<usize>> {
    let members = array.status().await.members;
    let on = |slot: usize| {
        let here = move |m: &&ashlar_md::MemberStatus| m.slot == Some(slot as u16) && m.in_sync;
        let disk = |m: &ashlar_md::MemberStatus| m.path.as_deref().unwrap()[1..].parse().unwrap();
        members.iter().filter(here).map(disk).collect()
    };
    (0..array.personality().disks()).map(on).collect()
}

/// The array sectors of `range` whose copies on in-sync members differ.
async fn differing(array: &Array, media: &[Media], range: std::ops::Range<u64>) -> Vec<u64> {
    let places = places(array).await;
    let differs = |sector: &u64| {
        let copies = array.personality().map(Sector(*sector));
        let mut bytes = copies.iter().flat_map(|at| {
            places[at.disk].iter().map(|disk| media[*disk].peek(at.sector + Sectors(DATA)))
        });
        let first = bytes.next();
        !bytes.all(|other| Some(other) == first)
    };
    range.filter(differs).collect()
}

impl Case {
    fn new(shape: Shape, state: impl FnOnce(&mut Vec<Media>)) -> Self {
        let sim = Sim::new(1);
        let mut media = media(shape.members, DISK);
        fill(&sim, &shape, &media);
        state(&mut media);
        Self::of(&sim, shape, media)
    }

    fn of(sim: &Sim, shape: Shape, media: Vec<Media>) -> Self {
        let copies: Vec<Media> = media.iter().map(Media::copy).collect();
        let expected = sim.block_on(async { read_all(&start_on(sim, &copies).await).await });
        Self { shape, media, expected }
    }

    /// Runs until `stop`. Returns the media after the power cut, the number of flushed writes, whether the
    /// run was done, and its steps.
    fn run(
        &self,
        seed: u64,
        stop: Stop,
        run: &impl AsyncFn(&Run<'_>),
    ) -> (Vec<Media>, u64, bool, u64) {
        let media: Vec<Media> = self.media.iter().map(Media::copy).collect();
        let sim = Sim::new(seed);
        let flushed = Cell::new(0);
        let work = async {
            run(&Run { sim: &sim, media: &media, flushed: &flushed }).await;
        };
        let done = sim.block_on_until(work, stop).is_some();
        let steps = sim.steps();
        sim.power_cut();
        (media, flushed.get(), done, steps)
    }

    /// Cuts the power at many steps of a run and at each of the last ones; `found` checks the result when
    /// the array has just been started, `after` when it has synced itself.
    fn cut_everywhere(
        &self,
        run: impl AsyncFn(&Run<'_>),
        found: impl AsyncFn(&Array, &[Media]),
        after: impl AsyncFn(&Arc<Array>, &[Media]),
    ) {
        let (.., done, steps) = self.run(0, Stop::AtNs(u64::MAX), &run);
        assert!(done && steps > 40, "{steps} steps");
        let last = steps.saturating_sub(LAST);
        let mut all: Vec<u64> = (0..FIRST).collect();
        all.extend((0..BETWEEN).map(|n| FIRST + n * last.saturating_sub(FIRST) / BETWEEN));
        all.extend(last..steps + 4);
        all.dedup();
        for step in all {
            // The same seed, so that the steps are the counted ones.
            let (media, flushed, ..) = self.run(0, Stop::AfterSteps(step), &run);
            let what = format!("{:?}, cut after step {step} of {steps}", self.shape);
            let sim = Sim::new(step + 1);
            sim.block_on(async {
                let array = start(&sim, &disks(&media), &RUN).await;
                let array = array.unwrap_or_else(|error| panic!("{what}: {error}"));
                found(&array, &media).await;
                self.check(&read_all(&array).await, flushed, &what);
                array.sync_ended().await;
                assert!(!array.is_unsynced(), "{what}");
                assert_eq!(array.degraded(), 0, "{what}");
                self.check(&read_all(&array).await, flushed, &what);
                after(&array, &media).await;
                let size = self.expected.len() as u64 / 512;
                let differ = differing(&array, &media, 0..size).await;
                assert!(differ.is_empty(), "{what}: {differ:?} differ");
                array.stop().await.unwrap();
            });
        }
    }

    /// Flushed data are there, data being written are old or new, everything else is unchanged.
    fn check(&self, found: &[u8], flushed: u64, what: &str) {
        let from = self.expected.len() as u64 / 512 / 2;
        let sectors = found.chunks(512).zip(self.expected.chunks(512));
        assert_eq!(found.len(), self.expected.len());
        for (sector, (found, expected)) in (0..).zip(sectors) {
            let old = found == expected;
            let new =
                (from..from + WRITES * LEN).contains(&sector) && found == stamped(sector, 1, 2);
            let is_flushed = (from..from + flushed * LEN).contains(&sector);
            assert!(if is_flushed { new } else { old || new }, "{what}: sector {sector}");
        }
    }
}

async fn nothing(_: &Arc<Array>, _: &[Media]) {}

/// Asserts that copies are the same below the bound of the superblocks.
async fn bound_is_true(array: &Array, media: &[Media]) {
    let bound = array.in_sync_to().min(array.personality().size());
    let differ = differing(array, media, 0..bound.0).await;
    assert!(differ.is_empty(), "differ below {bound}: {differ:?}");
}

/// Asserts that a member under rebuild holds all data that it claims.
async fn recovered_is_true(array: &Array, media: &[Media]) {
    bound_is_true(array, media).await;
    let size = array.personality().size().0;
    for (slot, member) in array.status().await.members.iter().enumerate() {
        let rebuilding = !member.in_sync && !member.faulty && member.slot == Some(slot as u16);
        if !rebuilding || member.recovered == Sectors::ZERO {
            continue;
        }
        let claimed = (0..size).filter_map(|sector| {
            let copies = array.personality().map(Sector(sector));
            let here = copies.iter().find(|copy| copy.disk == slot)?.sector;
            let other = copies.iter().find(|copy| copy.disk != slot)?;
            (here.0 < member.recovered.0).then_some((here, *other))
        });
        for (here, other) in claimed {
            let good = media[other.disk].peek(other.sector + Sectors(DATA));
            assert!(media[slot].peek(here + Sectors(DATA)) == good, "{here} is claimed");
        }
    }
}

#[test]
fn a_resync() {
    for shape in shapes() {
        let case = Case::new(shape, |media| crash(media, USED, &mut Rng::new(3)));
        let quiet = async |run: &Run<'_>| run.start().await.sync_ended().await;
        case.cut_everywhere(quiet, bound_is_true, nothing);
        let written = async |run: &Run<'_>| {
            let array = run.start().await;
            run.write_until_synced(&array).await;
        };
        let found = async |array: &Array, media: &[Media]| {
            bound_is_true(array, media).await;
            // After writes anything may differ, so the resync begins at the start.
            if media.iter().any(|medium| !superblock(medium).is_clean()) {
                assert!([0, u64::MAX].contains(&array.in_sync_to().0), "{}", array.in_sync_to());
            }
        };
        case.cut_everywhere(written, found, nothing);
    }
}

#[test]
fn a_resync_that_is_stopped_and_started_again() {
    for shape in shapes() {
        let case = Case::new(shape, |media| crash(media, USED, &mut Rng::new(4)));
        let run = async |run: &Run<'_>| {
            let array = run.start().await;
            run.sim.runtime().sleep(Duration::from_millis(60)).await;
            array.stop().await.unwrap();
            let recorded = superblock(&run.media[0]).resync_offset;
            assert!(recorded > Sectors::ZERO && recorded < array.personality().size());
            let array = run.start().await;
            assert_eq!(array.in_sync_to(), recorded, "it continues where it was");
            run.write_until_synced(&array).await;
        };
        case.cut_everywhere(run, bound_is_true, nothing);
    }
}

#[test]
fn a_resync_of_what_a_bitmap_marks() {
    for bitmap in [NewBitmap::Internal { chunk: Some(1 << 16) }, NewBitmap::Lockless] {
        for shape in shapes() {
            let media = media(shape.members, DISK);
            let sim = Sim::new(1);
            sim.block_on(async {
                let disks = disks(&media);
                let mut spec = spec(&shape, &vec![DISK; shape.members]);
                spec.bitmap = bitmap;
                make_with(&spec, &disks).await;
                let array = start(&sim, &disks, &RUN).await.unwrap();
                write_all(&array, 1).await;
                array.stop().await.unwrap();
            });
            sim.power_cut();
            let sim = Sim::new(2);
            let marked = sim.block_on(async {
                let array = start_on(&sim, &media).await;
                for at in [0, 3000, 3100] {
                    write(&gateway(&array), at, 100, 1).await.unwrap();
                }
                gateway(&array).flush().await.unwrap();
                array.bitmap().unwrap().marked_runs()
            });
            sim.power_cut();
            // What a crash may leave: last copies that lack writes, in marked chunks.
            let sim = Sim::new(3);
            sim.block_on(async {
                let copies: Vec<Media> = media.iter().map(Media::copy).collect();
                let array = start_on(&sim, &copies).await;
                for at in [0, 20, 3000, 3150] {
                    let copies = array.personality().map(Sector(at));
                    let last = copies[copies.len() - 1];
                    media[last.disk].poke(last.sector + Sectors(DATA), &[7; 512]);
                }
            });
            let case = Case::of(&sim, shape, media);
            drop(sim);
            let is_marked =
                |sector: u64| marked.iter().any(|(at, len)| (at.0..at.0 + len.0).contains(&sector));
            assert!(is_marked(3150) && !is_marked(2000));
            let run = async |run: &Run<'_>| {
                let array = run.start().await;
                run.write_until_synced(&array).await;
            };
            let found = async |array: &Array, media: &[Media]| {
                let needed = array.bitmap().unwrap().marked_runs();
                let covers = |sector: &u64| {
                    needed.iter().any(|(at, len)| (at.0..at.0 + len.0).contains(sector))
                };
                let size = array.personality().size().0;
                let mut differ = differing(array, media, 0..size).await;
                differ.retain(|sector| !covers(sector));
                assert!(differ.is_empty(), "differ without a mark: {differ:?}");
            };
            case.cut_everywhere(run, found, nothing);
        }
    }
}

#[test]
fn a_recovery_to_its_end() {
    for shape in shapes() {
        // The first member, which reads prefer.
        let case = Case::new(shape, |media| empty_out(media, 0, 5));
        let quiet = async |run: &Run<'_>| run.start().await.sync_ended().await;
        let after = async |_: &Arc<Array>, media: &[Media]| {
            assert_eq!(superblock(&media[0]).recovery_offset, None);
        };
        case.cut_everywhere(quiet, recovered_is_true, after);
        let written = async |run: &Run<'_>| {
            let array = run.start().await;
            run.write_until_synced(&array).await;
        };
        case.cut_everywhere(written, recovered_is_true, after);
    }
}

#[test]
fn a_recovery_that_is_stopped_and_started_again() {
    for shape in shapes() {
        let case = Case::new(shape, |media| empty_out(media, 0, 6));
        let run = async |run: &Run<'_>| {
            let array = run.start().await;
            run.sim.runtime().sleep(Duration::from_millis(60)).await;
            array.stop().await.unwrap();
            let recorded = superblock(&run.media[0]).recovery_offset.unwrap();
            assert!(recorded > Sectors::ZERO && recorded < array.personality().used_dev_size());
            let array = run.start().await;
            let recovered = array.status().await.members[0].recovered;
            assert_eq!(recovered, recorded, "it continues where it was");
            run.write_until_synced(&array).await;
        };
        case.cut_everywhere(run, recovered_is_true, nothing);
    }
}

#[test]
fn the_replacement_of_a_member() {
    for shape in shapes() {
        let slot = 1;
        let case = Case::new(shape, |media| replacement(media, slot));
        let run = async |run: &Run<'_>| {
            let array = run.start().await;
            run.write_until_synced(&array).await;
        };
        let after = async |array: &Arc<Array>, media: &[Media]| {
            let new = format!("d{}", media.len() - 1);
            assert_eq!(array.status().await.members[slot].path.as_deref(), Some(&*new));
        };
        case.cut_everywhere(run, bound_is_true, after);
    }
}

/// A clean array whose last copies differ from the first ones at some sectors, and these sectors.
fn damaged(shape: Shape) -> (Case, Vec<u64>) {
    let at: Vec<u64> = (100..5000).step_by(700).collect();
    let case = Case::new(shape, |_| ());
    let sim = Sim::new(9);
    sim.block_on(async {
        let copies: Vec<Media> = case.media.iter().map(Media::copy).collect();
        let array = start_on(&sim, &copies).await;
        for at in &at {
            let copies = array.personality().map(Sector(*at));
            let last = copies[copies.len() - 1];
            case.media[last.disk].poke(last.sector + Sectors(DATA), &[9; 512]);
        }
    });
    (case, at)
}

/// Cuts the power at many steps of a check or repair; afterwards everything must be unchanged, except for
/// repaired last copies; a complete repair makes all copies the same.
fn cut_request(request: SyncRequest, repairs: bool) {
    for shape in shapes() {
        let (case, damage) = damaged(shape);
        let run = async |run: &Run<'_>| {
            let array = run.start().await;
            array.request_sync(request).unwrap();
            array.sync_ended().await;
            assert!(array.sync_status().mismatches > Sectors::ZERO);
        };
        let (.., done, steps) = case.run(0, Stop::AtNs(u64::MAX), &run);
        assert!(done && steps > 40);
        for step in (0..FIRST).chain((FIRST..steps + 8).step_by(1 + steps as usize / 20)) {
            let (media, ..) = case.run(0, Stop::AfterSteps(step), &run);
            let sim = Sim::new(step);
            sim.block_on(async {
                let array = start_on(&sim, &media).await;
                let what = format!("{:?}, cut after step {step} of {steps}", case.shape);
                let size = array.personality().size().0;
                let expected = |sector: u64| &case.expected[sector as usize * 512..][..512];
                for sector in 0..size {
                    let copies = array.personality().map(Sector(sector));
                    for (n, at) in copies.iter().enumerate() {
                        let on_member = at.sector + Sectors(DATA);
                        let now = media[at.disk].peek(on_member);
                        let before = case.media[at.disk].peek(on_member);
                        let repaired =
                            repairs && n > 0 && damage.contains(&sector) && now == expected(sector);
                        assert!(now == before || repaired, "{what}: sector {sector}");
                    }
                }
                array.sync_ended().await;
                array.request_sync(SyncRequest::Repair).unwrap();
                array.sync_ended().await;
                assert!(!array.is_unsynced(), "{what}");
                assert!(differing(&array, &media, 0..size).await.is_empty(), "{what}");
                assert!(read_all(&array).await == case.expected, "{what}");
                array.stop().await.unwrap();
            });
        }
    }
}

#[test]
fn a_check_changes_nothing() {
    cut_request(SyncRequest::Check, false);
}

#[test]
fn a_repair_changes_what_differed_into_what_the_first_copy_is() {
    cut_request(SyncRequest::Repair, true);
}
