//! Bodies of items, as `btrfs inspect-internal dump-tree` prints them.

use std::fmt;
use std::io;

use uuid::Uuid;
use zerocopy::FromBytes;

use super::Sink;
use super::names::{key as key_text, object};
use super::time::Time;
use crate::csum::ChecksumKind;
use crate::ondisk::chunk::{BlockGroupFlags, DiskChunk, DiskStripe, Profile};
use crate::ondisk::items::{
    BackRef, BalanceArgs, BalanceItem, Compression, CsumItem, DevExtent, DevStats, DirEntries,
    DirLogItem, DiskBlockGroupItem, DiskFileExtent, DiskFileExtentData, DiskRootItem,
    DiskRootItemTail, ExtentFlags, ExtentItem, FreeSpaceHeader, FreeSpaceInfo, InodeExtrefs,
    InodeFlags, InodeItem, InodeRefs, ItemError, QgroupInfoItem, QgroupLimitItem, QgroupStatusItem,
    RootFlags, RootRef, keyed_ref, raid_stripe, uuid_subvolumes,
};
use crate::ondisk::key::{Key, item, objectid};
use crate::ondisk::superblock::DevItem;

/// File system parameters that affect the text of items.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Checksum algorithm.
    pub(crate) csum: ChecksumKind,
    /// Bytes covered by one data checksum.
    pub(crate) sectorsize: u32,
}

/// Names and values are truncated to this many bytes.
const NAME_MAX: usize = 255;

/// Why a body cannot be printed.
enum Fault {
    /// The item is invalid.
    Item(ItemError),
    /// The sink failed.
    Io(io::Error),
}

impl From<ItemError> for Fault {
    fn from(error: ItemError) -> Self {
        Self::Item(error)
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

type PrintResult = Result<(), Fault>;

/// Prints an item's body. An invalid one is printed as far as it is valid, then what is wrong.
pub(super) fn body(out: Sink<'_>, key: Key, data: &[u8], sizes: Sizes) -> io::Result<()> {
    match tell(out, key, data, sizes) {
        Ok(()) => Ok(()),
        Err(Fault::Item(why)) => writeln!(out, "\t\tinvalid: {why}"),
        Err(Fault::Io(error)) => Err(error),
    }
}

/// What is wrong with an item, if anything is.
pub(crate) fn invalid(key: Key, data: &[u8], sizes: Sizes) -> Option<ItemError> {
    match tell(&mut io::sink(), key, data, sizes) {
        Err(Fault::Item(why)) => Some(why),
        // That sink takes everything.
        Ok(()) | Err(Fault::Io(_)) => None,
    }
}

fn tell(out: Sink<'_>, key: Key, data: &[u8], sizes: Sizes) -> PrintResult {
    match key.kind {
        0 if key.objectid == objectid::FREE_SPACE => free_space_header(out, data)?,
        item::INODE_ITEM => inode(out, InodeItem::parse(data)?)?,
        item::INODE_REF => inode_refs(out, data)?,
        item::INODE_EXTREF => inode_extrefs(out, data)?,
        item::DIR_ITEM | item::DIR_INDEX | item::XATTR_ITEM => dir_entries(out, data)?,
        item::DIR_LOG_ITEM | item::DIR_LOG_INDEX => {
            writeln!(out, "\t\tdir log end {}", DirLogItem::parse(data)?.end)?;
        }
        item::ORPHAN_ITEM => writeln!(out, "\t\torphan item")?,
        item::ROOT_ITEM => root(out, data)?,
        item::ROOT_REF => root_ref(out, "ref", data)?,
        item::ROOT_BACKREF => root_ref(out, "backref", data)?,
        item::EXTENT_ITEM | item::METADATA_ITEM => extent(out, key, data)?,
        item::TREE_BLOCK_REF => writeln!(out, "\t\ttree block backref")?,
        item::SHARED_BLOCK_REF => writeln!(out, "\t\tshared block backref")?,
        item::EXTENT_DATA_REF | item::SHARED_DATA_REF => keyed(out, key, data)?,
        item::EXTENT_CSUM => checksums(out, key, data, sizes)?,
        item::EXTENT_DATA => file_extent(out, data)?,
        item::BLOCK_GROUP_ITEM => block_group(out, data)?,
        item::FREE_SPACE_INFO => {
            let FreeSpaceInfo { extent_count, flags } = FreeSpaceInfo::parse(data)?;
            writeln!(out, "\t\tfree space info extent count {extent_count} flags {flags}")?;
        }
        item::FREE_SPACE_EXTENT => writeln!(out, "\t\tfree space extent")?,
        item::FREE_SPACE_BITMAP => writeln!(out, "\t\tfree space bitmap")?,
        item::CHUNK_ITEM => chunk(out, data)?,
        item::DEV_ITEM => device(out, data)?,
        item::DEV_EXTENT => device_extent(out, key, data)?,
        item::QGROUP_STATUS => qgroup_status(out, data)?,
        item::QGROUP_INFO => qgroup_info(out, QgroupInfoItem::parse(data)?)?,
        item::QGROUP_LIMIT => qgroup_limit(out, QgroupLimitItem::parse(data)?)?,
        item::UUID_SUBVOL | item::UUID_RECEIVED_SUBVOL => {
            for id in uuid_subvolumes(data)? {
                writeln!(out, "\t\tsubvol_id {id}")?;
            }
        }
        item::STRING_ITEM => named(out, "\t\titem data ", data)?,
        item::PERSISTENT_ITEM => persistent(out, key, data)?,
        item::TEMPORARY_ITEM => temporary(out, key, data)?,
        item::RAID_STRIPE => {
            for (index, stride) in raid_stripe(data)?.iter().enumerate() {
                let (devid, at) = (stride.devid(), stride.physical());
                writeln!(out, "\t\t\tstripe {index} devid {devid} physical {at}")?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// The start of the body as `T`, and the rest.
fn prefix<'a, T>(item: &'static str, data: &'a [u8]) -> Result<(&'a T, &'a [u8]), ItemError>
where
    T: FromBytes + zerocopy::Immutable + zerocopy::KnownLayout + zerocopy::Unaligned,
{
    let (found, wanted) = (data.len(), size_of::<T>());
    T::ref_from_prefix(data).map_err(|_| ItemError::Short { item, found, wanted })
}

/// A line with a name or value, up to the first zero byte.
fn named(out: Sink<'_>, before: &str, name: &[u8]) -> io::Result<()> {
    out.write_all(before.as_bytes())?;
    let name = &name[..name.len().min(NAME_MAX)];
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    out.write_all(&name[..end])?;
    out.write_all(b"\n")
}

/// Names of the flags that are set.
fn flags(set: impl Iterator<Item = (u64, &'static str)>, bits: u64) -> String {
    let names: Vec<&str> = set.filter(|(flag, _)| bits & flag != 0).map(|(_, name)| name).collect();
    if names.is_empty() { "none".to_owned() } else { names.join("|") }
}

fn free_space_header(out: Sink<'_>, data: &[u8]) -> PrintResult {
    let header = FreeSpaceHeader::parse(data)?;
    writeln!(out, "\t\tlocation {}", key_text(Key::from(&header.location)))?;
    let FreeSpaceHeader { generation, num_entries, num_bitmaps, .. } = header;
    writeln!(out, "\t\tcache generation {generation} entries {num_entries} bitmaps {num_bitmaps}")?;
    Ok(())
}

fn inode(out: Sink<'_>, it: &InodeItem) -> PrintResult {
    // The flag of root items, and fs-verity, have no names in the output of btrfs-progs 6.2.
    let unnamed = InodeFlags::ROOT_ITEM_INIT | InodeFlags::RO_VERITY;
    let named = (InodeFlags::all() - unnamed).iter_names().map(|(name, flag)| (flag.bits(), name));
    let InodeItem { generation, transid, size, nbytes, block_group, .. } = it;
    writeln!(out, "\t\tgeneration {generation} transid {transid} size {size} nbytes {nbytes}")?;
    let InodeItem { mode, nlink, uid, gid, rdev, sequence, .. } = it;
    let mode = mode.get();
    writeln!(
        out,
        "\t\tblock group {block_group} mode {mode:o} links {nlink} uid {uid} gid {gid} rdev {rdev}"
    )?;
    let bits = it.flags.get();
    writeln!(out, "\t\tsequence {sequence} flags 0x{bits:x}({})", flags(named, bits))?;
    writeln!(out, "\t\tatime {}", Time(&it.atime))?;
    writeln!(out, "\t\tctime {}", Time(&it.ctime))?;
    writeln!(out, "\t\tmtime {}", Time(&it.mtime))?;
    writeln!(out, "\t\totime {}", Time(&it.otime))?;
    Ok(())
}

fn inode_refs(out: Sink<'_>, data: &[u8]) -> PrintResult {
    for link in InodeRefs::new(data) {
        let link = link?;
        write!(out, "\t\tindex {} namelen {} ", link.index, link.name.len())?;
        named(out, "name: ", link.name)?;
    }
    Ok(())
}

fn inode_extrefs(out: Sink<'_>, data: &[u8]) -> PrintResult {
    for link in InodeExtrefs::new(data) {
        let link = link?;
        let (index, parent) = (link.index, link.parent);
        write!(out, "\t\tindex {index} parent {parent} namelen {} ", link.name.len())?;
        named(out, "name: ", link.name)?;
    }
    Ok(())
}

fn dir_entries(out: Sink<'_>, data: &[u8]) -> PrintResult {
    use crate::ondisk::items::FileType;
    for entry in DirEntries::new(data) {
        let entry = entry?;
        let kind = match entry.kind {
            FileType::Unknown => "DIR_ITEM.0",
            FileType::Regular
            | FileType::Directory
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Fifo
            | FileType::Socket
            | FileType::Symlink
            | FileType::Xattr => entry.kind.name(),
        };
        writeln!(out, "\t\tlocation {} type {kind}", key_text(entry.location))?;
        let (transid, data_len) = (entry.transid, entry.data.len());
        let name_len = entry.name.len();
        writeln!(out, "\t\ttransid {transid} data_len {data_len} name_len {name_len}")?;
        named(out, "\t\tname: ", entry.name)?;
        if !entry.data.is_empty() {
            named(out, "\t\tdata ", entry.data)?;
        }
    }
    Ok(())
}

fn root(out: Sink<'_>, data: &[u8]) -> PrintResult {
    let (it, rest) = prefix::<DiskRootItem>("root item", data)?;
    let tail = DiskRootItemTail::ref_from_prefix(rest).ok().map(|(tail, _)| tail);
    let DiskRootItem { generation, root_dirid, bytenr, byte_limit, bytes_used, .. } = it;
    writeln!(
        out,
        "\t\tgeneration {generation} root_dirid {root_dirid} bytenr {bytenr} byte_limit {byte_limit} bytes_used {bytes_used}"
    )?;
    let bits = it.flags.get();
    let read_only = bits & RootFlags::RDONLY.bits() != 0;
    let named = if read_only { "RDONLY" } else { "none" };
    let (snapshot, refs) = (it.last_snapshot, it.refs);
    writeln!(out, "\t\tlast_snapshot {snapshot} flags 0x{bits:x}({named}) refs {refs}")?;
    let drop_progress = key_text(Key::from(&it.drop_progress));
    writeln!(out, "\t\tdrop_progress {drop_progress} drop_level {}", it.drop_level)?;
    let generation_v2 = tail.map_or(0, |tail| tail.generation_v2.get());
    writeln!(out, "\t\tlevel {} generation_v2 {generation_v2}", it.level)?;
    let Some(tail) = tail.filter(|_| generation_v2 == generation.get()) else { return Ok(()) };
    writeln!(out, "\t\tuuid {}", Uuid::from_bytes(tail.uuid))?;
    writeln!(out, "\t\tparent_uuid {}", Uuid::from_bytes(tail.parent_uuid))?;
    writeln!(out, "\t\treceived_uuid {}", Uuid::from_bytes(tail.received_uuid))?;
    let DiskRootItemTail { ctransid, otransid, stransid, rtransid, .. } = tail;
    writeln!(
        out,
        "\t\tctransid {ctransid} otransid {otransid} stransid {stransid} rtransid {rtransid}"
    )?;
    writeln!(out, "\t\tctime {}", Time(&tail.ctime))?;
    writeln!(out, "\t\totime {}", Time(&tail.otime))?;
    writeln!(out, "\t\tstime {}", Time(&tail.stime))?;
    writeln!(out, "\t\trtime {}", Time(&tail.rtime))?;
    Ok(())
}

fn root_ref(out: Sink<'_>, which: &str, data: &[u8]) -> PrintResult {
    let it = RootRef::parse(data)?;
    let (dirid, sequence) = (it.dirid, it.sequence);
    write!(out, "\t\troot {which} key dirid {dirid} sequence {sequence} ")?;
    named(out, "name ", it.name)?;
    Ok(())
}

fn extent(out: Sink<'_>, key: Key, data: &[u8]) -> PrintResult {
    let it = ExtentItem::parse(key, data)?;
    let bits = it.flags;
    let mut named = if it.is_data() { "DATA" } else { "TREE_BLOCK" }.to_owned();
    if bits.contains(ExtentFlags::FULL_BACKREF) {
        named.push_str("|FULL_BACKREF");
    }
    writeln!(out, "\t\trefs {} gen {} flags {named}", it.refs, it.generation)?;
    match (it.level, it.first_key) {
        (Some(level), Some(first)) => {
            writeln!(out, "\t\ttree block {} level {level}", key_text(first))?;
        }
        (Some(level), None) => writeln!(out, "\t\ttree block skinny level {level}")?,
        (None, _) => {}
    }
    for back_ref in it.inline {
        match back_ref? {
            BackRef::TreeBlock { root } => {
                writeln!(out, "\t\ttree block backref root {}", object(root, 0))?;
            }
            BackRef::SharedBlock { parent } => {
                writeln!(out, "\t\tshared block backref parent {parent}")?;
            }
            BackRef::ExtentData { root, objectid, offset, count } => {
                extent_data_ref(out, root, objectid, offset, count)?;
            }
            BackRef::SharedData { parent, count } => {
                writeln!(out, "\t\tshared data backref parent {parent} count {count}")?;
            }
            BackRef::Owner { root } => writeln!(out, "\t\textent owner root {root}")?,
        }
    }
    Ok(())
}

fn extent_data_ref(
    out: Sink<'_>,
    root: u64,
    inode: u64,
    offset: u64,
    count: u32,
) -> io::Result<()> {
    let root = object(root, 0);
    writeln!(
        out,
        "\t\textent data backref root {root} objectid {inode} offset {offset} count {count}"
    )
}

fn keyed(out: Sink<'_>, key: Key, data: &[u8]) -> PrintResult {
    match keyed_ref(key, data).transpose()? {
        Some(BackRef::ExtentData { root, objectid, offset, count }) => {
            extent_data_ref(out, root, objectid, offset, count)?;
        }
        Some(BackRef::SharedData { count, .. }) => {
            writeln!(out, "\t\tshared data backref count {count}")?;
        }
        Some(BackRef::TreeBlock { .. } | BackRef::SharedBlock { .. } | BackRef::Owner { .. })
        | None => {}
    }
    Ok(())
}

fn checksums(out: Sink<'_>, key: Key, data: &[u8], sizes: Sizes) -> PrintResult {
    let it = CsumItem::parse(key, data, sizes.csum, sizes.sectorsize)?;
    let (start, end) = (it.start(), it.end());
    writeln!(out, "\t\trange start {start} end {end} length {}", end.0 - start.0)?;
    Ok(())
}

fn file_extent(out: Sink<'_>, data: &[u8]) -> PrintResult {
    const ITEM: &str = "file extent item";
    let (it, rest) = prefix::<DiskFileExtent>(ITEM, data)?;
    let compression = it.compression;
    let algorithm = match Compression::from_number(compression) {
        Some(known) => known.name().to_owned(),
        None => format!("UNKNOWN.{compression}"),
    };
    let (kind, name) = match it.kind {
        0 => (0, "inline"),
        1 => (1, "regular"),
        2 => (2, "prealloc"),
        other => (other, "unknown"),
    };
    writeln!(out, "\t\tgeneration {} type {kind} ({name})", it.generation)?;
    let ram = it.ram_bytes;
    if kind == 0 {
        writeln!(
            out,
            "\t\tinline extent data size {} ram_bytes {ram} compression {compression} ({algorithm})",
            rest.len()
        )?;
        return Ok(());
    }
    let (data, _) = prefix::<DiskFileExtentData>(ITEM, rest)?;
    let DiskFileExtentData { disk_bytenr, disk_num_bytes, offset, num_bytes } = data;
    if kind == 2 {
        writeln!(out, "\t\tprealloc data disk byte {disk_bytenr} nr {disk_num_bytes}")?;
        writeln!(out, "\t\tprealloc data offset {offset} nr {num_bytes}")?;
        return Ok(());
    }
    writeln!(out, "\t\textent data disk byte {disk_bytenr} nr {disk_num_bytes}")?;
    writeln!(out, "\t\textent data offset {offset} nr {num_bytes} ram {ram}")?;
    writeln!(out, "\t\textent compression {compression} ({algorithm})")?;
    Ok(())
}

/// Content and profile of a block group.
pub(super) fn group_flags(flags: BlockGroupFlags) -> impl fmt::Display {
    fmt::from_fn(move |f| {
        let kinds = [
            (BlockGroupFlags::DATA, "DATA"),
            (BlockGroupFlags::METADATA, "METADATA"),
            (BlockGroupFlags::SYSTEM, "SYSTEM"),
        ];
        for (index, (_, name)) in
            kinds.into_iter().filter(|(kind, _)| flags.contains(*kind)).enumerate()
        {
            write!(f, "{}{name}", if index == 0 { "" } else { "|" })?;
        }
        match Profile::of(flags) {
            Some(profile) => write!(f, "|{profile}"),
            None => {
                let kinds =
                    BlockGroupFlags::DATA | BlockGroupFlags::METADATA | BlockGroupFlags::SYSTEM;
                write!(f, "|UNKNOWN.0x{:x}", (flags - kinds).bits())
            }
        }
    })
}

fn block_group(out: Sink<'_>, data: &[u8]) -> PrintResult {
    let (it, _) = prefix::<DiskBlockGroupItem>("block group item", data)?;
    let (used, chunk) = (it.used, it.chunk_objectid);
    let flags = group_flags(BlockGroupFlags::from_bits_retain(it.flags.get()));
    writeln!(out, "\t\tblock group used {used} chunk_objectid {chunk} flags {flags}")?;
    Ok(())
}

/// Prints a chunk, valid or not.
pub(super) fn chunk(out: Sink<'_>, data: &[u8]) -> io::Result<()> {
    let Ok((it, stripes)) = DiskChunk::ref_from_prefix(data) else {
        return writeln!(out, "\t\tinvalid: the chunk item is cut off");
    };
    let count = usize::from(it.num_stripes.get());
    let Ok((stripes, _)) = <[DiskStripe]>::ref_from_prefix_with_elems(stripes, count) else {
        return writeln!(out, "\t\tinvalid: the chunk item is cut off");
    };
    let DiskChunk { length, owner, stripe_len, io_align, io_width, sector_size, .. } = it;
    let kind = group_flags(BlockGroupFlags::from_bits_retain(it.kind.get()));
    writeln!(out, "\t\tlength {length} owner {owner} stripe_len {stripe_len} type {kind}")?;
    writeln!(out, "\t\tio_align {io_align} io_width {io_width} sector_size {sector_size}")?;
    writeln!(out, "\t\tnum_stripes {count} sub_stripes {}", it.sub_stripes)?;
    for (index, stripe) in stripes.iter().enumerate() {
        writeln!(out, "\t\t\tstripe {index} devid {} offset {}", stripe.devid, stripe.offset)?;
        writeln!(out, "\t\t\tdev_uuid {}", Uuid::from_bytes(stripe.dev_uuid))?;
    }
    Ok(())
}

fn device(out: Sink<'_>, data: &[u8]) -> PrintResult {
    let (it, _) = prefix::<DevItem>("device item", data)?;
    let DevItem { devid, total_bytes, bytes_used, io_align, io_width, sector_size, .. } = it;
    writeln!(out, "\t\tdevid {devid} total_bytes {total_bytes} bytes_used {bytes_used}")?;
    let DevItem { kind, generation, start_offset, dev_group, seek_speed, bandwidth, .. } = it;
    writeln!(
        out,
        "\t\tio_align {io_align} io_width {io_width} sector_size {sector_size} type {kind}"
    )?;
    writeln!(out, "\t\tgeneration {generation} start_offset {start_offset} dev_group {dev_group}")?;
    writeln!(out, "\t\tseek_speed {seek_speed} bandwidth {bandwidth}")?;
    writeln!(out, "\t\tuuid {}", Uuid::from_bytes(it.uuid))?;
    writeln!(out, "\t\tfsid {}", Uuid::from_bytes(it.fsid))?;
    Ok(())
}

fn device_extent(out: Sink<'_>, key: Key, data: &[u8]) -> PrintResult {
    let it = DevExtent::parse(key, data)?;
    let DevExtent { chunk_tree, chunk_objectid, chunk_offset, length, .. } = it;
    writeln!(out, "\t\tdev extent chunk_tree {chunk_tree}")?;
    writeln!(
        out,
        "\t\tchunk_objectid {chunk_objectid} chunk_offset {chunk_offset} length {length}"
    )?;
    writeln!(out, "\t\tchunk_tree_uuid {}", it.chunk_tree_uuid())?;
    Ok(())
}

fn qgroup_status(out: Sink<'_>, data: &[u8]) -> PrintResult {
    let (it, _) = prefix::<QgroupStatusItem>("qgroup status item", data)?;
    // BTRFS_QGROUP_STATUS_FLAG_ON, _RESCAN, _INCONSISTENT
    let bits = it.flags.get();
    let mut named = if bits & 1 != 0 { "ON" } else { "OFF" }.to_owned();
    named.push_str(if bits & 2 != 0 { "|SCANNING" } else { "" });
    named.push_str(if bits & 4 != 0 { "|INCONSISTENT" } else { "" });
    let QgroupStatusItem { version, generation, rescan, .. } = it;
    writeln!(out, "\t\tversion {version} generation {generation} flags {named} scan {rescan}")?;
    Ok(())
}

fn qgroup_info(out: Sink<'_>, it: &QgroupInfoItem) -> PrintResult {
    let QgroupInfoItem { generation, rfer, rfer_cmpr, excl, excl_cmpr } = it;
    writeln!(out, "\t\tgeneration {generation}")?;
    writeln!(out, "\t\treferenced {rfer} referenced_compressed {rfer_cmpr}")?;
    writeln!(out, "\t\texclusive {excl} exclusive_compressed {excl_cmpr}")?;
    Ok(())
}

fn qgroup_limit(out: Sink<'_>, it: &QgroupLimitItem) -> PrintResult {
    let signed = |value: u64| value as i64;
    let (max_rfer, max_excl) = (signed(it.max_rfer.get()), signed(it.max_excl.get()));
    let (rsv_rfer, rsv_excl) = (signed(it.rsv_rfer.get()), signed(it.rsv_excl.get()));
    writeln!(out, "\t\tflags {:x}", it.flags.get())?;
    writeln!(out, "\t\tmax_referenced {max_rfer} max_exclusive {max_excl}")?;
    writeln!(out, "\t\trsv_referenced {rsv_rfer} rsv_exclusive {rsv_excl}")?;
    Ok(())
}

fn persistent(out: Sink<'_>, key: Key, data: &[u8]) -> PrintResult {
    let (id, offset) = (key.objectid, key.offset);
    let name = object(id, item::PERSISTENT_ITEM);
    writeln!(out, "\t\tpersistent item objectid {name} offset {offset}")?;
    if id != objectid::DEV_STATS {
        writeln!(out, "\t\tunknown persistent item objectid {id}")?;
        return Ok(());
    }
    let it = DevStats::parse(data)?;
    writeln!(out, "\t\tdevice stats")?;
    let DevStats { write_errs, read_errs, flush_errs, corruption_errs, generation_errs } = it;
    writeln!(
        out,
        "\t\twrite_errs {write_errs} read_errs {read_errs} flush_errs {flush_errs} corruption_errs {corruption_errs} generation {generation_errs}"
    )?;
    Ok(())
}

fn temporary(out: Sink<'_>, key: Key, data: &[u8]) -> PrintResult {
    let (id, offset) = (key.objectid, key.offset);
    let name = object(id, item::TEMPORARY_ITEM);
    writeln!(out, "\t\ttemporary item objectid {name} offset {offset}")?;
    if id != objectid::BALANCE {
        writeln!(out, "\t\tunknown temporary item objectid {id}")?;
        return Ok(());
    }
    let it = BalanceItem::parse(data)?;
    writeln!(out, "\t\tbalance status flags {}", it.flags)?;
    for (name, args) in [("DATA", &it.data), ("METADATA", &it.meta), ("SYSTEM", &it.sys)] {
        writeln!(out, "\t\t{name}")?;
        balance_args(out, args)?;
    }
    Ok(())
}

fn balance_args(out: Sink<'_>, it: &BalanceArgs) -> PrintResult {
    let BalanceArgs { profiles, devid, target, flags, pstart, pend, vstart, vend, .. } = it;
    // Both are ranges of two 32-bit numbers, unless only the upper end was given.
    let range = |both: u64| (both as u32, (both >> 32) as u32);
    let (usage_min, usage_max) = range(it.usage.get());
    let (limit_min, limit_max) = range(it.limit.get());
    writeln!(out, "\t\tprofiles {profiles} devid {devid} target {target} flags {flags}")?;
    writeln!(out, "\t\tusage_min {usage_min} usage_max {usage_max} pstart {pstart} pend {pend}")?;
    writeln!(out, "\t\tvstart {vstart} vend {vend} limit_min {limit_min} limit_max {limit_max}")?;
    writeln!(out, "\t\tstripes_min {} stripes_max {}", it.stripes_min, it.stripes_max)?;
    Ok(())
}
