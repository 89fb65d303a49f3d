//! Commands about the physical volumes of a group, as data.

use ashlar_block::Sectors;
use serde::{Deserialize, Serialize};

use super::Question;
use crate::format::Layout;
use crate::report::long;

/// A change of which physical volumes a group has, or of their sizes.
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
    /// `pvresize`.
    Resize {
        /// The path of the physical volume.
        physical: String,
        /// Its new size; `None`: that of its device.
        sectors: Option<u64>,
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

/// What the user must confirm before the physical volume at `path` gets the size `size`: whether it may be smaller than its device,
/// whose size is `device`.
pub fn resize_question(path: &str, size: Sectors, device: Sectors) -> Option<Question> {
    (size < device).then(|| Question {
        text: format!(
            "{path}: Requested size {} is less than real size {}. Proceed?",
            long(size),
            long(device)
        ),
        refusal: format!("Physical Volume {path} not resized."),
    })
}

/// What `pvresize` says of a physical volume that is larger than its device would be.
pub fn too_large(size: Sectors, device: Sectors) -> String {
    format!("the requested size {} exceeds that of the device, {}", long(size), long(device))
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
