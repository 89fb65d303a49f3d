//! The label and the metadata areas of a physical volume, in the forms of `pvck`.

use std::fmt::Display;
use std::mem::offset_of;

use crate::metadata::Metadata;
use crate::ondisk::layout::{
    DiskLocn, ExtensionHeader, LABEL_ID, LABEL_TYPE, LabelHeader, MDA_MAGIC, MDA_VERSION, MdaBlock,
    PvHeader, RAW_LOCN_IGNORED, SECTOR_SIZE,
};
use crate::ondisk::{LabelError, MdaHeader, Range, RawText};
use crate::pv::{AreaContents, PvOnDisk};

/// A text, and the byte of the next list entry.
struct Dump {
    text: String,
    at: u64,
}

impl Dump {
    fn line(&mut self, what: impl Display, value: impl Display) {
        self.text += &format!("  {what} {value}\n");
    }

    /// The entries of a list from the one with this number on, and its end; returns the next number.
    fn list(&mut self, of: &str, what: &str, list: &[Range], first: usize) -> usize {
        let end = Range { offset: 0, size: 0 };
        let entries = list.iter().map(|range| (range, what)).chain([(&end, "location list end")]);
        let mut number = first;
        for (Range { offset, size }, what) in entries {
            let entry = format!("{of}.disk_locn[{number}]");
            let at = self.at;
            self.line(&entry, format_args!("at {at} # {what}"));
            self.line(format_args!("{entry}.offset"), offset);
            self.line(format_args!("{entry}.size"), size);
            self.at += size_of::<DiskLocn>() as u64;
            number += 1;
        }
        number
    }

    /// A slot of the metadata area's header `of`.
    fn slot(&mut self, of: &str, (number, at, what): (usize, u64, &str), slot: (RawText, u32)) {
        let (RawText { offset, size, checksum }, flags) = slot;
        let slot = format!("{of}.raw_locn[{number}]");
        self.line(&slot, format_args!("at {at} # {what}"));
        self.line(format_args!("{slot}.offset"), offset);
        self.line(format_args!("{slot}.size"), size);
        self.line(format_args!("{slot}.checksum"), format_args!("{checksum:#x}"));
        self.line(format_args!("{slot}.flags"), format_args!("{flags:#x}"));
    }

    fn area(&mut self, number: usize, contents: &AreaContents) {
        let MdaHeader { area, current, precommitted, ignored } = &contents.header;
        let (of, at) = (format!("mda_header_{number}"), area.offset);
        let name = |field: &str| format!("{of}.{field}");
        self.line(&of, format_args!("at {at} # metadata area"));
        let checksum = word(&contents.header.encode(), offset_of!(MdaBlock, checksum));
        self.line(name("checksum"), format_args!("{checksum:#x}"));
        let magic: String = MDA_MAGIC.iter().map(|byte| format!("{byte:02x}")).collect();
        self.line(name("magic"), format_args!("0x{magic}"));
        self.line(name("version"), MDA_VERSION);
        self.line(name("start"), at);
        self.line(name("size"), area.size);
        let none = RawText { offset: 0, size: 0, checksum: 0 };
        let flags = if *ignored { RAW_LOCN_IGNORED } else { 0 };
        let first = at + offset_of!(MdaBlock, current) as u64;
        self.slot(&of, (0, first, "commit"), (current.unwrap_or(none), flags));
        let second = at + offset_of!(MdaBlock, precommitted) as u64;
        self.slot(&of, (1, second, "precommit"), (precommitted.unwrap_or(none), 0));
        if let Some(place) = text_place(contents) {
            self.text += &place;
        }
    }
}

/// The little-endian number at an offset.
fn word(bytes: &[u8; SECTOR_SIZE], at: usize) -> u32 {
    let word = bytes.get(at..).and_then(|rest| rest.first_chunk());
    word.map_or(0, |word| u32::from_le_bytes(*word))
}

/// Where the text of an area is, and whose it is.
fn text_place(contents: &AreaContents) -> Option<String> {
    let (place, text) = (contents.header.current?, contents.text.as_ref()?);
    let at = contents.header.area.offset + place.offset;
    let whose = Metadata::parse(text).map(|metadata| {
        format!(" # vgname {} seqno {}", metadata.group.name, metadata.group.seqno)
    });
    let whose = whose.unwrap_or_default();
    Some(format!("  metadata text at {at} crc {:#x}{whose}\n", place.checksum))
}

/// `pvck --dump headers`: the label, and the headers of the metadata areas that are not damaged.
///
/// # Errors
/// The label cannot be encoded.
pub fn headers(pv: &PvOnDisk) -> Result<String, LabelError> {
    let label = &pv.label;
    let bytes = label.encode(pv.label_sector)?;
    let at = u64::from(pv.label_sector) * SECTOR_SIZE as u64;
    let mut dump = Dump { text: String::new(), at: at + size_of::<LabelHeader>() as u64 };
    dump.line("label_header", format_args!("at {at}"));
    dump.line("label_header.id", LABEL_ID.escape_ascii());
    dump.line("label_header.sector", pv.label_sector);
    let crc = word(&bytes, offset_of!(LabelHeader, crc));
    dump.line("label_header.crc", format_args!("{crc:#x}"));
    dump.line("label_header.offset", size_of::<LabelHeader>());
    dump.line("label_header.type", LABEL_TYPE.escape_ascii());
    let header = dump.at;
    dump.line("pv_header", format_args!("at {header}"));
    dump.line("pv_header.pv_uuid", label.uuid.raw().escape_ascii());
    dump.line("pv_header.device_size", label.device_size);
    dump.at += size_of::<PvHeader>() as u64;
    let next = dump.list("pv_header", "location of data area", &label.data_areas, 0);
    dump.list("pv_header", "location of metadata area", &label.metadata_areas, next);
    if let Some(extension) = &label.extension {
        let of = "pv_header_extension";
        let at = dump.at;
        dump.line(of, format_args!("at {at}"));
        dump.line(format_args!("{of}.version"), extension.version);
        dump.line(format_args!("{of}.flags"), extension.flags);
        dump.at += size_of::<ExtensionHeader>() as u64;
        dump.list(of, "bootloader area", &extension.bootloader_areas, 0);
    }
    for (number, area) in (1..).zip(&pv.areas) {
        if let Ok(contents) = &area.state {
            dump.area(number, contents);
        }
    }
    Ok(dump.text)
}

/// The first text of a physical volume, as `pvck --dump metadata` shows it: where it is and whose, and the text. `None` if it has none.
pub fn metadata_text(pv: &PvOnDisk) -> Option<(String, &[u8])> {
    let mut areas = pv.areas.iter().filter_map(|area| area.state.as_ref().ok());
    areas.find_map(|contents| Some((text_place(contents)?, contents.text.as_deref()?)))
}

/// `pvck`: the label and the metadata areas that are not damaged, of the physical volume at `path`.
pub fn checked(path: &str, pv: &PvOnDisk) -> String {
    let kind = LABEL_TYPE.escape_ascii();
    let mut text = format!("  Found label on {path}, sector {}, type={kind}\n", pv.label_sector);
    for area in pv.areas.iter().filter(|area| area.state.is_ok()) {
        let Range { offset, size } = area.place;
        text += &format!("  Found text metadata area: offset={offset}, size={size}\n");
    }
    text
}
