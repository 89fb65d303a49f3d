//! What is wrong with the description of a volume group.

use thiserror::Error;

use crate::text::TextError;

/// Why a text describes no volume group that can be used.
///
/// `at` is the path of sections that leads to the defect: `vg0/logical_volumes/root/segment1`.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum MetadataError {
    /// It is not even a text.
    #[error(transparent)]
    Text(#[from] TextError),
    /// It describes something else.
    #[error("this is no LVM2 metadata: {0}")]
    NotMetadata(&'static str),
    /// A field that LVM always writes.
    #[error("{at}: {key:?} is missing")]
    Missing {
        /// Where.
        at: String,
        /// The field.
        key: String,
    },
    /// A field of another type or out of range.
    #[error("{at}: {key:?} must be {expected}")]
    Invalid {
        /// Where.
        at: String,
        /// The field.
        key: String,
        /// What it must be.
        expected: &'static str,
    },
    /// Two things of one name or one identity.
    #[error("{at}: there are two with the {what} {value:?}")]
    Duplicate {
        /// Where.
        at: String,
        /// Name or UUID.
        what: &'static str,
        /// The one that is there twice.
        value: String,
    },
    /// A name that LVM forbids.
    #[error("{at}: {name:?} is no valid name")]
    Name {
        /// Where.
        at: String,
        /// The name.
        name: String,
    },
    /// A reference to nothing.
    #[error("{at}: there is no volume {name:?}")]
    UnknownVolume {
        /// Where.
        at: String,
        /// What is referred to.
        name: String,
    },
    /// Segments that do not follow each other.
    #[error("{lv}: the segment at extent {found} should begin at extent {expected}")]
    Gap {
        /// The logical volume.
        lv: String,
        /// Where it should begin.
        expected: u32,
        /// Where it begins.
        found: u32,
    },
    /// More extents than a number can count.
    #[error("{at}: more extents than a volume can have")]
    TooLarge {
        /// Where.
        at: String,
    },
    /// An area that ends past what it lies on.
    #[error("{lv}: extents {start} to {end} of {on} are used, which has {count}")]
    PastTheEnd {
        /// The logical volume.
        lv: String,
        /// The physical or logical volume it lies on.
        on: String,
        /// First extent.
        start: u64,
        /// Behind the last extent.
        end: u64,
        /// Extents there are.
        count: u32,
    },
    /// Extents that are used twice.
    #[error("extent {extent} of {on} is used by both {first} and {second}")]
    Overlap {
        /// The physical volume.
        on: String,
        /// The first such extent.
        extent: u32,
        /// One user.
        first: String,
        /// The other one.
        second: String,
    },
    /// A volume that is made of itself.
    #[error("logical volume {0} is a part of itself")]
    Cycle(String),
    /// Volumes on volumes on volumes.
    #[error("logical volume {0} stands on too many layers of others")]
    TooDeep(String),
}
