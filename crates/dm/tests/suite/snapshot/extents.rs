//! What is known of a snapshot without reading it, and of where it differs from its origin, beside changes of the origin.

use std::cell::Cell;

use ashlar_block::{Bio, ExtentState, Extents, Gateway, Sector, Sectors};
use ashlar_sim::{Media, Rng, Sim};
use futures_util::future::{join, join3};

use crate::snapshot::rig::{Rig, fill, read, status};

const SIZE: u64 = 640;
const SNAPSHOT: &str = "0 640 snapshot real cow P 8";
const OTHER: &str = "0 640 snapshot real other P 16";
const MERGE: &str = "0 640 snapshot-merge real cow P 8";
const ORIGIN: &str = "0 640 snapshot-origin real";

/// Devices on an origin with some data between zeroes.
fn bench(seed: u64) -> (Sim, Rig, Rng) {
    let (sim, rig, mut rng) = (Sim::new(seed), Rig::default(), Rng::new(seed ^ 77));
    let real = Media::new(Sectors(SIZE));
    for _ in 0..rng.below(20) {
        real.poke(Sector(rng.below(SIZE)), &[7; 512]);
    }
    rig.disk("real", &real);
    for name in ["cow", "other"] {
        rig.disk(name, &Media::new(Sectors(4000)));
    }
    (sim, rig, rng)
}

/// Writes data and zeroes to random places.
async fn change(gateway: &Gateway, rng: &mut Rng, count: u64) {
    for _ in 0..count {
        let at = rng.below(SIZE);
        let len = 1 + rng.below((SIZE - at).min(30));
        match rng.below(2) {
            0 => fill(gateway, at, len, 1 + rng.below(255) as u8).await.unwrap(),
            _ => {
                let zeroes = Bio::write_zeroes(Sector(at), Sectors(len));
                gateway.submit(zeroes).await.unwrap();
            }
        }
    }
}

/// The sectors that are zero, by an answer for a random range and those that follow it.
async fn known(gateway: &Gateway, rng: &mut Rng) -> Vec<u64> {
    let mut at = rng.below(SIZE);
    let mut zeroes = Vec::new();
    while at < SIZE {
        let found = gateway.extents(Sector(at), Sectors(SIZE - at)).await.unwrap();
        assert!(found.end().0 > at && found.end().0 <= SIZE);
        zeroes.extend(of_state(&found, ExtentState::ZERO));
        at = found.end().0;
    }
    zeroes
}

fn of_state(found: &Extents, state: ExtentState) -> impl Iterator<Item = u64> + '_ {
    let range = found.start().0..found.end().0;
    range.filter(move |at| found.state(Sector(*at)).unwrap().0.contains(state))
}

async fn sectors(gateway: &Gateway) -> Vec<[u8; 512]> {
    let bytes = read(gateway, 0, SIZE).await.unwrap();
    bytes.chunks(512).map(|sector| sector.try_into().unwrap()).collect()
}

/// Asks until `is_over`; what is said to be zero must be.
async fn ask(gateway: &Gateway, shown: &[[u8; 512]], rng: &mut Rng, is_over: &Cell<bool>) {
    while !is_over.get() {
        ask_once(gateway, shown, rng).await;
    }
}

async fn ask_once(gateway: &Gateway, shown: &[[u8; 512]], rng: &mut Rng) {
    for at in known(gateway, rng).await {
        assert!(shown[at as usize] == [0; 512], "sector {at} is not zero");
    }
}

#[test]
fn zeroes_of_a_snapshot_are_zeroes_beside_changes_of_its_origin() {
    for seed in 0..60 {
        let (sim, rig, mut rng) = bench(seed);
        sim.block_on(async {
            let (snap_device, snap) = rig.device("snap", SNAPSHOT).await;
            let (_, origin) = rig.device("origin", ORIGIN).await;
            change(&snap, &mut rng, seed % 4).await;
            let (shown, is_over) = (sectors(&snap).await, Cell::new(false));
            let (mut one, mut two) = (rng.fork(), rng.fork());
            let changes = async {
                change(&origin, &mut rng, 60).await;
                is_over.set(true);
            };
            let first = ask(&snap, &shown, &mut one, &is_over);
            join3(changes, first, ask(&snap, &shown, &mut two, &is_over)).await;
            // Nothing changes any more: chunks that neither has changed say what the origin says.
            assert!(sectors(&snap).await == shown);
            let found = snap.extents(Sector(0), Sectors(SIZE)).await.unwrap();
            let changes = snap_device.changes().unwrap().same(Sector(0), Sectors(SIZE));
            for at in of_state(&changes, ExtentState::all()) {
                let is_zero = shown[at as usize] == [0; 512];
                let (state, _) = found.state(Sector(at)).unwrap();
                assert_eq!(state.contains(ExtentState::ZERO), is_zero, "seed {seed}: {at}");
            }
        });
    }
}

#[test]
fn zeroes_of_a_merged_device_are_zeroes_while_it_is_merged() {
    for seed in 0..60 {
        let (sim, rig, mut rng) = bench(seed);
        sim.block_on(async {
            let (snap_device, snap) = rig.device("snap", SNAPSHOT).await;
            let (_, origin) = rig.device("origin", ORIGIN).await;
            change(&origin, &mut rng, 40).await;
            change(&snap, &mut rng, 10).await;
            let shown = sectors(&snap).await;
            let (merge, gateway) = rig.device("merge", MERGE).await;
            let is_over = Cell::new(false);
            let (mut one, mut two) = (rng.fork(), rng.fork());
            let merged = async {
                while status(&merge) != "16/4000 16" {
                    ask_once(&gateway, &shown, &mut one).await;
                }
                is_over.set(true);
            };
            join(merged, ask(&gateway, &shown, &mut two, &is_over)).await;
            assert!(sectors(&gateway).await == shown);
            let zeroes: Vec<u64> = (0..SIZE).filter(|at| shown[*at as usize] == [0; 512]).collect();
            let found = gateway.extents(Sector(0), Sectors(SIZE)).await.unwrap();
            assert_eq!(of_state(&found, ExtentState::ZERO).collect::<Vec<_>>(), zeroes);
            // What is merged says nothing of changes any more.
            let changes = snap_device.changes().unwrap().same(Sector(0), Sectors(SIZE));
            assert_eq!(changes, Extents::data(Sector(0), Sectors(SIZE)));
        });
    }
}

#[test]
fn where_nothing_changed_a_snapshot_is_its_origin_and_a_later_snapshot() {
    for seed in 0..60 {
        let (sim, rig, mut rng) = bench(seed);
        sim.block_on(async {
            let (device, snap) = rig.device("snap", SNAPSHOT).await;
            let (_, origin) = rig.device("origin", ORIGIN).await;
            let whole = (Sector(0), Sectors(SIZE));
            let same =
                |device: &ashlar_dm::Device| device.changes().unwrap().same(whole.0, whole.1);
            assert_eq!(same(&device), Extents::of(whole.0, whole.1, ExtentState::all()));
            change(&origin, &mut rng, 1 + seed % 8).await;
            let (later_device, later) = rig.device("later", OTHER).await;
            let between = device.changes().unwrap();
            // Changes after the later snapshot, of all three, may be in the answer or not.
            let changes = async {
                change(&origin, &mut rng, seed % 5).await;
                change(&later, &mut rng, seed % 3).await;
                change(&snap, &mut rng, seed % 2).await;
            };
            let (known, ()) = join(async { same(&device) }, changes).await;
            assert!(known.end() == Sector(SIZE));
            let (snap, origin) = (sectors(&snap).await, sectors(&origin).await);
            let later = sectors(&later).await;
            let to_origin = same(&device);
            let to_later = between.same(whole.0, whole.1).and(&same(&later_device));
            let mut differ = 0;
            let shown = snap.iter().zip(&origin).zip(&later);
            for (at, ((snap, origin), later)) in (0..).zip(shown) {
                let is_same =
                    |found: &Extents| found.state(Sector(at)).unwrap().0 == ExtentState::all();
                assert!(!is_same(&to_origin) || snap == origin, "seed {seed}: {at}");
                assert!(!is_same(&to_later) || snap == later, "seed {seed}: {at}");
                differ += u64::from(!is_same(&to_origin));
            }
            // Each change is of at most 30 sectors, so of five chunks.
            assert!(differ <= 15 * 5 * 8, "seed {seed}: {differ} sectors");
        });
    }
}

#[test]
fn a_snapshot_that_is_gone_or_invalid_says_that_all_has_changed() {
    let (sim, rig, _) = bench(1);
    sim.block_on(async {
        let all = Extents::data(Sector(0), Sectors(SIZE));
        let none = Extents::of(Sector(0), Sectors(SIZE), ExtentState::all());
        let (device, snap) = rig.device("snap", SNAPSHOT).await;
        let changes = device.changes().unwrap();
        assert_eq!(changes.same(Sector(0), Sectors(SIZE)), none);
        drop((device, snap));
        rig.remove("snap");
        assert_eq!(changes.same(Sector(0), Sectors(SIZE)), all);
        rig.disk("small", &Media::new(Sectors(32)));
        let (device, _snap) = rig.device("full", "0 640 snapshot real small P 8").await;
        let (_, origin) = rig.device("origin", ORIGIN).await;
        let changes = device.changes().unwrap();
        assert_eq!(changes.same(Sector(0), Sectors(SIZE)), none);
        fill(&origin, 0, 64, 1).await.unwrap();
        assert_eq!(status(&device), "Invalid");
        assert_eq!(changes.same(Sector(0), Sectors(SIZE)), all);
        assert!(_snap.extents(Sector(0), Sectors(SIZE)).await.is_err());
    });
}
