//! Devices with labels: golden ones (`tests/images/zfs`), and ones made here.

use std::fs;
use std::path::PathBuf;

use ashlar_zfs::ondisk::config::{Device, PoolSurvey, pools};
use ashlar_zfs::ondisk::label::DeviceLabels;
use ashlar_zfs::ondisk::layout::{
    LABEL_BYTES, LABELS, PHYS_BYTES, PHYS_OFFSET, RING_OFFSET, label_offset, seal,
};
use ashlar_zfs::ondisk::nvlist::NvList;
use ashlar_zfs::ondisk::uberblock::UBERBLOCK_MAGIC;

/// The size of the smallest device with four labels.
pub(crate) const DEVICE_BYTES: usize = LABELS * LABEL_BYTES;

/// The directory of the golden images.
pub(crate) fn images() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/images/zfs")
}

/// The names of all golden images, sorted.
pub(crate) fn names() -> Vec<String> {
    let entries = fs::read_dir(images()).expect("the directory of images is there");
    let mut names: Vec<String> = entries
        .map(|entry| entry.expect("an entry"))
        .filter(|entry| entry.path().join("image.map").exists())
        .map(|entry| entry.file_name().into_string().expect("names are ASCII"))
        .collect();
    names.sort();
    assert_eq!(names, ["destroyed", "mirror", "raidz", "stripe"]);
    names
}

/// The devices of a golden image.
pub(crate) fn golden(name: &str) -> Vec<Vec<u8>> {
    let directory = images().join(name);
    let map = fs::read_to_string(directory.join("image.map")).expect("image.map");
    let bin = fs::read(directory.join("image.bin")).expect("image.bin");
    let mut devices: Vec<Vec<u8>> = Vec::new();
    for line in map.lines() {
        let (kind, numbers) = line.split_once(' ').expect("a word and numbers");
        let numbers: Vec<usize> =
            numbers.split(' ').map(|number| number.parse().expect("a number")).collect();
        match (kind, numbers.as_slice()) {
            ("device", [index, bytes]) => {
                assert_eq!(*index, devices.len(), "{name}: devices in their order");
                devices.push(vec![0; *bytes]);
            }
            ("copy", [index, at, len, source]) => {
                devices[*index][*at..at + len].copy_from_slice(&bin[*source..source + len]);
            }
            _ => panic!("{name}: unknown line {line}"),
        }
    }
    devices
}

/// The labels of a device.
pub(crate) fn labels(device: &[u8]) -> DeviceLabels {
    DeviceLabels::parse(device.len() as u64, |at| device[at as usize..].first_chunk())
}

/// The pools on these devices, which are named `/0`, `/1` and so on.
pub(crate) fn found(labels: &[DeviceLabels]) -> PoolSurvey {
    let paths: Vec<String> = (0..labels.len()).map(|index| format!("/{index}")).collect();
    let devices: Vec<Device<'_>> =
        labels.iter().zip(&paths).map(|(labels, path)| Device { path, labels }).collect();
    pools(&devices)
}

/// Writes a configuration into one label of a device.
pub(crate) fn write_label(device: &mut [u8], index: usize, config: &[u8]) {
    let at = label_offset(device.len() as u64, index).expect("a label") as usize + PHYS_OFFSET;
    let phys = &mut device[at..at + PHYS_BYTES];
    phys.fill(0);
    phys[..config.len()].copy_from_slice(config);
    seal(phys, at as u64);
}

/// Writes an uberblock of transaction group `txg` into slot 0 of one label of a device with `ashift` 12.
pub(crate) fn write_uberblock(device: &mut [u8], index: usize, txg: u64) {
    let at = label_offset(device.len() as u64, index).expect("a label") as usize + RING_OFFSET;
    let slot = &mut device[at..at + 4096];
    slot.fill(0);
    for (at, number) in [(0, UBERBLOCK_MAGIC), (8, 5000), (16, txg), (32, 1)] {
        slot[at..at + 8].copy_from_slice(&number.to_le_bytes());
    }
    seal(slot, at as u64);
}

/// A device with this configuration and an uberblock of its transaction group in each label.
pub(crate) fn device(config: &NvList) -> Vec<u8> {
    let mut device = vec![0; DEVICE_BYTES];
    for index in 0..LABELS {
        write_label(&mut device, index, &config.encode());
        write_uberblock(&mut device, index, config.number("txg").unwrap_or(0));
    }
    device
}

/// A leaf at `/old/GUID`.
pub(crate) fn leaf(id: u64, guid: u64) -> NvList {
    let path = format!("/old/{guid}");
    let leaf = NvList::default().with("type", "disk").with("id", id).with("guid", guid);
    leaf.with("path", path.as_str()).with("devid", "somewhere").with("whole_disk", 0)
}

/// A vdev with children: of kind `mirror`, `raidz` with one parity and so on.
pub(crate) fn group(kind: &str, id: u64, guid: u64, children: Vec<NvList>) -> NvList {
    let group = NvList::default().with("type", kind).with("id", id).with("guid", guid);
    let group = group.with("ashift", 12).with("nparity", 1);
    if children.is_empty() { group } else { group.with("children", children) }
}

/// The configuration in the label of the leaf `guid` of pool `tank` (GUID 1) with `vdev_children`
/// top-level vdevs; `top` is one of them.
pub(crate) fn config(guid: u64, txg: u64, vdev_children: u64, top: &NvList) -> NvList {
    NvList::default()
        .with("version", 5000)
        .with("name", "tank")
        .with("state", 1)
        .with("txg", txg)
        .with("pool_guid", 1)
        .with("hostid", 7)
        .with("hostname", "host")
        .with("top_guid", top.number("guid").expect("a guid"))
        .with("guid", guid)
        .with("vdev_children", vdev_children)
        .with("vdev_tree", top.clone())
        .with("features_for_read", NvList::default())
}
