//! Properties of pools and datasets, in the users' notation.

use ashlar_block::size::{BadSize, Notation};
use rustix::io::Errno;

use crate::ffi::kernel::Zfs;
use crate::ffi::properties::{Descriptor, Kind};
use crate::protocol::{NvMap, NvValue, Property, Refusal};

/// ZAP_MAXNAMELEN of sys/zap.h.
const MAX_NAME_BYTES: usize = 256;
/// ZAP_MAXVALUELEN of sys/zap.h.
const MAX_VALUE_BYTES: usize = 8192;

/// Properties whose number may be `none`, stored as 0.
const NONE_IS_ZERO: [&str; 4] = ["quota", "refquota", "reservation", "refreservation"];
/// Properties whose number may be `none`, stored as the largest number.
const NONE_IS_UNLIMITED: [&str; 4] = ["filesystem_limit", "snapshot_limit", COUNTS[0], COUNTS[1]];
/// Counters for these limits, which only count where there is a limit. ZFS shows them as if they were set.
const COUNTS: [&str; 2] = ["filesystem_count", "snapshot_count"];
/// Properties that cannot be set to the number 0.
const NOT_ZERO: [&str; 2] = ["quota", "refquota"];

/// A refusal of a property's name or value.
pub(crate) fn bad_property(what: &str, why: impl std::fmt::Display) -> Refusal {
    Refusal::new(what, why, Errno::INVAL)
}

/// Properties that are block sizes.
const BLOCK_SIZES: [&str; 2] = ["special_small_blocks", "recordsize"];
/// From SPA_MINBLOCKSIZE to SPA_MAXBLOCKSIZE of sys/spa.h.
const BLOCK_BYTES: std::ops::RangeInclusive<u64> = 512..=16 << 20;

/// Converts a user's text to libzpool's value.
///
/// # Errors
/// It is not a valid value of this property.
pub(crate) fn parse(
    zfs: &Zfs,
    property: &Descriptor,
    text: &str,
    what: &str,
) -> Result<NvValue, Refusal> {
    let name = property.name.as_str();
    match property.kind {
        Kind::Text if text.len() >= MAX_VALUE_BYTES => {
            Err(bad_property(what, format_args!("'{name}' is too long")))
        }
        Kind::Text => Ok(NvValue::String(text.to_owned())),
        Kind::Index => zfs.index_of(property, text).map(NvValue::Uint64).ok_or_else(|| {
            let words = zfs.words_of(property);
            bad_property(what, format_args!("'{name}' must be one of '{words}'"))
        }),
        Kind::Number if text == "none" && NONE_IS_ZERO.contains(&name) => Ok(NvValue::Uint64(0)),
        Kind::Number if text == "none" && NONE_IS_UNLIMITED.contains(&name) => {
            Ok(NvValue::Uint64(u64::MAX))
        }
        Kind::Number => {
            let number = parse_size(text).map_err(|why| bad_property(what, why))?;
            if number == 0 && NOT_ZERO.contains(&name) {
                return Err(bad_property(what, format_args!("use 'none' to disable {name}")));
            }
            // libzpool assumes that the caller has checked this.
            let is_block = number.is_power_of_two() && BLOCK_BYTES.contains(&number);
            let may_be_none = number == 0 && name == "special_small_blocks";
            if BLOCK_SIZES.contains(&name) && !is_block && !may_be_none {
                let why = format_args!("'{name}' must be power of 2 from 512B to 16M");
                return Err(bad_property(what, why));
            }
            Ok(NvValue::Uint64(number))
        }
    }
}

/// A user property's text, if name and text are not too long.
///
/// # Errors
/// One of them is too long.
pub(crate) fn parse_user(name: &str, text: &str, what: &str) -> Result<NvValue, Refusal> {
    if name.len() >= MAX_NAME_BYTES {
        return Err(bad_property(what, format_args!("property name '{name}' is too long")));
    }
    if text.len() >= MAX_VALUE_BYTES {
        return Err(bad_property(what, format_args!("property value '{text}' is too long")));
    }
    Ok(NvValue::String(text.to_owned()))
}

/// A number with a suffix, in ZFS's notation: `16K`, `1.5G`, `512B`, `1TiB`.
///
/// # Errors
/// Why it is not a number.
pub fn parse_size(text: &str) -> Result<u64, String> {
    Notation::ZFS.parse(text).map_err(|why| match why {
        BadSize::Number => format!("bad numeric value '{text}'"),
        BadSize::Unit => {
            let suffix = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
            format!("invalid numeric suffix '{suffix}'")
        }
        BadSize::TooLarge => "numeric value is too large".to_owned(),
    })
}

/// A value from a list of `value` and `source`, as `zfs get -p` prints it; `None` if the property has no value.
pub(crate) fn shown_value(zfs: &Zfs, property: &Descriptor, value: &NvValue) -> Option<String> {
    Some(match (value, property.kind) {
        (NvValue::Uint64(number), Kind::Index) => zfs.word_of(property, *number)?,
        (NvValue::Uint64(ratio), _) if property.name.ends_with("ratio") => {
            format!("{}.{:02}", ratio / 100, ratio % 100)
        }
        (NvValue::Uint64(u64::MAX), _) if NONE_IS_UNLIMITED.contains(&property.name.as_str()) => {
            "none".to_owned()
        }
        (NvValue::Uint64(number), _) => number.to_string(),
        (NvValue::String(text), _) => text.clone(),
        // The names of clones.
        (NvValue::List(names), _) => names.keys().cloned().collect::<Vec<_>>().join(","),
        (NvValue::Boolean | NvValue::Lists(_) | NvValue::Uint64s(_), _) => return None,
    })
}

/// The `value` and `source` of a property in libzpool's list.
pub(crate) fn value_and_source<'a>(
    list: &'a NvMap,
    name: &str,
) -> Option<(&'a NvValue, Option<&'a str>)> {
    let Some(NvValue::List(property)) = list.get(name) else { return None };
    let source = match property.get("source") {
        Some(NvValue::String(source)) => Some(source.as_str()),
        _ => None,
    };
    property.get("value").map(|value| (value, source))
}

/// Whether ZFS hides a property with this value: the time of the last snapshot change where there
/// was none, the clones of a snapshot without clones.
fn is_nothing(name: &str, value: &NvValue) -> bool {
    match value {
        NvValue::Uint64(time) => name == "snapshots_changed" && *time == 0,
        NvValue::List(clones) => clones.is_empty(),
        NvValue::Boolean | NvValue::String(_) | NvValue::Lists(_) | NvValue::Uint64s(_) => false,
    }
}

/// A property with its source, as `zfs get` prints it for this dataset.
pub(crate) fn shown(
    zfs: &Zfs,
    dataset: &str,
    property: &Descriptor,
    list: &NvMap,
) -> Option<Property> {
    let is_count = COUNTS.contains(&property.name.as_str());
    let settable = is_count || (!property.read_only && !property.set_once);
    let Some((value, source)) = value_and_source(list, &property.name) else {
        if property.read_only && !property.set_once && !is_count {
            return None;
        }
        let value = match property.kind {
            Kind::Text => property.default_text.clone(),
            Kind::Number | Kind::Index => {
                shown_value(zfs, property, &NvValue::Uint64(property.default_number))?
            }
        };
        return Some(Property { value, source: "default".to_owned() });
    };
    if is_nothing(&property.name, value) {
        return None;
    }
    let is_default = *value == NvValue::Uint64(property.default_number);
    let value = shown_value(zfs, property, value)?;
    let source = match source {
        Some("") => "default".to_owned(),
        Some(source) => source_words(dataset, source),
        None if settable => "local".to_owned(),
        None if property.set_once && is_default => "default".to_owned(),
        None => "-".to_owned(),
    };
    Some(Property { value, source })
}

/// The source of a value, in words.
pub(crate) fn source_words(dataset: &str, source: &str) -> String {
    match source {
        "$recvd" => "received".to_owned(),
        source if source == dataset => "local".to_owned(),
        source => format!("inherited from {source}"),
    }
}

#[cfg(test)]
mod tests {
    use super::parse_size;

    #[test]
    fn refusals_are_in_the_words_of_zfs() {
        assert_eq!(parse_size("1.5TiB"), Ok(3 << 39));
        for (text, words) in [
            ("-1", "bad numeric value '-1'"),
            ("16X", "invalid numeric suffix 'X'"),
            ("16E", "numeric value is too large"),
        ] {
            assert_eq!(parse_size(text), Err(words.to_owned()), "{text}");
        }
    }
}
