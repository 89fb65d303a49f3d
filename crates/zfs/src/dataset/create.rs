//! New volumes, and their parents.

use std::collections::BTreeMap;

use rustix::io::Errno;

use super::properties::{Values, apply, check_volsize, parse_all};
use super::reservation::reservation_bytes;
use super::{NameKind, check_name, check_new_name, parent};
use crate::ffi::kernel::Zfs;
use crate::ffi::properties::subject;
use crate::ffi::volume_objects::NewDataset;
use crate::property::bad_property;
use crate::protocol::{NvValue, Refusal};
use crate::refusal::dataset_words;

/// SPA_MINBLOCKSIZE of sys/spa.h.
const MIN_BLOCK_BYTES: u64 = 512;

/// A volume to create.
pub(crate) struct NewVolume<'a> {
    /// Its pool.
    pub(crate) pool: &'a str,
    /// Its full name.
    pub(crate) name: &'a str,
    /// Its size.
    pub(crate) volsize_bytes: u64,
    /// Reserve no space, unless `refreservation` is given.
    pub(crate) sparse: bool,
    /// Create missing parents, too.
    pub(crate) parents: bool,
    /// Its properties.
    pub(crate) properties: &'a BTreeMap<String, String>,
}

/// Properties of a dataset that only contains volumes. It must not be mounted: it has no file system.
///
/// # Errors
/// A property does not exist, does not apply, or has an invalid value.
pub(crate) fn properties_of_new_container(
    zfs: &Zfs,
    given: &BTreeMap<String, String>,
    what: &str,
) -> Result<Values, Refusal> {
    let mut values = parse_all(zfs, given, subject::FILESYSTEM, what)?;
    if let Some(canmount) = zfs.properties().dataset("canmount") {
        if let Some(asked) = given.get("canmount").filter(|asked| *asked != "off") {
            return Err(bad_property(what, format_args!("canmount cannot be '{asked}' here"))
                .with_hint("datasets created here contain volumes only; create file systems with the kernel's zfs"));
        }
        if let Some(off) = zfs.index_of(canmount, "off") {
            values.insert("canmount".to_owned(), NvValue::Uint64(off));
        }
    }
    Ok(values)
}

/// Creates a volume.
///
/// # Errors
/// The name, size or a property is invalid, the volume exists, or its reservation does not fit.
pub(crate) fn create(zfs: &Zfs, new: &NewVolume<'_>) -> Result<(), Refusal> {
    let (pool, name) = (new.pool, new.name);
    let what = format!("cannot create '{name}'");
    check_new_name(zfs, pool, name, &what)?;
    let Some(parent_name) = parent(name) else {
        return Err(Refusal::new(&what, "a volume is in a pool: POOL/NAME", Errno::INVAL));
    };
    let mut given = new.properties.clone();
    let automatic = given.get("refreservation").is_some_and(|text| text == "auto");
    if automatic {
        given.remove("refreservation");
    }
    if given.contains_key("volsize") {
        return Err(bad_property(&what, "the size is given as the size, not as 'volsize'"));
    }
    let mut values = parse_all(zfs, &given, subject::VOLUME, &what)?;
    let volblocksize_bytes = block_bytes(zfs, pool, values.remove("volblocksize"), &what)?;
    check_volsize(new.volsize_bytes, volblocksize_bytes, &what)?;
    if zfs.describe(name).is_ok() {
        return Err(Refusal::of_dataset(&what, Errno::EXIST));
    }
    let made = make_parents(zfs, parent_name, new.parents, &what)?;
    let reserves = automatic || !(new.sparse || values.contains_key("refreservation"));
    if reserves {
        let copies = match values.get("copies") {
            Some(NvValue::Uint64(copies)) => *copies,
            _ => zfs
                .number_property(parent_name, "copies")
                .map_err(|errno| Refusal::of_dataset(&what, errno))?,
        };
        let config = zfs.pool_stats(pool).map_err(|errno| Refusal::of_pool(&what, errno))?;
        let bytes =
            reservation_bytes(&config, new.volsize_bytes, u64::from(volblocksize_bytes), copies);
        values.insert("refreservation".to_owned(), NvValue::Uint64(bytes));
    }
    let volume = NewDataset::Volume { volsize_bytes: new.volsize_bytes, volblocksize_bytes };
    zfs.create_dataset(name, volume)
        .map_err(|errno| refused(&what, parent_name, errno))
        .and_then(|()| apply_or_destroy(zfs, name, &values, &what))
        .inspect_err(|_| destroy_again(zfs, &made))
}

/// Sets a new dataset's properties; destroys the dataset if that fails.
fn apply_or_destroy(zfs: &Zfs, name: &str, values: &Values, what: &str) -> Result<(), Refusal> {
    apply(zfs, name, values, what).inspect_err(|_| destroy_again(zfs, &[name.to_owned()]))
}

/// Destroys new datasets again, the last one first.
fn destroy_again(zfs: &Zfs, made: &[String]) {
    for name in made.iter().rev() {
        if let Err(errno) = zfs.destroy_dataset(name) {
            tracing::error!(dataset = name, %errno, "cannot remove a dataset whose creation failed");
        }
    }
}

fn refused(what: &str, parent: &str, errno: Errno) -> Refusal {
    match errno {
        Errno::NOENT => Refusal::new(what, format_args!("no such parent '{parent}'"), errno)
            .with_hint("let parents be made, too (-p)"),
        Errno::ACCESS => {
            Refusal::new(what, "encryption root's key is not loaded or provided", errno)
        }
        errno => Refusal::of_dataset(what, errno),
    }
}

/// A volume's block size: the requested one if the pool allows it, or this release's default.
fn block_bytes(zfs: &Zfs, pool: &str, asked: Option<NvValue>, what: &str) -> Result<u32, Refusal> {
    let bytes = match asked {
        Some(NvValue::Uint64(bytes)) => bytes,
        _ => zfs.properties().dataset("volblocksize").map_or(0, |known| known.default_number),
    };
    let most = zfs.max_block_bytes(pool).map_err(|errno| Refusal::of_pool(what, errno))?;
    let allowed = bytes.is_power_of_two() && (MIN_BLOCK_BYTES..=most).contains(&bytes);
    match u32::try_from(bytes) {
        Ok(bytes) if allowed => Ok(bytes),
        _ => {
            let why = format!("'volblocksize' must be power of 2 from 512B to {most}");
            let refusal = Refusal::new(what, why, Errno::DOM);
            Err(refusal.with_hint(
                "larger blocks need feature@large_blocks=enabled and zfs_max_recordsize as large",
            ))
        }
    }
}

/// Creates the missing parents of a dataset and returns their names.
fn make_parents(zfs: &Zfs, name: &str, wanted: bool, what: &str) -> Result<Vec<String>, Refusal> {
    let mut missing = Vec::new();
    let mut next = Some(name);
    while let Some(name) = next {
        match zfs.describe(name) {
            Ok(_) => break,
            Err(Errno::NOENT) => missing.push(name.to_owned()),
            Err(errno) => return Err(refused(what, name, errno)),
        }
        next = parent(name);
    }
    if !missing.is_empty() && !wanted {
        return Err(refused(what, name, Errno::NOENT));
    }
    let values = properties_of_new_container(zfs, &BTreeMap::new(), what)?;
    let mut made = Vec::new();
    for name in missing.into_iter().rev() {
        let result = zfs
            .create_dataset(&name, NewDataset::Container)
            .map_err(|errno| Refusal::new(what, dataset_words(errno), errno))
            .and_then(|()| apply_or_destroy(zfs, &name, &values, what));
        if let Err(refusal) = result {
            destroy_again(zfs, &made);
            return Err(refusal);
        }
        made.push(name);
    }
    Ok(made)
}

/// Creates a volume from a snapshot.
///
/// # Errors
/// A name is invalid, the volume exists, or a property cannot be set.
pub(crate) fn clone(
    zfs: &Zfs,
    pool: &str,
    snapshot: &str,
    name: &str,
    properties: &BTreeMap<String, String>,
) -> Result<(), Refusal> {
    let what = format!("cannot create '{name}'");
    check_name(zfs, pool, snapshot, NameKind::Snapshot, &what)?;
    check_new_name(zfs, pool, name, &what)?;
    if properties.contains_key("volblocksize") || properties.contains_key("volsize") {
        return Err(bad_property(&what, "a clone has the sizes of its origin"));
    }
    let values = parse_all(zfs, properties, subject::VOLUME, &what)?;
    zfs.clone_snapshot(snapshot, name).map_err(|errno| match errno {
        // Tells whether the snapshot or the parent is missing.
        Errno::NOENT if zfs.describe(snapshot).is_err() => {
            Refusal::of_dataset(format_args!("cannot open '{snapshot}'"), errno)
        }
        Errno::XDEV => Refusal::new(&what, "source and target pools differ", errno),
        errno => refused(&what, parent(name).unwrap_or(pool), errno),
    })?;
    apply_or_destroy(zfs, name, &values, &what)
}
