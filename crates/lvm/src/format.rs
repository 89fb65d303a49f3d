//! Makes a device a physical volume, as `pvcreate` does.
//!
//! Whether something else is on the device is the caller's question; here nobody looks.

use ashlar_block::{Buffer, ByteVolume, Flags, Gateway, Sectors, Status};
use thiserror::Error;

use crate::ondisk::layout::{EXTENSION_VERSION, LABEL_SCAN_SECTORS, SECTOR_SIZE};
use crate::ondisk::{Extension, LabelError, MdaHeader, PvLabel, Range};
use crate::pv::{AreaContents, MetadataArea, PvOnDisk};
use crate::uuid::Uuid;

/// Where the first metadata area begins: a page, so that it is aligned on every device.
const FIRST_AREA: u64 = 4096;
/// The smallest metadata area, eight pages.
const MIN_AREA: u64 = 8 * 4096;
/// The smallest device that LVM takes (`devices/pv_min_size`).
const MIN_DEVICE: u64 = 2 << 20;
/// Bytes at the start of a metadata area that are cleared.
const CLEARED: u64 = 8 * SECTOR_SIZE as u64;
/// The sector in which LVM puts its label.
const LABEL_SECTOR: u8 = 1;

/// How a physical volume is laid out; the default is LVM's.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The data begins at a multiple of this: 1 MiB, or an array's stripe if that is no divisor of it.
    pub data_alignment: Sectors,
    /// 0, 1, or 2 with one at the end of the device.
    pub metadata_copies: u8,
    /// Of each metadata area, before it is rounded up to end where the data begins.
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
    /// LVM takes no device as small as this.
    #[error("a physical volume needs at least {MIN_DEVICE} bytes, the device has {0}")]
    TooSmall(u64),
    /// There is no room for the metadata or for data.
    #[error("metadata and boot loader areas leave no room for data on a device of {0} bytes")]
    NoRoom(u64),
    /// What was asked for cannot be.
    #[error("{0}")]
    Layout(&'static str),
    /// It could not be written.
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
        // As far back as alignment asks for, if there is room; else all that is left behind the data's start.
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

/// Makes the device of `gateway` a physical volume of no group.
///
/// A crash leaves what was there before, or nothing that LVM knows, or the new volume: old labels are
/// gone before anything else is written, and the new one comes last.
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

/// Writes the label anew, durably: whether the volume belongs to a group is noted there.
///
/// # Errors
/// It cannot be written.
pub async fn write_label(gateway: &Gateway, pv: &PvOnDisk) -> Result<(), FormatError> {
    let volume = ByteVolume::new(gateway.clone());
    let sector = pv.label.encode(pv.label_sector)?;
    Ok(write_sector(&volume, pv.label_sector, &sector).await?)
}

/// Takes the label away, as `pvremove` does. A crash leaves the volume or no volume.
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
