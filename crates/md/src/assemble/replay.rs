//! The partial parity logs of an array that was not stopped cleanly: what the parity of the rows that were being written has to be.
//!
//! Nothing is written here. The parity is kept in memory, where reads see it, until data are first read or written; of a read-only array for good.

use ashlar_block::{Bio, Buffer, Sector, Sectors, Status};

use crate::membership::rdev::Rdev;
use crate::membership::slots::Place;
use crate::ondisk::ppl::{self, Entry};
use crate::ondisk::{Level, Superblock};
use crate::personality::Personality;
use crate::probe::read_around;
use crate::raid5::Geometry;

/// Parity of a row that fits its data.
pub(crate) struct ParityBlock {
    /// The slot that has P.
    pub(crate) slot: usize,
    /// Where it is in the data area of the slot's member.
    pub(crate) at: Sector,
    pub(crate) data: Vec<u8>,
}

impl ParityBlock {
    /// Its length.
    pub(crate) fn len(&self) -> Sectors {
        Sectors::from_bytes_floor(self.data.len() as u64)
    }
}

/// What the logs say.
#[derive(Default)]
struct Replay {
    /// The parity to be written.
    blocks: Vec<ParityBlock>,
    /// Whether some log has an entry.
    is_used: bool,
    /// Members whose log is not there, or cannot be applied.
    unknown: Vec<String>,
}

impl Replay {
    /// Whether the parity of all rows is known to fit.
    fn settles(&self) -> bool {
        self.is_used && self.unknown.is_empty()
    }

    /// Whether the logs have no entry. As in Linux they say nothing then: such logs are there, too, while an array is synced for the
    /// first time.
    fn is_empty(&self) -> bool {
        !self.is_used
    }
}

/// The freshest superblock as it would be if the partial parity logs had been applied, and the parity that they give.
pub(super) async fn apply_logs(
    freshest: &Superblock,
    personality: &Personality,
    members: &[(Rdev, Place, Box<Superblock>)],
    notes: &mut Vec<String>,
) -> (Superblock, Vec<ParityBlock>) {
    let mut found = freshest.clone();
    let Personality::Parity(geometry) = personality else { return (found, Vec::new()) };
    let has_logs = freshest.ppl.is_some() && freshest.level == Level::Raid5;
    if freshest.is_clean() || !has_logs {
        return (found, Vec::new());
    }
    let replay = replay(freshest, geometry, members).await;
    if replay.settles() {
        notes.push("the array was not stopped cleanly: its partial parity logs give the parity of rows that were being written".into());
        found.resync_offset = Sectors::MAX;
    } else if replay.is_empty() && replay.unknown.is_empty() {
        notes.push("the partial parity logs have no entry, so they do not say that the array was ever synced".into());
    }
    notes.extend(replay.unknown);
    (found, replay.blocks)
}

/// Reads the logs of all members, and the data that they are about.
async fn replay(
    freshest: &Superblock,
    geometry: &Geometry,
    members: &[(Rdev, Place, Box<Superblock>)],
) -> Replay {
    let mut replay = Replay::default();
    let signature = ppl::signature(freshest.set_uuid);
    let in_slot = |slot: usize| {
        let here = members.iter().filter(move |(_, place, _)| *place == Place::Slot(slot));
        here.map(|(rdev, ..)| rdev).find(|rdev| rdev.is_in_sync())
    };
    for slot in 0..geometry.disks() {
        let Some(rdev) = in_slot(slot) else { continue };
        let Some(area) = rdev.ppl_area() else { continue };
        let mut unknown = |why: &dyn std::fmt::Display| {
            replay.unknown.push(format!("{}: {why}", rdev.path()));
        };
        let bytes = match read_around(rdev.gateway(), area.start, area.end - area.start).await {
            Ok(bytes) => bytes,
            Err(status) => {
                unknown(&format_args!("the partial parity log cannot be read: {status}"));
                continue;
            }
        };
        let data_disks = geometry.data_disks() as u32;
        let Some((start, log)) = ppl::newest(&bytes, signature, data_disks) else {
            unknown(&"there is no partial parity log of this array");
            continue;
        };
        let mut rest = &bytes[(start + ppl::HEADER).bytes() as usize..];
        for entry in log.entries {
            replay.is_used = true;
            let (parity, behind) =
                rest.split_at_checked(entry.parity().bytes() as usize).unwrap_or((&[], &[]));
            rest = behind;
            let is_intact =
                parity.len() as u64 == entry.parity().bytes() && ppl::crc(parity) == entry.checksum;
            match apply(geometry, slot, entry, is_intact.then_some(parity), &in_slot).await {
                Ok(block) => replay.blocks.extend(block),
                Err(why) => replay.unknown.push(format!("{}: {why}", rdev.path())),
            }
        }
    }
    replay
}

/// The parity of an entry; `None` if a member with data that were being written is missing: parity may give anything for them.
///
/// Without the partial parity the log was being written, so that the write had not begun; the parity is then made of all data, if they
/// are there.
async fn apply<'a>(
    geometry: &Geometry,
    slot: usize,
    entry: Entry,
    parity: Option<&[u8]>,
    in_slot: &impl Fn(usize) -> Option<&'a Rdev>,
) -> Result<Option<ParityBlock>, String> {
    let Entry { data_sector: first, len, chunks, .. } = entry;
    let chunk = geometry.chunk();
    let index = first.0 / chunk.0 % geometry.data_disks() as u64;
    let fits = first < geometry.size().as_end()
        && geometry.chunk_left(first) >= len
        && index + u64::from(chunks) <= geometry.data_disks() as u64;
    let at = geometry.map(if fits { first } else { Sector::ZERO }).sector;
    if !fits || geometry.row_at(at).p != slot || entry.parity_slot as usize != slot {
        return Err(format!("the partial parity log has an impossible entry for sector {first}"));
    }
    let row = geometry.row_at(at);
    let written = index as usize..index as usize + chunks as usize;
    let taken = if parity.is_some() { written } else { 0..row.data_disks() };
    let mut blocks: Vec<Buffer> = Vec::new();
    for slot in taken.map(|index| row.data(index)) {
        let Some(rdev) = in_slot(slot) else { return Ok(None) };
        let mut data =
            Buffer::try_alloc(len.bytes() as usize).ok_or("there is no memory for data")?;
        let read = match rdev.can_read(at, len) {
            true => rdev.submit(Bio::read_into(at, &mut data)).await,
            false => Err(Status::Medium),
        };
        read.map_err(|status| {
            format!("data that were being written cannot be read from {}: {status}", rdev.path())
        })?;
        blocks.push(data);
    }
    let kept = parity.filter(|_| !entry.is_whole).into_iter();
    let sources: Vec<&[u8]> = kept.chain(blocks.iter().map(Buffer::as_slice)).collect();
    let mut data = vec![0; len.bytes() as usize];
    ashlar_parity::xor(&mut data, &sources).map_err(|_| "blocks of different lengths")?;
    Ok(Some(ParityBlock { slot, at, data }))
}
