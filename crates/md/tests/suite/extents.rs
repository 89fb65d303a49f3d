//! What is known of an array without reading it: zeroes are zeroes, whatever its members lack.

use ashlar_block::{Bio, ExtentState, Gateway, Sector, Sectors, Status};
use ashlar_md::ondisk::Level;
use ashlar_md::{AddOptions, Options};
use ashlar_sim::{Rng, Sim, SimDisk};

use crate::common::{DATA, Shape, disks, gateway, make, media, start, write};

const DISK: Sectors = Sectors(2304);

fn shapes() -> Vec<Shape> {
    vec![
        Shape::new(Level::Linear, None, 4, 3),
        Shape::new(Level::Raid0, None, 4, 3),
        Shape::new(Level::Raid1, None, 0, 3),
        Shape::new(Level::Raid10, Some(0x102), 4, 4),
        Shape::new(Level::Raid10, Some(0x102), 4, 3),
        Shape::new(Level::Raid10, Some(0x201), 4, 4),
        Shape::new(Level::Raid10, Some(0x1_0201), 4, 3),
        Shape::new(Level::Raid4, None, 4, 3),
        Shape::new(Level::Raid5, None, 4, 4),
        Shape::new(Level::Raid6, None, 4, 5),
    ]
}

async fn change(volume: &Gateway, rng: &mut Rng, count: u64) {
    let size = volume.capacity().0;
    for _ in 0..count {
        let at = rng.below(size);
        let len = 1 + rng.below((size - at).min(60));
        match rng.below(3) {
            0 => {
                let zeroes = Bio::write_zeroes(Sector(at), Sectors(len));
                volume.submit(zeroes).await.unwrap();
            }
            _ => write(volume, at, len, 1 + rng.below(255) as u8).await.unwrap(),
        }
    }
}

/// Checks that what is known to be zero is; returns how many sectors are zero, and how many of them are known.
async fn check(volume: &Gateway, text: &str) -> (u64, u64) {
    let size = volume.capacity();
    let data = volume.read(Sector(0), size).await.unwrap();
    let is_zero = |at: u64| data.as_slice()[at as usize * 512..][..512] == [0; 512];
    let (mut at, mut known) = (0, 0);
    while at < size.0 {
        let found = volume.extents(Sector(at), Sectors(size.0 - at)).await.unwrap();
        assert!(found.start().0 == at && found.end().0 > at, "{text}");
        for sector in at..found.end().0 {
            let (state, _) = found.state(Sector(sector)).unwrap();
            if state.contains(ExtentState::ZERO) {
                assert!(is_zero(sector), "{text}: sector {sector} is not zero");
                known += 1;
            }
        }
        at = found.end().0;
    }
    ((0..size.0).filter(|at| is_zero(*at)).count() as u64, known)
}

#[test]
fn zeroes_are_known_of_complete_arrays_and_never_wrong_of_others() {
    for (number, shape) in shapes().into_iter().enumerate() {
        for seed in 0..4 {
            let media = media(shape.members, DISK);
            let (sim, mut rng) = (Sim::new(seed), Rng::new(seed * 64 + number as u64));
            sim.block_on(async {
                let disks = disks(&media);
                make(&shape, &disks).await;
                let array = start(&sim, &disks, &Options::default()).await.unwrap();
                let volume = gateway(&array);
                let text = format!("{shape:?}, seed {seed}");
                change(&volume, &mut rng, 12).await;
                let (zeroes, known) = check(&volume, &text).await;
                assert!(zeroes == known && zeroes > 0, "{text}: {known} of {zeroes} are known");
                if !array.personality().is_redundant() {
                    return array.stop().await.unwrap();
                }
                // The failed member has holes where the others get data.
                let lost = rng.index(shape.members) as u32;
                array.fail(lost).await.unwrap();
                change(&volume, &mut rng, 12).await;
                let (zeroes, known) = check(&volume, &format!("{text}, without d{lost}")).await;
                // Mirrors know as much as before, of the rest a part.
                let is_mirrored = matches!(shape.level, Level::Raid1 | Level::Raid10);
                let all = known == zeroes;
                assert!(if is_mirrored { all } else { known > 0 }, "{text}: {known} of {zeroes}");
                array.stop().await.unwrap();
                assert_eq!(
                    volume.extents(Sector(0), Sectors(8)).await.err(),
                    Some(Status::Offline)
                );
            });
        }
    }
}

#[test]
fn a_member_that_is_rebuilt_is_asked_for_what_it_has() {
    let media = media(3, DISK);
    let sim = Sim::new(9);
    sim.block_on(async {
        let disks = disks(&media);
        make(&Shape::new(Level::Raid1, None, 0, 2), &disks[..2]).await;
        let array = start(&sim, &disks[..2], &Options::default()).await.unwrap();
        let volume = gateway(&array);
        write(&volume, 0, volume.capacity().0, 1).await.unwrap();
        array.fail(1).await.unwrap();
        let new: &SimDisk = &disks[2];
        array.add(new.gateway(), "d2", AddOptions::default()).await.unwrap();
        let mut asked = 0;
        while array.degraded() > 0 {
            assert_eq!(check(&volume, "beside the recovery").await, (0, 0));
            asked += 1;
        }
        assert!(asked > 0);
        assert_eq!(check(&volume, "after it").await, (0, 0));
        array.stop().await.unwrap();
    });
    assert!(media[2].peek(Sector(DATA)) != [0; 512]);
}
