//! Properties and features of pools.

use std::collections::BTreeMap;

use crate::ffi::kernel::Zfs;
use crate::ffi::properties::{Descriptor, Kind};
use crate::property::{bad_property, parse, parse_user, shown_value};
use crate::protocol::{NvMap, NvValue, Property, Refusal};

use super::status;

/// The values of `ashift` that can be set, besides 0.
const ASHIFTS: std::ops::RangeInclusive<u64> = 9..=16;
/// ZPROP_MAX_COMMENT of sys/fs/zfs.h.
const MAX_COMMENT_BYTES: usize = 32;
/// The prefix of feature properties.
const FEATURE: &str = "feature@";
/// The prefix of properties for features that this release does not know.
const UNSUPPORTED: &str = "unsupported@";
/// zpool's word for no value and no source.
const NOTHING: &str = "-";
/// zpool's words for where a value comes from.
const DEFAULT: &str = "default";
const LOCAL: &str = "local";
/// SPA_VERSION_FEATURES of sys/fs/zfs.h: the version of every pool with features.
const FEATURES_VERSION: u64 = 5000;
/// Properties that only `zpool import` sets, or that have no meaning in a worker.
const NOT_HERE: [&str; 6] =
    ["readonly", "altroot", "bootfs", "tname", "compatibility", "load_guid"];

/// The properties of a new pool: the given ones, `cachefile=none`, and, unless `version` is given, all features that
/// are not disabled.
///
/// # Errors
/// A property does not exist, cannot be set, or cannot have the given value.
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

/// Parses a property's value.
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
            "to have the pool in the kernel's cache file, import it with the kernel's zpool",
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
/// The property does not exist, cannot be set, or cannot have this value.
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

/// zprop_source_t of sys/fs/zfs.h in the words of zpool.
fn source_words(source: u64) -> &'static str {
    match source {
        2 => DEFAULT,
        4 => "temporary",
        8 => LOCAL,
        _ => NOTHING,
    }
}

/// The word that `zpool get -p` prints instead of some numbers. OpenZFS 2.4 also has some of these properties for
/// each class of vdevs (`class_log_expandsize`).
fn number_word(name: &str, number: u64) -> Option<&'static str> {
    match number {
        u64::MAX if name == "dedup_table_quota" => Some("auto"),
        u64::MAX if name.ends_with("fragmentation") => Some(NOTHING),
        0 if name == "checkpoint" || name.ends_with("expandsize") => Some(NOTHING),
        FEATURES_VERSION.. if name == "version" => Some(NOTHING),
        _ => None,
    }
}

/// A pool's property as libzpool gave it, or with its default. `None` if its number has no word.
fn told_or_default(zfs: &Zfs, property: &Descriptor, told: Option<&NvMap>) -> Option<Property> {
    let source = told.and_then(|told| status::number(told, "source"));
    let source = source.map_or(DEFAULT, source_words).to_owned();
    let default = match property.kind {
        Kind::Text if property.default_text.is_empty() => NvValue::String(NOTHING.to_owned()),
        Kind::Text => NvValue::String(property.default_text.clone()),
        Kind::Number | Kind::Index => NvValue::Uint64(property.default_number),
    };
    let value = told.and_then(|told| told.get("value")).unwrap_or(&default);
    let word = match (value, property.kind) {
        (NvValue::Uint64(number), Kind::Number) => number_word(&property.name, *number),
        _ => None,
    };
    let value = match word {
        Some(word) => word.to_owned(),
        None => shown_value(zfs, property, value)?,
    };
    Some(Property { value, source })
}

/// The state of each feature by property name, in zpool's order: first the features that this release knows, then
/// others that the pool has. `counts` is `feature_stats` of the pool's configuration, which `spa_get_stats` gives
/// from 2.1 to 2.4: the use count of each feature that is not disabled, by its name on disk.
fn features(zfs: &Zfs, counts: &NvMap) -> Vec<(String, Property)> {
    let known = zfs.features();
    let state = |name: String, value: &str| {
        (name, Property { value: value.to_owned(), source: LOCAL.to_owned() })
    };
    let of_known = known.iter().map(|feature| {
        let value = match status::number(counts, &feature.guid) {
            None => "disabled",
            Some(0) => "enabled",
            Some(_) => "active",
        };
        state(format!("{FEATURE}{}", feature.name), value)
    });
    let is_known = |guid: &str| known.iter().any(|feature| feature.guid == guid);
    let of_unknown = counts.keys().filter(|guid| !is_known(guid)).map(|guid| {
        let value = match status::number(counts, guid) {
            Some(0) => "inactive",
            _ => "readonly",
        };
        state(format!("{UNSUPPORTED}{guid}"), value)
    });
    of_known.chain(of_unknown).collect()
}

/// All properties and features of a pool by name, as `zpool get -p` prints them, and the names of those that
/// `zpool get all` shows, in its order. `told` is libzpool's list of the pool's properties, `config` its configuration.
pub(super) fn shown(
    zfs: &Zfs,
    told: &NvMap,
    config: &NvMap,
    state: &str,
) -> (BTreeMap<String, Property>, Vec<String>) {
    let mut all: Vec<(String, Property)> = Vec::new();
    for known in zfs.properties().of_pools() {
        let property = told_or_default(zfs, known, status::list(told, &known.name));
        all.extend(property.map(|property| (known.name.clone(), property)));
    }
    for name in told.keys().filter(|name| name.contains(':')) {
        let told = status::list(told, name);
        if let Some(value) = told.and_then(|told| status::text(told, "value")) {
            let property = Property { value: value.to_owned(), source: LOCAL.to_owned() };
            all.push((name.clone(), property));
        }
    }
    let none = NvMap::new();
    all.extend(features(zfs, status::list(config, "feature_stats").unwrap_or(&none)));
    let listed = all.iter().map(|(name, _)| name.clone()).collect();
    for known in zfs.properties().hidden_of_pools() {
        let told = status::list(told, &known.name);
        let property = told.and_then(|told| told_or_default(zfs, known, Some(told)));
        all.extend(property.map(|property| (known.name.clone(), property)));
    }
    let mut properties = BTreeMap::from_iter(all);
    // libzpool reports the root vdev's state, even if the pool is suspended.
    if let Some(health) = properties.get_mut("health") {
        state.clone_into(&mut health.value);
    }
    (properties, listed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_numbers_are_words() {
        for (name, number, word) in [
            ("version", 5000, Some("-")),
            ("version", 28, None),
            ("dedup_table_quota", u64::MAX, Some("auto")),
            ("dedup_table_quota", 0, None),
            ("fragmentation", u64::MAX, Some("-")),
            ("fragmentation", 0, None),
            ("class_log_fragmentation", u64::MAX, Some("-")),
            ("checkpoint", 0, Some("-")),
            ("checkpoint", 1, None),
            ("expandsize", 0, Some("-")),
            ("class_log_expandsize", 0, Some("-")),
            ("freeing", 0, None),
            ("guid", u64::MAX, None),
        ] {
            assert_eq!(number_word(name, number), word, "{name}={number}");
        }
    }

    #[test]
    fn sources_are_zpools() {
        let words = [1, 2, 4, 8].map(source_words);
        assert_eq!(words, ["-", "default", "temporary", "local"]);
    }
}
