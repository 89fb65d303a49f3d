//! Repairs that are interrupted, or have a failing write: at any point every sector is either
//! damaged or original, and the next scrub repairs the rest.

use ashlar_block::{Sector, Sectors};
use ashlar_btrfs::scrub::{Options, Repair, Scrub};
use ashlar_btrfs::units::{DevId, MirrorNum};
use ashlar_sim::scheduler::Stop;
use ashlar_sim::{Media, Rng};

use super::common::{
    Damage, Kind, Place, assert_all, assert_same, blocks, damage, parity_places, place, read_only,
    scrub,
};
use crate::support::{Rig, golden_media};

/// A damaged image: original and damaged state.
struct Case {
    name: &'static str,
    original: Vec<Media>,
    damaged: Vec<Media>,
}

impl Case {
    /// Damages some blocks of one copy, or of one device of a parity row.
    fn new(name: &'static str) -> Self {
        let original = golden_media(name);
        let damaged: Vec<Media> = original.iter().map(Media::copy).collect();
        let rig = Rig::over(name, damaged);
        let fs = rig.open();
        let mut rng = Rng::new(5);
        let mut spoilt: Vec<Place> = Vec::new();
        let all = blocks(&rig, &fs);
        for block in all.iter().filter(|block| block.kind != Kind::NoSum) {
            let chunk = fs.chunks().get(block.start).expect("a chunk");
            if rng.chance(2, 3) {
                continue;
            }
            if chunk.profile.parities() == 0 {
                let mirror = rng.below(u64::from(chunk.mirrors())) as u8 + 1;
                spoilt.push(place(&fs, block, MirrorNum(mirror)));
            } else {
                spoilt.push(place(&fs, block, MirrorNum(1)));
            }
        }
        if fs.chunks().iter().any(|chunk| chunk.profile.parities() > 0) {
            spoilt.extend(parity_places(&fs, &all));
            spoilt.retain(|(devid, _, _)| *devid == DevId(2));
        }
        spoilt.push((DevId(1), ashlar_btrfs::ondisk::superblock::OFFSETS[0], 4096));
        damage(&rig, &fs, &spoilt, Damage::Bytes);
        let damaged = rig.media.clone();
        Self { name, original, damaged }
    }

    fn rig(&self) -> Rig {
        Rig::over(self.name, self.damaged.iter().map(Media::copy).collect())
    }

    /// Asserts that each sector is either damaged or original. Returns how many are still damaged.
    fn judge(&self, media: &[Media], when: &str) -> usize {
        let mut left = 0;
        let devices = self.original.iter().zip(&self.damaged).zip(media);
        for (device, ((original, damaged), now)) in devices.enumerate() {
            for range in now.differences(original) {
                for sector in range {
                    let at = Sector(sector);
                    let found = now.peek_range(at, Sectors(1));
                    let name = self.name;
                    let was = damaged.peek_range(at, Sectors(1));
                    assert_eq!(found, was, "{name}, device {device}, sector {sector}, {when}");
                    left += 1;
                }
            }
        }
        left
    }

    /// The next scrub repairs the rest.
    fn finish(&self, media: Vec<Media>, when: &str) {
        let rig = Rig::over(self.name, media);
        let (_, problems) = scrub(&rig, &rig.open(), Options::default());
        assert_all(&problems, Repair::Done, when);
        assert_same(&rig, &self.original.iter().map(Media::snapshot).collect::<Vec<_>>(), when);
        let (_, problems) = scrub(&rig, &rig.open(), read_only());
        assert_eq!(problems, [], "{when}");
    }
}

const NAMES: [&str; 4] = ["dup-xxhash", "raid1-sha256", "raid5", "raid6"];

#[test]
fn a_power_cut_at_any_point_leaves_the_damage_or_the_original() {
    for name in NAMES {
        let case = Case::new(name);
        let before = case.judge(&case.damaged, "before");
        let (mut in_the_middle, mut steps) = (0, 1);
        loop {
            let rig = case.rig();
            let fs = rig.open();
            let scrub = Scrub::new(fs, Options::default());
            let ended = rig.sim.block_on_until(scrub.run(&()), Stop::AfterSteps(steps));
            drop(scrub);
            let Rig { sim, media, .. } = rig;
            sim.power_cut();
            let when = format!("{name}, cut after {steps} steps");
            let left = case.judge(&media, &when);
            if 0 < left && left < before {
                in_the_middle += 1;
            }
            case.finish(media, &when);
            if ended.is_some() {
                assert_eq!(left, 0, "{when}: what was told to be repaired is durable");
                break;
            }
            steps += 1 + steps / 16;
        }
        assert!(in_the_middle > 3, "{name}: {in_the_middle} cuts within the repair");
    }
}

#[test]
fn a_write_that_fails_leaves_the_damage_or_the_original() {
    for name in NAMES {
        let case = Case::new(name);
        for device in 0..case.damaged.len() {
            for nth in 0.. {
                let rig = case.rig();
                rig.media[device].fail_nth_write(nth);
                let writes = rig.media[device].counts().writes;
                let (_, problems) = scrub(&rig, &rig.open(), Options::default());
                let when = format!("{name}, device {device}, write {nth}");
                let lost = problems.iter().filter(|problem| problem.repair != Repair::Done).count();
                let left = case.judge(&rig.media, &when);
                assert_eq!(left > 0, lost > 0, "{when}: {problems:?}");
                let done = rig.media[device].counts().writes - writes <= nth;
                rig.media[device].heal();
                let media = rig.media.clone();
                drop(rig);
                case.finish(media, &when);
                if done {
                    break;
                }
            }
        }
    }
}

/// Check that the tests above can fail: with a disk that ignores FUA, repairs reported as done are
/// lost, and a sector that is neither damaged nor original is detected.
#[test]
fn a_disk_that_lies_is_found_out() {
    let mut lost = 0;
    for name in NAMES {
        let case = Case::new(name);
        let rig = case.rig();
        rig.media.iter().for_each(Media::lie_about_flush);
        let (_, problems) = scrub(&rig, &rig.open(), Options::default());
        assert_all(&problems, Repair::Done, name);
        let Rig { sim, media, .. } = rig;
        sim.power_cut();
        lost += case.judge(&media, "after the cut");
    }
    assert!(lost > 0, "repairs that were lost");

    let case = Case::new("raid1-sha256");
    let media: Vec<Media> = case.damaged.iter().map(Media::copy).collect();
    media[0].poke(Sector(2048), &[0x77; 512]);
    assert!(std::panic::catch_unwind(|| case.judge(&media, "poked")).is_err());
}
