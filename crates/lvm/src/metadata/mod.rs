//! A volume group, as described by its text.
//!
//! [`Metadata`] is a whole text; it contains a [`VolumeGroup`] with [`PhysicalVolume`]s,
//! [`LogicalVolume`]s and their [`Segment`]s. Each of these keeps the section it was parsed from:
//! unknown fields stay in place, and unchanged parts are printed as they were.
//!
//! A parsed group is consistent: it has passed [`check`](VolumeGroup::check). A volume of an
//! unknown kind is marked as unusable ([`LogicalVolume::unsupported`]); the others are usable.
//!
//! Allocations are proportional to the bytes of the text, never to numbers in it.

mod check;
mod error;
pub mod flags;
mod header;
mod holder;
mod logical_volume;
mod reader;
mod segment;
mod segment_text;
mod shared_volume;
mod volume_group;
mod volume_group_text;

pub use check::{is_valid_name, parse_tag};
pub use error::MetadataError;
pub use flags::{Flag, FlagSet, LvFlag, PvFlag, VgFlag};
pub use header::Header;
pub use holder::{HeldElsewhere, SystemIds, system_id};
pub use logical_volume::{Allocation, Creation, LogicalVolume};
pub use segment::{
    Area, AreaVolume, ForeignSegment, Mirror, PvExtents, Raid, RaidImage, RaidLevel, Segment,
    SegmentKind, Snapshot, StripeAreas, Thin, ThinPool,
};
pub use shared_volume::SharedVolume;
pub use volume_group::{Bootloader, PhysicalVolume, SnapshotOf, VolumeGroup};

use crate::text::{self, Entry, Form, Node, Section};
use volume_group_text::LVS;

/// A whole text: a volume group, and the header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Metadata {
    /// The volume group.
    pub group: VolumeGroup,
    header: Header,
    /// Everything but the group, as parsed; an empty section marks the group's position.
    around: Section,
}

impl Metadata {
    /// A new text; the header in its on-disk form.
    pub fn new(group: VolumeGroup, header: Header) -> Self {
        let mut around = Section::default();
        around.entries.push(Entry::new(&*group.name, Node::Section(Section::default())));
        header.write(&mut around);
        Self { group, header, around }
    }

    /// Parses a text, from a metadata area or a backup.
    ///
    /// # Errors
    /// The first defect.
    pub fn parse(text: &[u8]) -> Result<Self, MetadataError> {
        let mut around = text::parse(text)?;
        let header = Header::read(&around)?;
        let mut found = None;
        for entry in &mut around.entries {
            if let Node::Section(section) = &mut entry.node {
                found = Some((entry.key.clone(), std::mem::take(section)));
                break;
            }
        }
        let (name, section) = found.ok_or(MetadataError::NotMetadata("no volume group in it"))?;
        let group = VolumeGroup::read(&name, section)?;
        group.check()?;
        Ok(Self { group, header, around })
    }

    /// The author, time and reason.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Sets the author, time and reason.
    pub fn set_header(&mut self, header: Header) {
        header.write(&mut self.around);
        self.header = header;
    }

    /// The whole tree.
    pub fn to_tree(&self) -> Section {
        let mut tree = self.around.clone();
        let place = tree.entries.iter_mut().find(|entry| entry.node.as_section().is_some());
        if let Some(entry) = place {
            entry.key.clone_from(&self.group.name);
            entry.node = Node::Section(self.group.write());
        }
        tree
    }

    /// The text, byte for byte as LVM would write it. On disk, a NUL follows it.
    pub fn print(&self, form: Form) -> Vec<u8> {
        let mut tree = self.around.clone();
        let place = tree.entries.iter_mut().find(|entry| entry.node.as_section().is_some());
        let mut printed = String::new();
        if let Some(entry) = place {
            let section = self.group.write_frame();
            printed = self.group.print_lvs(&section, form);
            entry.key.clone_from(&self.group.name);
            entry.node = Node::Section(section);
        }
        text::print_with(&tree, form, LVS, &printed)
    }
}
