//! The lines of `mdadm --examine --brief` and `--export`, as mdadm 4.2 prints them: for `mdadm.conf`, and for scripts.

use core::fmt;

use super::examine::array_bytes;
use super::fields::{Features, MdadmUuid, Role, Version};
use super::superblock::Superblock;
use super::superblock_0_90::disk;
use super::text::{decimal_size, file_name, quoted};

/// Members of one array, which are printed in one line.
pub struct Brief<'a> {
    first: &'a Superblock,
    spares: usize,
    devices: Vec<&'a str>,
}

impl<'a> Brief<'a> {
    /// The arrays of these members (with their devices' paths), in mdadm's order: the array found last
    /// comes first.
    pub fn all(members: impl IntoIterator<Item = (&'a Superblock, &'a str)>) -> Vec<Self> {
        let mut arrays: Vec<Self> = Vec::new();
        for (sb, device) in members {
            let known = arrays.iter().position(|array| is_same_array(array.first, sb));
            let index = known.unwrap_or_else(|| {
                arrays.push(Self { first: sb, spares: 0, devices: Vec::new() });
                arrays.len() - 1
            });
            arrays[index].spares += usize::from(!is_in_sync(sb));
            arrays[index].devices.push(device);
        }
        arrays.reverse();
        arrays
    }

    /// The array's lines. `verbose` adds level, number of devices and their paths.
    pub fn lines(&self, verbose: bool) -> String {
        let mut text = array_line(self.first, verbose);
        if self.spares > 0 {
            text += &format!("   spares={}", self.spares);
        }
        if verbose {
            text += &format!("   devices={}", self.devices.join(","));
        }
        if self.spares > 0 || verbose {
            text.push('\n');
        }
        text
    }
}

fn array_line(sb: &Superblock, verbose: bool) -> String {
    let (uuid, level) = (MdadmUuid(sb.set_uuid), sb.level.name());
    if let Some(block) = sb.block_0_90() {
        let minor = block.md_minor.get() as i32;
        let shape = match verbose {
            true => {
                format!(" level={} num-devices={}", level.unwrap_or("-unknown-"), sb.raid_disks)
            }
            false => String::new(),
        };
        return format!("ARRAY /dev/md{minor}{shape} UUID={uuid}\n");
    }
    let short = sb.name.split_once(':').map_or(sb.name.as_str(), |(_, name)| name);
    let mut text = "ARRAY ".to_owned();
    if !sb.name.is_empty() {
        text += &format!("/dev/md/{} ", file_name(short));
    }
    if let Some(level) = level.filter(|_| verbose) {
        text += &format!(" level={level}");
    }
    text += &format!(" metadata={} ", sb.version);
    if verbose {
        text += &format!("num-devices={} ", sb.raid_disks);
    }
    text += &format!("UUID={uuid}");
    if !sb.name.is_empty() {
        text += &format!(" name={}", quoted(&sb.name));
    }
    text + "\n"
}

/// Whether mdadm considers both members of one array: besides the identity, its parameters must be equal.
fn is_same_array(a: &Superblock, b: &Superblock) -> bool {
    let shape = |sb: &Superblock| (sb.set_uuid, sb.ctime, sb.level, sb.size, sb.raid_disks);
    let old = |sb: &Superblock| sb.version == Version::V0_90;
    let striping = |sb: &Superblock| (sb.layout, sb.chunk);
    shape(a) == shape(b) && old(a) == old(b) && (old(a) || striping(a) == striping(b))
}

/// Whether mdadm considers the member in sync. It counts all others as spares, even if they are not.
fn is_in_sync(sb: &Superblock) -> bool {
    match sb.block_0_90() {
        Some(block) => block.this_disk.state.get() & disk::SYNC != 0,
        None => {
            matches!(sb.role(), Role::Active(_)) && !sb.features.contains(Features::REPLACEMENT)
        }
    }
}

/// `mdadm --examine --export`: variables for scripts.
pub fn export(sb: &Superblock) -> String {
    Export(sb).to_string()
}

struct Export<'a>(&'a Superblock);

impl fmt::Display for Export<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sb = self.0;
        let old = sb.version == Version::V0_90;
        writeln!(f, "MD_LEVEL={}", sb.level.name().unwrap_or("(null)"))?;
        writeln!(f, "MD_DEVICES={}", sb.raid_disks)?;
        if !sb.name.is_empty() {
            writeln!(f, "MD_NAME={}", exported_name(&sb.name))?;
        }
        let bytes = array_bytes(sb.level, sb.layout, sb.raid_disks, sb.size.bytes());
        if let Some(bytes) = bytes.filter(|_| !old) {
            writeln!(f, "MD_ARRAY_SIZE={}", decimal_size(bytes))?;
        }
        writeln!(f, "MD_UUID={}", MdadmUuid(sb.set_uuid))?;
        // For 0.90, mdadm exports the creation time under this name.
        let updated = if old { sb.ctime } else { sb.utime };
        writeln!(f, "MD_UPDATE_TIME={}", updated.seconds)?;
        if !old {
            writeln!(f, "MD_DEV_UUID={}", MdadmUuid(sb.device_uuid))?;
        }
        writeln!(f, "MD_EVENTS={}", sb.events)
    }
}

/// A name as a one-line value: cut at the first newline.
pub fn exported_name(name: &str) -> &str {
    name.split('\n').next().unwrap_or_default()
}
