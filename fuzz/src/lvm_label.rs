//! LVM labels and metadata area headers from a hostile disk: never a panic, never an unbounded loop or allocation, and
//! accepted structures are the same after writing and reading them.
//!
//! Input: one byte of flags, a sector with a header, then the first four sectors of a device.

use ashlar_lvm::ondisk::layout::SECTOR_SIZE;
use ashlar_lvm::ondisk::{MdaHeader, Range, crc, find_label};

/// Checksums are corrected, so that the code after that check is reached.
const RESEAL: u8 = 1;

/// Checks one input against the module text; returns whether part of it was accepted.
pub fn run(data: &[u8]) -> bool {
    let Some((flags, rest)) = data.split_first() else { return false };
    let Some((header, rest)) = rest.split_first_chunk::<SECTOR_SIZE>() else { return false };
    let (mut header, mut sectors) = (*header, rest.to_vec());
    if flags & RESEAL != 0 {
        let sum = crc::crc(&header[4..]);
        header[..4].copy_from_slice(&sum.to_le_bytes());
        for sector in sectors.as_chunks_mut::<SECTOR_SIZE>().0 {
            let sum = crc::crc(&sector[20..]);
            sector[16..20].copy_from_slice(&sum.to_le_bytes());
        }
    }
    let mut accepted = false;
    let mut area = Range { offset: 4096, size: 1_044_480 };
    match find_label(&sectors) {
        Ok(Some(found)) => {
            accepted = true;
            let written = found.label.encode(found.sector).expect("it was in a sector");
            let mut again = vec![0; usize::from(found.sector) * SECTOR_SIZE];
            again.extend_from_slice(&written);
            assert_eq!(find_label(&again).expect("just written"), Some(found.clone()));
            area = found.label.metadata_areas.first().copied().unwrap_or(area);
        }
        Ok(None) => {}
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    match MdaHeader::parse(&header, area) {
        Ok(header) => {
            accepted = true;
            let again = MdaHeader::parse(&header.encode(), area).expect("just written");
            assert_eq!(again, header);
            for text in [header.current, header.precommitted].into_iter().flatten() {
                if let Ok(place) = header.locate(text) {
                    let total: u64 = place.parts.iter().map(|part| part.size).sum();
                    assert_eq!(total, text.size);
                }
            }
            // The text itself does not matter, but it contains at least its NUL.
            sectors.push(0);
            match header.place(&sectors) {
                Ok(place) => assert!(header.locate(place.text).is_ok()),
                Err(error) => assert!(!error.to_string().is_empty()),
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    accepted
}
