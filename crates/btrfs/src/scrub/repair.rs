//! Finds good copies of bad units, and writes them.
//!
//! A repair only changes sectors of bad blocks, and only writes bytes that are valid for the block:
//! by its checksum, or, for unreadable data without a checksum, those of another copy. It only
//! writes where the chunk has the block, whatever the RAID stripe tree says. Each write uses FUA
//! and is read back before the block counts as repaired, so an interruption leaves each sector
//! either old or repaired. A device that has several copies below returns each of them: a block is
//! repaired once all of them are right.

use std::ops::Range;
use std::sync::Arc;

use ashlar_block::{Bio, Buffer, CopyNumber, Flags, Gateway, Sectors, Status};
use futures_util::future::join_all;
use smallvec::SmallVec;

use super::problem::ProblemKind;
use super::stripe::{Stripe, Unit};
use super::verify::{BadUnit, Image};
use crate::units::{Leg, MirrorNum, Physical};
use crate::volume::FileSystem;

/// Source of a good copy of a bad unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Source {
    /// None found.
    Lost,
    /// Another mirror.
    Other,
    /// The same place, on a second read.
    Again,
}

/// Looks for good copies of the bad units and puts them into the image: first on the other copies of
/// the mirror below the file system and on each other mirror, in reads as large as possible, then sector by
/// sector on all mirrors, as the kernel does. A unit that is bad on one copy only has its good bytes there already.
pub(super) async fn recover(
    fs: &Arc<FileSystem>,
    stripe: &Stripe,
    image: &mut Image,
    bad: &[BadUnit],
) -> Vec<Source> {
    let is_found = |bad: &BadUnit| bad.copy != CopyNumber::ANY;
    let source = |bad: &BadUnit| if is_found(bad) { Source::Other } else { Source::Lost };
    let mut sources: Vec<Source> = bad.iter().map(source).collect();
    let is_placed = |bad: &BadUnit| !matches!(bad.kind, ProblemKind::Place(_));
    let is_repairable =
        |bad: &BadUnit| Stripe::is_repairable(&stripe.units[bad.unit]) && is_placed(bad);
    let own = usize::from(stripe.mirror.0).max(1) - 1;
    let count = usize::from(stripe.chunk.mirrors());
    let mirror = |step: usize| MirrorNum(((own + step) % count + 1) as u8);
    let unit = |index: usize| &stripe.units[bad[index].unit];
    let left = |sources: &[Source]| -> Vec<usize> {
        let lost = |index: &usize| sources[*index] == Source::Lost && is_repairable(&bad[*index]);
        (0..sources.len()).filter(lost).collect()
    };
    if left(&sources).is_empty() {
        return sources;
    }
    let of_mirror = |step| fs.legs_of(stripe.logical, stripe.len, mirror(step));
    // The plain read of the own mirror, which was bad, comes first.
    let legs: Vec<Leg> = (0..count).flat_map(of_mirror).collect();
    let is_tried = |leg: Leg, index: usize| leg.copy == CopyNumber::ANY || unit(index).is_proven();
    for leg in legs[1..].iter().copied() {
        let mut left = left(&sources);
        left.retain(|index| is_tried(leg, *index));
        // Adjacent units are read together.
        let runs: Vec<&[usize]> =
            left.chunk_by(|a, b| unit(*a).sectors.end == unit(*b).sectors.start).collect();
        let reads = runs.iter().map(|run| {
            let sectors = unit(run[0]).sectors.start..unit(run[run.len() - 1]).sectors.end;
            let len = sectors.len() as u64 * stripe.sectorsize;
            fs.read_data(stripe.logical_of(sectors.start), len, leg)
        });
        let reads = join_all(reads).await;
        for (run, read) in runs.into_iter().zip(reads) {
            let Ok(bytes) = read else { continue };
            let mut rest = bytes.as_slice();
            for index in run {
                let (own, behind) = rest.split_at(stripe.bytes_of(&unit(*index).sectors).len());
                rest = behind;
                if take(fs, stripe, unit(*index), image, own) {
                    sources[*index] = Source::Other;
                }
            }
        }
    }
    for index in left(&sources) {
        let mut seen: Vec<Vec<Option<Vec<u8>>>> = Vec::new();
        for leg in legs.iter().copied().filter(|leg| is_tried(*leg, index)) {
            let sectors = unit(index).sectors.clone();
            let reads = sectors
                .map(|sector| fs.read_data(stripe.logical_of(sector), stripe.sectorsize, leg));
            seen.push(join_all(reads).await.into_iter().map(Result::ok).collect());
        }
        for (step, of_leg) in seen.iter().enumerate() {
            // If no copy of a tree block is fully readable, missing sectors come from other mirrors.
            let sectors = of_leg.iter().enumerate().map(|(sector, bytes)| {
                let elsewhere = || seen.iter().find_map(|other| other[sector].as_ref());
                bytes.as_ref().or_else(elsewhere)
            });
            let Some(sectors) = sectors.collect::<Option<Vec<_>>>() else { continue };
            let whole: Vec<u8> = sectors.into_iter().flatten().copied().collect();
            if take(fs, stripe, unit(index), image, &whole) {
                let all_own = step == 0 && of_leg.iter().all(Option::is_some);
                sources[index] = if all_own { Source::Again } else { Source::Other };
                break;
            }
        }
    }
    sources
}

/// Puts the bytes of a unit into the image if they are good. Returns whether they are.
fn take(fs: &FileSystem, stripe: &Stripe, unit: &Unit, image: &mut Image, bytes: &[u8]) -> bool {
    let is_good = stripe.check(fs, unit, bytes).is_none();
    if is_good {
        image.bytes.as_mut_slice()[stripe.bytes_of(&unit.sectors)].copy_from_slice(bytes);
    }
    is_good
}

/// Writes ranges of sectors of `bytes`, which belongs at `physical`, and reads all copies back. The
/// ranges ascend; each has its own result.
pub(super) async fn write(
    gateway: &Gateway,
    physical: Physical,
    sectorsize: u64,
    bytes: &mut Buffer,
    ranges: &[Range<usize>],
) -> Vec<Result<(), Status>> {
    let mut results = Vec::with_capacity(ranges.len());
    for run in ranges.chunk_by(|a, b| a.end == b.start) {
        let whole = run[0].start..run[run.len() - 1].end;
        match write_one(gateway, physical, sectorsize, bytes, whole).await {
            Err(_) if run.len() > 1 => {
                for range in run {
                    let range = range.clone();
                    results.push(write_one(gateway, physical, sectorsize, bytes, range).await);
                }
            }
            written => results.extend(run.iter().map(|_| written)),
        }
    }
    results
}

async fn write_one(
    gateway: &Gateway,
    physical: Physical,
    sectorsize: u64,
    bytes: &mut Buffer,
    sectors: Range<usize>,
) -> Result<(), Status> {
    let at = Physical(physical.0 + sectors.start as u64 * sectorsize).sector();
    let range = sectors.start * sectorsize as usize..sectors.end * sectorsize as usize;
    let bio = Bio::write(at, [bytes.segment(range.clone())]).with_flags(Flags::FUA);
    gateway.submit(bio).await?;
    let mut copies: SmallVec<[CopyNumber; 4]> =
        gateway.alternates(at, Sectors::from_bytes_floor(range.len() as u64)).collect();
    if copies.is_empty() {
        copies.push(CopyNumber::ANY);
    }
    let mut back = Buffer::alloc(range.len());
    for copy in copies {
        match gateway.submit(Bio::read_into(at, &mut back).with_copy(copy)).await {
            // The copy went away with its member.
            Err(Status::Invalid) if copy != CopyNumber::ANY => {}
            Err(status) => return Err(status),
            Ok(()) if back.as_slice() == &bytes.as_slice()[range.clone()] => {}
            Ok(()) => return Err(Status::Protection),
        }
    }
    Ok(())
}
