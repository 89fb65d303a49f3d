//! A text as a tree of sections and values.
//!
//! The tree keeps the formatting: blank lines and comments between entries, and the line breaks of
//! arrays. LVM's comments at line ends are kept only outside of sections: those inside are derived
//! from the values, and the printer generates them.

/// Entries between braces, or a whole text.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Section {
    /// In text order. A key may occur more than once; the first one counts.
    pub entries: Vec<Entry>,
    /// Blank lines and comments before the closing brace, or the end of the text, including newlines.
    pub tail: String,
}

/// A key and its value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Blank lines and comments before it, including newlines.
    pub lead: String,
    /// Its name.
    pub key: String,
    /// Its value.
    pub node: Node,
    /// The comment at the end of its line, from `#` on, without the newline. Empty without a comment.
    pub trail: String,
    /// Written without blanks around the equals sign, as by libdevmapper.
    pub tight: bool,
}

/// The value of a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Node {
    /// `key { ... }`
    Section(Section),
    /// `key = value`
    Scalar(Scalar),
    /// `key = [ ... ]`
    Array(Array),
}

/// A single value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Scalar {
    /// A number.
    Int(i64),
    /// A number with a decimal point, as written.
    Float(String),
    /// A quoted string, without quotes and escapes.
    Str(String),
    /// An unquoted word.
    Bare(String),
}

/// A list of values.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Array {
    /// The values.
    pub items: Vec<Scalar>,
    /// Its formatting.
    pub style: ArrayStyle,
}

/// The formatting of an array.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ArrayStyle {
    /// `["A", "B"]`
    #[default]
    Inline,
    /// `["A","B"]`
    Tight,
    /// `[ "A", "B" ]`
    Spaced,
    /// Brackets on separate lines, with this many values per line between them.
    Rows(u8),
}

impl Scalar {
    /// A string value.
    pub fn str(text: impl Into<String>) -> Self {
        Self::Str(text.into())
    }

    /// The number, if it is one.
    pub fn as_int(&self) -> Option<i64> {
        match self {
            Self::Int(number) => Some(*number),
            Self::Float(_) | Self::Str(_) | Self::Bare(_) => None,
        }
    }

    /// The text, if it is one.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Str(text) | Self::Bare(text) => Some(text),
            Self::Int(_) | Self::Float(_) => None,
        }
    }
}

impl Node {
    /// A number.
    pub fn int(number: impl Into<i64>) -> Self {
        Self::Scalar(Scalar::Int(number.into()))
    }

    /// A string.
    pub fn str(text: impl Into<String>) -> Self {
        Self::Scalar(Scalar::str(text))
    }

    /// A list of strings on one line.
    pub fn strings<S: Into<String>>(texts: impl IntoIterator<Item = S>) -> Self {
        let items = texts.into_iter().map(Scalar::str).collect();
        Self::Array(Array { items, style: ArrayStyle::Inline })
    }

    /// Values on lines of `per_line`.
    pub fn rows(items: Vec<Scalar>, per_line: u8) -> Self {
        Self::Array(Array { items, style: ArrayStyle::Rows(per_line) })
    }

    /// The section, if it is one.
    pub fn as_section(&self) -> Option<&Section> {
        match self {
            Self::Section(section) => Some(section),
            Self::Scalar(_) | Self::Array(_) => None,
        }
    }

    /// The single value, if it is one.
    pub fn as_scalar(&self) -> Option<&Scalar> {
        match self {
            Self::Scalar(scalar) => Some(scalar),
            Self::Section(_) | Self::Array(_) => None,
        }
    }

    /// The values: those of a list, or the single one, which LVM takes for a list of one.
    pub fn as_list(&self) -> Option<&[Scalar]> {
        match self {
            Self::Array(array) => Some(&array.items),
            Self::Scalar(scalar) => Some(std::slice::from_ref(scalar)),
            Self::Section(_) => None,
        }
    }

    /// Whether both have the same value, however it is written.
    pub fn means(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Array(a), Self::Array(b)) => a.items == b.items,
            (Self::Section(_) | Self::Scalar(_) | Self::Array(_), _) => self == other,
        }
    }
}

impl Entry {
    /// An entry without surrounding comments.
    pub fn new(key: impl Into<String>, node: Node) -> Self {
        Self { lead: String::new(), key: key.into(), node, trail: String::new(), tight: false }
    }

    /// Adds a blank line before it.
    pub fn after_blank_line(mut self) -> Self {
        self.lead = "\n".into();
        self
    }
}

impl Section {
    /// The first entry with this name.
    pub fn get(&self, key: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.key == key)
    }

    /// The value of this key.
    pub fn node(&self, key: &str) -> Option<&Node> {
        self.get(key).map(|entry| &entry.node)
    }

    /// The number with this name.
    pub fn int(&self, key: &str) -> Option<i64> {
        self.node(key)?.as_scalar()?.as_int()
    }

    /// The string with this name.
    pub fn str(&self, key: &str) -> Option<&str> {
        self.node(key)?.as_scalar()?.as_str()
    }

    /// The section with this name.
    pub fn section(&self, key: &str) -> Option<&Self> {
        self.node(key)?.as_section()
    }

    /// Removes all entries with this name.
    pub fn remove(&mut self, key: &str) {
        self.entries.retain(|entry| entry.key != key);
    }

    /// Sets a key. An entry with the same value stays as written; one with another value keeps its
    /// position and its formatting; a new one goes to its position in `order`, with the blank line
    /// from `order`.
    pub fn set(&mut self, key: &str, node: Node, order: Order) {
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.key == key) {
            match (&mut entry.node, node) {
                (old, new) if old.means(&new) => {}
                (Node::Array(old), Node::Array(new)) => old.items = new.items,
                (old, new) => *old = new,
            }
            return;
        }
        let rank = order.rank(key);
        // After the last entry that belongs before it; unknown entries stay after their predecessors.
        let before = |entry: &Entry| order.rank(&entry.key).is_some_and(|other| Some(other) < rank);
        let after = |entry: &Entry| order.rank(&entry.key).is_some_and(|other| Some(other) > rank);
        let place = match self.entries.iter().rposition(before) {
            _ if rank.is_none() => self.entries.len(),
            Some(last) => {
                let behind = &self.entries[last + 1..];
                last + 1 + behind.iter().position(after).unwrap_or(behind.len())
            }
            None => self.entries.iter().position(after).unwrap_or(self.entries.len()),
        };
        let mut entry = Entry::new(key, node);
        if order.has_blank_line(key) {
            entry.lead.push('\n');
        }
        self.entries.insert(place, entry);
    }

    /// [`set`](Self::set), or [`remove`](Self::remove) for `None`.
    pub fn set_or_remove(&mut self, key: &str, node: Option<Node>, order: Order) {
        match node {
            Some(node) => self.set(key, node, order),
            None => self.remove(key),
        }
    }
}

/// The order in which LVM writes the keys of a kind of section. A key with a leading newline has a
/// blank line before it.
#[derive(Clone, Copy, Debug)]
pub struct Order(pub &'static [&'static str]);

impl Order {
    fn rank(self, key: &str) -> Option<usize> {
        self.0.iter().position(|known| known.trim_start_matches('\n') == key)
    }

    fn has_blank_line(self, key: &str) -> bool {
        self.rank(key).is_some_and(|rank| self.0[rank].starts_with('\n'))
    }
}
