//! Finds good copies of bad units, and writes them.
//!
//! A repair only changes sectors of bad blocks, and only writes bytes that are valid for the block:
//! by its checksum, or, for unreadable data without a checksum, those of another copy. It only
//! writes where the chunk has the block, whatever the RAID stripe tree says. Each write uses FUA
//! and is read back before the block counts as repaired, so an interruption leaves each sector
//! either old or repaired.

use std::ops::Range;
use std::sync::Arc;

use ashlar_block::{Bio, Buffer, Flags, Gateway, Status};
use futures_util::future::join_all;

use super::problem::ProblemKind;
use super::stripe::{Stripe, Unit};
use super::verify::{Bad, Image};
use crate::units::{Mirror, Physical};
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

/// Looks for good copies of the bad units and puts them into the image: first on each other mirror,
/// in reads as large as possible, then sector by sector on all mirrors, as the kernel does.
pub(super) async fn recover(
    fs: &Arc<FileSystem>,
    stripe: &Stripe,
    image: &mut Image,
    bad: &[Bad],
) -> Vec<Source> {
    let mut sources = vec![Source::Lost; bad.len()];
    let is_placed = |bad: &Bad| !matches!(bad.kind, ProblemKind::Place(_));
    let is_repairable =
        |bad: &Bad| Stripe::is_repairable(&stripe.units[bad.unit]) && is_placed(bad);
    let own = usize::from(stripe.mirror.0).max(1) - 1;
    let count = usize::from(stripe.chunk.mirrors());
    let mirror = |step: usize| Mirror(((own + step) % count + 1) as u8);
    let unit = |index: usize| &stripe.units[bad[index].unit];
    let left = |sources: &[Source]| -> Vec<usize> {
        let lost = |index: &usize| sources[*index] == Source::Lost && is_repairable(&bad[*index]);
        (0..sources.len()).filter(lost).collect()
    };
    for step in 1..count {
        let left = left(&sources);
        // Adjacent units are read together.
        let runs: Vec<&[usize]> =
            left.chunk_by(|a, b| unit(*a).sectors.end == unit(*b).sectors.start).collect();
        let reads = runs.iter().map(|run| {
            let sectors = unit(run[0]).sectors.start..unit(run[run.len() - 1]).sectors.end;
            let len = sectors.len() as u64 * stripe.sectorsize;
            fs.read_data(stripe.logical_of(sectors.start), len, mirror(step))
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
        for step in 0..count {
            let sectors = unit(index).sectors.clone();
            let reads = sectors.map(|sector| {
                fs.read_data(stripe.logical_of(sector), stripe.sectorsize, mirror(step))
            });
            seen.push(join_all(reads).await.into_iter().map(Result::ok).collect());
        }
        for (step, of_mirror) in seen.iter().enumerate() {
            // If no copy of a tree block is fully readable, missing sectors come from other mirrors.
            let sectors = of_mirror.iter().enumerate().map(|(sector, bytes)| {
                let elsewhere = || seen.iter().find_map(|other| other[sector].as_ref());
                bytes.as_ref().or_else(elsewhere)
            });
            let Some(sectors) = sectors.collect::<Option<Vec<_>>>() else { continue };
            let whole: Vec<u8> = sectors.into_iter().flatten().copied().collect();
            if take(fs, stripe, unit(index), image, &whole) {
                let all_own = step == 0 && of_mirror.iter().all(Option::is_some);
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

/// Writes ranges of sectors of `bytes`, which belongs at `physical`, and reads them back. The
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
    let mut back = Buffer::alloc(range.len());
    gateway.submit(Bio::read_into(at, &mut back)).await?;
    let same = back.as_slice() == &bytes.as_slice()[range];
    if same { Ok(()) } else { Err(Status::Protection) }
}
