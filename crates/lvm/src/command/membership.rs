//! Commands about the physical volumes of a group, as data.

use ashlar_block::Sectors;
use serde::{Deserialize, Serialize};

use crate::format::Layout;

/// A change of which physical volumes a group has.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Membership {
    /// `vgcreate`.
    Create(NewGroup),
    /// `vgextend`.
    Extend {
        /// The paths of the physical volumes, or of plain disks that become some.
        physical: Vec<String>,
        /// How plain disks are laid out.
        layout: LayoutOptions,
    },
    /// `vgreduce`.
    Reduce {
        /// The paths of the physical volumes; none: all that no logical volume uses, but for one.
        physical: Vec<String>,
    },
    /// `vgremove`, with all logical volumes.
    Remove {
        /// Whether there is no question if the group has logical volumes.
        force: bool,
    },
}

/// A new group.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewGroup {
    /// The extent size.
    pub extent_sectors: u64,
    /// The most logical volumes; 0: any number.
    pub max_lv: u32,
    /// The most physical volumes; 0: any number.
    pub max_pv: u32,
    /// Tags.
    pub tags: Vec<String>,
    /// The paths of the physical volumes, or of plain disks that become some.
    pub physical: Vec<String>,
    /// How plain disks are laid out.
    pub layout: LayoutOptions,
}

/// A [`Layout`] as data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayoutOptions {
    /// [`Layout::data_alignment`].
    pub alignment_sectors: u64,
    /// [`Layout::metadata_copies`].
    pub metadata_copies: u8,
    /// [`Layout::metadata_size`].
    pub metadata_sectors: u64,
    /// [`Layout::bootloader`].
    pub bootloader_sectors: u64,
}

impl From<Layout> for LayoutOptions {
    fn from(layout: Layout) -> Self {
        Self {
            alignment_sectors: layout.data_alignment.0,
            metadata_copies: layout.metadata_copies,
            metadata_sectors: layout.metadata_size.0,
            bootloader_sectors: layout.bootloader.0,
        }
    }
}

impl From<LayoutOptions> for Layout {
    fn from(options: LayoutOptions) -> Self {
        Self {
            data_alignment: Sectors(options.alignment_sectors),
            metadata_copies: options.metadata_copies,
            metadata_size: Sectors(options.metadata_sectors),
            bootloader: Sectors(options.bootloader_sectors),
        }
    }
}
