//! md metadata from a hostile disk: never a panic, never an unbounded loop or allocation, and accepted metadata is
//! written back unchanged.
//!
//! Input: 8 bytes of device size, one byte of flags, then the 4 KiB block that every position contains.

use ashlar_block::units::Sectors;
use ashlar_md::internals::badblocks::BadBlocks;
use ashlar_md::ondisk::bad_block_log;
use ashlar_md::ondisk::bitmap_super::BitmapSuper;
use ashlar_md::ondisk::examine::{Examine1, Examine090};
use ashlar_md::ondisk::ppl::{self, Log};
use ashlar_md::ondisk::probe::{identify, probe_ranges};
use ashlar_md::ondisk::reshape_backup::{MAX_SECTION, ReshapeBackup, Section};
use ashlar_md::ondisk::superblock_0_90::Block090;
use ashlar_md::ondisk::superblock_1::Block1;
use ashlar_md::ondisk::{Superblock, Version};
use zerocopy::IntoBytes;

/// The checksum is corrected, so that the code after that check is reached.
const RESEAL: u8 = 1;
/// The device size is made small, as in golden images.
const SMALL: u8 = 2;

/// Checks one input against the module text; returns whether part of it was accepted.
pub fn run(data: &[u8]) -> bool {
    let Some((size, rest)) = data.split_first_chunk::<8>() else { return false };
    let Some((flags, block)) = rest.split_first() else { return false };
    let mut device = Sectors(u64::from_le_bytes(*size));
    if flags & SMALL != 0 {
        device.0 &= 0xf_ffff;
    }
    let mut block = block.to_vec();
    block.truncate(4096);
    if flags & RESEAL != 0 {
        reseal(&mut block);
    }
    print(&block, device);
    backup(&block);
    probe(&block, device) | lists(&block, *flags) | logs(&mut block, *flags)
}

/// A backup of a reshape: its sections are within 64 bits, and no longer than what is believed.
fn backup(bytes: &[u8]) {
    let Some(backup) = ReshapeBackup::parse(bytes) else { return };
    assert!(ReshapeBackup::is_copy(bytes, bytes) && backup.sections.len() <= 2);
    for Section { range, at } in backup.sections {
        let len = range.end - range.start;
        assert!(len <= MAX_SECTION && at.checked_add(len).is_some());
    }
}

fn reseal(bytes: &mut [u8]) {
    if bytes.get(4) == Some(&1) {
        if let Some(mut block) = Block1::from_bytes(bytes) {
            block.seal();
            bytes.copy_from_slice(block.as_bytes());
        }
    } else if let Some(mut block) = Block090::from_bytes(bytes) {
        block.seal();
        bytes.copy_from_slice(block.as_bytes());
    }
}

/// Whether it is accepted as a superblock.
fn probe(bytes: &[u8], device: Sectors) -> bool {
    let mut accepted = false;
    let ranges = probe_ranges(device);
    let read: Vec<(u64, &[u8])> = ranges.iter().map(|(offset, _)| (*offset, bytes)).collect();
    let probed = identify(device, &read);
    assert!(probed.others.len() + probed.unread.len() <= Version::ALL.len());
    for version in Version::ALL {
        match Superblock::parse(version, bytes, device) {
            Ok(superblock) => {
                accepted = true;
                let written = superblock.encode(512).expect("accepted, so it can be written");
                assert_eq!(written, bytes[..written.len()]);
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    accepted
}

/// Whether it is accepted as a partial parity log.
fn logs(bytes: &mut [u8], flags: u8) -> bool {
    if flags & RESEAL != 0
        && let Some(field) = bytes.get_mut(532..536)
    {
        field.fill(0);
        let checksum = ppl::crc(bytes).to_le_bytes();
        bytes[532..536].copy_from_slice(&checksum);
    }
    let Some(signature) = bytes.get(512..516) else { return false };
    let signature = u32::from_le_bytes([signature[0], signature[1], signature[2], signature[3]]);
    let Some((at, log)) = ppl::newest(bytes, signature, u32::from(flags >> 2)) else {
        return false;
    };
    assert!(at.bytes() < bytes.len() as u64 && log.entries.len() <= ppl::MAX_ENTRIES);
    let again = Log::parse(&log.encode(signature), signature, u32::from(flags >> 2));
    assert_eq!(again, Ok(log));
    true
}

fn print(bytes: &[u8], device: Sectors) {
    let bitmap = BitmapSuper::from_bytes(bytes);
    if let Some(block) = Block1::from_bytes(bytes) {
        let text = Examine1 { block: &block, bitmap: bitmap.as_ref(), device, homehost: None };
        assert!(text.to_string().len() < 100_000);
    }
    if let Some(block) = Block090::from_bytes(bytes) {
        let text = Examine090 { block: &block, device_name: &|_, _| None, homehost: Some("x") }
            .to_string();
        assert!(text.len() < 100_000);
    }
}

/// Whether it is accepted as a bad block log or a bitmap.
fn lists(bytes: &[u8], shift: u8) -> bool {
    let mut accepted = false;
    if let Ok(ranges) = bad_block_log::parse(bytes, shift) {
        assert!(ranges.len() <= usize::from(bad_block_log::MAX_LOG_SECTORS) * 512 / 8);
    }
    if let Ok(list) = BadBlocks::from_log(bytes, shift) {
        let image = list.take_image().expect("there is a log");
        let again = BadBlocks::from_log(image.bytes(), shift).expect("our own log");
        assert_eq!(again.text(), list.text());
        assert!(image.is_empty() == list.is_empty() && image.bytes().len() == bytes.len());
        accepted = true;
    }
    if let Ok(bitmap) = BitmapSuper::parse(bytes) {
        assert!(bitmap.total_bytes(4096) >= 4096);
        assert!(!bitmap.describe(Version::V1_2, Some(bitmap.bits())).to_string().is_empty());
        accepted = true;
    }
    accepted
}
