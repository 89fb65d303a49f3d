//! `btrfs inspect-internal dump-super`.

use std::{fmt, io};

use ashlar_block::{Gateway, Sector, Sectors};
use thiserror::Error;
use uuid::Uuid;
use zerocopy::FromBytes;

use super::Sink;
use super::items::chunk;
use super::names;
use crate::csum::{ChecksumKind, MAX_SIZE};
use crate::ondisk::chunk::{DiskChunk, DiskStripe};
use crate::ondisk::key::{DiskKey, Key, item};
use crate::ondisk::superblock::{
    CompatRo, FLAG_CHANGING_FSID, FLAG_METADUMP, FLAG_SEEDING, Incompat, MAGIC, RootBackup,
    SUPERBLOCK_SIZE, SYS_CHUNK_ARRAY_SIZE, Superblock,
};
use crate::units::Physical;

/// Amount of superblock detail to print.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SuperblockKind {
    /// Its fields.
    #[default]
    Fields,
    /// Also its chunk array and backup roots.
    Full,
}

/// Flags of a superblock that tree blocks have too (`BTRFS_HEADER_FLAG_*`).
const HEADER_FLAGS: [(u64, &str); 2] = [(1, "WRITTEN"), (1 << 1, "RELOC")];

/// The start of `bytes` as a superblock, valid or not; `None` if there are too few bytes.
pub fn superblock_of(bytes: &[u8]) -> Option<&Superblock> {
    Superblock::ref_from_prefix(bytes).ok().map(|(superblock, _)| superblock)
}

/// Why the superblock at a place of a device was not printed.
#[derive(Debug, Error)]
pub enum SuperblockTextError {
    /// It cannot be read.
    #[error("cannot read: {device}, byte {at}: {why}")]
    Unreadable {
        /// The device.
        device: String,
        /// The place.
        at: Physical,
        /// Why.
        why: String,
    },
    /// The magic number is missing.
    #[error("no btrfs superblock: {device}, byte {at}: the magic is missing")]
    NoMagic {
        /// The device.
        device: String,
        /// The place.
        at: Physical,
    },
    /// The sink failed.
    #[error("cannot write: {0}")]
    Io(#[from] io::Error),
}

/// Reads the superblock at a place of a device called `name`, and prints it; with `force` also what has no magic number.
///
/// # Errors
/// See [`SuperblockTextError`].
pub async fn superblock_at(
    gateway: &Gateway,
    name: &str,
    at: Physical,
    kind: SuperblockKind,
    force: bool,
    out: Sink<'_>,
) -> Result<(), SuperblockTextError> {
    let unreadable = |why: &dyn fmt::Display| SuperblockTextError::Unreadable {
        device: name.to_owned(),
        at,
        why: why.to_string(),
    };
    let (sector, len) = (Sector(at.0 >> 9), Sectors::from_bytes_floor(SUPERBLOCK_SIZE as u64));
    let bytes = gateway.read(sector, len).await.map_err(|why| unreadable(&why))?;
    let Some(read) = superblock_of(bytes.as_slice()) else {
        return Err(unreadable(&"too few bytes"));
    };
    if read.magic != MAGIC && !force {
        return Err(SuperblockTextError::NoMagic { device: name.to_owned(), at });
    }
    superblock_heading(out, name, at)?;
    superblock(out, read, kind)?;
    writeln!(out)?;
    Ok(())
}

/// Heading before the text of a superblock.
///
/// # Errors
/// The sink failed.
pub fn superblock_heading(out: Sink<'_>, device: &str, at: Physical) -> io::Result<()> {
    writeln!(out, "superblock: bytenr={at}, device={device}")?;
    writeln!(out, "{:-<57}", "")
}

/// The text of a superblock, valid or not.
///
/// # Errors
/// The sink failed.
pub fn superblock(out: Sink<'_>, of: &Superblock, kind: SuperblockKind) -> io::Result<()> {
    checksum(out, of)?;
    writeln!(out, "bytenr\t\t\t{}", of.bytenr)?;
    writeln!(out, "flags\t\t\t{:#x}", of.flags.get())?;
    let mut known = HEADER_FLAGS.to_vec();
    known.extend([
        (FLAG_CHANGING_FSID & (1 << 35), "CHANGING_FSID"),
        (FLAG_SEEDING, "SEEDING"),
        (FLAG_METADUMP & (1 << 33), "METADUMP"),
        (FLAG_METADUMP & (1 << 34), "METADUMP_V2"),
    ]);
    flags(out, of.flags.get(), &known)?;
    let matched = |yes: bool| if yes { "[match]" } else { "[DON'T MATCH]" };
    writeln!(out, "magic\t\t\t{} {}", printable(&of.magic), matched(of.magic == MAGIC))?;
    writeln!(out, "fsid\t\t\t{}", of.fsid())?;
    writeln!(out, "metadata_uuid\t\t{}", of.metadata_uuid())?;
    writeln!(out, "label\t\t\t{}", printable(of.label()))?;
    for (name, value) in [
        ("generation\t\t", of.generation.get()),
        ("root\t\t\t", of.root.get()),
        ("sys_array_size\t\t", of.sys_chunk_array_size.get().into()),
        ("chunk_root_generation\t", of.chunk_root_generation.get()),
        ("root_level\t\t", of.root_level.into()),
        ("chunk_root\t\t", of.chunk_root.get()),
        ("chunk_root_level\t", of.chunk_root_level.into()),
        ("log_root\t\t", of.log_root.get()),
        ("log_root_transid (deprecated)\t", of.log_root_transid.get()),
        ("log_root_level\t\t", of.log_root_level.into()),
        ("total_bytes\t\t", of.total_bytes.get()),
        ("bytes_used\t\t", of.bytes_used.get()),
        ("sectorsize\t\t", of.sectorsize.get().into()),
        ("nodesize\t\t", of.nodesize.get().into()),
        ("leafsize (deprecated)\t", of.leafsize.get().into()),
        ("stripesize\t\t", of.stripesize.get().into()),
        ("root_dir\t\t", of.root_dir_objectid.get()),
        ("num_devices\t\t", of.num_devices.get()),
    ] {
        writeln!(out, "{name}{value}")?;
    }
    writeln!(out, "compat_flags\t\t{:#x}", of.compat_flags.get())?;
    let named: Vec<(u64, &str)> =
        CompatRo::all().iter_names().map(|(name, flag)| (flag.bits(), name)).collect();
    writeln!(out, "compat_ro_flags\t\t{:#x}", of.compat_ro_flags.get())?;
    flags(out, of.compat_ro_flags.get(), &named)?;
    let named: Vec<(u64, &str)> =
        Incompat::all().iter_names().map(|(name, flag)| (flag.bits(), name)).collect();
    writeln!(out, "incompat_flags\t\t{:#x}", of.incompat_flags.get())?;
    flags(out, of.incompat_flags.get(), &named)?;
    writeln!(out, "cache_generation\t{}", of.cache_generation)?;
    writeln!(out, "uuid_tree_generation\t{}", of.uuid_tree_generation)?;
    device(out, of)?;
    match kind {
        SuperblockKind::Fields => Ok(()),
        SuperblockKind::Full => full(out, of),
    }
}

fn checksum(out: Sink<'_>, of: &Superblock) -> io::Result<()> {
    let kind = of.csum_type.get();
    let known = ChecksumKind::from_number(kind);
    let size = known.map_or(MAX_SIZE, ChecksumKind::size);
    writeln!(out, "csum_type\t\t{kind} ({})", known.map_or("INVALID", ChecksumKind::name))?;
    writeln!(out, "csum_size\t\t{size}")?;
    write!(out, "csum\t\t\t0x")?;
    of.csum[..size].iter().try_for_each(|byte| write!(out, "{byte:02x}"))?;
    let verdict = match known {
        None => "[UNKNOWN CSUM TYPE OR SIZE]",
        Some(kind) if of.checksum(kind).is(&of.csum) => "[match]",
        Some(_) => "[DON'T MATCH]",
    };
    writeln!(out, " {verdict}")
}

fn device(out: Sink<'_>, of: &Superblock) -> io::Result<()> {
    let dev = &of.dev_item;
    let fsid = Uuid::from_bytes(dev.fsid);
    let verdict = if fsid == of.metadata_uuid() { "[match]" } else { "[DON'T MATCH]" };
    writeln!(out, "dev_item.uuid\t\t{}", Uuid::from_bytes(dev.uuid))?;
    writeln!(out, "dev_item.fsid\t\t{fsid} {verdict}")?;
    writeln!(out, "dev_item.type\t\t{}", dev.kind)?;
    writeln!(out, "dev_item.total_bytes\t{}", dev.total_bytes)?;
    writeln!(out, "dev_item.bytes_used\t{}", dev.bytes_used)?;
    writeln!(out, "dev_item.io_align\t{}", dev.io_align)?;
    writeln!(out, "dev_item.io_width\t{}", dev.io_width)?;
    writeln!(out, "dev_item.sector_size\t{}", dev.sector_size)?;
    writeln!(out, "dev_item.devid\t\t{}", dev.devid)?;
    writeln!(out, "dev_item.dev_group\t{}", dev.dev_group)?;
    writeln!(out, "dev_item.seek_speed\t{}", dev.seek_speed)?;
    writeln!(out, "dev_item.bandwidth\t{}", dev.bandwidth)?;
    writeln!(out, "dev_item.generation\t{}", dev.generation)
}

fn full(out: Sink<'_>, of: &Superblock) -> io::Result<()> {
    writeln!(out, "sys_chunk_array[{SYS_CHUNK_ARRAY_SIZE}]:")?;
    system_chunks(out, of)?;
    writeln!(out, "backup_roots[{}]:", of.super_roots.len())?;
    for (index, backup) in of.super_roots.iter().enumerate() {
        if backup.tree_root.get() != 0 || backup.tree_root_gen.get() != 0 {
            writeln!(out, "\tbackup {index}:")?;
            roots(out, backup)?;
        }
    }
    Ok(())
}

fn system_chunks(out: Sink<'_>, of: &Superblock) -> io::Result<()> {
    if of.sys_chunk_array_size.get() as usize > SYS_CHUNK_ARRAY_SIZE {
        return writeln!(out, "\tinvalid sys_array_size {}", of.sys_chunk_array_size);
    }
    let mut rest = of.sys_chunks();
    let mut index = 0;
    while !rest.is_empty() {
        let Ok((key, body)) = DiskKey::ref_from_prefix(rest) else {
            return writeln!(out, "\tinvalid item {index}: the array ends within it");
        };
        let key = Key::from(key);
        writeln!(out, "\titem {index} {}", names::key(key))?;
        let disk = DiskChunk::ref_from_prefix(body).ok();
        let stripes = disk.map(|(disk, _)| usize::from(disk.num_stripes.get()));
        let Some(stripes) = stripes.filter(|count| key.kind == item::CHUNK_ITEM && *count > 0)
        else {
            return writeln!(out, "\t\tinvalid: it is not a chunk");
        };
        let size = size_of::<DiskChunk>() + stripes * size_of::<DiskStripe>();
        let Some((body, behind)) = body.split_at_checked(size) else {
            return writeln!(out, "\t\tinvalid: the array ends within it");
        };
        chunk(out, body)?;
        rest = behind;
        index += 1;
    }
    Ok(())
}

fn roots(out: Sink<'_>, of: &RootBackup) -> io::Result<()> {
    for (name, at, generation, level) in [
        ("backup_tree_root:\t", &of.tree_root, &of.tree_root_gen, of.tree_root_level),
        ("backup_chunk_root:\t", &of.chunk_root, &of.chunk_root_gen, of.chunk_root_level),
        ("backup_extent_root:\t", &of.extent_root, &of.extent_root_gen, of.extent_root_level),
        ("backup_fs_root:\t\t", &of.fs_root, &of.fs_root_gen, of.fs_root_level),
        ("backup_dev_root:\t", &of.dev_root, &of.dev_root_gen, of.dev_root_level),
        ("csum_root:\t", &of.csum_root, &of.csum_root_gen, of.csum_root_level),
    ] {
        writeln!(out, "\t\t{name}{at}\tgen: {generation}\tlevel: {level}")?;
    }
    writeln!(out, "\t\tbackup_total_bytes:\t{}", of.total_bytes)?;
    writeln!(out, "\t\tbackup_bytes_used:\t{}", of.bytes_used)?;
    writeln!(out, "\t\tbackup_num_devices:\t{}\n", of.num_devices)
}

/// The flags that are set, one per line.
fn flags(out: Sink<'_>, flags: u64, named: &[(u64, &str)]) -> io::Result<()> {
    if flags == 0 {
        return Ok(());
    }
    let mut texts: Vec<String> = Vec::new();
    let mut unknown = flags;
    for (bit, name) in named {
        if flags & bit != 0 {
            texts.push((*name).to_owned());
        }
        unknown &= !bit;
    }
    if unknown != 0 {
        texts.push(format!("unknown flag: {unknown:#x}"));
    }
    writeln!(out, "\t\t\t( {} )", texts.join(" |\n\t\t\t  "))
}

/// The bytes as characters, with dots for those that are not printable.
fn printable(bytes: &[u8]) -> String {
    let is_printable = |byte: &u8| byte.is_ascii_graphic() || *byte == b' ';
    bytes.iter().map(|byte| if is_printable(byte) { char::from(*byte) } else { '.' }).collect()
}
