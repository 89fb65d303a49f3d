//! The owners of an address.

use std::sync::Arc;

use super::{InspectError, Sink, key, object};
use crate::backref::{FilePart, OwnedExtent, Owners, names_of};
use crate::volume::FileSystem;

/// Prints the files that contain a part of the data, or the trees that contain a block.
///
/// # Errors
/// See [`InspectError`].
pub async fn owners(
    fs: &Arc<FileSystem>,
    owned: &OwnedExtent,
    out: Sink<'_>,
) -> Result<(), InspectError> {
    let OwnedExtent { start, length, owners, more } = owned;
    match owners {
        Owners::Data(parts) => {
            writeln!(out, "data {start} length {length}")?;
            for FilePart { root, inode, offset } in parts {
                let names = names_of(fs, *root, *inode).await?;
                if names.is_empty() {
                    writeln!(out, "\troot {root} inode {inode} offset {offset} (no name)")?;
                }
                for name in names {
                    let path = name.full();
                    writeln!(out, "\troot {root} inode {inode} offset {offset} path {path}")?;
                }
            }
        }
        Owners::Tree { level, first_key, roots } => {
            write!(out, "tree block {start} level {level}")?;
            match first_key {
                Some(first) => writeln!(out, " first {}", key(*first))?,
                None => writeln!(out)?,
            }
            for root in roots {
                writeln!(out, "\troot {root} ({})", object(*root, 0))?;
            }
        }
    }
    if *more {
        writeln!(out, "\tand perhaps more")?;
    }
    Ok(())
}
