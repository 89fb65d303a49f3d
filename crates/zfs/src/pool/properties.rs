//! Properties and features of pools.

use std::collections::BTreeMap;

use crate::ffi::kernel::Zfs;
use crate::ffi::properties::Kind;
use crate::property::{bad_property, parse, parse_user, shown_value, value_and_source};
use crate::protocol::{NvMap, NvValue, Refusal};

use super::status;

/// The least and the most of `ashift`.
const ASHIFTS: std::ops::RangeInclusive<u64> = 9..=16;
/// ZPROP_MAX_COMMENT of sys/fs/zfs.h.
const MAX_COMMENT_BYTES: usize = 32;
/// What feature properties begin with.
const FEATURE: &str = "feature@";
/// Properties that only `zpool import` has, or that have no meaning in a worker.
const NOT_HERE: [&str; 6] =
    ["readonly", "altroot", "bootfs", "tname", "compatibility", "load_guid"];

/// The properties of a new pool: those that were given, all features that were not disabled, and no cache file.
///
/// # Errors
/// One does not exist, cannot be set, or cannot be that.
pub(super) fn for_new_pool(
    zfs: &Zfs,
    given: &BTreeMap<String, String>,
    what: &str,
) -> Result<NvMap, Refusal> {
    let mut properties = NvMap::new();
    let legacy = given.contains_key("version");
    if !legacy {
        for feature in zfs.features() {
            properties.insert(format!("{FEATURE}{}", feature.name), NvValue::Uint64(0));
        }
    }
    for (name, text) in given {
        if let Some(feature) = name.strip_prefix(FEATURE) {
            if feature_is_enabled(zfs, feature, text, what)? {
                properties.insert(name.clone(), NvValue::Uint64(0));
            } else {
                properties.remove(name);
            }
        } else {
            properties.insert(name.clone(), value(zfs, name, text, true, what)?);
        }
    }
    properties.insert("cachefile".to_owned(), NvValue::String("none".to_owned()));
    Ok(properties)
}

fn feature_is_enabled(zfs: &Zfs, feature: &str, text: &str, what: &str) -> Result<bool, Refusal> {
    if !zfs.features().iter().any(|known| known.name == feature) {
        return Err(bad_property(
            what,
            format_args!("feature '{feature}' is not known to this release of OpenZFS"),
        ));
    }
    match text {
        "enabled" => Ok(true),
        "disabled" => Ok(false),
        _ => Err(bad_property(
            what,
            format_args!(
                "property '{FEATURE}{feature}' can only be set to 'enabled' or 'disabled'"
            ),
        )),
    }
}

/// A property's value, from text.
fn value(
    zfs: &Zfs,
    name: &str,
    text: &str,
    creating: bool,
    what: &str,
) -> Result<NvValue, Refusal> {
    let Some(property) = zfs.properties().pool(name) else {
        if zfs.is_user_property(name).unwrap_or(false) {
            return parse_user(name, text, what);
        }
        return Err(bad_property(what, format_args!("invalid property '{name}'")));
    };
    if name == "cachefile" && text != "none" {
        return Err(bad_property(what, "cachefile is always 'none' here").with_hint(
            "the kernel's cache file is the kernel's: import the pool there to be in it",
        ));
    }
    if NOT_HERE.contains(&name) {
        return Err(bad_property(what, format_args!("property '{name}' cannot be set here")));
    }
    if property.read_only && !property.set_once {
        return Err(bad_property(what, format_args!("'{name}' is readonly")));
    }
    if property.set_once && !creating {
        return Err(bad_property(
            what,
            format_args!("property '{name}' can only be set at creation time"),
        ));
    }
    let value = parse(zfs, property, text, what)?;
    match (name, &value) {
        ("ashift", NvValue::Uint64(ashift)) if *ashift != 0 && !ASHIFTS.contains(ashift) => {
            Err(bad_property(
                what,
                format_args!(
                    "property 'ashift' number {ashift} is invalid, only values between {} and {} are allowed",
                    ASHIFTS.start(),
                    ASHIFTS.end()
                ),
            ))
        }
        ("comment", _) if text.chars().any(|c| !(c.is_ascii_graphic() || c == ' ')) => {
            Err(bad_property(what, "comment may only have printable characters"))
        }
        ("comment", _) if text.len() > MAX_COMMENT_BYTES => Err(bad_property(
            what,
            format_args!("comment must not exceed {MAX_COMMENT_BYTES} characters"),
        )),
        ("multihost", NvValue::Uint64(1)) if zfs.host_id() == 0 => {
            Err(bad_property(what, "requires a non-zero system hostid")
                .with_hint("make one with zgenhostid"))
        }
        _ => Ok(value),
    }
}

/// Sets a property of a pool.
///
/// # Errors
/// It does not exist, cannot be set, or cannot be that.
pub(crate) fn set(zfs: &Zfs, pool: &str, name: &str, text: &str) -> Result<(), Refusal> {
    let what = format!("cannot set property for '{pool}'");
    let value = match name.strip_prefix(FEATURE) {
        Some(feature) if feature_is_enabled(zfs, feature, text, &what)? => NvValue::Uint64(0),
        Some(_) => {
            return Err(bad_property(
                &what,
                format_args!("property '{name}' can only be set to 'disabled' at creation time"),
            ));
        }
        None => value(zfs, name, text, false, &what)?,
    };
    let properties = NvMap::from([(name.to_owned(), value)]);
    zfs.set_pool_properties(pool, &properties).map_err(|errno| Refusal::of_pool(&what, errno))
}

/// All properties of a pool and its features, as `zpool get -p` prints them.
pub(super) fn shown(
    zfs: &Zfs,
    list: &NvMap,
    config: &NvMap,
    state: &str,
) -> BTreeMap<String, String> {
    let mut shown = BTreeMap::new();
    for property in zfs.properties().of_pools() {
        let value = match value_and_source(list, &property.name) {
            _ if property.name == "health" => Some(state.to_owned()),
            Some((NvValue::Uint64(u64::MAX), _)) if property.kind == Kind::Number => None,
            Some((value, _)) => shown_value(zfs, property, value),
            None => match property.kind {
                Kind::Text => Some(property.default_text.clone()),
                Kind::Number | Kind::Index if property.read_only => None,
                Kind::Number | Kind::Index => {
                    shown_value(zfs, property, &NvValue::Uint64(property.default_number))
                }
            },
        };
        let value = value.filter(|value| !value.is_empty()).unwrap_or_else(|| "-".to_owned());
        shown.insert(property.name.clone(), value);
    }
    for (name, _) in list.iter().filter(|(name, _)| name.contains(':')) {
        if let Some((NvValue::String(text), _)) = value_and_source(list, name) {
            shown.insert(name.clone(), text.clone());
        }
    }
    let counts = status::list(config, "feature_stats");
    for feature in zfs.features() {
        let state = match counts.and_then(|counts| status::number(counts, &feature.guid)) {
            None => "disabled",
            Some(0) => "enabled",
            Some(_) => "active",
        };
        shown.insert(format!("{FEATURE}{}", feature.name), state.to_owned());
    }
    shown
}
