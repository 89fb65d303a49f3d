//! ZFS labels from hostile disks: never a panic, never an unbounded loop or allocation, and an accepted list is the
//! same after encoding and parsing it.
//!
//! Input: a byte for the kind, then a list; or a 16-bit length, a configuration of that length and the start of the
//! uberblock ring, whose checksums are corrected; or configurations of devices of some pools, each preceded by its
//! length.

use ashlar_zfs::ondisk::config::{Device, pools};
use ashlar_zfs::ondisk::label::{DeviceLabels, Label, LabelCopy, LabelError};
use ashlar_zfs::ondisk::layout::{
    CHECKSUM_BYTES, LABEL_BYTES, LABELS, PHYS_BYTES, PHYS_OFFSET, RING_OFFSET, seal,
};
use ashlar_zfs::ondisk::nvlist::NvList;
use ashlar_zfs::ondisk::uberblock::Ring;

/// The input is a list.
pub const LIST: u8 = 0;
/// The input is a label.
pub const LABEL: u8 = 1;
/// The input is a sequence of device configurations.
pub const DEVICES: u8 = 2;

/// The part of the ring in an input: one slot of the largest size, several of the smallest.
pub const RING: usize = 8192;
/// More devices than this add nothing.
const MAX_DEVICES: usize = 8;

/// Checks one input against the module text; returns whether part of it was accepted.
pub fn run(data: &[u8]) -> bool {
    let Some((what, rest)) = data.split_first() else { return false };
    match what % 3 {
        LIST => list(rest).is_some(),
        LABEL => label(rest),
        _ => devices(rest),
    }
}

fn list(bytes: &[u8]) -> Option<NvList> {
    match NvList::parse(bytes) {
        Ok(list) => {
            let again = list.encode();
            // Only the length of empty arrays is not stored again.
            assert!(again.len() <= bytes.len(), "it grew to {} bytes", again.len());
            assert_eq!(NvList::parse(&again).as_ref(), Ok(&list));
            Some(list)
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            None
        }
    }
}

fn label(bytes: &[u8]) -> bool {
    let Some((config, ring)) = split(bytes) else { return false };
    let mut label = Box::new([0; LABEL_BYTES]);
    let (config, ring) = (cut(config, PHYS_BYTES - CHECKSUM_BYTES), cut(ring, RING));
    label[PHYS_OFFSET..][..config.len()].copy_from_slice(config);
    seal(&mut label[PHYS_OFFSET..RING_OFFSET], PHYS_OFFSET as u64);
    label[RING_OFFSET..][..ring.len()].copy_from_slice(ring);
    // Slots of the smallest size.
    for at in (RING_OFFSET..RING_OFFSET + RING).step_by(1 << 10) {
        seal(&mut label[at..at + (1 << 10)], at as u64);
    }
    let copy = LabelCopy::parse(&label, 0);
    // A corrected checksum must be accepted.
    assert!(!matches!(copy.label, Err(LabelError::Checksum | LabelError::Absent)));
    if let Err(error) = &copy.label {
        assert!(!error.to_string().is_empty());
    }
    if let Some(best) = &copy.ring.best {
        assert!(copy.ring.good > 0 && best.txg > 0);
    }
    let is_good = copy.label.is_ok();
    found(&[labels(copy)]);
    is_good
}

fn devices(mut bytes: &[u8]) -> bool {
    let mut all = Vec::new();
    while let Some((config, rest)) = split(bytes) {
        bytes = rest;
        if let Some(label) = list(config).and_then(|config| Label::from_config(config).ok()) {
            all.push(labels(LabelCopy { label: Ok(label), ring: Ring::default() }));
        }
        if all.len() == MAX_DEVICES {
            break;
        }
    }
    found(&all)
}

/// Looks for pools; returns whether there is one.
fn found(labels: &[DeviceLabels]) -> bool {
    let device = |labels| Device { path: "/device", labels };
    let found = pools(&labels.iter().map(device).collect::<Vec<_>>());
    let places = found.pools.iter().flat_map(|pool| &pool.devices);
    let others =
        found.kept.iter().map(|(index, _)| index).chain(&found.released).chain(&found.damaged);
    let mut all: Vec<usize> = places.chain(others).copied().collect();
    all.sort_unstable();
    let is_any = |(index, labels): (usize, &DeviceLabels)| labels.is_any().then_some(index);
    assert_eq!(all, labels.iter().enumerate().filter_map(is_any).collect::<Vec<_>>(), "each once");
    for pool in &found.pools {
        match pool.import_config(&|index| format!("/{index}")) {
            Ok(config) => assert_eq!(NvList::parse(&config.encode()), Ok(config)),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
        assert!(pool.vdevs.iter().flat_map(|vdev| vdev.told()).all(|told| !told.is_empty()));
    }
    !found.pools.is_empty()
}

/// A device with only this label.
fn labels(copy: LabelCopy) -> DeviceLabels {
    let absent = || LabelCopy { label: Err(LabelError::Absent), ring: Ring::default() };
    let mut copies: [LabelCopy; LABELS] = std::array::from_fn(|_| absent());
    copies[0] = copy;
    DeviceLabels { copies }
}

/// The bytes after a length, and the rest.
fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk()?;
    Some(rest.split_at(usize::from(u16::from_be_bytes(*len)).min(rest.len())))
}

fn cut(bytes: &[u8], len: usize) -> &[u8] {
    &bytes[..bytes.len().min(len)]
}
