//! Typed fields of a section, and errors with their location.

use std::fmt;
use std::str::FromStr;

use ashlar_block::Sectors;

use super::error::MetadataError;
use super::flags::{Flag, FlagSet};
use crate::text::{Entry, Node, Scalar, Section};
use crate::uuid::Uuid;

/// A section on the path down from the volume group's.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    pub(super) section: &'a Section,
    name: &'a str,
    parent: Option<&'a Reader<'a>>,
}

impl fmt::Display for Reader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            write!(f, "{parent}/")?;
        }
        f.write_str(self.name)
    }
}

impl<'a> Reader<'a> {
    pub(super) fn new(name: &'a str, section: &'a Section) -> Self {
        Self { section, name, parent: None }
    }

    pub(super) fn inner(&'a self, name: &'a str, section: &'a Section) -> Self {
        Self { section, name, parent: Some(self) }
    }

    /// The sections in it.
    pub(super) fn sections(self) -> impl Iterator<Item = (&'a str, &'a Section)> {
        let of_section = |entry: &'a Entry| Some((&*entry.key, entry.node.as_section()?));
        self.section.entries.iter().filter_map(of_section)
    }

    pub(super) fn missing(&self, key: &str) -> MetadataError {
        MetadataError::Missing { at: self.to_string(), key: key.into() }
    }

    pub(super) fn invalid(&self, key: &str, expected: &'static str) -> MetadataError {
        MetadataError::Invalid { at: self.to_string(), key: key.into(), expected }
    }

    fn scalar(
        &self,
        key: &str,
        expected: &'static str,
    ) -> Result<Option<&'a Scalar>, MetadataError> {
        match self.section.node(key) {
            Some(Node::Scalar(scalar)) => Ok(Some(scalar)),
            Some(Node::Section(_) | Node::Array(_)) => Err(self.invalid(key, expected)),
            None => Ok(None),
        }
    }

    pub(super) fn optional_str(&self, key: &str) -> Result<Option<&'a str>, MetadataError> {
        const EXPECTED: &str = "a string";
        let Some(scalar) = self.scalar(key, EXPECTED)? else { return Ok(None) };
        scalar.as_str().map(Some).ok_or_else(|| self.invalid(key, EXPECTED))
    }

    pub(super) fn str(&self, key: &str) -> Result<&'a str, MetadataError> {
        self.optional_str(key)?.ok_or_else(|| self.missing(key))
    }

    pub(super) fn optional_number<T: TryFrom<i64>>(
        &self,
        key: &str,
    ) -> Result<Option<T>, MetadataError> {
        const EXPECTED: &str = "a number in range";
        let Some(scalar) = self.scalar(key, EXPECTED)? else { return Ok(None) };
        let number = scalar.as_int().and_then(|number| number.try_into().ok());
        number.map(Some).ok_or_else(|| self.invalid(key, EXPECTED))
    }

    pub(super) fn number<T: TryFrom<i64>>(&self, key: &str) -> Result<T, MetadataError> {
        self.optional_number(key)?.ok_or_else(|| self.missing(key))
    }

    pub(super) fn optional_sectors(&self, key: &str) -> Result<Option<Sectors>, MetadataError> {
        Ok(self.optional_number(key)?.map(Sectors))
    }

    pub(super) fn uuid(&self, key: &str) -> Result<Uuid, MetadataError> {
        Uuid::from_str(self.str(key)?).map_err(|_| self.invalid(key, "an LVM UUID"))
    }

    pub(super) fn list(&self, key: &str) -> Result<Option<&'a [Scalar]>, MetadataError> {
        let Some(node) = self.section.node(key) else { return Ok(None) };
        node.as_list().map(Some).ok_or_else(|| self.invalid(key, "a list"))
    }

    pub(super) fn strings(&self, key: &str) -> Result<Option<Vec<&'a str>>, MetadataError> {
        let Some(list) = self.list(key)? else { return Ok(None) };
        let texts: Option<_> = list.iter().map(Scalar::as_str).collect();
        texts.map(Some).ok_or_else(|| self.invalid(key, "a list of strings"))
    }

    pub(super) fn tags(&self) -> Result<Vec<String>, MetadataError> {
        let tags = self.strings("tags")?.unwrap_or_default();
        Ok(tags.into_iter().map(str::to_owned).collect())
    }

    pub(super) fn flags<F: Flag>(&self) -> Result<FlagSet<F>, MetadataError> {
        let words = |words: Vec<&str>| words.into_iter().map(FlagSet::parse).collect();
        let status = self.strings("status")?.ok_or_else(|| self.missing("status"))?;
        Ok(FlagSet { status: words(status), flags: self.strings("flags")?.map(words) })
    }
}

/// The list of tags, or `None` if it is empty: LVM leaves out empty lists.
pub(super) fn tags_node(tags: &[String]) -> Option<Node> {
    (!tags.is_empty()).then(|| Node::strings(tags))
}

/// Writes both lists of flags.
pub(super) fn set_flags<F: Flag>(
    section: &mut Section,
    flags: &FlagSet<F>,
    order: crate::text::Order,
) {
    let words = |list: &[F]| Node::strings(list.iter().map(FlagSet::word));
    section.set("status", words(&flags.status), order);
    section.set_or_remove("flags", flags.flags.as_deref().map(words), order);
}

/// A number for the text, saturated; no check accepts the saturated value.
pub(super) fn int(number: u64) -> Node {
    Node::int(i64::try_from(number).unwrap_or(i64::MAX))
}
