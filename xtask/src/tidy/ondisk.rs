//! A structure that bytes are cast to has its size, and on disk its offsets too, asserted
//! by the compiler: a field that moves is data lost.

use super::lex::{closing, is_identifier, line_of, without_tests};
use super::{Finding, Tree};

/// Each struct that derives `FromBytes` has its layout asserted in the same file; in a
/// macro that makes such structs, the assertion is about its `$name`.
pub(crate) fn layout_asserted(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in tree.rust() {
        let code = without_tests(&file.code);
        let dense: String = code.split_whitespace().collect();
        let on_disk = file.path.contains("/ondisk/") || file.path.ends_with("/ondisk.rs");
        for Raw { line, name, fields } in raw_structs(&code) {
            if !dense.contains(&format!("size_of::<{name}>()")) {
                found.push(Finding::error(
                    &file.path,
                    line,
                    format!("the size of {name} is not asserted (const, size_of)"),
                ));
            }
            if on_disk && fields > 1 && !dense.contains(&format!("offset_of!({name},")) {
                found.push(Finding::error(
                    &file.path,
                    line,
                    format!("the offsets of {name} are not asserted (const, offset_of)"),
                ));
            }
        }
    }
    found
}

struct Raw {
    line: usize,
    name: String,
    fields: usize,
}

/// The structs under a `#[derive(.. FromBytes ..)]`.
fn raw_structs(code: &str) -> Vec<Raw> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("#[derive(") {
        let end = closing(code, at + 1);
        if !code[at..end].contains("FromBytes") {
            continue;
        }
        let Some(keyword) = super::lex::find_word(code, "struct", end) else {
            continue;
        };
        // Only attributes, comments and visibility may stand between.
        if code[end..keyword].contains(['{', ';']) {
            continue;
        }
        let rest = code[keyword + "struct".len()..].trim_start();
        let name: String = rest
            .bytes()
            .take_while(|byte| is_identifier(*byte) || *byte == b'$')
            .map(char::from)
            .collect();
        let body = code[keyword..]
            .find(['{', '(', ';'])
            .map_or(code.len(), |open| keyword + open);
        let fields = code.get(body..closing(code, body)).map_or(0, count_fields);
        found.push(Raw {
            line: line_of(code, keyword),
            name,
            fields,
        });
    }
    found
}

/// Colons that are not part of a path: one for each named field.
fn count_fields(body: &str) -> usize {
    body.replace("::", "").matches(':').count()
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
        assert_eq!(check("crates/md/src/ondisk/sb.rs", HEAD), 2);
        assert_eq!(check("crates/md/src/ondisk.rs", HEAD), 2);
        assert_eq!(
            check("crates/export/src/nbd/wire.rs", HEAD),
            1,
            "on the wire the size is enough"
        );
    }

    #[test]
    fn asserts_satisfy_it() {
        let size = "const _: () = assert!(size_of::<Super>() == 8);\n";
        let offset = "const _: () = assert!(core::mem::offset_of!(Super, b) == 4);\n";
        assert_eq!(
            check(
                "crates/md/src/ondisk/sb.rs",
                &format!("{HEAD}{size}{offset}")
            ),
            0
        );
        assert_eq!(
            check("crates/md/src/ondisk/sb.rs", &format!("{HEAD}{size}")),
            1
        );
        assert_eq!(
            check(
                "crates/md/src/ondisk/sb.rs",
                &format!("{HEAD}#[cfg(test)] mod tests {{ {size}{offset} }}")
            ),
            2
        );
        assert_eq!(
            check(
                "crates/md/src/ondisk/sb.rs",
                &format!("{HEAD}// {size}// {offset}")
            ),
            2
        );
    }

    #[test]
    fn structs_made_by_a_macro_are_seen() {
        let made = "macro_rules! raw { ($name:ident) => { #[derive(FromBytes)] struct $name { a: u8, b: u8 } } }\n";
        assert_eq!(check("crates/export/src/abi.rs", made), 1);
        assert_eq!(
            check(
                "crates/export/src/abi.rs",
                &format!("{made}size_of::<$name>()")
            ),
            0
        );
    }

    #[test]
    fn one_field_has_one_offset_and_other_structs_none() {
        let wrapper =
            "#[derive(FromBytes)] struct Id(u8);\nconst _: () = assert!(size_of::<Id>() == 1);";
        assert_eq!(check("crates/md/src/ondisk/id.rs", wrapper), 0);
        assert_eq!(
            check(
                "crates/md/src/ondisk/id.rs",
                "#[derive(Debug)] struct A { x: u8, y: u8 }"
            ),
            0
        );
    }
}
