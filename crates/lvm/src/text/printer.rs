//! Prints a tree as LVM does.

use super::comments::{Place, comment};
use super::raw;
use super::tree::{Array, ArrayStyle, Entry, Node, Scalar, Section};

/// The two forms of LVM's texts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// In metadata areas.
    Disk,
    /// In backup files, with times in the zone with this UTC offset.
    Backup {
        /// Seconds east of Greenwich.
        utc_offset: i32,
    },
}

/// LVM's maximum indentation.
const MAX_INDENT: usize = 5;
/// Comments begin after this many tabs, if the line is shorter.
const COMMENT_TAB: usize = 6;

/// Prints `text` in this form.
///
/// The tree may come from either form: entries outside of the volume group's section are moved to
/// the form's position.
pub fn print(text: &Section, form: Form) -> Vec<u8> {
    print_with(text, form, "", "")
}

/// As [`print`]; `printed` are the first entries of the section `key` in the volume group's, printed by [`print_inner`].
pub fn print_with(text: &Section, form: Form, key: &str, printed: &str) -> Vec<u8> {
    let mut printer = Printer { out: String::new(), form, printed: Some((key, printed)) };
    let of_section = |entry: &&Entry| entry.node.as_section().is_some();
    let sections: Vec<&Entry> = text.entries.iter().filter(of_section).collect();
    let values: Vec<&Entry> = text.entries.iter().filter(|entry| !of_section(entry)).collect();
    let values_first = text.entries.first().is_some_and(|entry| !of_section(&entry));
    // The newline from ctime() is between the two parts of a backup, and at the end on disk.
    let between = sections.first().map_or("", |entry| entry.lead.as_str());
    match form {
        Form::Disk if values_first && !sections.is_empty() => {
            printer.entries(&sections, Some(""));
            printer.entries(&values, None);
            printer.out.push_str(between);
        }
        Form::Backup { .. } if !values_first && !values.is_empty() => {
            printer.entries(&values, None);
            printer.entries(&sections, Some(&text.tail));
        }
        Form::Disk | Form::Backup { .. } => {
            for entry in &text.entries {
                printer.entry(entry, &entry.lead, &mut Vec::new());
            }
            printer.out.push_str(&text.tail);
        }
    }
    raw::encode(&printer.out)
}

/// Prints an entry that is in the sections of `path`, the volume group first.
pub fn print_inner(entry: &Entry, path: &[(&str, &Section)], form: Form) -> String {
    let mut printer = Printer { out: String::new(), form, printed: None };
    printer.entry(entry, &entry.lead, &mut path.to_vec());
    printer.out
}

struct Printer<'a> {
    out: String,
    form: Form,
    /// A section in the volume group's, and its first entries, printed.
    printed: Option<(&'a str, &'a str)>,
}

/// Sections around an entry with their names, outermost first.
type Path<'a> = Vec<(&'a str, &'a Section)>;

impl Printer<'_> {
    /// Prints entries outside of all sections; `lead` replaces the first one's lead.
    fn entries(&mut self, entries: &[&Entry], lead: Option<&str>) {
        for (i, entry) in entries.iter().enumerate() {
            let lead = lead.filter(|_| i == 0).unwrap_or(&entry.lead);
            self.entry(entry, lead, &mut Vec::new());
        }
    }

    fn entry<'a>(&mut self, entry: &'a Entry, lead: &str, path: &mut Path<'a>) {
        let depth = path.len();
        self.out.push_str(lead);
        self.indent(depth, entry.tight);
        let from = self.out.len();
        self.key(&entry.key);
        match &entry.node {
            Node::Section(section) => {
                self.out.push_str(" {\n");
                if let Some((key, printed)) = self.printed
                    && depth == 1
                    && key == entry.key
                {
                    self.out.push_str(printed);
                }
                path.push((&entry.key, section));
                for inner in &section.entries {
                    self.entry(inner, &inner.lead, path);
                }
                path.pop();
                self.out.push_str(&section.tail);
                self.indent(depth, false);
                self.out.push('}');
            }
            Node::Scalar(scalar) => {
                self.out.push_str(if entry.tight { "=" } else { " = " });
                self.scalar(scalar);
                self.comment(entry, from, path);
            }
            Node::Array(array) => {
                self.out.push_str(if entry.tight { "=" } else { " = " });
                self.array(array, depth);
            }
        }
        if !entry.trail.is_empty() {
            self.out.push('\t');
            self.out.push_str(&entry.trail);
        }
        self.out.push('\n');
    }

    /// Lines that libdevmapper prints itself are also indented on disk, by one.
    fn indent(&mut self, depth: usize, tight: bool) {
        let tabs = match self.form {
            Form::Disk => usize::from(tight),
            Form::Backup { .. } => depth.min(MAX_INDENT),
        };
        self.out.extend(std::iter::repeat_n('\t', tabs));
    }

    fn comment(&mut self, entry: &Entry, from: usize, path: &Path<'_>) {
        let Form::Backup { utc_offset } = self.form else { return };
        let place = Place { path, utc_offset };
        let Some(comment) = comment(&place, &entry.key, &entry.node) else { return };
        let mut column = (self.out.len() - from + 8 * path.len().min(MAX_INDENT)) / 8 + 1;
        loop {
            self.out.push('\t');
            column += 1;
            if column >= COMMENT_TAB {
                break;
            }
        }
        self.out.push_str(&comment);
    }

    fn key(&mut self, key: &str) {
        let plain = |byte: u8| byte.is_ascii_graphic() && !b"#={}[],\"'!".contains(&byte);
        if !key.is_empty() && key.bytes().all(|byte| plain(byte) || !byte.is_ascii()) {
            self.out.push_str(key);
        } else {
            self.string(key);
        }
    }

    fn array(&mut self, array: &Array, depth: usize) {
        let (open, comma, close) = match array.style {
            ArrayStyle::Inline => ("[", ", ", "]"),
            ArrayStyle::Tight => ("[", ",", "]"),
            ArrayStyle::Spaced => ("[ ", ", ", " ]"),
            ArrayStyle::Rows(per_line) => return self.rows(array, per_line, depth),
        };
        self.out.push_str(if array.items.is_empty() { open.trim_end() } else { open });
        for (i, item) in array.items.iter().enumerate() {
            if i > 0 {
                self.out.push_str(comma);
            }
            self.scalar(item);
        }
        self.out.push_str(close);
    }

    fn rows(&mut self, array: &Array, per_line: u8, depth: usize) {
        self.out.push_str("[\n");
        let rows = array.items.chunks(per_line.max(1).into());
        let last = rows.len().saturating_sub(1);
        for (i, row) in rows.enumerate() {
            self.indent(depth + 1, false);
            for (j, item) in row.iter().enumerate() {
                if j > 0 {
                    self.out.push_str(", ");
                }
                self.scalar(item);
            }
            self.out.push_str(if i < last { ",\n" } else { "\n" });
        }
        self.indent(depth, false);
        self.out.push(']');
    }

    fn scalar(&mut self, scalar: &Scalar) {
        match scalar {
            Scalar::Int(number) => self.out.push_str(&number.to_string()),
            Scalar::Float(text) | Scalar::Bare(text) => self.out.push_str(text),
            Scalar::Str(text) => self.string(text),
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            if matches!(c, '"' | '\\') {
                self.out.push('\\');
            }
            self.out.push(c);
        }
        self.out.push('"');
    }
}
