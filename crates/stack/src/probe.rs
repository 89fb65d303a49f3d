//! What is on a device: an md superblock, foreign signatures, both or nothing.

use ashlar_block::{Gateway, Sector, Sectors, Status};
use ashlar_md::ondisk::{Superblock, SuperblockError, Version};

use crate::signature::{Image, Signature, detect};

/// The md superblock of a device.
#[derive(Clone, Debug)]
pub enum Md {
    /// It has none.
    None,
    /// The one that md would use.
    Member(Box<Superblock>),
    /// There is one, but it cannot be used.
    Damaged(SuperblockError),
}

/// What is on a device.
#[derive(Clone, Debug)]
pub struct Contents {
    /// The md superblock.
    pub md: Md,
    /// Further md superblocks, of an older array.
    pub other_md: Vec<Version>,
    /// What else is there. On an md member these are remains, or part of the array's data.
    pub foreign: Vec<Signature>,
}

impl Contents {
    /// Whether nothing that is known is there.
    pub fn is_empty(&self) -> bool {
        matches!(self.md, Md::None) && self.other_md.is_empty() && self.foreign.is_empty()
    }

    /// What would be lost, each with its place, in words.
    pub fn claims(&self) -> Vec<String> {
        let md = match &self.md {
            Md::None => None,
            Md::Member(sb) => Some(format!(
                "md member of {} ({}, {}) at {:#x}",
                display_name(sb),
                sb.level,
                ashlar_md::ondisk::MdadmUuid(sb.set_uuid),
                sb.super_offset.bytes(),
            )),
            Md::Damaged(error) => Some(format!("md member, damaged: {error}")),
        };
        let others =
            self.other_md.iter().map(|version| format!("md superblock, version {version}"));
        md.into_iter().chain(others).chain(self.foreign.iter().map(Signature::to_string)).collect()
    }

    /// The signatures outside of the array's data area: not part of what the array holds.
    pub fn remains(&self) -> impl Iterator<Item = &Signature> {
        let data = match &self.md {
            Md::Member(sb) => {
                let start = sb.data_offset.bytes();
                start..start.saturating_add(sb.data_size.bytes())
            }
            Md::None | Md::Damaged(_) => 0..0,
        };
        self.foreign.iter().filter(move |found| !data.contains(&found.offset))
    }
}

/// The name of a member's array, or what stands for one.
fn display_name(sb: &Superblock) -> &str {
    if sb.name.is_empty() { "an array without name" } else { &sb.name }
}

/// Looks at a device. Reads only.
///
/// # Errors
/// It cannot be read.
pub async fn probe(gateway: &Gateway) -> Result<Contents, Status> {
    let probed = ashlar_md::probe::probe_all(gateway).await?;
    let md = match probed.preferred {
        None => Md::None,
        Some(Ok(sb)) => Md::Member(sb),
        Some(Err(error)) => Md::Damaged(error),
    };
    Ok(Contents { md, other_md: probed.others, foreign: signatures(gateway).await? })
}

/// The foreign signatures on a device. Reads only.
///
/// # Errors
/// It cannot be read.
pub async fn signatures(gateway: &Gateway) -> Result<Vec<Signature>, Status> {
    let size = gateway.capacity().bytes();
    let block = gateway.disk().limits().logical_block();
    let mut image = Image::new(size);
    for range in Image::wanted(size) {
        let from = Sector::from_bytes_floor(range.start).round_down(block);
        let len = Sectors::from_bytes_ceil(range.end) - Sectors(from.0);
        let buffer = gateway.read(from, len).await?;
        image.add(from.bytes(), buffer.as_slice().to_vec());
    }
    Ok(detect(&image))
}
