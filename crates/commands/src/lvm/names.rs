//! The names of groups and volumes in LVM's syntax.

use crate::error::{Error, Result};

/// The name of a group, which may be given as its directory below `/dev`.
pub fn group_name(text: &str) -> &str {
    text.strip_prefix("/dev/").unwrap_or(text)
}

/// The group and the volume of `vg`, `vg/lv` or `/dev/vg/lv`.
///
/// # Errors
/// The text is not such a name.
pub fn split_name(text: &str) -> Result<(&str, Option<&str>)> {
    let name = group_name(text);
    match name.split_once('/') {
        None => Ok((name, None)),
        Some((group, volume)) if !volume.is_empty() && !volume.contains('/') => {
            Ok((group, Some(volume)))
        }
        Some(_) => Err(Error::usage(format_args!("`{text}` is not a name as VG/LV"))),
    }
}

/// As [`split_name`], with a volume.
///
/// # Errors
/// As there; or the text names no volume.
pub fn volume_name(text: &str) -> Result<(&str, &str)> {
    match split_name(text)? {
        (group, Some(volume)) => Ok((group, volume)),
        (_, None) => Err(Error::usage(format_args!("`{text}` names no volume: VG/LV"))),
    }
}
