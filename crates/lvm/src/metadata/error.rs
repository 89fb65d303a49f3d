//! Defects in the description of a volume group.

use thiserror::Error;

use crate::text::TextError;

/// Why a text does not describe a usable volume group.
///
/// `at` is the path of sections that leads to the defect: `vg0/logical_volumes/root/segment1`.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum MetadataError {
    /// It is not a valid text.
    #[error(transparent)]
    Text(#[from] TextError),
    /// It is not LVM2 metadata.
    #[error("this is not LVM2 metadata: {0}")]
    NotMetadata(&'static str),
    /// A required field is missing.
    #[error("{at}: {key:?} is missing")]
    Missing {
        /// Where.
        at: String,
        /// The field.
        key: String,
    },
    /// A field has a wrong type or is out of range.
    #[error("{at}: {key:?} must be {expected}")]
    Invalid {
        /// Where.
        at: String,
        /// The field.
        key: String,
        /// The allowed values.
        expected: &'static str,
    },
    /// Two objects have the same name or UUID.
    #[error("{at}: there are two with the {what} {value:?}")]
    Duplicate {
        /// Where.
        at: String,
        /// Name or UUID.
        what: &'static str,
        /// The duplicate value.
        value: String,
    },
    /// An invalid name.
    #[error("{at}: {name:?} is not a valid name")]
    Name {
        /// Where.
        at: String,
        /// The name.
        name: String,
    },
    /// A reference to a volume that does not exist.
    #[error("{at}: there is no volume {name:?}")]
    UnknownVolume {
        /// Where.
        at: String,
        /// The name of that volume.
        name: String,
    },
    /// Segments are not contiguous.
    #[error("{lv}: the segment at extent {found} should begin at extent {expected}")]
    Gap {
        /// The logical volume.
        lv: String,
        /// The expected start.
        expected: u32,
        /// The actual start.
        found: u32,
    },
    /// The number of extents overflows.
    #[error("{at}: more extents than a volume can have")]
    TooLarge {
        /// Where.
        at: String,
    },
    /// An area ends beyond its volume.
    #[error("{lv}: extents {start} to {end} of {on} are used, which has {count}")]
    PastTheEnd {
        /// The logical volume.
        lv: String,
        /// The physical or logical volume of the area.
        on: String,
        /// First extent.
        start: u64,
        /// End of the range, exclusive.
        end: u64,
        /// Number of extents of that volume.
        count: u32,
    },
    /// Extents are used twice.
    #[error("extent {extent} of {on} is used by both {first} and {second}")]
    Overlap {
        /// The physical volume.
        on: String,
        /// The first overlapping extent.
        extent: u32,
        /// One user.
        first: String,
        /// The other user.
        second: String,
    },
    /// A volume is a part of itself.
    #[error("logical volume {0} is a part of itself")]
    Cycle(String),
    /// Too many layers of volumes.
    #[error("logical volume {0} stands on too many layers of others")]
    TooDeep(String),
}
