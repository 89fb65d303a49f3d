//! Snapshots, and operations on whole datasets.

use rustix::io::Errno;

use super::{NameKind, check_name, check_new_name, parent};
use crate::ffi::kernel::Zfs;
use crate::protocol::{NvMap, NvValue, Refusal};
use crate::refusal::dataset_words;

/// Takes snapshots, all in one transaction group.
///
/// # Errors
/// A name is invalid or exists, or a dataset is named twice. No snapshot is taken then.
pub(crate) fn snapshot(zfs: &Zfs, pool: &str, names: &[String]) -> Result<(), Refusal> {
    let mut datasets = Vec::new();
    for name in names {
        let what = format!("cannot create snapshot '{name}'");
        check_name(zfs, pool, name, NameKind::Snapshot, &what)?;
        let dataset = name.split('@').next().unwrap_or(name);
        if datasets.contains(&dataset) {
            return Err(Refusal::new(
                &what,
                format_args!("multiple snapshots of '{dataset}' at one time"),
                Errno::XDEV,
            ));
        }
        datasets.push(dataset);
    }
    if names.is_empty() {
        return Err(Refusal::invalid("cannot create snapshots: no name was given"));
    }
    zfs.snapshot(names).map_err(|(errno, blamed)| {
        let (name, errno) = first_blamed(&blamed).unwrap_or((&names[0], errno));
        Refusal::of_dataset(format_args!("cannot create snapshot '{name}'"), errno)
    })
}

/// The first name that libzpool reports, with its errno.
fn first_blamed(blamed: &NvMap) -> Option<(&str, Errno)> {
    blamed.iter().find_map(|(name, value)| match value {
        NvValue::Uint64(errno) => {
            let errno = i32::try_from(*errno).ok()?;
            Some((name.as_str(), Errno::from_raw_os_error(errno)))
        }
        NvValue::Boolean
        | NvValue::String(_)
        | NvValue::List(_)
        | NvValue::Lists(_)
        | NvValue::Uint64s(_) => None,
    })
}

/// Destroys a dataset or snapshot, with its descendants if `recursive`.
///
/// # Errors
/// It has descendants and `recursive` is not set, it is open, or it has a clone.
pub(crate) fn destroy(zfs: &Zfs, pool: &str, name: &str, recursive: bool) -> Result<(), Refusal> {
    let what = format!("cannot destroy '{name}'");
    if name.contains('@') {
        check_name(zfs, pool, name, NameKind::Snapshot, &what)?;
        zfs.describe(name).map_err(|errno| Refusal::of_dataset(&what, errno))?;
        return destroy_snapshots(zfs, &[name.to_owned()]);
    }
    check_name(zfs, pool, name, NameKind::Dataset, &what)?;
    if parent(name).is_none() {
        return Err(Refusal::new(&what, "operation does not apply to pools", Errno::INVAL)
            .with_hint("destroy the pool instead"));
    }
    let mut names =
        zfs.dataset_names(name, true).map_err(|errno| Refusal::of_dataset(&what, errno))?;
    names.retain(|below| below != name);
    if !names.is_empty() && !recursive {
        let kind = if names.iter().any(|below| !below.contains('@')) {
            "volume has children"
        } else {
            "volume has snapshots"
        };
        names.sort();
        return Err(Refusal::new(
            &what,
            format_args!("{kind}: {}", names.join(", ")),
            Errno::EXIST,
        )
        .with_hint("destroy these too (-r)"));
    }
    let (snapshots, mut datasets): (Vec<_>, Vec<_>) =
        names.into_iter().partition(|below| below.contains('@'));
    if !snapshots.is_empty() {
        destroy_snapshots(zfs, &snapshots)?;
    }
    // Descendants have longer names.
    datasets.sort_by_key(|below| std::cmp::Reverse(below.len()));
    datasets.push(name.to_owned());
    for dataset in datasets {
        zfs.destroy_dataset(&dataset).map_err(|errno| {
            let refusal = Refusal::of_dataset(format_args!("cannot destroy '{dataset}'"), errno);
            if errno == Errno::BUSY { refusal.with_hint("close it first") } else { refusal }
        })?;
    }
    Ok(())
}

fn destroy_snapshots(zfs: &Zfs, names: &[String]) -> Result<(), Refusal> {
    zfs.destroy_snapshots(names).map_err(|(errno, blamed)| {
        let (name, errno) = first_blamed(&blamed).unwrap_or((&names[0], errno));
        let what = format!("cannot destroy snapshot '{name}'");
        match errno {
            Errno::EXIST => Refusal::new(&what, "snapshot is cloned", errno)
                .with_hint("destroy or promote its clones first"),
            Errno::BUSY => Refusal::of_dataset(&what, errno).with_hint("close it first"),
            errno => Refusal::of_dataset(&what, errno),
        }
    })
}

/// Renames a dataset with its descendants, or a snapshot.
///
/// # Errors
/// A name is invalid or exists, or the new name is in another pool or dataset.
pub(crate) fn rename(zfs: &Zfs, pool: &str, from: &str, to: &str) -> Result<(), Refusal> {
    let what = format!("cannot rename '{from}'");
    let Some((dataset, old)) = from.split_once('@') else {
        check_name(zfs, pool, from, NameKind::Dataset, &what)?;
        check_new_name(zfs, pool, to, &what)?;
        if parent(from).is_none() || parent(to).is_none() {
            return Err(Refusal::new(&what, "operation does not apply to pools", Errno::INVAL)
                .with_hint("a pool is renamed when it is imported"));
        }
        return zfs.rename_dataset(from, to).map_err(|errno| match errno {
            Errno::NOENT if zfs.describe(from).is_ok() => {
                let why = format!("no such parent '{}'", parent(to).unwrap_or(pool));
                Refusal::new(&what, why, errno)
            }
            Errno::INVAL => Refusal::new(
                &what,
                "New dataset name cannot be a descendant of current dataset name",
                errno,
            ),
            errno => Refusal::of_dataset(&what, errno),
        });
    };
    check_name(zfs, pool, from, NameKind::Snapshot, &what)?;
    check_name(zfs, pool, to, NameKind::Snapshot, &what)?;
    match to.split_once('@') {
        Some((other, new)) if other == dataset => zfs
            .rename_snapshot(dataset, old, new)
            .map_err(|errno| Refusal::of_dataset(&what, errno)),
        _ => Err(Refusal::new(&what, "snapshots must be part of same dataset", Errno::XDEV)),
    }
}

/// Rolls a volume back to its last snapshot.
///
/// # Errors
/// There is no such snapshot, or a newer one exists, or the volume is open.
pub(crate) fn rollback(zfs: &Zfs, pool: &str, volume: &str, snapshot: &str) -> Result<(), Refusal> {
    let what = format!("cannot rollback to '{snapshot}'");
    check_name(zfs, pool, volume, NameKind::Dataset, &what)?;
    check_name(zfs, pool, snapshot, NameKind::Snapshot, &what)?;
    if snapshot.split('@').next() != Some(volume) {
        return Err(Refusal::new(
            &what,
            format_args!("it is not a snapshot of '{volume}'"),
            Errno::INVAL,
        ));
    }
    zfs.rollback(volume, snapshot).map_err(|errno| match errno {
        Errno::EXIST => Refusal::new(&what, "more recent snapshots or bookmarks exist", errno)
            .with_hint("destroy the newer ones first"),
        // libzpool's error for a snapshot that is missing or not the last one.
        Errno::XDEV if zfs.describe(snapshot).is_ok() => {
            Refusal::new(&what, "more recent snapshots or bookmarks exist", errno)
                .with_hint("destroy the newer ones first")
        }
        Errno::XDEV | Errno::SRCH | Errno::NOENT => Refusal::of_dataset(&what, Errno::NOENT),
        Errno::BUSY => Refusal::of_dataset(&what, errno).with_hint("close the volume first"),
        Errno::DQUOT => Refusal::new(&what, dataset_words(errno), errno)
            .with_hint("its reservation does not fit: lower refreservation first"),
        errno => Refusal::of_dataset(&what, errno),
    })
}

/// Promotes a clone: it takes over the data that it shares with its origin, and the origin becomes the clone.
///
/// # Errors
/// It is not a clone, or both have a snapshot with the same name.
pub(crate) fn promote(zfs: &Zfs, pool: &str, name: &str) -> Result<(), Refusal> {
    let what = format!("cannot promote '{name}'");
    check_name(zfs, pool, name, NameKind::Dataset, &what)?;
    zfs.promote(name).map_err(|(errno, conflict)| match errno {
        Errno::EXIST => {
            let why = format!("conflicting snapshot '{conflict}' from parent '{name}'");
            Refusal::new(&what, why, errno).with_hint("rename one of the two snapshots")
        }
        Errno::INVAL => Refusal::new(&what, "not a cloned filesystem", errno),
        errno => Refusal::of_dataset(&what, errno),
    })
}
