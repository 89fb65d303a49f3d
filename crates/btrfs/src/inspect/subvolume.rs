//! `btrfs subvolume show`.

use std::sync::Arc;

use ashlar_files::{Name, utc};
use uuid::Uuid;

use super::subvolumes::dash;
use super::{InspectError, Sink};
use crate::backref::subvolume_path;
use crate::error::TreeError;
use crate::ondisk::items::RootFlags;
use crate::ondisk::key::objectid;
use crate::volume::FileSystem;

/// Prints a subvolume and its snapshots.
///
/// # Errors
/// There is no such subvolume, a tree is damaged, or the sink failed.
pub async fn subvolume(fs: &Arc<FileSystem>, id: u64, out: Sink<'_>) -> Result<(), InspectError> {
    let found = fs.subvolume(id).await?.ok_or(TreeError::NoTree(id))?;
    let time = |seconds: i64| match seconds {
        0 => "-".to_owned(),
        _ => format!("{} +0000", utc(seconds)),
    };
    let name = match &found.place {
        Some(place) => Name(place.name.clone()).to_string(),
        None if id == objectid::FS_TREE => "<FS_TREE>".to_owned(),
        // It is being removed.
        None => "-".to_owned(),
    };
    let outer = found.place.as_ref().map_or(0, |place| place.outer).to_string();
    let readonly = found.flags.contains(RootFlags::RDONLY);
    let (of, made_in) = (found.root.generation.to_string(), found.made_in.to_string());
    writeln!(out, "{}", path(fs, id).await?)?;
    for (what, tabs, value) in [
        ("Name", 3, name),
        ("UUID", 3, dash(found.uuid)),
        ("Parent UUID", 2, dash(found.parent_uuid)),
        ("Received UUID", 2, dash(found.received_uuid)),
        ("Creation time", 2, time(found.made_at)),
        ("Subvolume ID", 2, id.to_string()),
        ("Generation", 2, of),
        ("Gen at creation", 1, made_in),
        ("Parent ID", 2, outer.clone()),
        ("Top level ID", 2, outer),
        ("Flags", 3, if readonly { "readonly" } else { "-" }.to_owned()),
        ("Send transid", 2, found.sent_in.to_string()),
        ("Send time", 2, time(found.sent_at)),
        ("Receive transid", 1, found.received_in.to_string()),
        ("Receive time", 2, time(found.received_at)),
    ] {
        writeln!(out, "\t{what}: {}{value}", "\t".repeat(tabs))?;
    }
    writeln!(out, "\tSnapshot(s):")?;
    for snapshot in fs.subvolumes().await? {
        if found.uuid.is_some() && snapshot.parent_uuid == found.uuid {
            writeln!(out, "\t\t\t\t{}", path(fs, snapshot.id).await?)?;
        }
    }
    Ok(())
}

/// The path of a subvolume from the first one's root directory; `/` for the first one.
async fn path(fs: &Arc<FileSystem>, id: u64) -> Result<String, TreeError> {
    if id == objectid::FS_TREE {
        return Ok("/".to_owned());
    }
    let path = subvolume_path(fs, id).await?;
    Ok(path.map_or_else(|| "DELETED".to_owned(), |path| path.to_string()))
}

/// The number of the subvolume with this UUID; `None` if no subvolume has it.
///
/// # Errors
/// The tree of roots is damaged.
pub async fn subvolume_with(fs: &Arc<FileSystem>, uuid: Uuid) -> Result<Option<u64>, TreeError> {
    let all = fs.subvolumes().await?;
    Ok(all.iter().find(|it| it.uuid == Some(uuid)).map(|it| it.id))
}
