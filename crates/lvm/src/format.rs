//! Creates a physical volume on a device, as `pvcreate` does.
//!
//! The caller must check whether the device contains something else; this module does not.

use ashlar_block::{Buffer, ByteVolume, Flags, Gateway, Sectors, Status};
use thiserror::Error;

use crate::ondisk::layout::{EXTENSION_VERSION, LABEL_SCAN_SECTORS, SECTOR_SIZE};
use crate::ondisk::{Extension, LabelError, MdaHeader, PvLabel, Range};
use crate::pv::{AreaContents, MetadataArea, PvOnDisk};
use crate::uuid::Uuid;

/// Offset of the first metadata area: a page, so that it is aligned on every device.
const FIRST_AREA: u64 = 4096;
/// The smallest metadata area, eight pages.
const MIN_AREA: u64 = 8 * 4096;
/// The smallest device that LVM accepts (`devices/pv_min_size`).
pub(crate) const MIN_DEVICE: u64 = 2 << 20;
/// Bytes cleared at the start of a metadata area.
const CLEARED: u64 = 8 * SECTOR_SIZE as u64;
/// The sector of LVM's label.
const LABEL_SECTOR: u8 = 1;

/// The layout of a physical volume; the default is LVM's.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Alignment of the data's start: 1 MiB, or an array's stripe if that does not divide 1 MiB.
    pub data_alignment: Sectors,
    /// 0, 1, or 2; the second is at the end of the device.
    pub metadata_copies: u8,
    /// Size of each metadata area, before it is extended to the data's start.
    pub metadata_size: Sectors,
    /// Space for a boot loader between metadata and data, rounded up to `data_alignment`.
    pub bootloader: Sectors,
}

impl Default for Layout {
    fn default() -> Self {
        Self {
            data_alignment: Sectors(2048),
            metadata_copies: 1,
            // So that label and metadata take 1 MiB.
            metadata_size: Sectors(2040),
            bootloader: Sectors(0),
        }
    }
}

/// Why a device cannot become a physical volume.
#[derive(Debug, Error)]
pub enum FormatError {
    /// The device is smaller than LVM accepts.
    #[error("a physical volume needs at least {MIN_DEVICE} bytes, the device has {0}")]
    TooSmall(u64),
    /// There is no room for the metadata or for data.
    #[error("metadata and boot loader areas leave no room for data on a device of {0} bytes")]
    NoRoom(u64),
    /// The layout is impossible.
    #[error("{0}")]
    Layout(&'static str),
    /// A write failed.
    #[error("cannot write the label and the metadata areas: {0}")]
    Write(#[from] Status),
    /// The label does not fit its sector.
    #[error(transparent)]
    Label(#[from] LabelError),
}

/// The label of a new physical volume on a device of `size` bytes.
///
/// # Errors
/// It does not fit.
pub fn plan(uuid: Uuid, size: u64, layout: &Layout) -> Result<PvLabel, FormatError> {
    let align = layout.data_alignment.bytes();
    let metadata = layout.metadata_size.bytes();
    if align < FIRST_AREA || !align.is_multiple_of(FIRST_AREA) || align > 1 << 40 {
        return Err(FormatError::Layout("the data alignment must be a multiple of 4 KiB"));
    }
    if layout.metadata_copies > 2 {
        return Err(FormatError::Layout("a physical volume has at most two metadata areas"));
    }
    if layout.metadata_copies > 0 && !(MIN_AREA..=1 << 40).contains(&metadata) {
        return Err(FormatError::Layout("a metadata area has at least 32 KiB"));
    }
    if size < MIN_DEVICE {
        return Err(FormatError::TooSmall(size));
    }
    let mut areas = Vec::new();
    let mut data = align;
    if layout.metadata_copies > 0 {
        data = (FIRST_AREA + metadata).next_multiple_of(align);
        areas.push(Range { offset: FIRST_AREA, size: data - FIRST_AREA });
    }
    let mut bootloader_areas = Vec::new();
    if !layout.bootloader.is_zero() {
        let room = layout.bootloader.bytes().checked_next_multiple_of(align);
        let end = room.and_then(|room| data.checked_add(room));
        let end = end.ok_or(FormatError::NoRoom(size))?;
        bootloader_areas.push(Range { offset: data, size: end - data });
        data = end;
    }
    if data >= size {
        return Err(FormatError::NoRoom(size));
    }
    if layout.metadata_copies > 1 {
        // Aligned backwards if there is room; otherwise everything after the data's start.
        let start = size.checked_sub(metadata).filter(|start| *start >= data);
        let aligned = start.map(|start| start / align * align).filter(|start| *start >= data);
        let start = aligned.or(start).unwrap_or(data);
        if size - start < MIN_AREA {
            return Err(FormatError::NoRoom(size));
        }
        areas.push(Range { offset: start, size: size - start });
    }
    Ok(PvLabel {
        uuid,
        device_size: size,
        data_areas: vec![Range { offset: data, size: 0 }],
        metadata_areas: areas,
        extension: Some(Extension { version: EXTENSION_VERSION, flags: 0, bootloader_areas }),
    })
}

/// The label of a physical volume without a group if its size is `size` bytes.
///
/// # Errors
/// It cannot have that size.
pub fn resized(label: &PvLabel, size: u64) -> Result<PvLabel, FormatError> {
    if label.metadata_areas.len() > 1 {
        let why = "it has a metadata area at its end, which would have to move: recreate it with pvcreate";
        return Err(FormatError::Layout(why));
    }
    if size < MIN_DEVICE {
        return Err(FormatError::TooSmall(size));
    }
    if label.data_areas.iter().any(|area| area.offset >= size) {
        return Err(FormatError::NoRoom(size));
    }
    Ok(PvLabel { device_size: size, ..label.clone() })
}

/// Creates a physical volume without a group on the device of `gateway`.
///
/// A crash leaves the previous contents, or nothing that LVM recognizes, or the new volume: old
/// labels are erased before anything else is written, and the new label comes last.
///
/// # Errors
/// It does not fit, or cannot be written.
pub async fn format_pv(
    gateway: &Gateway,
    uuid: Uuid,
    layout: &Layout,
) -> Result<PvOnDisk, FormatError> {
    let volume = ByteVolume::new(gateway.clone());
    let label = plan(uuid, volume.size_bytes(), layout)?;
    let sector = label.encode(LABEL_SECTOR)?;
    let scanned = (LABEL_SCAN_SECTORS * SECTOR_SIZE) as u64;
    volume.write_zeroes(0, scanned, Flags::empty()).await?;
    gateway.flush().await?;
    let mut areas = Vec::new();
    for place in &label.metadata_areas {
        let header = MdaHeader::empty(*place);
        volume.write_zeroes(place.offset, CLEARED.min(place.size), Flags::empty()).await?;
        write_bytes(&volume, place.offset, &header.encode(), Flags::META).await?;
        areas.push(MetadataArea { place: *place, state: Ok(AreaContents { header, text: None }) });
    }
    gateway.flush().await?;
    write_sector(&volume, LABEL_SECTOR, &sector).await?;
    Ok(PvOnDisk { label_sector: LABEL_SECTOR, label, areas })
}

/// Writes the label again, durably: it records whether the volume belongs to a group.
///
/// # Errors
/// It cannot be written.
pub async fn write_label(gateway: &Gateway, pv: &PvOnDisk) -> Result<(), FormatError> {
    let volume = ByteVolume::new(gateway.clone());
    let sector = pv.label.encode(pv.label_sector)?;
    Ok(write_sector(&volume, pv.label_sector, &sector).await?)
}

/// Takes a physical volume out of its group: it is a free one afterwards.
///
/// A crash leaves it with the text of its group, or with the mark of being used and no text; `pvcreate -ff` takes back what is
/// left like that.
///
/// # Errors
/// It cannot be written.
pub async fn release_pv(gateway: &Gateway, pv: &mut PvOnDisk) -> Result<(), FormatError> {
    let volume = ByteVolume::new(gateway.clone());
    for area in &mut pv.areas {
        let Ok(contents) = &mut area.state else { continue };
        let header = MdaHeader::empty(area.place);
        write_bytes(&volume, area.place.offset, &header.encode(), Flags::META | Flags::FUA).await?;
        *contents = AreaContents { header, text: None };
    }
    pv.label.set_used(false);
    write_label(gateway, pv).await
}

/// Erases the label, as `pvremove` does. A crash leaves the volume or no volume.
///
/// # Errors
/// It cannot be written.
pub async fn erase_pv(gateway: &Gateway, pv: &PvOnDisk) -> Result<(), Status> {
    let volume = ByteVolume::new(gateway.clone());
    write_sector(&volume, pv.label_sector, &[0; SECTOR_SIZE]).await
}

async fn write_sector(volume: &ByteVolume, number: u8, bytes: &[u8]) -> Result<(), Status> {
    let offset = u64::from(number) * SECTOR_SIZE as u64;
    write_bytes(volume, offset, bytes, Flags::META | Flags::FUA).await
}

pub(crate) async fn write_bytes(
    volume: &ByteVolume,
    offset: u64,
    bytes: &[u8],
    flags: Flags,
) -> Result<(), Status> {
    let mut buffer = Buffer::from_slice(bytes);
    let whole = buffer.whole();
    volume.write(offset, [whole], flags).await
}
