//! Selects the superblock of a device.
//!
//! A device can carry several: a whole disk and its last partition share a 0.90 superblock, and
//! re-creating an array with another version leaves the old one. mdadm takes the most recently created one,
//! and among equally old ones the first in the order 0.90, 1.0, 1.1, 1.2; it does not verify
//! checksums. Here a superblock that would be preferred but is damaged makes the device unusable
//! instead of letting an older one win: assembling a stale array would destroy data.

use ashlar_block::units::Sectors;

use super::defect::{Defect, SuperblockError};
use super::fields::Version;
use super::superblock::{Superblock, refusal};
use super::superblock_0_90::Block090;
use super::superblock_1::{BLOCK_SIZE, Block1};
use super::validate;

/// A range of a device to read: byte offset and length.
pub type Range = (u64, usize);

/// What was found on a device.
#[derive(Clone, Debug)]
pub struct ProbeResult {
    /// The superblock to use: `None` if there is no md superblock, an error if the preferred one
    /// cannot be used.
    pub preferred: Option<Result<Box<Superblock>, SuperblockError>>,
    /// When the array of that superblock was created, in seconds, also if the superblock cannot be used.
    pub created: Option<u64>,
    /// Other md superblocks on the device, damaged or not.
    pub others: Vec<Version>,
    /// Versions that could not be checked because their range was not read completely.
    pub unread: Vec<SuperblockError>,
}

/// The ranges that [`identify`] needs of a device with this many sectors: at most four, 4 KiB each.
pub fn probe_ranges(device: Sectors) -> Vec<Range> {
    let places = Version::ALL.iter().filter_map(|version| version.super_offset(device));
    let mut ranges: Vec<Range> = places.map(|at| (at.bytes(), BLOCK_SIZE)).collect();
    ranges.sort_unstable();
    ranges.dedup();
    ranges
}

/// Finds the superblock of a device with `device` sectors in the bytes read from it: byte offsets
/// and the bytes there, for the ranges of [`probe_ranges`].
pub fn identify(device: Sectors, read: &[(u64, &[u8])]) -> ProbeResult {
    let mut unread = Vec::new();
    let mut found = Vec::new();
    for version in Version::ALL {
        let Some(at) = version.super_offset(device) else { continue };
        let bytes = read.iter().find(|(offset, _)| *offset == at.bytes());
        let bytes = bytes.map_or(&[][..], |(_, bytes)| *bytes);
        match created(version, bytes, device) {
            Ok(ctime) => found.push((version, ctime, bytes)),
            Err(defect @ Defect::Truncated { .. }) => unread.push(refusal(version, device)(defect)),
            Err(_) => {}
        }
    }
    // Reversed, because `max_by_key` takes the last of equals.
    let best = found.iter().rev().max_by_key(|(_, ctime, _)| *ctime);
    let preferred =
        best.map(|&(version, _, bytes)| Superblock::parse(version, bytes, device).map(Box::new));
    let created = best.map(|(_, ctime, _)| *ctime);
    let best = best.map(|(version, _, _)| *version);
    let others =
        found.iter().map(|(version, _, _)| *version).filter(|v| Some(*v) != best).collect();
    ProbeResult { preferred, created, others, unread }
}

/// The creation time in seconds of a superblock of this version, if `bytes` contain one.
fn created(version: Version, bytes: &[u8], device: Sectors) -> Result<u64, Defect> {
    let truncated = Defect::Truncated { found: bytes.len(), wanted: BLOCK_SIZE };
    let too_small = || validate::too_small(version, device);
    let at = version.super_offset(device).ok_or_else(too_small)?;
    match version {
        Version::V0_90 => {
            let (block, _) = Block090::from_either(bytes).ok_or(truncated)?;
            validate::identify_0_90(&block).map(|()| block.ctime.get().into())
        }
        Version::V1_0 | Version::V1_1 | Version::V1_2 => {
            let block = Block1::from_bytes(bytes).ok_or(truncated)?;
            validate::identify_1(&block, at)?;
            Ok(super::Timestamp::from_raw(block.header.ctime.get()).seconds)
        }
    }
}
