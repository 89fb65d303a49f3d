//! Lists of named, typed values (`nvlist_t`), in the encoding of labels: XDR, so big-endian and in
//! units of four bytes.
//!
//! | bytes | what |
//! |---|---|
//! | 4 | encoding (1 is XDR), the writer's byte order (unused here), two zeros; only once, at the start |
//! | 4, 4 | version (zero) and flags of the list |
//! | ... | the pairs: size encoded (4), size decoded (4), name, type (4), count of elements (4), value |
//! | 8 | zeros: no more pairs |
//!
//! The types used in labels are decoded; other types, and texts that are not UTF-8, are kept
//! encoded. So a parsed list can be encoded again without loss.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Maximum nesting depth of lists: the kernel's limit (`nvpair_max_recursion`).
pub const MAX_DEPTH: usize = 20;
/// Names are unique (`NV_UNIQUE_NAME`).
const UNIQUE_NAMES: u32 = 1;
/// `NV_ENCODE_XDR`
const XDR: u8 = 1;
/// The encoded and the decoded size of a pair, in bytes.
const SIZES: usize = 8;

/// Types of values (`data_type_t`).
mod kind {
    pub(super) const BOOLEAN: u32 = 1;
    pub(super) const UINT64: u32 = 8;
    pub(super) const STRING: u32 = 9;
    pub(super) const UINT64_ARRAY: u32 = 16;
    pub(super) const NVLIST: u32 = 19;
    pub(super) const NVLIST_ARRAY: u32 = 20;
    /// The first number after `DATA_TYPE_DOUBLE`.
    pub(super) const UNKNOWN: u32 = 28;
}

/// A list of named values; names are unique.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NvList {
    flags: u32,
    pairs: Vec<(String, Value)>,
}

/// A value.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Value {
    /// Present without a value (`DATA_TYPE_BOOLEAN`).
    Flag,
    /// A number (`DATA_TYPE_UINT64`).
    Number(u64),
    /// Numbers (`DATA_TYPE_UINT64_ARRAY`).
    Numbers(Vec<u64>),
    /// A text (`DATA_TYPE_STRING`).
    Text(String),
    /// A list (`DATA_TYPE_NVLIST`).
    List(NvList),
    /// Lists (`DATA_TYPE_NVLIST_ARRAY`).
    Lists(Vec<NvList>),
    /// A value that is not decoded.
    Raw(RawValue),
}

/// An encoded value.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RawValue {
    /// Its type (`data_type_t`).
    pub kind: u32,
    /// Number of elements.
    pub count: u32,
    /// Bytes of the pair in the writer's memory.
    pub decoded_size: u32,
    /// The value, encoded.
    pub bytes: Vec<u8>,
}

/// Why an encoded list is invalid.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum NvListError {
    /// Not XDR: a memory image, or garbage.
    #[error("the list is in encoding {0}, not in XDR")]
    Encoding(u8),
    /// An unknown version.
    #[error("the list at byte {at} is of version {version}")]
    Version {
        /// Offset from the first byte.
        at: usize,
        /// Its version.
        version: u32,
    },
    /// Lists are nested too deep.
    #[error("lists are nested deeper than {MAX_DEPTH}")]
    TooDeep,
    /// The bytes end inside the list.
    #[error("the list is cut off at byte {at}")]
    Truncated {
        /// Offset from the first byte.
        at: usize,
    },
    /// The stored size of a pair is wrong.
    #[error("the pair at byte {at} says that it has {says} bytes, and has {has}")]
    Size {
        /// Offset from the first byte.
        at: usize,
        /// Its size as stored.
        says: usize,
        /// The actual size.
        has: usize,
    },
    /// A name is empty, contains a zero, or is not text.
    #[error("the pair at byte {at} has no usable name")]
    Name {
        /// Offset from the first byte.
        at: usize,
    },
    /// Two values have the same name.
    #[error("the list has two values of the name {0:?}")]
    Duplicate(String),
    /// The type does not exist.
    #[error("{name:?} is of the unknown type {kind}")]
    Kind {
        /// The pair's name.
        name: String,
        /// Its type.
        kind: u32,
    },
    /// A type with one value has none, or several.
    #[error("{name:?} has {count} values")]
    Count {
        /// The pair's name.
        name: String,
        /// The number of values.
        count: u32,
    },
}

impl Default for NvList {
    fn default() -> Self {
        Self { flags: UNIQUE_NAMES, pairs: Vec::new() }
    }
}

impl NvList {
    /// The list at the start of `bytes`; later bytes are ignored.
    ///
    /// # Errors
    /// It is damaged, or in another encoding.
    pub fn parse(bytes: &[u8]) -> Result<Self, NvListError> {
        let mut reader = Reader { bytes, at: 0 };
        let [encoding, _endian, _, _] = reader.word()?.to_be_bytes();
        if encoding != XDR {
            return Err(NvListError::Encoding(encoding));
        }
        reader.list(0)
    }

    /// The encoded list, for [`NvList::parse`] and libnvpair's `nvlist_unpack`.
    pub fn encode(&self) -> Vec<u8> {
        // Byte order 1: little-endian.
        let mut bytes = vec![XDR, 1, 0, 0];
        self.write(&mut bytes);
        bytes
    }

    /// The names and values, in order.
    pub fn pairs(&self) -> &[(String, Value)] {
        &self.pairs
    }

    /// The value with this name.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.pairs.iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }

    /// The number with this name; `None` if the value has another type. The other getters do the same.
    pub fn number(&self, name: &str) -> Option<u64> {
        if let Some(Value::Number(number)) = self.get(name) { Some(*number) } else { None }
    }

    /// The numbers with this name.
    pub fn numbers(&self, name: &str) -> Option<&[u64]> {
        if let Some(Value::Numbers(numbers)) = self.get(name) { Some(numbers) } else { None }
    }

    /// The text with this name.
    pub fn text(&self, name: &str) -> Option<&str> {
        if let Some(Value::Text(text)) = self.get(name) { Some(text) } else { None }
    }

    /// The list with this name.
    pub fn list(&self, name: &str) -> Option<&NvList> {
        if let Some(Value::List(list)) = self.get(name) { Some(list) } else { None }
    }

    /// The lists with this name.
    pub fn lists(&self, name: &str) -> Option<&[NvList]> {
        if let Some(Value::Lists(lists)) = self.get(name) { Some(lists) } else { None }
    }

    /// Whether there is a value with this name.
    pub fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// Sets the value of `name`, and keeps its position if it exists.
    pub fn set(&mut self, name: &str, value: Value) {
        match self.pairs.iter_mut().find(|(known, _)| known == name) {
            Some((_, old)) => *old = value,
            None => self.pairs.push((name.to_owned(), value)),
        }
    }

    /// As [`NvList::set`], for building a list.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.set(name, value.into());
        self
    }

    /// Removes the value with this name.
    pub fn remove(&mut self, name: &str) -> Option<Value> {
        let at = self.pairs.iter().position(|(known, _)| known == name)?;
        Some(self.pairs.remove(at).1)
    }

    /// The lists with this name, mutable.
    pub(super) fn lists_mut(&mut self, name: &str) -> Option<&mut Vec<NvList>> {
        let value = self.pairs.iter_mut().find(|(known, _)| known == name).map(|(_, value)| value);
        if let Some(Value::Lists(lists)) = value { Some(lists) } else { None }
    }

    fn write(&self, out: &mut Vec<u8>) {
        put(out, 0);
        put(out, self.flags);
        for (name, value) in &self.pairs {
            let start = out.len();
            put(out, 0);
            put(out, value.decoded_size(name));
            put_text(out, name);
            let (kind, count) = value.kind();
            put(out, kind);
            put(out, count);
            value.write(out);
            // A list is far smaller than 4 GiB: it fits in a label.
            let size = (out.len() - start) as u32;
            out[start..start + 4].copy_from_slice(&size.to_be_bytes());
        }
        out.extend([0; SIZES]);
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<NvList> for Value {
    fn from(list: NvList) -> Self {
        Self::List(list)
    }
}

impl From<Vec<NvList>> for Value {
    fn from(lists: Vec<NvList>) -> Self {
        Self::Lists(lists)
    }
}

impl From<Vec<u64>> for Value {
    fn from(numbers: Vec<u64>) -> Self {
        Self::Numbers(numbers)
    }
}

impl Value {
    /// Type and number of elements.
    fn kind(&self) -> (u32, u32) {
        match self {
            // It has no elements: `nvlist_add_boolean` stores zero.
            Self::Flag => (kind::BOOLEAN, 0),
            Self::Number(_) => (kind::UINT64, 1),
            Self::Numbers(numbers) => (kind::UINT64_ARRAY, numbers.len() as u32),
            Self::Text(_) => (kind::STRING, 1),
            Self::List(_) => (kind::NVLIST, 1),
            Self::Lists(lists) => (kind::NVLIST_ARRAY, lists.len() as u32),
            Self::Raw(raw) => (raw.kind, raw.count),
        }
    }

    /// Bytes of the pair in memory (`nvp_size`), which libnvpair reserves when it decodes.
    fn decoded_size(&self, name: &str) -> u32 {
        /// `nvpair_t` without its name, and `nvlist_t`.
        const PAIR: usize = 16;
        const LIST: usize = 24;
        let value = match self {
            Self::Raw(raw) => return raw.decoded_size,
            Self::Flag => 0,
            Self::Number(_) => 8,
            Self::Numbers(numbers) => 8 * numbers.len(),
            Self::Text(text) => text.len() + 1,
            Self::List(_) => LIST,
            Self::Lists(lists) => lists.len() * (8 + LIST),
        };
        ((PAIR + name.len() + 1).next_multiple_of(8) + value.next_multiple_of(8)) as u32
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Flag => {}
            Self::Number(number) => out.extend(number.to_be_bytes()),
            // Arrays store their length twice.
            Self::Numbers(numbers) if numbers.is_empty() => {}
            Self::Numbers(numbers) => {
                put(out, numbers.len() as u32);
                out.extend(numbers.iter().flat_map(|number| number.to_be_bytes()));
            }
            Self::Text(text) => put_text(out, text),
            Self::List(list) => list.write(out),
            Self::Lists(lists) => lists.iter().for_each(|list| list.write(out)),
            Self::Raw(raw) => out.extend(&raw.bytes),
        }
    }
}

fn put(out: &mut Vec<u8>, word: u32) {
    out.extend(word.to_be_bytes());
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put(out, text.len() as u32);
    out.extend(text.as_bytes());
    out.extend(std::iter::repeat_n(0, text.len().next_multiple_of(4) - text.len()));
}

/// Bytes, and the current position.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], NvListError> {
        let end = self.at.checked_add(len);
        let taken = end.and_then(|end| self.bytes.get(self.at..end));
        let taken = taken.ok_or(NvListError::Truncated { at: self.bytes.len() })?;
        self.at += len;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], NvListError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn word(&mut self) -> Result<u32, NvListError> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    fn number(&mut self) -> Result<u64, NvListError> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    /// The bytes of a text, without the padding to a multiple of four.
    fn text(&mut self) -> Result<&'a [u8], NvListError> {
        let len = self.word()? as usize;
        let cut = NvListError::Truncated { at: self.bytes.len() };
        let padded = len.checked_next_multiple_of(4).ok_or(cut)?;
        Ok(&self.take(padded)?[..len])
    }

    /// A list without the first header; `depth` lists are around it.
    fn list(&mut self, depth: usize) -> Result<NvList, NvListError> {
        if depth > MAX_DEPTH {
            return Err(NvListError::TooDeep);
        }
        let at = self.at;
        let (version, flags) = (self.word()?, self.word()?);
        if version != 0 {
            return Err(NvListError::Version { at, version });
        }
        let (mut pairs, mut names) = (Vec::new(), BTreeSet::new());
        while let Some((name, value)) = self.pair(depth)? {
            if !names.insert(name) {
                return Err(NvListError::Duplicate(name.to_owned()));
            }
            pairs.push((name.to_owned(), value));
        }
        Ok(NvList { flags, pairs })
    }

    /// The next pair; `None` at the end of the list.
    fn pair(&mut self, depth: usize) -> Result<Option<(&'a str, Value)>, NvListError> {
        let at = self.at;
        let (says, decoded_size) = (self.word()? as usize, self.word()?);
        if says == 0 && decoded_size == 0 {
            return Ok(None);
        }
        let name = self.text()?;
        let name =
            str::from_utf8(name).ok().filter(|name| !name.is_empty() && !name.contains('\0'));
        let name = name.ok_or(NvListError::Name { at })?;
        let (kind, count) = (self.word()?, self.word()?);
        // Without elements nothing is stored, but libnvpair adds the length of an empty array to
        // the size; its reader ignores the size.
        let head = self.at - at;
        let len = if count == 0 { Some(0) } else { says.checked_sub(head) };
        let len = len.ok_or(NvListError::Size { at, says, has: head })?;
        let bytes = self.take(len)?;
        let mut inside = Reader { bytes: &self.bytes[..self.at], at: self.at - len };
        let value = inside.value(name, kind, count, depth)?;
        let value = match value {
            Some(value) => value,
            None => {
                inside.at = self.at;
                Value::Raw(RawValue { kind, count, decoded_size, bytes: bytes.to_vec() })
            }
        };
        if inside.at != self.at {
            return Err(NvListError::Size { at, says, has: inside.at - at });
        }
        Ok(Some((name, value)))
    }

    /// A value; `None` if it stays encoded.
    fn value(
        &mut self,
        name: &str,
        kind: u32,
        count: u32,
        depth: usize,
    ) -> Result<Option<Value>, NvListError> {
        let of_one = matches!(kind, kind::UINT64 | kind::STRING | kind::NVLIST) && count != 1;
        if of_one || (kind == kind::BOOLEAN && count > 1) {
            return Err(NvListError::Count { name: name.to_owned(), count });
        }
        // Whatever the count, the bytes limit the allocation: each element takes some.
        Ok(Some(match kind {
            kind::BOOLEAN => Value::Flag,
            kind::UINT64 => Value::Number(self.number()?),
            kind::STRING => match str::from_utf8(self.text()?) {
                Ok(text) if !text.contains('\0') => Value::Text(text.to_owned()),
                Ok(_) | Err(_) => return Ok(None),
            },
            kind::UINT64_ARRAY if count == 0 => Value::Numbers(Vec::new()),
            kind::UINT64_ARRAY => {
                let len = self.word()?;
                if len != count {
                    return Err(NvListError::Count { name: name.to_owned(), count });
                }
                let mut numbers = Vec::new();
                for _ in 0..len {
                    numbers.push(self.number()?);
                }
                Value::Numbers(numbers)
            }
            kind::NVLIST => Value::List(self.list(depth + 1)?),
            kind::NVLIST_ARRAY => {
                let mut lists = Vec::new();
                for _ in 0..count {
                    lists.push(self.list(depth + 1)?);
                }
                Value::Lists(lists)
            }
            0 | kind::UNKNOWN.. => {
                return Err(NvListError::Kind { name: name.to_owned(), kind });
            }
            _ => return Ok(None),
        }))
    }
}

#[cfg(test)]
mod tests;
