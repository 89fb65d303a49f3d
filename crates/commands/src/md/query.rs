//! What devices are to md, in mdadm's words of `--query`.

use std::path::Path;

use ashlar_disks::is_same;
use ashlar_md::ondisk::text::binary_size;
use ashlar_stack::assemble::Disk;
use ashlar_stack::probe::{Md, probe};
use ashlar_view::detail::Detail;

use crate::error::{Error, Result};

/// What a running array is, in a line.
pub fn query_array(array: &Detail) -> String {
    let Detail { device, level, raid_devices, spare_devices: spares, .. } = array;
    let plural = if *spares == 1 { "" } else { "s" };
    format!(
        "{device}: {} {level} {raid_devices} devices, {spares} spare{plural}. Use ashlar md detail for more detail.\n",
        binary_size(array.size_kib * 1024),
    )
}

/// What a disk is, in a line, or two for a member of an array; `running` are the arrays of a daemon.
///
/// # Errors
/// It cannot be read.
pub async fn query_disk(disk: &Disk, running: &[Detail]) -> Result<String> {
    let path = disk.path.display();
    let contents = probe(&disk.gateway).await;
    let contents = contents.map_err(|status| Error::new("cannot read", &path, status))?;
    let mut text = format!("{path}: is not an md array\n");
    if let Md::Member(sb) = &contents.md {
        let has_it = |array: &&Detail| {
            let mut paths = array.members.iter().filter_map(|member| member.path.as_deref());
            paths.any(|path| is_same(Path::new(path), &disk.path))
        };
        let (activity, array) = match running.iter().find(has_it) {
            Some(array) => ("active", array.device.as_str()),
            None => ("inactive", "array"),
        };
        text += &format!(
            "{path}: device {} in {} device {activity} {} {array}.  Use ashlar md examine for more detail.\n",
            sb.dev_number, sb.raid_disks, sb.level,
        );
    }
    Ok(text)
}
