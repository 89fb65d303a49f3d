//! Probes a device: an md superblock, ZFS labels, foreign signatures, several of these or nothing.
//!
//! A device may have sectors that cannot be read. [`probe`] fails then: what decides that a device is free has to see all of it.
//! [`probe_readable`] reads the rest, and keeps what is missing ([`Unread`]), for those who can use a device without it.

use std::collections::HashMap;

use ashlar_block::{Gateway, Status};
use ashlar_md::ondisk::probe::{identify, probe_ranges};
use ashlar_md::ondisk::{Superblock, SuperblockError, Version};
use ashlar_zfs::ondisk::label::DeviceLabels;
use ashlar_zfs::ondisk::layout::LABEL_BYTES;

use crate::signature::{Identity, Image, RESHAPE_BACKUP, Signature, ZFS_MEMBER, detect, identity};
use crate::unread::{self, Unread};

/// The md superblock of a device.
#[derive(Clone, Debug)]
pub enum Md {
    /// There is no md superblock.
    None,
    /// The superblock that md would use.
    Member(Box<Superblock>),
    /// There is one, but it is unusable.
    Damaged(SuperblockError),
}

impl Md {
    /// The version of the superblock, damaged or not.
    pub(crate) fn version(&self) -> Option<Version> {
        match self {
            Self::None => None,
            Self::Member(sb) => Some(sb.version),
            Self::Damaged(error) => Some(error.version),
        }
    }
}

/// The contents of a device.
#[derive(Clone, Debug)]
pub struct Contents {
    /// The md superblock.
    pub md: Md,
    /// When the array of that superblock was created, in seconds.
    pub md_created: Option<u64>,
    /// Further md superblocks, of an older array.
    pub other_md: Vec<Version>,
    /// The ZFS labels, if there is a trace of one.
    pub zfs: Option<Box<DeviceLabels>>,
    /// Other signatures. On an md member, they are stale or part of the array's data.
    pub foreign: Vec<Signature>,
    /// The labels and UUIDs of what has these signatures.
    pub identities: HashMap<Signature, Identity>,
    /// The probed parts that cannot be read, if there are any.
    pub unread: Option<Unread>,
}

impl Contents {
    /// The owner whose signature may be in a part that cannot be read; with `whole`, only arrays count as owners.
    pub fn hidden_owner(&self, whole: bool) -> Option<&'static str> {
        self.unread.as_ref()?.hidden_owner(whole)
    }

    /// Whether it is mdadm's backup of what a reshape moves in place.
    pub fn is_reshape_backup(&self) -> bool {
        let is_backup = |found: &Signature| found.name == RESHAPE_BACKUP && found.offset == 0;
        matches!(self.md, Md::None) && self.foreign.iter().any(is_backup)
    }

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
/// Some of what has to be probed cannot be read.
pub async fn probe(gateway: &Gateway) -> Result<Contents, Status> {
    let contents = probe_readable(gateway).await?;
    contents.unread.as_ref().map_or(Ok(()), |unread| Err(unread.status()))?;
    Ok(contents)
}

/// Probes what can be read of a device. Reads only.
///
/// # Errors
/// Nothing can be read, or the device does not answer.
pub async fn probe_readable(gateway: &Gateway) -> Result<Contents, Status> {
    let (image, unread) = unread::read_image(gateway).await?;
    let size = gateway.capacity();
    let ranges = probe_ranges(size).into_iter();
    let superblocks = ranges.filter_map(|(at, len)| Some((at, image.bytes(at, len)?)));
    let probed = identify(size, &superblocks.collect::<Vec<_>>());
    let md = match probed.preferred {
        None => Md::None,
        Some(Ok(sb)) => Md::Member(sb),
        Some(Err(error)) => Md::Damaged(error),
    };
    let labels =
        DeviceLabels::parse(image.size(), |at| image.bytes(at, LABEL_BYTES)?.first_chunk());
    let zfs = labels.is_any().then(|| Box::new(labels));
    let (md_created, other_md) = (probed.created, probed.others);
    let foreign = detect(&image);
    let identities = foreign.iter().map(|found| (*found, identity(&image, found))).collect();
    Ok(Contents { md, md_created, other_md, zfs, foreign, identities, unread })
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
    match unread::read_image(gateway).await? {
        (image, None) => Ok(image),
        (_, Some(unread)) => Err(unread.status()),
    }
}
