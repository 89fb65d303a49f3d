//! The label: the identity of a physical volume, and the location of its data and metadata.

use thiserror::Error;
use zerocopy::{FromBytes, IntoBytes};

use super::crc::crc;
use super::layout::{
    DiskLocn, EXTENSION_VERSION, ExtensionHeader, LABEL_ID, LABEL_SCAN_SECTORS, LABEL_TYPE,
    LabelHeader, PV_EXT_USED, PvHeader, SECTOR_SIZE,
};
use super::mda::Range;
use crate::uuid::Uuid;

/// Offset of the struct after the label's header, as LVM places it.
const PV_HEADER_AT: usize = size_of::<LabelHeader>();
/// Start of the bytes that the checksum covers.
const CRC_FROM: usize = 20;

/// The contents of a label.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PvLabel {
    /// Identity of the physical volume.
    pub uuid: Uuid,
    /// Size of the device when the label was written, bytes.
    pub device_size: u64,
    /// The data: one area, usually of size zero, which means up to the end.
    pub data_areas: Vec<Range>,
    /// The metadata: none, one or two areas.
    pub metadata_areas: Vec<Range>,
    /// Fields added by newer versions. `None` on volumes of LVM before 2.02.99.
    pub extension: Option<Extension>,
}

/// The label's fields added by newer versions of LVM.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Extension {
    /// 1 or 2.
    pub version: u32,
    /// [`PV_EXT_USED`]
    pub flags: u32,
    /// Space reserved for a boot loader: none or one area.
    pub bootloader_areas: Vec<Range>,
}

/// A label and the sector it was found in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LocatedLabel {
    /// 0 to 3, usually 1.
    pub sector: u8,
    /// The label.
    pub label: PvLabel,
}

/// Why a label cannot be used or written.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum LabelError {
    /// The sector is damaged.
    #[error(
        "the LVM label in sector {sector} is damaged: its checksum is {found:#010x}, not {expected:#010x}"
    )]
    Checksum {
        /// The sector.
        sector: u8,
        /// The stored checksum.
        found: u32,
        /// The computed checksum.
        expected: u32,
    },
    /// A copy of a label from another location.
    #[error("the LVM label in sector {sector} says that it belongs into sector {says}")]
    Misplaced {
        /// Its sector.
        sector: u8,
        /// The sector that it names.
        says: u64,
    },
    /// A label of another type.
    #[error("the label in sector {sector} is not of LVM2 but of type {kind:?}")]
    Kind {
        /// The sector.
        sector: u8,
        /// Its type.
        kind: String,
    },
    /// A list without an end, or an offset beyond the sector.
    #[error("the LVM label in sector {sector} does not fit its sector: {what}")]
    Layout {
        /// The sector.
        sector: u8,
        /// The affected part.
        what: &'static str,
    },
    /// The UUID is invalid.
    #[error("the LVM label in sector {sector} has no valid UUID")]
    Uuid {
        /// The sector.
        sector: u8,
    },
}

/// Finds the label in the first four sectors of a device. Like LVM, it skips sectors with a damaged
/// label if there is a valid one.
///
/// # Errors
/// There are only damaged labels.
pub fn find_label(sectors: &[u8]) -> Result<Option<LocatedLabel>, LabelError> {
    let mut damaged = None;
    let (sectors, _) = sectors.as_chunks::<SECTOR_SIZE>();
    for (number, sector) in (0..).zip(sectors.iter().take(LABEL_SCAN_SECTORS)) {
        if !sector.starts_with(&LABEL_ID) {
            continue;
        }
        match PvLabel::parse(sector, number) {
            Ok(label) => return Ok(Some(LocatedLabel { sector: number, label })),
            Err(error) => damaged = damaged.or(Some(error)),
        }
    }
    damaged.map_or(Ok(None), Err)
}

impl PvLabel {
    /// The label in `bytes`, the device's sector `number`.
    ///
    /// # Errors
    /// It is damaged, or not an LVM2 label.
    pub fn parse(bytes: &[u8; SECTOR_SIZE], number: u8) -> Result<Self, LabelError> {
        let layout = |what| LabelError::Layout { sector: number, what };
        let (header, _) = LabelHeader::read_from_prefix(bytes).map_err(|_| layout("its header"))?;
        if header.sector.get() != u64::from(number) {
            return Err(LabelError::Misplaced { sector: number, says: header.sector.get() });
        }
        let expected = crc(&bytes[CRC_FROM..]);
        if header.crc.get() != expected {
            let found = header.crc.get();
            return Err(LabelError::Checksum { sector: number, found, expected });
        }
        if header.kind != LABEL_TYPE {
            let kind = header.kind.escape_ascii().to_string();
            return Err(LabelError::Kind { sector: number, kind });
        }
        let rest = bytes.get(header.offset.get() as usize..).ok_or_else(|| layout("its offset"))?;
        let (pv, mut rest) =
            PvHeader::read_from_prefix(rest).map_err(|_| layout("the volume's header"))?;
        let data_areas = read_list(&mut rest).ok_or_else(|| layout("the data areas"))?;
        let metadata_areas = read_list(&mut rest).ok_or_else(|| layout("the metadata areas"))?;
        let extension = match ExtensionHeader::read_from_prefix(rest) {
            Ok((extension, mut rest)) if extension.version.get() != 0 => Some(Extension {
                version: extension.version.get(),
                flags: extension.flags.get(),
                bootloader_areas: read_list(&mut rest)
                    .ok_or_else(|| layout("the bootloader areas"))?,
            }),
            Ok(_) | Err(_) => None,
        };
        Ok(Self {
            uuid: Uuid::from_raw(pv.uuid).ok_or(LabelError::Uuid { sector: number })?,
            device_size: pv.device_size.get(),
            data_areas,
            metadata_areas,
            extension,
        })
    }

    /// The sector to write, for the device's sector `number`.
    ///
    /// # Errors
    /// There are more areas than fit in a sector.
    pub fn encode(&self, number: u8) -> Result<[u8; SECTOR_SIZE], LabelError> {
        let mut body = Vec::with_capacity(SECTOR_SIZE);
        let pv = PvHeader { uuid: self.uuid.raw(), device_size: self.device_size.into() };
        body.extend_from_slice(pv.as_bytes());
        write_list(&mut body, &self.data_areas);
        write_list(&mut body, &self.metadata_areas);
        if let Some(extension) = &self.extension {
            let header = ExtensionHeader {
                version: extension.version.into(),
                flags: extension.flags.into(),
            };
            body.extend_from_slice(header.as_bytes());
            write_list(&mut body, &extension.bootloader_areas);
        }
        let mut bytes = [0; SECTOR_SIZE];
        let place = bytes[PV_HEADER_AT..].get_mut(..body.len());
        let layout = || LabelError::Layout { sector: number, what: "there are too many areas" };
        place.ok_or_else(layout)?.copy_from_slice(&body);
        let mut header = LabelHeader {
            id: LABEL_ID,
            sector: u64::from(number).into(),
            crc: 0.into(),
            offset: (PV_HEADER_AT as u32).into(),
            kind: LABEL_TYPE,
        };
        bytes[..PV_HEADER_AT].copy_from_slice(header.as_bytes());
        header.crc = crc(&bytes[CRC_FROM..]).into();
        bytes[..PV_HEADER_AT].copy_from_slice(header.as_bytes());
        Ok(bytes)
    }

    /// Whether the label says that the volume belongs to a group. Only this shows that a volume
    /// without metadata areas, or one whose group is incomplete, is in use.
    pub fn is_used(&self) -> bool {
        self.extension.as_ref().is_some_and(|extension| extension.flags & PV_EXT_USED != 0)
    }

    /// Records in the label whether the volume belongs to a group.
    pub fn set_used(&mut self, used: bool) {
        let new = || Extension { version: EXTENSION_VERSION, flags: 0, bootloader_areas: vec![] };
        let extension = self.extension.get_or_insert_with(new);
        extension.version = extension.version.max(EXTENSION_VERSION);
        extension.flags = extension.flags & !PV_EXT_USED | u32::from(used);
    }
}

/// Reads a list up to the entry of zeroes; `None` if that is missing.
fn read_list(bytes: &mut &[u8]) -> Option<Vec<Range>> {
    let mut list = Vec::new();
    loop {
        let (place, rest) = DiskLocn::read_from_prefix(bytes).ok()?;
        *bytes = rest;
        if place.offset.get() == 0 {
            return Some(list);
        }
        list.push(Range { offset: place.offset.get(), size: place.size.get() });
    }
}

fn write_list(bytes: &mut Vec<u8>, list: &[Range]) {
    let end = Range { offset: 0, size: 0 };
    for range in list.iter().chain([&end]) {
        let place = DiskLocn { offset: range.offset.into(), size: range.size.into() };
        bytes.extend_from_slice(place.as_bytes());
    }
}
