//! A text as a tree of sections and values.
//!
//! The tree keeps what it takes to print it again as it was: blank lines and comments between entries,
//! how an array was broken into lines. LVM's comments at the ends of lines are kept only outside of
//! sections: those inside follow from the values, and the printer makes them anew.

/// Entries between braces, or a whole text.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Section {
    /// In the order of the text. A key may be there more than once; the first one counts.
    pub entries: Vec<Entry>,
    /// Blank lines and comments before the closing brace, or the end of the text, each with its newline.
    pub tail: String,
}

/// A key and what it is set to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Blank lines and comments before it, each with its newline.
    pub lead: String,
    /// Its name.
    pub key: String,
    /// Its value.
    pub node: Node,
    /// The comment at the end of its line, from `#` on, without the newline. Empty if there is none.
    pub trail: String,
    /// Written without blanks around the sign of equality, as libdevmapper prints trees.
    pub tight: bool,
}

/// What a key is set to.
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
    /// A number with a point, as it is written.
    Float(String),
    /// A string in quotation marks, without them and without escapes.
    Str(String),
    /// A word without quotation marks.
    Bare(String),
}

/// A list of values.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Array {
    /// The values.
    pub items: Vec<Scalar>,
    /// How it is written.
    pub style: ArrayStyle,
}

/// How an array is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ArrayStyle {
    /// `["A", "B"]`
    #[default]
    Inline,
    /// `["A","B"]`
    Tight,
    /// `[ "A", "B" ]`
    Spaced,
    /// Brackets on lines of their own, and so many values on each line between them.
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

    /// Whether both say the same, however it is written.
    pub fn means(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Array(a), Self::Array(b)) => a.items == b.items,
            (Self::Section(_) | Self::Scalar(_) | Self::Array(_), _) => self == other,
        }
    }
}

impl Entry {
    /// An entry with nothing around it.
    pub fn new(key: impl Into<String>, node: Node) -> Self {
        Self { lead: String::new(), key: key.into(), node, trail: String::new(), tight: false }
    }

    /// The same with a blank line before it.
    pub fn after_blank_line(mut self) -> Self {
        self.lead = "\n".into();
        self
    }
}

impl Section {
    /// The first entry of that name.
    pub fn get(&self, key: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.key == key)
    }

    /// What that key is set to.
    pub fn node(&self, key: &str) -> Option<&Node> {
        self.get(key).map(|entry| &entry.node)
    }

    /// The number of that name.
    pub fn int(&self, key: &str) -> Option<i64> {
        self.node(key)?.as_scalar()?.as_int()
    }

    /// The string of that name.
    pub fn str(&self, key: &str) -> Option<&str> {
        self.node(key)?.as_scalar()?.as_str()
    }

    /// The section of that name.
    pub fn section(&self, key: &str) -> Option<&Self> {
        self.node(key)?.as_section()
    }

    /// Removes all entries of that name.
    pub fn remove(&mut self, key: &str) {
        self.entries.retain(|entry| entry.key != key);
    }

    /// Sets a key. An entry that says the same already stays as it is written; one that says something
    /// else keeps its place and its form; a new one goes where `order` has it, with what `order` has before it.
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
        // Behind the last one that belongs before it; entries nobody knows stay behind their predecessors.
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
