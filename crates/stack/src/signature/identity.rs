//! The label and the UUID of a file system, as `blkid(8)` shows them.

use uuid::Uuid;

use super::{Image, Signature};

/// What distinguishes a file system from others of its type. Either may be unknown.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Identity {
    /// The name that the user gave it.
    pub label: Option<String>,
    /// Its UUID, or the number that a type without UUIDs has.
    pub uuid: Option<String>,
}

/// How a label or an identifier is written.
#[derive(Clone, Copy)]
enum Form {
    /// 16 bytes.
    Uuid,
    /// Text of at most so many bytes, which a zero byte or blanks may end before.
    Text(usize),
    /// So many UTF-16 units, little-endian, which a zero may end before.
    Wide(usize),
    /// A little-endian number of 32 bits, in two halves: `1A2B-3C4D`.
    Halves,
    /// A little-endian number of 64 bits.
    Long,
}

/// A field: its offset on the device, and its form.
type Field = Option<(u64, Form)>;

/// The label and the identifier of what `found` belongs to. The sources are those of the signatures.
pub fn identity(image: &Image, found: &Signature) -> Identity {
    let (label, uuid) = fields(image, found);
    let text = |field: Field| field.and_then(|(offset, form)| read(image, offset, form));
    // What mkfs.fat writes if there is no label.
    let label = text(label).filter(|label| found.name != "vfat" || label != "NO NAME");
    Identity { label, uuid: text(uuid) }
}

/// The places of label and identifier. exFAT and NTFS have their labels in files.
fn fields(image: &Image, found: &Signature) -> (Field, Field) {
    use Form::{Halves, Long, Text, Uuid, Wide};
    let field = |offset, form| Some((offset, form));
    match found.name {
        "ext2" | "ext3" | "ext4" | "jbd" => (field(0x478, Text(16)), field(0x468, Uuid)),
        "xfs" => (field(108, Text(12)), field(32, Uuid)),
        "btrfs" => (field(0x1_012b, Text(256)), field(0x1_0020, Uuid)),
        "f2fs" => (field(0x47c, Wide(512)), field(0x46c, Uuid)),
        "erofs" => (field(0x440, Text(16)), field(0x430, Uuid)),
        "reiserfs" => (field(0x1_0064, Text(16)), field(0x1_0054, Uuid)),
        "jfs" => (field(0x8098, Text(16)), field(0x8088, Uuid)),
        "bcachefs" => (field(0x1048, Text(32)), field(0x1038, Uuid)),
        "apfs" => (None, field(0x48, Uuid)),
        "iso9660" => (field(0x8028, Text(32)), None),
        "vfat" if found.offset == 0x52 => (field(0x47, Text(11)), field(0x43, Halves)),
        "vfat" if found.offset == 0x36 => (field(0x2b, Text(11)), field(0x27, Halves)),
        "exfat" => (None, field(0x64, Halves)),
        "ntfs" => (None, field(0x48, Long)),
        // Version 1; the older one has neither.
        "swap" if image.le_u32(0x400) == Some(1) => (field(0x41c, Text(16)), field(0x40c, Uuid)),
        // Version 1 has no label.
        "crypto_LUKS" if image.has(0, b"LUKS\xba\xbe\0\x01") => (None, field(168, Text(40))),
        "crypto_LUKS" if image.has(0, b"LUKS\xba\xbe\0\x02") => {
            (field(24, Text(48)), field(168, Text(40)))
        }
        _ => (None, None),
    }
}

/// The text of a field; `None` if it is empty or not loaded.
fn read(image: &Image, offset: u64, form: Form) -> Option<String> {
    let text = match form {
        Form::Uuid => {
            let uuid = Uuid::from_bytes(*image.bytes(offset, 16)?.first_chunk()?);
            if uuid.is_nil() { String::new() } else { uuid.to_string() }
        }
        Form::Text(len) => {
            let bytes = image.bytes(offset, len)?;
            let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(len);
            String::from_utf8_lossy(&bytes[..end]).trim_end().to_owned()
        }
        Form::Wide(len) => {
            let units = image.bytes(offset, 2 * len)?.chunks_exact(2);
            let units = units.map(|unit| u16::from_le_bytes([unit[0], unit[1]]));
            String::from_utf16_lossy(&units.take_while(|unit| *unit != 0).collect::<Vec<_>>())
        }
        Form::Halves => {
            let number = image.le_u32(offset)?;
            format!("{:04X}-{:04X}", number >> 16, number & 0xffff)
        }
        Form::Long => {
            format!("{:016X}", u64::from_le_bytes(*image.bytes(offset, 8)?.first_chunk()?))
        }
    };
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signature::Usage;

    fn of(
        name: &'static str,
        offset: u64,
        fields: &[(usize, &[u8])],
    ) -> (Option<String>, Option<String>) {
        let mut bytes = vec![0; 0x2_0000];
        for (at, field) in fields {
            bytes[*at..][..field.len()].copy_from_slice(field);
        }
        let mut image = Image::new(1 << 30);
        image.add(0, bytes);
        let Identity { label, uuid } =
            identity(&image, &Signature { name, usage: Usage::FileSystem, offset });
        (label, uuid)
    }

    /// Those that the tools of most hosts make are compared with wipefs, in the suite.
    #[test]
    fn labels_and_identifiers_are_where_the_formats_have_them() {
        let id = *b"0123456789abcdef";
        let uuid = || Some(Uuid::from_bytes(id).to_string());
        let label = || Some("data".to_owned());
        for (name, label_at, uuid_at) in [
            ("erofs", 0x440, 0x430),
            ("reiserfs", 0x1_0064, 0x1_0054),
            ("jfs", 0x8098, 0x8088),
            ("bcachefs", 0x1048, 0x1038),
        ] {
            assert_eq!(
                of(name, 0, &[(label_at, b"data"), (uuid_at, &id)]),
                (label(), uuid()),
                "{name}"
            );
        }
        let wide: &[u8] = b"d\0a\0t\0a\0\0\0x\0";
        assert_eq!(of("f2fs", 0, &[(0x47c, wide), (0x46c, &id)]), (label(), uuid()));
        assert_eq!(of("apfs", 0, &[(0x48, &id)]), (None, uuid()));
        assert_eq!(of("iso9660", 0, &[(0x8028, b"data    ")]), (label(), None));
        let serial = || Some("1A2B-3C4D".to_owned());
        let bytes = &[0x4d, 0x3c, 0x2b, 0x1a];
        assert_eq!(of("exfat", 3, &[(0x64, bytes)]), (None, serial()));
        let fat16: &[(usize, &[u8])] = &[(0x2b, b"data       "), (0x27, bytes)];
        assert_eq!(of("vfat", 0x36, fat16), (label(), serial()));
        assert_eq!(of("vfat", 0x36, &[(0x2b, b"NO NAME    "), (0x27, bytes)]), (None, serial()));
        assert_eq!(of("vfat", 0x52, &[(0x47, b"data"), (0x43, bytes)]), (label(), serial()));
        assert_eq!(of("vfat", 510, fat16), (None, None));
        let ntfs = of("ntfs", 3, &[(0x48, &[8, 7, 6, 5, 4, 3, 2, 1])]);
        assert_eq!(ntfs, (None, Some("0102030405060708".to_owned())));
        assert_eq!(of("swap", 0xff6, &[(0x41c, b"data"), (0x40c, &id)]), (None, None));
        assert_eq!(of("ext4", 0x438, &[]), (None, None));
        assert_eq!(of("gpt", 512, &[]), (None, None));
        let none = Signature { name: "ext4", usage: Usage::FileSystem, offset: 0x438 };
        assert_eq!(identity(&Image::new(1 << 30), &none), Identity::default());
    }
}
