//! Which properties pools and datasets have, and the columns of tables of them.

use ashlar_zfs::protocol::{Dataset, PoolStatus, Property};

use super::{DATASET_NAMES, POOL_NAMES, dataset_value};

/// Properties that are always accepted, although some kinds of datasets lack them.
const ALWAYS: [&str; 6] = ["name", "available", "mountpoint", "volsize", "volblocksize", "origin"];

/// Whether a dataset is of the kind that zfs calls `word`: volume, vol, snapshot, snap, filesystem, fs or all.
pub fn is_kind(dataset: &Dataset, word: &str) -> bool {
    match word {
        "vol" => dataset.kind == "volume",
        "snap" => dataset.kind == "snapshot",
        "fs" => dataset.kind == "filesystem",
        "all" => true,
        kind => dataset.kind == kind,
    }
}

/// Whether a table of these datasets may have this column.
pub fn has_column(datasets: &[Dataset], column: &str) -> bool {
    let name = DATASET_NAMES.full(column);
    let has = |dataset: &Dataset| dataset.properties.contains_key(name);
    // A user property may be set on none of them.
    ALWAYS.contains(&name) || name.contains(':') || datasets.iter().any(has)
}

/// What a dataset has in a column: the exact value, or one for people.
pub fn dataset_cell(dataset: &Dataset, column: &str, exact: bool) -> String {
    let name = DATASET_NAMES.full(column);
    if name == "name" {
        return dataset.name.clone();
    }
    let is_volumes = name.starts_with("vol") && dataset.kind == "filesystem";
    match dataset.properties.get(name).filter(|_| !is_volumes) {
        None => "-".to_owned(),
        Some(property) if exact => property.value.clone(),
        Some(property) => dataset_value(name, &property.value),
    }
}

/// The prefixes of feature properties. zpool prints nothing for a feature that a pool does not have.
const FEATURES: [&str; 2] = ["feature@", "unsupported@"];

/// Whether the name is that of a feature property.
fn is_feature(name: &str) -> bool {
    FEATURES.iter().any(|prefix| name.starts_with(prefix))
}

/// Whether the name is that of a user property. zpool prints `-` for a pool that does not have it.
fn is_user(name: &str) -> bool {
    name.contains(':') && !is_feature(name)
}

/// Whether pools can have a property of this name.
pub fn is_pool_property(pools: &[PoolStatus], name: &str) -> bool {
    let full = POOL_NAMES.full(name);
    pools.is_empty()
        || pools.iter().any(|pool| pool.properties.contains_key(full))
        || is_user(name)
        || is_feature(name)
}

/// The wanted properties of a pool, or all of them in zpool's order.
pub fn pool_properties<'a>(
    pool: &'a PoolStatus,
    wanted: Option<&'a [String]>,
) -> Vec<(&'a str, Property)> {
    let property = |name: &'a String| {
        let name = POOL_NAMES.full(name);
        let found = pool.properties.get(name).cloned();
        let unset = || Property { value: "-".to_owned(), source: "default".to_owned() };
        let property = found.or_else(|| is_user(name).then(unset));
        property.map(|property| (name, property))
    };
    wanted.unwrap_or(&pool.listed).iter().filter_map(property).collect()
}
