//! The compiler must check the size of a structure that bytes are cast to, and on disk also its offsets: a field that
//! moves means data loss.

use super::lex::{closing, is_identifier, line_of, without_tests};
use super::{Finding, Tree};

/// The macro with which a format crate asserts a struct's size and all offsets.
const LAYOUT_MACRO: &str = "ondisk_layout!";

/// The layout of each struct that derives `FromBytes` is asserted in the same file; in a macro that declares such
/// structs, the assertion is about its `$name`.
pub(crate) fn layout_asserted(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in tree.rust() {
        let code = without_tests(&file.code);
        let dense: String = code.split_whitespace().collect();
        let on_disk = file.path.contains("/ondisk/") || file.path.ends_with("/ondisk.rs");
        for RawStruct { line, name, fields } in raw_structs(&code) {
            let layout = layout_of(&dense, &name);
            if layout.is_none() && !dense.contains(&format!("size_of::<{name}>()")) {
                found.push(Finding::error(
                    &file.path,
                    line,
                    format!("the size of {name} is not asserted (const, size_of)"),
                ));
            }
            let asserted = |field: &&String| {
                layout.is_some_and(|layout| {
                    layout.contains(&format!("{{{field}:"))
                        || layout.contains(&format!(",{field}:"))
                }) || dense.contains(&format!("offset_of!({name},{field})"))
            };
            if on_disk && fields.len() > 1 {
                for field in fields.iter().filter(|field| !asserted(field)) {
                    let message =
                        format!("the offset of {name}.{field} is not asserted (const, offset_of)");
                    found.push(Finding::error(&file.path, line, message));
                }
            }
        }
    }
    found
}

/// What the layout macro asserts about `name`, in code without blanks.
fn layout_of<'a>(dense: &'a str, name: &str) -> Option<&'a str> {
    let start = dense.find(&format!("{LAYOUT_MACRO}({name},"))? + LAYOUT_MACRO.len();
    dense.get(start..closing(dense, start))
}

struct RawStruct {
    line: usize,
    name: String,
    fields: Vec<String>,
}

/// The structs under a `#[derive(.. FromBytes ..)]`.
fn raw_structs(code: &str) -> Vec<RawStruct> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("#[derive(") {
        let end = closing(code, at + 1);
        if !code[at..end].contains("FromBytes") {
            continue;
        }
        let Some(keyword) = super::lex::find_word(code, "struct", end) else {
            continue;
        };
        // Only attributes, comments and visibility may be in between.
        if code[end..keyword].contains(['{', ';']) {
            continue;
        }
        let rest = code[keyword + "struct".len()..].trim_start();
        let name: String = rest
            .bytes()
            .take_while(|byte| is_identifier(*byte) || *byte == b'$')
            .map(char::from)
            .collect();
        let body = code[keyword..].find(['{', '(', ';']).map_or(code.len(), |open| keyword + open);
        let fields = code.get(body..closing(code, body)).map_or(Vec::new(), field_names);
        found.push(RawStruct { line: line_of(code, keyword), name, fields });
    }
    found
}

/// The names before the single colons of a struct's body.
fn field_names(body: &str) -> Vec<String> {
    let flat = body.replace("::", "");
    let mut names: Vec<String> = Vec::new();
    for before in flat.split(':').rev().skip(1) {
        let name =
            before.trim_end().rsplit(|c: char| !c.is_ascii_alphanumeric() && c != '_').next();
        names.extend(name.map(str::to_owned));
    }
    names.reverse();
    names
}

#[cfg(test)]
mod tests {
    use super::super::findings;
    use super::*;

    const HEAD: &str =
        "#[derive(Clone, FromBytes)]\n#[repr(C)]\npub struct Super { a: le::U32, b: le::U32 }\n";

    fn check(path: &str, text: &str) -> usize {
        findings(layout_asserted, &[(path, text)]).len()
    }

    #[test]
    fn a_raw_struct_without_asserts_is_found() {
        assert_eq!(check("crates/md/src/ondisk/sb.rs", HEAD), 3);
        assert_eq!(check("crates/md/src/ondisk.rs", HEAD), 3);
        assert_eq!(
            check("crates/export/src/nbd/wire.rs", HEAD),
            1,
            "on the wire the size is enough"
        );
    }

    #[test]
    fn asserts_satisfy_it() {
        let on_disk = |more: &str| check("crates/md/src/ondisk/sb.rs", &format!("{HEAD}{more}"));
        let size = "const _: () = assert!(size_of::<Super>() == 8);\n";
        let a = "const _: () = assert!(core::mem::offset_of!(Super, a) == 0);\n";
        let b = "const _: () = assert!(core::mem::offset_of!(Super, b) == 4);\n";
        assert_eq!(on_disk(&format!("{size}{a}{b}")), 0);
        assert_eq!(on_disk(&format!("{size}{a}")), 1);
        assert_eq!(on_disk(size), 2);
        assert_eq!(on_disk(&format!("#[cfg(test)] mod tests {{ {size}{a}{b} }}")), 3);
        assert_eq!(on_disk(&format!("// {size}// {a}// {b}")), 3);
    }

    #[test]
    fn the_layout_macro_must_name_every_field() {
        let on_disk = |more: &str| check("crates/md/src/ondisk/sb.rs", &format!("{HEAD}{more}"));
        assert_eq!(on_disk("ondisk_layout!(Super, 8, {\n    a: 0,\n    b: 4,\n});"), 0);
        assert_eq!(on_disk("ondisk_layout!(Super, 8, { b: 4 });"), 1);
        assert_eq!(on_disk("ondisk_layout!(Other, 8, { a: 0, b: 4 });"), 3);
    }

    #[test]
    fn structs_made_by_a_macro_are_seen() {
        let made = "macro_rules! raw { ($name:ident) => { #[derive(FromBytes)] struct $name { a: u8, b: u8 } } }\n";
        assert_eq!(check("crates/export/src/abi.rs", made), 1);
        assert_eq!(check("crates/export/src/abi.rs", &format!("{made}size_of::<$name>()")), 0);
    }

    #[test]
    fn one_field_has_one_offset_and_other_structs_none() {
        let wrapper =
            "#[derive(FromBytes)] struct Id(u8);\nconst _: () = assert!(size_of::<Id>() == 1);";
        assert_eq!(check("crates/md/src/ondisk/id.rs", wrapper), 0);
        assert_eq!(
            check("crates/md/src/ondisk/id.rs", "#[derive(Debug)] struct A { x: u8, y: u8 }"),
            0
        );
    }
}
