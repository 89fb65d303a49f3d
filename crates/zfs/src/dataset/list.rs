//! Lists datasets with their properties.

use std::collections::BTreeMap;

use super::NameKind;
use super::check_name;
use crate::ffi::dsl::Shape;
use crate::ffi::kernel::Zfs;
use crate::ffi::properties::subject;
use crate::property::{shown, source_words, value_and_source};
use crate::protocol::{Dataset, NvValue, Property, Refusal};
use rustix::io::Errno;

/// Internal datasets of ZFS have names that begin with one of these after the last `/`.
const HIDDEN: [char; 2] = ['$', '%'];

/// `root` and its descendants: volumes, snapshots, and their parents, ordered by name.
///
/// # Errors
/// `root` does not exist, or a dataset cannot be read.
pub(crate) fn list(zfs: &Zfs, pool: &str, root: Option<&str>) -> Result<Vec<Dataset>, Refusal> {
    let root = root.unwrap_or(pool);
    let what = format!("cannot open '{root}'");
    let named = if root.contains('@') { NameKind::Snapshot } else { NameKind::Dataset };
    check_name(zfs, pool, root, named, &what)?;
    let mut names = match named {
        NameKind::Snapshot => vec![root.to_owned()],
        NameKind::Dataset => {
            zfs.dataset_names(root, true).map_err(|errno| Refusal::of_dataset(&what, errno))?
        }
    };
    names.retain(|name| !name.split('/').any(|part| part.starts_with(HIDDEN)));
    // A dataset's snapshots come right after it, before its children.
    names.sort_by(|left, right| key(left).cmp(&key(right)));
    let mut datasets = Vec::new();
    for name in names {
        match dataset(zfs, name) {
            Ok(dataset) => datasets.push(dataset),
            // It was destroyed meanwhile.
            Err((_, Errno::NOENT)) => {}
            Err((name, errno)) => {
                return Err(Refusal::of_dataset(format_args!("cannot open '{name}'"), errno));
            }
        }
    }
    Ok(datasets)
}

/// The components of a dataset's name, and its snapshot's.
fn key(name: &str) -> (Vec<&str>, Option<&str>) {
    let (dataset, snapshot) = match name.split_once('@') {
        Some((dataset, snapshot)) => (dataset, Some(snapshot)),
        None => (name, None),
    };
    (dataset.split('/').collect(), snapshot)
}

fn dataset(zfs: &Zfs, name: String) -> Result<Dataset, (String, Errno)> {
    let described = match zfs.describe(&name) {
        Ok(described) => described,
        Err(errno) => return Err((name, errno)),
    };
    let mut list = described.properties;
    let (mut kind, subject) = match described.shape {
        Shape::Volume { .. } => ("volume", subject::VOLUME),
        Shape::FileSystem | Shape::Other => ("filesystem", subject::FILESYSTEM),
    };
    let subject = if name.contains('@') {
        kind = "snapshot";
        subject::SNAPSHOT
    } else {
        subject
    };
    let mut insert = |name: &str, number: u64| {
        let value = BTreeMap::from([("value".to_owned(), NvValue::Uint64(number))]);
        list.insert(name.to_owned(), NvValue::List(value));
    };
    let is_volume = if let Shape::Volume { volsize_bytes, volblocksize_bytes } = described.shape {
        insert("volsize", volsize_bytes);
        insert("volblocksize", u64::from(volblocksize_bytes));
        true
    } else {
        false
    };
    let mut properties = BTreeMap::new();
    for property in zfs.properties().of_subject(subject) {
        // A snapshot has its volume's properties, not those of a file system.
        if subject == subject::SNAPSHOT
            && is_volume
            && property.subjects & subject::VOLUME == 0
            && property.subjects & subject::FILESYSTEM != 0
        {
            continue;
        }
        if let Some(shown) = shown(zfs, &name, property, &list) {
            properties.insert(property.name.clone(), shown);
        }
    }
    for user in list.keys().filter(|name| name.contains(':')) {
        if let Some((NvValue::String(value), source)) = value_and_source(&list, user) {
            let source = source_words(&name, source.unwrap_or("-"));
            properties.insert(user.clone(), Property { value: value.clone(), source });
        }
    }
    properties
        .insert("type".to_owned(), Property { value: kind.to_owned(), source: "-".to_owned() });
    Ok(Dataset { name, kind: kind.to_owned(), properties })
}
