//! docs/formats/lvm.md matches the code: its tables of fields are compared with the structs.

use std::mem::{offset_of, size_of};

use ashlar_lvm::ondisk::layout::{
    ExtensionHeader, LABEL_ID, LABEL_TYPE, LabelHeader, MDA_MAGIC, MdaBlock, PvHeader, RawLocn,
};
use ashlar_lvm::text;

const DOCUMENT: &str = include_str!("../../../../../docs/formats/lvm.md");

fn size_of_field<T, F>(_: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

/// All fields of a struct with offsets and sizes. The pattern must name every field to compile.
macro_rules! fields {
    ($t:ident { $($field:ident),+ }) => {{
        fn _all(value: $t) {
            let $t { $($field: _),+ } = value;
        }
        vec![$((
            offset_of!($t, $field),
            size_of_field(|value: &$t| &value.$field),
            stringify!($field),
        )),+]
    }};
}

/// The tables of fields, in document order.
fn tables() -> Vec<Vec<(usize, usize, &'static str)>> {
    let mut tables = Vec::new();
    for line in DOCUMENT.lines() {
        if line.starts_with("| offset |") {
            tables.push(Vec::new());
            continue;
        }
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [offset, size, field, _meaning] = cells[..] else { continue };
        if let (Ok(offset), Ok(size), Some(table)) =
            (offset.parse(), size.parse(), tables.last_mut())
        {
            table.push((offset, size, field));
        }
    }
    tables
}

#[test]
fn the_tables_list_all_fields_of_the_structs() {
    let expected = vec![
        fields!(LabelHeader { id, sector, crc, offset, kind }),
        fields!(PvHeader { uuid, device_size }),
        fields!(ExtensionHeader { version, flags }),
        fields!(MdaBlock { checksum, magic, version, start, size, current, precommitted, rest }),
        fields!(RawLocn { offset, size, checksum, flags }),
    ];
    assert_eq!(tables(), expected);
}

#[test]
fn magic_words_and_limits_are_those_of_the_code() {
    for magic in [&LABEL_ID[..], &LABEL_TYPE, &MDA_MAGIC] {
        let magic = String::from_utf8_lossy(magic);
        assert!(DOCUMENT.contains(&format!("`{magic}`")), "{magic}");
    }
    let limits = format!(
        "Limits here: {} MiB of text, {} Mi entries and values, {} levels of sections",
        text::MAX_BYTES >> 20,
        text::MAX_ENTRIES >> 20,
        text::MAX_DEPTH
    );
    assert!(DOCUMENT.contains(&limits), "{limits}");
}
