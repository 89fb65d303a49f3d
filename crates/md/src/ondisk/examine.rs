//! The text of `mdadm --examine`, as mdadm 4.2 prints it (without the line naming the device).
//!
//! Works on blocks, not on a validated [`Superblock`], because users mostly examine damaged
//! superblocks. Times are in UTC.

use core::fmt;

use ashlar_block::text::one_line;
use ashlar_block::units::Sectors;
use uuid::Uuid;

use super::bitmap_super::{self, BitmapSuper};
use super::fields::{DeviceFlags, Features, Level, MdadmUuid, Role, Timestamp};
use super::homehost;
use super::ppl::PplPlace;
use super::superblock::Superblock;
use super::superblock_0_90::{Block090, Descriptor, disk, state};
use super::superblock_1::Block1;
use super::text::{self, CTime};
use super::validate::slots;

/// The most slots printed, so that a damaged device count does not print forever.
const MAX_SLOTS: u32 = 4096;

/// `mdadm --examine` of a checked superblock. `bitmap` is the bitmap superblock that it points to, if
/// any and readable; `homehost` is the name of this host, whose arrays are marked as local.
pub fn examine(
    superblock: &Superblock,
    bitmap: Option<&BitmapSuper>,
    homehost: Option<&str>,
) -> String {
    match (superblock.block_1(), superblock.block_0_90()) {
        (Some(block), _) => {
            let device = superblock.device_size();
            Examine1 { block, bitmap, device, homehost }.to_string()
        }
        (None, Some(block)) => {
            Examine090 { block, device_name: &|_, _| None, homehost }.to_string()
        }
        (None, None) => String::new(),
    }
}

/// `mdadm --examine` of a version 1 superblock.
pub struct Examine1<'a> {
    /// The superblock.
    pub block: &'a Block1,
    /// The bitmap superblock it points to.
    pub bitmap: Option<&'a BitmapSuper>,
    /// Size of the device it is on.
    pub device: Sectors,
    /// Name of this host, to mark its own arrays.
    pub homehost: Option<&'a str>,
}

impl fmt::Display for Examine1<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // If the bitmap is missing or another array's, mdadm removes it from the superblock before
        // printing, which makes the checksum look wrong.
        let header = &self.block.header;
        let ours =
            |sb: &&BitmapSuper| sb.magic.get() == bitmap_super::MAGIC && sb.uuid == header.set_uuid;
        let features = Features::from_bits_retain(header.feature_map.get());
        if features.contains(Features::BITMAP_OFFSET) && self.bitmap.filter(ours).is_none() {
            let mut block = self.block.clone();
            block.header.feature_map = features.difference(Features::BITMAP_OFFSET).bits().into();
            return Examine1 { block: &block, bitmap: None, ..*self }.print(f);
        }
        self.print(f)
    }
}

impl Examine1<'_> {
    fn print(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.print_array(f)?;
        self.print_sizes(f)?;
        self.print_member(f)?;
        self.print_reshape(f)?;
        self.print_state(f)?;
        self.print_layout(f)?;
        self.print_roles(f)
    }

    fn features(&self) -> Features {
        Features::from_bits_retain(self.block.header.feature_map.get())
    }

    fn level(&self) -> Level {
        Level::from_raw(self.block.header.level.get() as i32)
    }

    fn print_array(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let header = &self.block.header;
        writeln!(f, "          Magic : {:08x}", header.magic.get())?;
        let minor = match header.super_offset.get() {
            0..=4 => 1,
            5..=8 => 2,
            _ => 0,
        };
        writeln!(f, "        Version : 1.{minor}")?;
        writeln!(f, "    Feature Map : {}", self.features())?;
        writeln!(f, "     Array UUID : {}", MdadmUuid(Uuid::from_bytes(header.set_uuid)))?;
        let name = one_line(&text::c_string(&header.set_name));
        write!(f, "           Name : {name}")?;
        if let Some(host) = self.homehost.filter(|host| is_local(&header.set_name, host)) {
            write!(f, "  (local to host {host})")?;
        }
        writeln!(f)?;
        if let Some(sb) = self.bitmap.filter(|sb| sb.nodes.get() > 0) {
            writeln!(f, "   Cluster Name : {:<64}", text::c_string(&sb.cluster_name))?;
        }
        let created = Timestamp::from_raw(header.ctime.get()).seconds;
        writeln!(f, "  Creation Time : {}", CTime(created))?;
        writeln!(f, "     Raid Level : {}", level_name(self.level()))?;
        writeln!(f, "   Raid Devices : {}\n", header.raid_disks.get() as i32)
    }

    fn print_sizes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let header = &self.block.header;
        let (size, data_size) = (header.size.get(), header.data_size.get());
        print_sectors(f, " Avail Dev Size", data_size)?;
        // mdadm compares as unsigned, so that negative levels count as redundant.
        if header.level.get() > 0 {
            let array =
                array_bytes(self.level(), header.layout.get(), header.raid_disks.get(), size << 9);
            if let Some(bytes) = array {
                writeln!(f, "     Array Size : {} KiB{}", bytes >> 10, text::human_size(bytes))?;
            }
            if size != data_size {
                print_sectors(f, "  Used Dev Size", size)?;
            }
        }
        let data_offset = header.data_offset.get();
        if data_offset != 0 {
            writeln!(f, "    Data Offset : {data_offset} sectors")?;
        }
        let new_offset = header.new_offset.get() as i32;
        if new_offset != 0 && self.features().contains(Features::NEW_OFFSET) {
            let offset = data_offset.wrapping_add_signed(new_offset.into());
            writeln!(f, "     New Offset : {offset} sectors")?;
        }
        writeln!(f, "   Super Offset : {} sectors", header.super_offset)?;
        if self.features().contains(Features::RECOVERY_OFFSET) {
            writeln!(f, "Recovery Offset : {} sectors", header.recovery_offset)?;
        }
        let (before, after) = self.unused_space();
        if after != 1 && !self.features().contains(Features::NEW_OFFSET) {
            writeln!(f, "   Unused Space : before={before} sectors, after={after} sectors")?;
        }
        Ok(())
    }

    /// Sectors before and after the data, by which a reshape could move it. Computed as in mdadm,
    /// including wrapping; (0, 0) becomes (0, 1), which is not printed.
    fn unused_space(&self) -> (u64, u64) {
        let header = &self.block.header;
        let features = self.features();
        let super_offset = header.super_offset.get();
        let data_offset = header.data_offset.get();
        let data_size =
            if self.level().raw() <= 0 { header.data_size.get() } else { header.size.get() };
        let log = header.bblog_offset.get() as i32;
        let log_size = u64::from(header.bblog_size.get());
        let log_start = super_offset.wrapping_add_signed(log.into());
        let has_log = log != 0 && log_size != 0;
        let (mut bitmap, mut ppl, mut ppl_size) = (0, 0, 0);
        if features.contains(Features::BITMAP_OFFSET) {
            bitmap = i64::from(header.bitmap_offset.get() as i32);
        } else if features.intersects(Features::PPL | Features::MULTIPLE_PPLS) {
            (ppl, ppl_size) = self.ppl();
        }

        let (before, mut after) = if data_offset < super_offset {
            let mut end = super_offset;
            if has_log {
                end = end.min(log_start);
            }
            end = end.min(super_offset.wrapping_add_signed(bitmap).wrapping_add_signed(ppl));
            let used = data_offset.wrapping_add(data_size);
            (data_offset, end.saturating_sub(used))
        } else {
            let mut earliest = super_offset.wrapping_add(72);
            if bitmap > 0 {
                let bytes = self.bitmap.map_or(0, |sb| sb.total_bytes(4096));
                earliest = earliest.max((bitmap as u64).wrapping_add(bytes >> 9));
            } else if ppl > 0 {
                earliest = earliest.max((ppl as u64).wrapping_add(ppl_size));
            }
            if has_log {
                earliest = earliest.max(log_start.wrapping_add(log_size));
            }
            let before = data_offset.saturating_sub(earliest);
            (before, self.device.0.wrapping_sub(data_size).wrapping_sub(data_offset))
        };
        if before == 0 && after == 0 {
            after = 1;
        }
        if self.block.own_role() == Role::Journal {
            after = self.device.0.wrapping_sub(data_offset) % 8;
        }
        (before, after)
    }

    /// Offset and size of the partial parity log.
    fn ppl(&self) -> (i64, u64) {
        PplPlace::of(self.block).map_or((0, 0), |place| (place.offset.into(), place.len.0))
    }

    fn print_member(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let header = &self.block.header;
        let clean = header.resync_offset.get() == u64::MAX;
        writeln!(f, "          State : {}", if clean { "clean" } else { "active" })?;
        writeln!(f, "    Device UUID : {}\n", MdadmUuid(Uuid::from_bytes(header.device_uuid)))?;
        if self.features().contains(Features::BITMAP_OFFSET) {
            let offset = header.bitmap_offset.get() as i32;
            writeln!(f, "Internal Bitmap : {offset} sectors from superblock")?;
        } else if self.features().intersects(Features::PPL | Features::MULTIPLE_PPLS) {
            let (offset, size) = self.ppl();
            writeln!(
                f,
                "            PPL : {size} sectors at offset {offset} sectors from superblock"
            )?;
        }
        Ok(())
    }

    fn print_reshape(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let header = &self.block.header;
        if !self.features().contains(Features::RESHAPE_ACTIVE) {
            return Ok(());
        }
        let position = Sectors(header.reshape_position.get());
        print_shape(f, position, header.delta_disks.get(), header.raid_disks.get())?;
        if header.new_level != header.level {
            print_new_level(f, header.new_level.get())?;
        }
        if header.new_layout != header.layout {
            print_layout_line(f, "     New Layout", self.level(), header.new_layout.get())?;
        }
        if header.new_chunk != header.chunksize {
            writeln!(f, "  New Chunksize : {}K", header.new_chunk.get() / 2)?;
        }
        writeln!(f)
    }

    fn print_state(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let header = &self.block.header;
        if header.devflags != 0 {
            let flags = DeviceFlags::from_raw(header.devflags);
            let write_mostly = if flags.write_mostly { " write-mostly" } else { "" };
            let failfast = if flags.failfast { " failfast" } else { "" };
            writeln!(f, "          Flags :{write_mostly}{failfast}")?;
        }
        let updated = Timestamp::from_raw(header.utime.get()).seconds;
        writeln!(f, "    Update Time : {}", CTime(updated))?;
        let (offset, size) = (header.bblog_offset.get() as i32, header.bblog_size.get());
        if size != 0 && offset != 0 {
            let entries = u32::from(size) * 512 / 8;
            write!(f, "  Bad Block Log : {entries} entries available at offset {offset} sectors")?;
            if self.features().contains(Features::BAD_BLOCKS) {
                write!(f, " - bad blocks present.")?;
            }
            writeln!(f)?;
        }
        print_checksum(f, header.sb_csum.get(), self.block.checksum())?;
        writeln!(f, "         Events : {}\n", header.events)
    }

    fn print_layout(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let header = &self.block.header;
        let layout = header.layout.get();
        if self.level() == Level::Raid0 && self.features().contains(Features::RAID0_LAYOUT) {
            let name = text::raid0_layout_name(layout).unwrap_or("-unknown-");
            writeln!(f, "         Layout : {name}")?;
        }
        print_layout_line(f, "         Layout", self.level(), layout)?;
        print_chunk(f, self.level(), header.chunksize.get() / 2)
    }

    fn print_roles(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let header = &self.block.header;
        let replacement = self.features().contains(Features::REPLACEMENT);
        write!(f, "   Device Role : ")?;
        match self.block.own_role() {
            Role::Spare | Role::Faulty => writeln!(f, "spare")?,
            Role::Journal => writeln!(f, "Journal")?,
            Role::Active(slot) if replacement => writeln!(f, "Replacement device {slot}")?,
            Role::Active(slot) => writeln!(f, "Active device {slot}")?,
        }
        let reshaping = self.features().contains(Features::RESHAPE_ACTIVE);
        let slots = slots(header.raid_disks, header.delta_disks, reshaping);
        let mut holders = vec![0_u32; slots.min(MAX_SLOTS) as usize];
        for role in self.block.roles() {
            if let Some(count) = holders.get_mut(usize::from(role.raw())) {
                *count += 1;
            }
        }
        let mut inconsistent = false;
        write!(f, "   Array State : ")?;
        for count in holders {
            f.write_str(match count {
                2 if header.level.get() > 0 => "R",
                1 => "A",
                0 => ".",
                _ => {
                    inconsistent = true;
                    "?"
                }
            })?;
        }
        writeln!(f, " ('A' == active, '.' == missing, 'R' == replacing)")?;
        let mut regular = self.block.roles().map(|role| role.raw()).filter(|raw| *raw <= 0xff00);
        inconsistent |= regular.any(|raw| u32::from(raw) > slots);
        if !inconsistent {
            return Ok(());
        }
        writeln!(f, "WARNING Array state is inconsistent - each number should appear only once")?;
        for (number, role) in self.block.roles().enumerate() {
            match role {
                Role::Spare | Role::Faulty => write!(f, " {number}:-")?,
                Role::Active(_) | Role::Journal => write!(f, " {number}:{}", role.raw())?,
            }
        }
        writeln!(f)
    }
}

/// Finds the name of a device in `/dev` by its numbers.
pub type DeviceName<'a> = &'a dyn Fn(u32, u32) -> Option<String>;

/// `mdadm --examine` of a 0.90 superblock.
pub struct Examine090<'a> {
    /// The superblock.
    pub block: &'a Block090,
    /// Returns names of devices. mdadm prints them if the devices exist now.
    pub device_name: DeviceName<'a>,
    /// Name of this host, to mark its own arrays.
    pub homehost: Option<&'a str>,
}

impl fmt::Display for Examine090<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.print_array(f)?;
        self.print_reshape(f)?;
        self.print_state(f)?;
        self.print_members(f)
    }
}

impl Examine090<'_> {
    fn level(&self) -> Level {
        Level::from_raw(self.block.level.get() as i32)
    }

    fn print_array(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let block = self.block;
        writeln!(f, "          Magic : {:08x}", block.md_magic.get())?;
        let (major, minor) = (block.major_version.get() as i32, block.minor_version.get() as i32);
        writeln!(
            f,
            "        Version : {major}.{minor:02}.{:02}",
            block.patch_version.get() as i32
        )?;
        let uuid = Uuid::from_bytes(block.set_uuid());
        if minor >= 90 {
            write!(f, "           UUID : {}", MdadmUuid(uuid))?;
        } else {
            write!(f, "           UUID : {:08x}", block.set_uuid0.get())?;
        }
        match self.homehost.filter(|host| homehost::is_of(uuid, host)) {
            Some(host) => writeln!(f, " (local to host {host})")?,
            None => writeln!(f)?,
        }
        if block.not_persistent.get() != 0 {
            writeln!(f, "           Eedk : not persistent")?;
        }
        writeln!(f, "  Creation Time : {}", CTime(block.ctime.get().into()))?;
        writeln!(f, "     Raid Level : {}", level_name(self.level()))?;
        if self.level().is_redundant() {
            let bytes = u64::from(block.size.get()) << 10;
            writeln!(
                f,
                "  Used Dev Size : {}{}",
                block.size.get() as i32,
                text::human_size(bytes)
            )?;
            let array =
                array_bytes(self.level(), block.layout.get(), block.raid_disks.get(), bytes);
            if let Some(bytes) = array {
                writeln!(f, "     Array Size : {}{}", bytes >> 10, text::human_size(bytes))?;
            }
        }
        writeln!(f, "   Raid Devices : {}", block.raid_disks.get() as i32)?;
        writeln!(f, "  Total Devices : {}", block.nr_disks.get() as i32)?;
        writeln!(f, "Preferred Minor : {}\n", block.md_minor.get() as i32)
    }

    fn print_reshape(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let block = self.block;
        let position = Sectors(block.reshape_position());
        if block.minor_version.get() <= 90 || position == Sectors::MAX {
            return Ok(());
        }
        print_shape(f, position, block.delta_disks.get(), block.raid_disks.get())?;
        if block.new_level != block.level {
            print_new_level(f, block.new_level.get())?;
        }
        let new_layout = block.new_layout.get();
        if new_layout != block.layout.get() {
            if self.level() == Level::Raid10 {
                let (near, far) = (new_layout & 255, new_layout >> 8 & 255);
                let kind = if new_layout & 0x1_0000 != 0 { "offset" } else { "far" };
                writeln!(f, "     New Layout : near={near}, {kind}={far}")?;
            } else {
                print_layout_line(f, "     New Layout", self.level(), new_layout)?;
            }
        }
        if block.new_chunk != block.chunk_size {
            writeln!(f, "  New Chunksize : {}", block.new_chunk.get() as i32)?;
        }
        writeln!(f)
    }

    fn print_state(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let block = self.block;
        let bits = block.state.get();
        writeln!(f, "    Update Time : {}", CTime(block.utime.get().into()))?;
        let clean = bits & state::CLEAN != 0;
        writeln!(f, "          State : {}", if clean { "clean" } else { "active" })?;
        if bits & state::BITMAP_PRESENT != 0 {
            writeln!(f, "Internal Bitmap : present")?;
        }
        writeln!(f, " Active Devices : {}", block.active_disks.get() as i32)?;
        writeln!(f, "Working Devices : {}", block.working_disks.get() as i32)?;
        writeln!(f, " Failed Devices : {}", block.failed_disks.get() as i32)?;
        writeln!(f, "  Spare Devices : {}", block.spare_disks.get() as i32)?;
        print_checksum(f, block.sb_csum.get(), block.checksum())?;
        writeln!(f, "         Events : {}\n", block.events())?;
        print_layout_line(f, "         Layout", self.level(), block.layout.get())?;
        print_chunk(f, self.level(), block.chunk_size.get() / 1024)
    }

    fn print_members(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let block = self.block;
        writeln!(f, "      Number   Major   Minor   RaidDevice State")?;
        self.print_descriptor(f, "this", &block.this_disk)?;
        writeln!(f)?;
        let reshaping = block.minor_version.get() > 90 && block.reshape_position() != u64::MAX;
        let slots = slots(block.raid_disks, block.delta_disks, reshaping);
        let count = slots.saturating_add(block.spare_disks.get()) as usize;
        for (number, entry) in block.disks.iter().take(count).enumerate() {
            self.print_descriptor(f, &format!("{number:4}"), entry)?;
        }
        Ok(())
    }

    fn print_descriptor(
        &self,
        f: &mut fmt::Formatter<'_>,
        label: &str,
        entry: &Descriptor,
    ) -> fmt::Result {
        let (major, minor) = (entry.major.get(), entry.minor.get());
        write!(
            f,
            "{label} {:5}   {:5}    {:5}    {:5}     ",
            entry.number.get() as i32,
            major as i32,
            minor as i32,
            entry.raid_disk.get() as i32,
        )?;
        let bits = entry.state.get();
        let words = [
            (disk::FAULTY, " faulty"),
            (disk::ACTIVE, " active"),
            (disk::SYNC, " sync"),
            (disk::REMOVED, " removed"),
            (disk::WRITE_MOSTLY, " write-mostly"),
            (disk::FAILFAST, " failfast"),
        ];
        for (bit, word) in words {
            if bits & bit != 0 {
                f.write_str(word)?;
            }
        }
        if bits & !(disk::WRITE_MOSTLY | disk::FAILFAST) == 0 {
            f.write_str(" spare")?;
        }
        if let Some(name) = (self.device_name)(major, minor) {
            write!(f, "   {name}")?;
        }
        writeln!(f)
    }
}

fn level_name(level: Level) -> &'static str {
    let container = Level::Other(-100);
    if level == container { "container" } else { level.name().unwrap_or("-unknown-") }
}

fn is_local(set_name: &[u8; 32], host: &str) -> bool {
    let len = host.len();
    (1..32).contains(&len) && set_name[len] == b':' && set_name.starts_with(host.as_bytes())
}

fn print_sectors(f: &mut fmt::Formatter<'_>, label: &str, sectors: u64) -> fmt::Result {
    let human = text::human_size(sectors.wrapping_shl(9));
    writeln!(f, "{label} : {sectors} sectors{human}")
}

/// Bytes of the array, for the levels for which mdadm prints them.
pub(super) fn array_bytes(level: Level, layout: u32, raid_disks: u32, member: u64) -> Option<u64> {
    let (data, copies) = match level {
        Level::Raid1 => (1, 1),
        Level::Raid4 | Level::Raid5 => (raid_disks.wrapping_sub(1), 1),
        Level::Raid6 => (raid_disks.wrapping_sub(2), 1),
        Level::Raid10 => (raid_disks, (layout & 255) * (layout >> 8 & 255)),
        Level::Raid0 | Level::Linear | Level::Multipath | Level::Faulty | Level::Other(_) => {
            return None;
        }
    };
    (data != 0).then(|| member.wrapping_mul(data.into()) / u64::from(copies.max(1)))
}

/// How far a reshape is, and the change of the number of members.
fn print_shape(
    f: &mut fmt::Formatter<'_>,
    position: Sectors,
    delta: u32,
    raid_disks: u32,
) -> fmt::Result {
    let human = text::human_size(position.bytes());
    writeln!(f, "  Reshape pos'n : {}{human}", position.0 / 2)?;
    let (delta, raid_disks) = (delta as i32, raid_disks as i32);
    if delta == 0 {
        return Ok(());
    }
    let before = raid_disks.wrapping_sub(delta);
    writeln!(f, "  Delta Devices : {delta} ({before}->{raid_disks})")
}

fn print_new_level(f: &mut fmt::Formatter<'_>, level: u32) -> fmt::Result {
    writeln!(f, "      New Level : {}", level_name(Level::from_raw(level as i32)))
}

fn print_checksum(f: &mut fmt::Formatter<'_>, stored: u32, expected: u32) -> fmt::Result {
    if stored == expected {
        writeln!(f, "       Checksum : {stored:x} - correct")
    } else {
        writeln!(f, "       Checksum : {stored:x} - expected {expected:x}")
    }
}

fn print_layout_line(
    f: &mut fmt::Formatter<'_>,
    label: &str,
    level: Level,
    layout: u32,
) -> fmt::Result {
    if level == Level::Raid10 {
        writeln!(f, "{label} :{}", text::raid10_layout(layout))?;
    } else if matches!(level, Level::Raid5 | Level::Raid6) {
        let name = text::parity_layout_name(level == Level::Raid6, layout);
        writeln!(f, "{label} : {}", name.unwrap_or("-unknown-"))?;
    }
    Ok(())
}

/// The chunk size line and the empty line after it.
fn print_chunk(f: &mut fmt::Formatter<'_>, level: Level, kib: u32) -> fmt::Result {
    if level.is_striped() {
        writeln!(f, "     Chunk Size : {kib}K")?;
    } else if level == Level::Linear {
        writeln!(f, "       Rounding : {kib}K")?;
    }
    writeln!(f)
}
