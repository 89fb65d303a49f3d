//! Helpers of the scrub tests.

use std::sync::{Arc, Mutex};

use ashlar_btrfs::chunk_map::Content;
use ashlar_btrfs::error::ReadError;
use ashlar_btrfs::extent_walk::{CsumWalk, ExtentKind, ExtentWalk, SearchResult, Sum};
use ashlar_btrfs::ondisk::chunk::{BlockGroupFlags, Chunk, STRIPE_LEN};
use ashlar_btrfs::raid_stripe::StripeWalk;
use ashlar_btrfs::readahead::Reada;
use ashlar_btrfs::scrub::{DeviceReport, Options, Problem, Repair, Scrub, Sink};
use ashlar_btrfs::units::{DevId, Logical, MirrorNum, Physical};
use ashlar_btrfs::volume::FileSystem;

use crate::support::{Rig, patch, peek};

/// Collects the problems.
#[derive(Default)]
pub(crate) struct ProblemList(pub(crate) Mutex<Vec<Problem>>);

impl Sink for ProblemList {
    fn problem(&self, problem: &Problem) {
        self.0.lock().expect("nobody panicked").push(problem.clone());
    }
}

/// Scrubs all devices; the problems are in device order.
pub(crate) fn scrub(
    rig: &Rig,
    fs: &Arc<FileSystem>,
    options: Options,
) -> (Vec<DeviceReport>, Vec<Problem>) {
    let kept = ProblemList::default();
    let scrub = Scrub::new(Arc::clone(fs), options);
    let reports = rig.run(scrub.run(&kept)).expect("there is something to scrub");
    let mut problems = kept.0.into_inner().expect("nobody panicked");
    problems.sort_by_key(|problem| (problem.devid, problem.physical));
    (reports, problems)
}

pub(crate) fn read_only() -> Options {
    Options { read_only: true, ..Options::default() }
}

/// A block that a scrub verifies.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Block {
    pub(crate) start: Logical,
    pub(crate) len: u64,
    pub(crate) kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Kind {
    /// A tree block, and its owner.
    Tree(Option<u64>),
    /// A data sector with a checksum.
    Data,
    /// A data sector without a checksum.
    NoSum,
}

/// All blocks, in order of address.
pub(crate) fn blocks(rig: &Rig, fs: &Arc<FileSystem>) -> Vec<Block> {
    let sectorsize = u64::from(fs.sectorsize());
    rig.run(async {
        let mut all = Vec::new();
        let mut walk = ExtentWalk::new(fs, Reada::None).await.expect("sound");
        let mut sums = CsumWalk::new(fs, Reada::None).await;
        let mut stripes = StripeWalk::new(fs);
        for chunk in fs.chunks().iter() {
            let mut from = chunk.start;
            while let SearchResult::Extent(extent) = walk.find(from..chunk.end(), chunk.start).await
            {
                from = extent.end();
                let ExtentKind::Tree { owner, .. } = extent.kind else {
                    let mut found = vec![Sum::None; (extent.length / sectorsize) as usize];
                    if chunk.flags.contains(BlockGroupFlags::DATA) {
                        sums.sums(extent.start, &mut found, |error| panic!("{error}")).await;
                    }
                    for (sector, sum) in found.iter().enumerate() {
                        let start = Logical(extent.start.0 + sector as u64 * sectorsize);
                        let kind = if *sum == Sum::None { Kind::NoSum } else { Kind::Data };
                        match stripes.locate(chunk, start, MirrorNum(1)).await {
                            Ok(_) => all.push(Block { start, len: sectorsize, kind }),
                            // It was allocated but never written.
                            Err(ReadError::NoStripe(_)) => assert_eq!(kind, Kind::NoSum),
                            Err(error) => panic!("{error}"),
                        }
                    }
                    continue;
                };
                let (start, len) = (extent.start, extent.length);
                all.push(Block { start, len, kind: Kind::Tree(owner) });
            }
        }
        all
    })
}

/// A range on a device: device, first byte, length.
pub(crate) type Place = (DevId, Physical, u64);

/// Location of a stored mirror of a block.
pub(crate) fn place(fs: &FileSystem, block: &Block, mirror: MirrorNum) -> Place {
    let chunk = fs.chunks().get(block.start).expect("it is in a chunk");
    let at = chunk.locate(block.start, mirror).expect("it is stored");
    assert!(at.len >= block.len, "no block of the images crosses a stripe");
    (at.devid, at.at, block.len)
}

/// Locations of the parity sectors that depend on blocks, sorted.
pub(crate) fn parity_places(fs: &FileSystem, blocks: &[Block]) -> Vec<Place> {
    let sectorsize = u64::from(fs.sectorsize());
    let mut all = Vec::new();
    for block in blocks {
        let chunk: &Chunk = fs.chunks().get(block.start).expect("it is in a chunk");
        let data = chunk.data_stripes();
        for sector in 0..block.len / sectorsize {
            let offset = block.start.0 + sector * sectorsize - chunk.start.0;
            let row = offset / STRIPE_LEN / data;
            for which in 0..chunk.profile.parities() {
                let stripe = chunk.row(row)[data as usize + which];
                let within = row * STRIPE_LEN + offset % STRIPE_LEN;
                let content = chunk.content(stripe, within);
                assert_eq!(content, Content::Parity { which, row });
                let on = &chunk.stripes[stripe];
                all.push((on.devid, Physical(on.offset.0 + within), sectorsize));
            }
        }
    }
    all.sort();
    all.dedup();
    all
}

/// The medium of a device.
pub(crate) fn medium<'a>(rig: &'a Rig, fs: &FileSystem, devid: DevId) -> &'a ashlar_sim::Media {
    let name = &fs.device(devid).expect("it is there").name;
    let index: usize = name.trim_end_matches(".img").parse().expect("N.img");
    &rig.media[index]
}

/// How a place is damaged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Damage {
    /// The bytes are different.
    Bytes,
    /// It cannot be read.
    Unreadable,
}

/// Damages ranges.
pub(crate) fn damage(rig: &Rig, fs: &FileSystem, places: &[Place], how: Damage) {
    for (devid, at, len) in places {
        let media = medium(rig, fs, *devid);
        match how {
            Damage::Bytes => {
                let mut bytes = peek(media, at.0, *len as usize);
                bytes.iter_mut().step_by(37).for_each(|byte| *byte ^= 0x5a);
                patch(media, at.0, &bytes);
            }
            Damage::Unreadable => media.fail_reads(at.0 >> 9..(at.0 + len) >> 9),
        }
    }
}

/// The locations of problems.
pub(crate) fn places(problems: &[Problem]) -> Vec<Place> {
    let place = |problem: &Problem| (problem.devid, problem.physical, u64::from(problem.len));
    problems.iter().map(place).collect()
}

/// Asserts that each problem had this outcome.
pub(crate) fn assert_all(problems: &[Problem], repair: Repair, name: &str) {
    if let Some(problem) = problems.iter().find(|problem| problem.repair != repair) {
        panic!("{name}: wanted {repair:?}: {problem}");
    }
}

/// Asserts that the devices hold the same bytes as in the snapshots `then`.
pub(crate) fn assert_same(rig: &Rig, then: &[ashlar_sim::Snapshot], name: &str) {
    for (index, (media, then)) in rig.media.iter().zip(then).enumerate() {
        assert_eq!(media.diff(then), [], "{name}: device {index}");
    }
}

pub(crate) fn snapshots(rig: &Rig) -> Vec<ashlar_sim::Snapshot> {
    rig.media.iter().map(ashlar_sim::Media::snapshot).collect()
}

pub(crate) fn writes(rig: &Rig) -> u64 {
    rig.media.iter().map(|media| media.counts().writes).sum()
}
