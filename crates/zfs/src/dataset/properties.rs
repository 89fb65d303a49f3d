//! Properties of datasets: setting and inheriting them.

use std::collections::BTreeMap;

use rustix::io::Errno;

use super::reservation::reservation_bytes;
use super::{NameKind, check_name};
use crate::ffi::dsl::Shape;
use crate::ffi::kernel::Zfs;
use crate::ffi::properties::{Descriptor, Kind, subject};
use crate::pool::{list, number};
use crate::property::{bad_property, parse, parse_size, parse_user};
use crate::protocol::{NvMap, NvValue, Refusal};

/// Properties of encryption, which ashlar cannot set up.
const ENCRYPTION: [&str; 4] = ["encryption", "keyformat", "keylocation", "pbkdf2iters"];

/// Values of properties, parsed.
pub(crate) type Values = NvMap;

/// A property that can be set on a `subject`.
pub(super) fn settable<'a>(
    zfs: &'a Zfs,
    name: &str,
    subject: i32,
    creating: bool,
    what: &str,
) -> Result<&'a Descriptor, Refusal> {
    let property = zfs
        .properties()
        .dataset(name)
        .ok_or_else(|| bad_property(what, format_args!("invalid property '{name}'")))?;
    if property.subjects & subject == 0 {
        let why = format!("'{name}' does not apply to datasets of this type");
        return Err(bad_property(what, why));
    }
    if property.read_only && !(property.set_once && creating) {
        return Err(bad_property(what, format_args!("'{name}' is readonly")));
    }
    Ok(property)
}

/// Parses the properties of a new dataset, as in `zfs create -o`.
///
/// # Errors
/// A property does not exist, does not apply, or has an invalid value.
pub(super) fn parse_all(
    zfs: &Zfs,
    given: &BTreeMap<String, String>,
    subject: i32,
    what: &str,
) -> Result<Values, Refusal> {
    let mut values = Values::new();
    for (name, text) in given {
        if zfs.is_user_property(name).unwrap_or(false) {
            values.insert(name.clone(), parse_user(name, text, what)?);
            continue;
        }
        let property = settable(zfs, name, subject, true, what)?;
        if ENCRYPTION.contains(&name.as_str()) {
            if text == "off" || text == "none" {
                continue;
            }
            return Err(bad_property(what, "encryption is not supported here")
                .with_hint("make encrypted volumes with the kernel's zfs"));
        }
        values.insert(name.clone(), parse(zfs, property, text, what)?);
    }
    Ok(values)
}

/// Sets parsed properties of an existing dataset.
///
/// # Errors
/// libzpool refused a property. The ones before it are set then.
pub(crate) fn apply(zfs: &Zfs, name: &str, values: &Values, what: &str) -> Result<(), Refusal> {
    check_algorithms(zfs, name, values, what)?;
    let mut plain = NvMap::new();
    for (property, value) in values {
        let set = match value {
            NvValue::Uint64(number) => zfs
                .set_special(name, property, *number)
                .map_err(|errno| refused(what, property, errno))?,
            NvValue::Boolean
            | NvValue::String(_)
            | NvValue::List(_)
            | NvValue::Lists(_)
            | NvValue::Uint64s(_) => false,
        };
        if !set {
            plain.insert(property.clone(), value.clone());
        }
    }
    if plain.is_empty() {
        return Ok(());
    }
    zfs.set_dataset_properties(name, &plain).map_err(|errno| Refusal::of_dataset(what, errno))
}

/// Algorithms by their first word, with the pool feature that they need.
const ALGORITHMS: [(&str, &str); 6] = [
    ("lz4", "lz4_compress"),
    ("zstd", "zstd_compress"),
    ("sha512", "sha512"),
    ("skein", "skein"),
    ("edonr", "edonr"),
    ("blake3", "blake3"),
];

/// Refuses algorithms whose feature is not enabled in the pool: libzpool would abort at the next block.
fn check_algorithms(zfs: &Zfs, name: &str, values: &Values, what: &str) -> Result<(), Refusal> {
    for property in ["checksum", "dedup", "compression"] {
        let Some(NvValue::Uint64(index)) = values.get(property) else { continue };
        let Some(known) = zfs.properties().dataset(property) else { continue };
        let word = zfs.word_of(known, *index).unwrap_or_default();
        let first = word.split([',', '-']).next().unwrap_or_default();
        let Some((_, feature)) = ALGORITHMS.iter().find(|(word, _)| *word == first) else {
            continue;
        };
        let pool = name.split(['/', '@']).next().unwrap_or(name);
        let config = zfs.pool_stats(pool).map_err(|errno| Refusal::of_pool(what, errno))?;
        let features = zfs.features();
        let guid = features.iter().find(|known| known.name == *feature).map(|known| &known.guid);
        let enabled = list(&config, "feature_stats");
        let is_enabled =
            guid.zip(enabled).is_some_and(|(guid, enabled)| number(enabled, guid).is_some());
        if !is_enabled {
            let why = format!(
                "'{property}={word}' needs feature@{feature}, which the pool has not enabled"
            );
            return Err(Refusal::new(what, why, Errno::OPNOTSUPP)
                .with_hint("enable it with zpool upgrade, or take another algorithm"));
        }
    }
    Ok(())
}

/// ZFS's message when a property's own function fails.
fn refused(what: &str, property: &str, errno: Errno) -> Refusal {
    match (property, errno) {
        ("quota" | "refquota", Errno::NOSPC) => {
            Refusal::new(what, "size is less than current used or reserved space", errno)
        }
        ("reservation" | "refreservation", Errno::NOSPC) => {
            Refusal::new(what, "size is greater than available space", errno)
                .with_hint("make it sparse, or its reservation lower, or free space")
        }
        (_, errno) => Refusal::of_dataset(what, errno),
    }
}

/// Resizes volumes, open or not.
pub(crate) trait Resize {
    /// Changes a volume's size, and frees the blocks beyond.
    ///
    /// # Errors
    /// The errors of the transaction.
    fn resize(&self, name: &str, volsize_bytes: u64) -> Result<(), Errno>;
}

/// Sets a property of a dataset or snapshot.
///
/// # Errors
/// It does not exist, cannot be set, has an invalid value, or libzpool refused it.
pub(crate) fn set(
    zfs: &Zfs,
    pool: &str,
    dataset: &str,
    (name, text): (&str, &str),
    resize: &impl Resize,
) -> Result<(), Refusal> {
    let what = format!("cannot set property for '{dataset}'");
    let named = if dataset.contains('@') { NameKind::Snapshot } else { NameKind::Dataset };
    check_name(zfs, pool, dataset, named, &what)?;
    let described = zfs
        .describe(dataset)
        .map_err(|errno| Refusal::of_dataset(format_args!("cannot open '{dataset}'"), errno))?;
    if zfs.is_user_property(name).unwrap_or(false) {
        let values = Values::from([(name.to_owned(), parse_user(name, text, &what)?)]);
        return apply(zfs, dataset, &values, &what);
    }
    if named == NameKind::Snapshot {
        return Err(bad_property(&what, "this property can not be modified for snapshots"));
    }
    let subject = match described.shape {
        Shape::Volume { .. } => subject::VOLUME,
        Shape::FileSystem | Shape::Other => subject::FILESYSTEM,
    };
    let property = settable(zfs, name, subject, false, &what)?;
    if ENCRYPTION.contains(&name) {
        return Err(bad_property(&what, "encryption is not supported here"));
    }
    match (name, described.shape) {
        ("volsize", Shape::Volume { .. }) => {
            let volsize_bytes = parse_size(text).map_err(|why| bad_property(&what, why))?;
            set_volsize(zfs, pool, dataset, described.shape, volsize_bytes, resize)
        }
        ("refreservation", Shape::Volume { volsize_bytes, volblocksize_bytes })
            if text == "auto" =>
        {
            let bytes = usual_reservation(zfs, pool, dataset, volsize_bytes, volblocksize_bytes)?;
            let values = Values::from([(name.to_owned(), NvValue::Uint64(bytes))]);
            apply(zfs, dataset, &values, &what)
        }
        _ => {
            let value = parse(zfs, property, text, &what)?;
            apply(zfs, dataset, &Values::from([(name.to_owned(), value)]), &what)
        }
    }
}

/// The default reservation of a volume of this size.
fn usual_reservation(
    zfs: &Zfs,
    pool: &str,
    dataset: &str,
    volsize_bytes: u64,
    volblocksize_bytes: u32,
) -> Result<u64, Refusal> {
    let refused = |errno| Refusal::of_dataset(format_args!("cannot open '{dataset}'"), errno);
    let config = zfs.pool_stats(pool).map_err(refused)?;
    let copies = zfs.number_property(dataset, "copies").map_err(refused)?;
    Ok(reservation_bytes(&config, volsize_bytes, u64::from(volblocksize_bytes), copies))
}

/// Resizes a volume. If the old size had its default reservation, the new size gets its default reservation.
fn set_volsize(
    zfs: &Zfs,
    pool: &str,
    dataset: &str,
    shape: Shape,
    volsize_bytes: u64,
    resize: &impl Resize,
) -> Result<(), Refusal> {
    let what = format!("cannot set property for '{dataset}'");
    let Shape::Volume { volsize_bytes: old_bytes, volblocksize_bytes } = shape else {
        return Err(bad_property(&what, "'volsize' does not apply to datasets of this type"));
    };
    check_volsize(volsize_bytes, volblocksize_bytes, &what)?;
    let property = |name| {
        zfs.number_property(dataset, name).map_err(|errno| Refusal::of_dataset(&what, errno))
    };
    if property("readonly")? != 0 {
        return Err(Refusal::new(&what, "dataset is read-only", Errno::ROFS)
            .with_hint("set readonly=off first"));
    }
    let reserved = property("refreservation")?;
    let usual = |bytes| usual_reservation(zfs, pool, dataset, bytes, volblocksize_bytes);
    let follows = reserved == usual(old_bytes)?;
    let reserve = |bytes| {
        let values = Values::from([("refreservation".to_owned(), NvValue::Uint64(bytes))]);
        apply(zfs, dataset, &values, &what)
    };
    let new_reserved = usual(volsize_bytes)?;
    // Growth is reserved before it can be written; what shrinking saves is released after.
    if follows && volsize_bytes > old_bytes {
        reserve(new_reserved)?;
    }
    if let Err(errno) = resize.resize(dataset, volsize_bytes) {
        if follows && volsize_bytes > old_bytes {
            reserve(reserved)?;
        }
        return Err(Refusal::of_dataset(&what, errno));
    }
    if follows && volsize_bytes < old_bytes {
        reserve(new_reserved)?;
    }
    Ok(())
}

/// Checks a volume's size.
pub(super) fn check_volsize(
    volsize_bytes: u64,
    volblocksize_bytes: u32,
    what: &str,
) -> Result<(), Refusal> {
    if volsize_bytes == 0 {
        return Err(bad_property(what, "'volsize' cannot be zero"));
    }
    if !volsize_bytes.is_multiple_of(u64::from(volblocksize_bytes)) {
        let why =
            format!("'volsize' must be a multiple of volume block size ({volblocksize_bytes})");
        return Err(bad_property(what, why));
    }
    if volsize_bytes > i64::MAX.cast_unsigned() {
        return Err(Refusal::new(
            what,
            "volume size exceeds limit for this system",
            Errno::OVERFLOW,
        ));
    }
    Ok(())
}

/// Makes a property inherited; a user property is removed.
///
/// # Errors
/// It does not exist, or cannot be inherited.
pub(crate) fn inherit(zfs: &Zfs, pool: &str, dataset: &str, name: &str) -> Result<(), Refusal> {
    let what = format!("cannot inherit {name} for '{dataset}'");
    let named = if dataset.contains('@') { NameKind::Snapshot } else { NameKind::Dataset };
    check_name(zfs, pool, dataset, named, &what)?;
    if !zfs.is_user_property(name).unwrap_or(false) {
        let property = zfs
            .properties()
            .dataset(name)
            .ok_or_else(|| bad_property(&what, format_args!("invalid property '{name}'")))?;
        if property.read_only {
            return Err(bad_property(&what, "read-only property"));
        }
        if !property.inheritable {
            return Err(bad_property(&what, "property cannot be inherited").with_hint(
                match property.kind {
                    Kind::Number => format!("set {name}=none"),
                    Kind::Text | Kind::Index => format!("set {name} to the value that you want"),
                },
            ));
        }
        if named == NameKind::Snapshot {
            return Err(bad_property(&what, "this property can not be modified for snapshots"));
        }
    }
    zfs.inherit_property(dataset, name).map_err(|errno| Refusal::of_dataset(&what, errno))
}
