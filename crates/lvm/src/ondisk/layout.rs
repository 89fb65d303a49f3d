//! The on-disk structs: `lib/label/label.h`, `lib/format_text/layout.h` of LVM. All numbers are
//! little-endian, all offsets and sizes are in bytes.

use ashlar_block::ondisk_layout;
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A label, and a metadata area's header, fill one sector of this size, whatever the device's blocks.
pub const SECTOR_SIZE: usize = 512;
/// The label is in one of the first four sectors.
pub const LABEL_SCAN_SECTORS: usize = 4;
/// `label_header.id`
pub const LABEL_ID: [u8; 8] = *b"LABELONE";
/// `label_header.type` of LVM2.
pub const LABEL_TYPE: [u8; 8] = *b"LVM2 001";
/// `mda_header.magic`
pub const MDA_MAGIC: [u8; 16] = *b" LVM2 x[5A%r0N*>";
/// `mda_header.version`
pub const MDA_VERSION: u32 = 1;
/// The version of the extension written by LVM.
pub const EXTENSION_VERSION: u32 = 2;
/// `pv_header_extension.flags`: the volume belongs to a group, even if its areas do not say so.
pub const PV_EXT_USED: u32 = 1;
/// `raw_locn.flags`: this area is not used for metadata.
pub const RAW_LOCN_IGNORED: u32 = 1;

/// `struct label_header`
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LabelHeader {
    /// [`LABEL_ID`]
    pub id: [u8; 8],
    /// The number of its sector.
    pub sector: U64,
    /// Checksum of the sector from the next field on.
    pub crc: U32,
    /// From this struct to the [`PvHeader`].
    pub offset: U32,
    /// [`LABEL_TYPE`]
    pub kind: [u8; 8],
}

ondisk_layout!(LabelHeader, 32, { id: 0, sector: 8, crc: 16, offset: 20, kind: 24 });

/// `struct pv_header`, followed by two lists of [`DiskLocn`], each terminated by an entry of
/// zeroes: data areas and metadata areas; then comes the [`ExtensionHeader`].
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PvHeader {
    /// Identity, without dashes.
    pub uuid: [u8; 32],
    /// Size of the device when the label was written.
    pub device_size: U64,
}

ondisk_layout!(PvHeader, 40, { uuid: 0, device_size: 32 });

/// `struct disk_locn`
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DiskLocn {
    /// Offset from the start of the device. Zero ends a list.
    pub offset: U64,
    /// Size; zero for a data area means up to the end.
    pub size: U64,
}

ondisk_layout!(DiskLocn, 16, { offset: 0, size: 8 });

/// `struct pv_header_extension`, followed by a list of bootloader areas.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ExtensionHeader {
    /// 1: with bootloader areas; 2: with flags. Zero: no extension.
    pub version: U32,
    /// [`PV_EXT_USED`]
    pub flags: U32,
}

ondisk_layout!(ExtensionHeader, 8, { version: 0, flags: 4 });

/// `struct raw_locn`: the location of a text.
#[derive(
    Clone, Debug, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct RawLocn {
    /// Offset from the start of the metadata area.
    pub offset: U64,
    /// Size, including the NUL at the end of the text.
    pub size: U64,
    /// Checksum of the text.
    pub checksum: U32,
    /// [`RAW_LOCN_IGNORED`]
    pub flags: U32,
}

ondisk_layout!(RawLocn, 24, { offset: 0, size: 8, checksum: 16, flags: 20 });

/// `struct mda_header`, with the two text slots that LVM uses.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct MdaBlock {
    /// Checksum of the rest of the sector.
    pub checksum: U32,
    /// [`MDA_MAGIC`]
    pub magic: [u8; 16],
    /// [`MDA_VERSION`]
    pub version: U32,
    /// Offset of this header on the device.
    pub start: U64,
    /// Size of the area, including this header.
    pub size: U64,
    /// The current text. All zero: none.
    pub current: RawLocn,
    /// A text that is about to become current.
    pub precommitted: RawLocn,
    /// Zero.
    pub rest: [u8; 424],
}

ondisk_layout!(MdaBlock, SECTOR_SIZE, {
    checksum: 0, magic: 4, version: 20, start: 24, size: 32, current: 40, precommitted: 64, rest: 88,
});
