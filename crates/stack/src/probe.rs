//! Probes a device: an md superblock, ZFS labels, foreign signatures, several of these or nothing.

use ashlar_block::{Gateway, Sector, Sectors, Status};
use ashlar_md::ondisk::{Superblock, SuperblockError, Version};
use ashlar_zfs::ondisk::label::DeviceLabels;
use ashlar_zfs::ondisk::layout::LABEL_BYTES;

use crate::signature::{Image, Signature, ZFS_MEMBER, detect};

/// The md superblock of a device.
#[derive(Clone, Debug)]
pub enum Md {
    /// There is none.
    None,
    /// The superblock that md would use.
    Member(Box<Superblock>),
    /// There is one, but it is unusable.
    Damaged(SuperblockError),
}

/// The contents of a device.
#[derive(Clone, Debug)]
pub struct Contents {
    /// The md superblock.
    pub md: Md,
    /// Further md superblocks, of an older array.
    pub other_md: Vec<Version>,
    /// The ZFS labels, if there is a trace of one.
    pub zfs: Option<Box<DeviceLabels>>,
    /// Other signatures. On an md member, they are stale or part of the array's data.
    pub foreign: Vec<Signature>,
}

impl Contents {
    /// Whether no signature was found.
    pub fn is_empty(&self) -> bool {
        matches!(self.md, Md::None) && self.other_md.is_empty() && self.foreign.is_empty()
    }

    /// Descriptions of the data that would be lost, each with its location.
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
        let pool = self.zfs.as_ref().and_then(|labels| pool_claim(labels));
        // The pool's name says more than the offsets of its labels.
        let is_told = |found: &&Signature| pool.is_none() || found.name != ZFS_MEMBER;
        let foreign = self.foreign.iter().filter(is_told).map(Signature::to_string);
        md.into_iter().chain(others).chain(pool.clone()).chain(foreign).collect()
    }

    /// The signatures outside the array's data area: not part of the array's contents.
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

/// The pool that a device is a member of; `None` if no label is usable.
fn pool_claim(labels: &DeviceLabels) -> Option<String> {
    let label = labels.label()?;
    Some(match &label.member {
        Some(member) => {
            let (name, guid) = (&member.pool_name, member.pool_guid);
            format!("zfs member of pool {name} ({guid}, {})", label.state)
        }
        None => format!("zfs {} of a pool", label.state),
    })
}

/// The name of a member's array, or a substitute.
pub(crate) fn display_name(sb: &Superblock) -> &str {
    if sb.name.is_empty() { "an array without name" } else { &sb.name }
}

/// Probes a device. Reads only.
///
/// # Errors
/// It cannot be read.
pub async fn probe(gateway: &Gateway) -> Result<Contents, Status> {
    let probed = ashlar_md::probe_all(gateway).await?;
    let md = match probed.preferred {
        None => Md::None,
        Some(Ok(sb)) => Md::Member(sb),
        Some(Err(error)) => Md::Damaged(error),
    };
    let image = read_image(gateway).await?;
    let labels =
        DeviceLabels::parse(image.size(), |at| image.bytes(at, LABEL_BYTES)?.first_chunk());
    let zfs = labels.is_any().then(|| Box::new(labels));
    Ok(Contents { md, other_md: probed.others, zfs, foreign: detect(&image) })
}

/// The foreign signatures on a device. Reads only.
///
/// # Errors
/// It cannot be read.
pub async fn signatures(gateway: &Gateway) -> Result<Vec<Signature>, Status> {
    Ok(detect(&read_image(gateway).await?))
}

/// The type of the file system on a device, and how many bytes of the device it needs; `None` if none is known. Reads only.
///
/// # Errors
/// It cannot be read.
pub async fn file_system_bytes(gateway: &Gateway) -> Result<Option<(&'static str, u64)>, Status> {
    Ok(crate::signature::file_system_bytes(&read_image(gateway).await?))
}

/// The parts of a device that may contain signatures.
pub(crate) async fn read_image(gateway: &Gateway) -> Result<Image, Status> {
    let size = gateway.capacity().bytes();
    let block = gateway.disk().limits().logical_block();
    let mut image = Image::new(size);
    for range in Image::wanted(size) {
        let from = Sector::from_bytes_floor(range.start).round_down(block);
        let len = Sectors::from_bytes_ceil(range.end) - Sectors(from.0);
        let buffer = gateway.read(from, len).await?;
        image.add(from.bytes(), buffer.as_slice().to_vec());
    }
    Ok(image)
}
