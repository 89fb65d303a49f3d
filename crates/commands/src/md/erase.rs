//! Erases superblocks, so that no program takes their disks for members (`mdadm --zero-superblock`).

use ashlar_block::ByteVolume;
use ashlar_md::ondisk::Version;
use ashlar_stack::assemble::Disk;
use ashlar_stack::probe::{Contents, Md, probe};
use ashlar_stack::signature::{Signature, Usage};
use ashlar_stack::wipe;

use crate::error::{Error, Result};

/// A disk without superblocks of md.
pub struct ErasedDisk {
    /// Its path.
    pub path: String,
    /// Whether it had any.
    pub had_one: bool,
}

/// Erases the md superblocks of all versions on disks that were opened for writing, so that nobody else uses them. Nothing else
/// on the disks changes. With `force` also damaged superblocks, anything with the magic number where a superblock can be, and
/// superblocks that may belong to a partition.
///
/// # Errors
/// There is such a superblock: nothing is written; or a disk cannot be read or written.
pub async fn erase_superblocks(disks: &[Disk], force: bool) -> Result<Vec<ErasedDisk>> {
    let mut found = Vec::new();
    for disk in disks {
        let path = disk.path.display();
        let unreadable = |status| Error::new("cannot read", &path, status);
        let contents = probe(&disk.gateway).await.map_err(unreadable)?;
        let versions = versions(&contents);
        let ranges = if force {
            wipe::md_ranges(&disk.gateway).await.map_err(unreadable)?
        } else if let Some(why) = why_kept(&contents, &versions) {
            let error = Error::new("cannot erase the superblock", path, why);
            return Err(error.hint("nothing was changed; --force erases it"));
        } else {
            let size = disk.gateway.capacity().bytes();
            versions.iter().filter_map(|version| wipe::md_range(*version, size)).collect()
        };
        found.push((disk, ranges));
    }
    let mut erased = Vec::new();
    for (disk, ranges) in found {
        let volume = ByteVolume::new(disk.gateway.clone());
        let written = volume.wipe(&ranges).await;
        let path = disk.path.display().to_string();
        written.map_err(|status| Error::new("cannot erase the superblock", &path, status))?;
        erased.push(ErasedDisk { path, had_one: !ranges.is_empty() });
    }
    Ok(erased)
}

/// The versions of the superblocks on a device.
fn versions(contents: &Contents) -> Vec<Version> {
    let used = match &contents.md {
        Md::None => None,
        Md::Member(sb) => Some(sb.version),
        Md::Damaged(error) => Some(error.version),
    };
    used.into_iter().chain(contents.other_md.iter().copied()).collect()
}

/// Why a superblock of a device, which has these, may have to stay.
fn why_kept(contents: &Contents, versions: &[Version]) -> Option<String> {
    if let Md::Damaged(error) = &contents.md {
        return Some(format!("it is damaged: {error}"));
    }
    // A superblock at the start of a disk is not also a partition's.
    let is_at_end = |version: &Version| matches!(version, Version::V0_90 | Version::V1_0);
    let is_table = |found: &&Signature| found.usage == Usage::PartitionTable;
    let table = contents.foreign.iter().find(is_table)?;
    let may_be = versions.iter().any(is_at_end);
    may_be.then(|| format!("it may be the one of the last partition: there is {table}"))
}
