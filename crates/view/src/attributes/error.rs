//! Why an attribute could not be read or written.

use ashlar_block::disk::SettingError;
use ashlar_stack::turn::NoTurn;
use thiserror::Error;

/// Why an attribute could not be read or written.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum AttributeError {
    /// There is nothing at that path.
    #[error("no such attribute")]
    NotFound,
    /// A directory has no value.
    #[error("is a directory")]
    IsDirectory,
    /// A volume's data is not an attribute.
    #[error("is a volume, not an attribute")]
    IsVolume,
    /// It can only be written.
    #[error("cannot be read")]
    NotReadable,
    /// It can only be read.
    #[error("cannot be written")]
    NotWritable,
    /// The value is not valid for this attribute.
    #[error("{0}")]
    Invalid(String),
    /// Not possible now.
    #[error("{0}")]
    Busy(String),
}

impl AttributeError {
    /// The errno that sysfs returns in the same case (positive).
    pub const fn errno(&self) -> i32 {
        match self {
            Self::NotFound => 2,
            Self::IsDirectory => 21,
            Self::NotReadable | Self::NotWritable => 13,
            Self::Invalid(_) | Self::IsVolume => 22,
            Self::Busy(_) => 16,
        }
    }
}

impl From<SettingError> for AttributeError {
    fn from(error: SettingError) -> Self {
        Self::Invalid(error.to_string())
    }
}

impl From<NoTurn> for AttributeError {
    fn from(why: NoTurn) -> Self {
        Self::Busy(why.to_string())
    }
}
