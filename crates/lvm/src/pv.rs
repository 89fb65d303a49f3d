//! Reads a physical volume: its label and its metadata areas.

use ashlar_block::{Buffer, ByteVolume, Gateway, Status};
use thiserror::Error;

use crate::metadata::{Metadata, MetadataError};
use crate::ondisk::layout::{LABEL_SCAN_SECTORS, SECTOR_SIZE};
use crate::ondisk::{LabelError, MdaError, MdaHeader, PvLabel, Range, RawText, crc, find_label};
use crate::text;

/// Metadata areas of a physical volume that LVM uses.
const MAX_AREAS: usize = 2;

/// A physical volume, as found on its device.
#[derive(Clone, Debug)]
pub struct PvOnDisk {
    /// The sector of the label.
    pub label_sector: u8,
    /// The label.
    pub label: PvLabel,
    /// The metadata areas, in the label's order.
    pub areas: Vec<MetadataArea>,
}

/// A metadata area, as found on its device.
#[derive(Clone, Debug)]
pub struct MetadataArea {
    /// The label's location for it.
    pub place: Range,
    /// Its contents.
    pub state: Result<AreaContents, MdaError>,
}

/// The contents of a valid metadata area.
#[derive(Clone, Debug)]
pub struct AreaContents {
    /// Its header.
    pub header: MdaHeader,
    /// The current text without its NUL; its checksum was verified. `None` on a volume without a
    /// group, and if the area is ignored.
    pub text: Option<Vec<u8>>,
}

/// Why a device is unusable as a physical volume.
#[derive(Debug, Error)]
pub enum ReadError {
    /// The device cannot be read.
    #[error("cannot read the LVM label: {0}")]
    Read(#[from] Status),
    /// The label is damaged.
    #[error(transparent)]
    Label(#[from] LabelError),
}

/// Reads LVM2's structures on a device; `None` if it is not a physical volume.
///
/// Errors of metadata areas are in their states. A volume without a valid area still has its data:
/// other volumes of its group describe it.
///
/// # Errors
/// The device cannot be read, or the label is damaged.
pub async fn read_pv(gateway: &Gateway) -> Result<Option<PvOnDisk>, ReadError> {
    let volume = ByteVolume::new(gateway.clone());
    let scanned = (LABEL_SCAN_SECTORS * SECTOR_SIZE) as u64;
    if volume.size_bytes() < scanned {
        return Ok(None);
    }
    let sectors = read_bytes(&volume, Range { offset: 0, size: scanned }).await?;
    let Some(found) = find_label(&sectors)? else { return Ok(None) };
    let mut areas = Vec::new();
    for (i, place) in found.label.metadata_areas.iter().enumerate() {
        let state =
            if i < MAX_AREAS { read_area(&volume, *place).await } else { Err(MdaError::TooMany) };
        areas.push(MetadataArea { place: *place, state });
    }
    Ok(Some(PvOnDisk { label_sector: found.sector, label: found.label, areas }))
}

impl PvOnDisk {
    /// Whether it has metadata areas, but none is readable: it may be in a group without showing it.
    pub fn is_mute(&self) -> bool {
        !self.areas.is_empty() && self.areas.iter().all(|area| area.state.is_err())
    }

    /// Whether a commit writes to one of its areas.
    pub fn is_written(&self) -> bool {
        let is_used = |contents: &AreaContents| !contents.header.ignored;
        self.areas.iter().any(|area| area.state.as_ref().is_ok_and(is_used))
    }

    /// The texts of the valid areas, in the label's order.
    pub fn texts(&self) -> impl Iterator<Item = &[u8]> {
        let good = self.areas.iter().filter_map(|area| area.state.as_ref().ok());
        good.filter_map(|contents| contents.text.as_deref())
    }

    /// The volume's text of its group; of two different texts, the newer one. `None` if it has
    /// none; then it belongs to no group, or other volumes describe its group
    /// ([`PvLabel::is_used`]).
    ///
    /// # Errors
    /// The error of the first text, if no text is valid.
    pub fn metadata(&self) -> Result<Option<Metadata>, MetadataError> {
        let mut newest: Option<Metadata> = None;
        let mut failed = None;
        let mut last: Option<&[u8]> = None;
        for text in self.texts() {
            // Usually both are equal.
            if last.replace(text) == Some(text) {
                continue;
            }
            match Metadata::parse(text) {
                Ok(metadata) => {
                    let is_newer =
                        newest.as_ref().is_none_or(|old| old.group.seqno < metadata.group.seqno);
                    if is_newer {
                        newest = Some(metadata);
                    }
                }
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        match (newest, failed) {
            (None, Some(error)) => Err(error),
            (newest, _) => Ok(newest),
        }
    }

    /// Descriptions of the defects of its areas.
    pub fn defects(&self) -> impl Iterator<Item = String> {
        (1..).zip(&self.areas).filter_map(|(number, area)| {
            let error = area.state.as_ref().err()?;
            Some(format!("metadata area {number} is not used: {error}"))
        })
    }
}

async fn read_area(volume: &ByteVolume, place: Range) -> Result<AreaContents, MdaError> {
    let within = |range: Range| {
        let end = range.offset.checked_add(range.size);
        let outside = MdaError::Outside { offset: range.offset, size: range.size };
        if end.is_some_and(|end| end <= volume.size_bytes()) { Ok(()) } else { Err(outside) }
    };
    let sector = Range { offset: place.offset, size: SECTOR_SIZE as u64 };
    within(sector)?;
    let bytes = read_bytes(volume, sector).await.map_err(MdaError::Read)?;
    let bytes = bytes.first_chunk().ok_or(MdaError::Magic)?;
    let header = MdaHeader::parse(bytes, place)?;
    within(header.area)?;
    let text = match header.current {
        Some(text) if !header.ignored => Some(read_text(volume, &header, text).await?),
        Some(_) | None => None,
    };
    Ok(AreaContents { header, text })
}

/// Reads a text, without its NUL.
async fn read_text(
    volume: &ByteVolume,
    header: &MdaHeader,
    place: RawText,
) -> Result<Vec<u8>, MdaError> {
    let mut text = Vec::new();
    for part in header.locate(place)?.parts {
        text.extend(read_bytes(volume, part).await.map_err(MdaError::Read)?);
    }
    let found = crc::crc(&text);
    if found != place.checksum {
        return Err(MdaError::TextChecksum { found: place.checksum, expected: found });
    }
    debug_assert!(text.len() <= text::MAX_BYTES, "located within bounds");
    text.truncate(text.iter().position(|byte| *byte == 0).unwrap_or(text.len()));
    Ok(text)
}

pub(crate) async fn read_bytes(volume: &ByteVolume, range: Range) -> Result<Vec<u8>, Status> {
    let mut buffer = Buffer::alloc(range.size as usize);
    let whole = buffer.whole();
    volume.read(range.offset, [whole]).await?;
    Ok(buffer.as_slice().to_vec())
}
