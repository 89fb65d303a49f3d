//! `btrfs filesystem usage`.
//!
//! For two of its lines btrfs-progs asks the kernel of a mounted file system: what `df` shows as
//! free, and the metadata reserve. Here they are what Linux 6.18 would report after a mount
//! (`btrfs_statfs` and `btrfs_update_global_block_rsv`).

use std::sync::Arc;

use super::size::SizeForm;
use super::space::{Allocation, Space, allocations, spaces, tree_bytes};
use super::{InspectError, Sink};
use crate::error::TreeError;
use crate::ondisk::chunk::{BlockGroupFlags, Profile, STRIPE_LEN};
use crate::ondisk::key::{Key, item, objectid};
use crate::ondisk::node::MAX_LEVEL;
use crate::ondisk::superblock::{CompatRo, DevItem, Incompat};
use crate::path::Path;
use crate::units::DevId;
use crate::volume::FileSystem;
use zerocopy::FromBytes;

/// Unallocated space that is too small for a chunk.
const LEAST_UNALLOCATED: u64 = 16 << 20;
/// Space that chunks leave free at the start of a device (`BTRFS_DEVICE_RANGE_RESERVED`).
const RESERVED_OF_DEVICE: u64 = 1 << 20;
/// Maximum metadata reserve.
const RESERVE_MAX: u64 = 512 << 20;
/// Trees that removing a name may change (`BTRFS_UNLINK_METADATA_UNITS`).
const UNLINK_UNITS: u64 = 6;

/// A device according to the chunk tree.
pub(super) struct Member {
    pub(super) devid: DevId,
    pub(super) name: String,
    /// Bytes of the device available to the file system.
    pub(super) size: u64,
    /// Bytes of the device beyond `size`; `None` if the device is missing.
    pub(super) slack: Option<u64>,
}

/// Prints how much of the devices is allocated and used.
///
/// # Errors
/// A required tree cannot be read, or the sink failed.
pub async fn usage(
    fs: &Arc<FileSystem>,
    form: SizeForm,
    out: Sink<'_>,
) -> Result<(), InspectError> {
    let (members, spaces, parts) = (members(fs).await?, spaces(fs).await?, allocations(fs));
    let reserve = reserve(fs).await?;
    overall(fs, form, out, &members, &spaces, &parts, reserve)?;
    for space in &spaces {
        let Space { flags, total, used } = *space;
        // btrfs-progs computes it in single precision.
        let percent = 100.0_f32 * used as f32 / total.saturating_add(1) as f32;
        let profile = Profile::of(flags).map_or("unknown", Profile::name);
        let kind = kind_name(flags);
        let [total, used] = [total, used].map(|bytes| form.text(bytes));
        writeln!(out, "{kind},{profile}: Size:{total}, Used:{used} ({percent:.2}%)")?;
        for member in &members {
            let has: u64 = on_device(&parts, member.devid)
                .filter(|part| part.flags == flags)
                .map(|part| part.physical)
                .sum();
            if has > 0 {
                writeln!(out, "   {}\t{:>10}", member.name, form.text(has))?;
            }
        }
        writeln!(out)?;
    }
    if !parts.is_empty() {
        writeln!(out, "Unallocated:")?;
        for member in &members {
            let left = form.signed(unallocated(member, &parts));
            writeln!(out, "   {}\t{left:>10}", member.name)?;
        }
    }
    Ok(())
}

pub(super) fn on_device(parts: &[Allocation], devid: DevId) -> impl Iterator<Item = &Allocation> {
    parts.iter().filter(move |part| part.devid == devid)
}

/// Bytes of a device that belong to no chunk; negative if the device was shrunk too far.
pub(super) fn unallocated(member: &Member, parts: &[Allocation]) -> i64 {
    let allocated: u64 = on_device(parts, member.devid).map(|part| part.physical).sum();
    (member.size as i64).wrapping_sub(allocated as i64)
}

pub(super) fn kind_name(flags: BlockGroupFlags) -> &'static str {
    let mixed = BlockGroupFlags::DATA | BlockGroupFlags::METADATA;
    if flags.contains(mixed) {
        "Data+Metadata"
    } else if flags.contains(BlockGroupFlags::DATA) {
        "Data"
    } else if flags.contains(BlockGroupFlags::METADATA) {
        "Metadata"
    } else if flags.contains(BlockGroupFlags::SYSTEM) {
        "System"
    } else {
        "unknown"
    }
}

pub(super) async fn members(fs: &Arc<FileSystem>) -> Result<Vec<Member>, TreeError> {
    let tree = fs.chunk_root();
    let mut path = Path::new(fs, tree);
    let mut all = Vec::new();
    let mut more = path.search(Key::new(objectid::DEV_ITEMS, item::DEV_ITEM, 0)).await?;
    while more {
        let Some((key, data)) = path.item() else { break };
        if (key.objectid, key.kind) != (objectid::DEV_ITEMS, item::DEV_ITEM) {
            break;
        }
        let Ok((disk, _)) = DevItem::ref_from_prefix(data) else {
            let why = "it is cut off".to_owned();
            return Err(TreeError::Item { tree: tree.id, key, why });
        };
        let (devid, size) = (DevId(key.offset), disk.total_bytes.get());
        let device = fs.device(devid);
        let name = device.map_or("missing", |device| device.name.as_str()).to_owned();
        let slack = device.map(|device| device.gateway.capacity().bytes().saturating_sub(size));
        all.push(Member { devid, name, size, slack });
        more = path.next().await?;
    }
    Ok(all)
}

/// Sums for one kind: allocated and used bytes on devices, and allocated bytes of the file system's space.
#[derive(Clone, Copy, Default)]
struct Sums {
    raw: u64,
    raw_used: u64,
    logical: u64,
}

impl Sums {
    /// Sums over all spaces of `kind`.
    fn of(kind: BlockGroupFlags, spaces: &[Space], parts: &[Allocation]) -> Self {
        let mut sums = Self::default();
        for part in parts.iter().filter(|part| part.flags.contains(kind)) {
            let Some(ratio) = parity_ratio(part, spaces) else { continue };
            sums.raw = sums.raw.saturating_add(part.physical);
            sums.raw_used = (sums.raw_used as f64 + part.physical as f64 * ratio) as u64;
        }
        for space in spaces.iter().filter(|space| space.flags.contains(kind)) {
            let copies = copies(space.flags);
            sums.raw = sums.raw.saturating_add(space.total.saturating_mul(copies));
            sums.raw_used = sums.raw_used.saturating_add(space.used.saturating_mul(copies));
            sums.logical = sums.logical.saturating_add(space.total);
        }
        sums
    }

    /// Bytes on devices per allocated byte.
    fn ratio(self) -> f64 {
        self.raw as f64 / self.logical as f64
    }
}

/// Number of copies of each byte; 0 with parity, where it depends on the number of stripes.
fn copies(flags: BlockGroupFlags) -> u64 {
    match Profile::of(flags) {
        Some(profile) if profile.parities() > 0 => 0,
        Some(profile) => profile.copies() as u64,
        None => 1,
    }
}

/// Used fraction of the spaces like `part`, if it has parity; otherwise `None`.
fn parity_ratio(part: &Allocation, spaces: &[Space]) -> Option<f64> {
    Profile::of(part.flags).filter(|profile| profile.parities() > 0)?;
    let alike = spaces.iter().filter(|space| space.flags == part.flags);
    let (used, total) = alike.fold((0u64, 0u64), |(used, total), space| {
        (used.saturating_add(space.used), total.saturating_add(space.total))
    });
    Some(if total == 0 { 0.0 } else { used as f64 / total as f64 })
}

fn overall(
    fs: &FileSystem,
    form: SizeForm,
    out: Sink<'_>,
    members: &[Member],
    spaces: &[Space],
    parts: &[Allocation],
    reserve: u64,
) -> Result<(), InspectError> {
    let total: u64 = members.iter().fold(0, |sum, member| sum.saturating_add(member.size));
    let missing = members.iter().filter(|member| member.slack.is_none());
    let missing = missing.fold(0u64, |sum, member| sum.saturating_add(member.size));
    let slack = members.iter().filter_map(|member| member.slack);
    let slack = slack.fold(0u64, |sum, slack| sum.saturating_add(slack));
    let data = Sums::of(BlockGroupFlags::DATA, spaces, parts);
    let metadata = Sums::of(BlockGroupFlags::METADATA, spaces, parts);
    let system = Sums::of(BlockGroupFlags::SYSTEM, spaces, parts);
    let mixed = is_mixed(spaces);
    let mut allocated = data.raw.saturating_add(system.raw);
    let mut used = data.raw_used.saturating_add(system.raw_used);
    if !mixed {
        allocated = allocated.saturating_add(metadata.raw);
        used = used.saturating_add(metadata.raw_used);
    }
    let unallocated = (total as i64).wrapping_sub(allocated as i64);
    let data_ratio = data.ratio();
    let metadata_ratio = if mixed { data_ratio } else { metadata.ratio() };
    let mut free = (data.raw.saturating_sub(data.raw_used) as f64 / data_ratio) as u64;
    if mixed {
        free = free.saturating_sub(reserve);
    }
    let mut free_least = free;
    if unallocated >= LEAST_UNALLOCATED as i64 {
        free = (free as f64 + unallocated as f64 / data_ratio) as u64;
        let ratio = greatest_ratio(spaces, parts);
        free_least = (free_least as f64 + unallocated as f64 / ratio) as u64;
    }
    let shown = form.text(shown_as_free(fs, members, spaces, parts));
    let least = form.text(free_least);
    let [total, allocated, missing, slack, used, free, reserve] =
        [total, allocated, missing, slack, used, free, reserve].map(|bytes| form.text(bytes));
    let (unallocated, width) = (form.signed(unallocated), form.width());
    writeln!(out, "Overall:")?;
    writeln!(out, "    Device size:\t\t{total:>width$}")?;
    writeln!(out, "    Device allocated:\t\t{allocated:>width$}")?;
    writeln!(out, "    Device unallocated:\t\t{unallocated:>width$}")?;
    writeln!(out, "    Device missing:\t\t{missing:>width$}")?;
    writeln!(out, "    Device slack:\t\t{slack:>width$}")?;
    writeln!(out, "    Used:\t\t\t{used:>width$}")?;
    writeln!(out, "    Free (estimated):\t\t{free:>width$}\t(min: {least})")?;
    writeln!(out, "    Free (statfs, df):\t\t{shown:>width$}")?;
    writeln!(out, "    Data ratio:\t\t\t{data_ratio:>width$.2}")?;
    writeln!(out, "    Metadata ratio:\t\t{metadata_ratio:>width$.2}")?;
    let unused = form.text(0);
    writeln!(out, "    Global reserve:\t\t{reserve:>width$}\t(used: {unused})")?;
    let several = several_profiles(spaces);
    if several.is_empty() {
        writeln!(out, "    Multiple profiles:\t\t{:>width$}", "no")?;
    } else {
        writeln!(out, "    Multiple profiles:\t\t{:>width$}\t({several})", "yes")?;
    }
    writeln!(out)?;
    Ok(())
}

fn is_mixed(spaces: &[Space]) -> bool {
    let mixed = BlockGroupFlags::DATA | BlockGroupFlags::METADATA;
    spaces.iter().any(|space| space.flags.contains(mixed))
}

/// Bytes on devices per byte of the most redundant profile; at least 1.
fn greatest_ratio(spaces: &[Space], parts: &[Allocation]) -> f64 {
    let copied = spaces.iter().map(|space| copies(space.flags) as f64);
    let parity = parts.iter().filter_map(|part| {
        let parities = Profile::of(part.flags)?.parities();
        (parities > 0).then(|| part.stripes as f64 / (part.stripes - parities) as f64)
    });
    copied.chain(parity).fold(1.0, f64::max)
}

/// Names of the kinds with more than one profile.
fn several_profiles(spaces: &[Space]) -> String {
    let names = ["Data", "Metadata", "Data+Metadata", "System"];
    let several = names
        .into_iter()
        .filter(|name| spaces.iter().filter(|space| kind_name(space.flags) == *name).count() > 1);
    several.map(str::to_ascii_lowercase).collect::<Vec<_>>().join(", ")
}

/// The profile of new data chunks: the first existing one in this list for which there are enough devices.
fn profile_of_new(spaces: &[Space], devices: usize) -> Profile {
    const ORDER: [(Profile, usize); 8] = [
        (Profile::Raid1c4, 4),
        (Profile::Raid6, 3),
        (Profile::Raid1c3, 3),
        (Profile::Raid5, 2),
        (Profile::Raid10, 2),
        (Profile::Raid1, 2),
        (Profile::Dup, 1),
        (Profile::Raid0, 1),
    ];
    let is_there = |wanted: Profile| {
        let data = spaces.iter().filter(|space| space.flags.contains(BlockGroupFlags::DATA));
        data.filter_map(|space| Profile::of(space.flags)).any(|profile| profile == wanted)
    };
    let found = ORDER.into_iter().find(|(it, least)| devices >= *least && is_there(*it));
    found.map_or(Profile::Single, |(profile, _)| profile)
}

/// What `df` shows as free (`btrfs_statfs`).
fn shown_as_free(
    fs: &FileSystem,
    members: &[Member],
    spaces: &[Space],
    parts: &[Allocation],
) -> u64 {
    let profile = profile_of_new(spaces, members.len());
    // If there are redundant groups, the kernel only reads the others.
    let only_redundant = !matches!(profile, Profile::Single | Profile::Raid0);
    let (mut free, mut factor) = (0u64, 1);
    // The last existing profile in this list sets the factor.
    const ORDER: [Profile; 9] = [
        Profile::Single,
        Profile::Raid0,
        Profile::Raid1,
        Profile::Dup,
        Profile::Raid10,
        Profile::Raid5,
        Profile::Raid6,
        Profile::Raid1c3,
        Profile::Raid1c4,
    ];
    for it in ORDER {
        let data = spaces.iter().filter(|space| space.flags.contains(BlockGroupFlags::DATA));
        for space in data.filter(|space| Profile::of(space.flags) == Some(it)) {
            factor = it.copies() as u64;
            let is_read_only = only_redundant && matches!(it, Profile::Single | Profile::Raid0);
            if !is_read_only {
                let bytes = space.total.saturating_sub(space.used).saturating_mul(factor);
                free = free.saturating_add(bytes);
            }
        }
    }
    let new = room_for_new(profile, members, parts);
    let sector = u64::from(fs.sectorsize()).max(1);
    (free / factor).saturating_add(new / factor) / sector * sector
}

/// Bytes on devices available to new data chunks (`btrfs_calc_avail_data_space`).
fn room_for_new(profile: Profile, members: &[Member], parts: &[Allocation]) -> u64 {
    let mut room: Vec<u64> = members
        .iter()
        .map(|member| u64::try_from(unallocated(member, parts)).unwrap_or(0))
        .map(|bytes| bytes / STRIPE_LEN * STRIPE_LEN)
        .filter(|bytes| *bytes > RESERVED_OF_DEVICE)
        .map(|bytes| bytes - RESERVED_OF_DEVICE)
        .collect();
    room.sort_unstable_by(|a, b| b.cmp(a));
    let (mut stripes, least_devices, on_device) = match profile {
        Profile::Single => (1, 1, 1),
        Profile::Dup => (1, 1, 2),
        Profile::Raid0 => (room.len(), 1, 1),
        Profile::Raid1 => (2, 2, 1),
        Profile::Raid1c3 => (3, 3, 1),
        Profile::Raid1c4 => (4, 4, 1),
        Profile::Raid10 => (4, 2, 1),
        Profile::Raid5 => (1, 2, 1),
        Profile::Raid6 => (1, 3, 1),
    };
    let least_bytes = STRIPE_LEN * on_device;
    let mut all = 0u64;
    // Allocate from the device with the least room and the ones before it.
    while room.len() >= least_devices {
        stripes = stripes.min(room.len());
        let Some(bytes) = room.last().copied() else { break };
        if bytes >= least_bytes {
            all = all.saturating_add(bytes.saturating_mul(stripes as u64));
            let from = room.len() - stripes;
            for left in &mut room[from..] {
                *left -= bytes;
            }
        }
        room.pop();
    }
    all
}

/// The metadata reserve (`btrfs_update_global_block_rsv`).
pub(super) async fn reserve(fs: &Arc<FileSystem>) -> Result<u64, TreeError> {
    let features = fs.superblock().compat_ro();
    let free_space_tree = features.contains(CompatRo::FREE_SPACE_TREE);
    let mut trees = vec![objectid::EXTENT_TREE, objectid::CSUM_TREE];
    if free_space_tree {
        trees.push(objectid::FREE_SPACE_TREE);
    }
    if features.contains(CompatRo::BLOCK_GROUP_TREE) {
        trees.push(objectid::BLOCK_GROUP_TREE);
    }
    if fs.superblock().incompat().contains(Incompat::RAID_STRIPE_TREE) {
        trees.push(objectid::RAID_STRIPE_TREE);
    }
    let mut bytes = 0u64;
    for tree in &trees {
        bytes = bytes.saturating_add(tree_bytes(fs, *tree).await?);
    }
    // Plus the tree of roots. References are delayed, and then change the free space tree as well.
    let units = trees.len() as u64 + 1 + UNLINK_UNITS;
    let references = UNLINK_UNITS * if free_space_tree { 2 } else { 1 };
    // An insertion may split a block on each level.
    let unit = u64::from(fs.nodesize()) * u64::from(MAX_LEVEL) * 2;
    Ok(bytes.max((units + references) * unit).min(RESERVE_MAX))
}
