//! The names of the owners of a lost block.

use std::sync::Arc;

use ashlar_btrfs::backref::{self, OwnedExtent, Owners};
use ashlar_btrfs::error::TreeError;
use ashlar_btrfs::inspect;
use ashlar_btrfs::scrub::Problem;
use ashlar_btrfs::volume::FileSystem;

/// An owner of a lost block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlockOwner {
    /// The path of the file, if the owner is a file with a name.
    pub path: Option<String>,
    /// A description of the owner.
    pub words: String,
}

impl BlockOwner {
    fn unnamed(words: String) -> Self {
        Self { path: None, words }
    }
}

/// The files that contain a data block, or the trees that contain a tree block: lines that begin with `path` or `tree`.
/// Failures are reported in a line, too.
pub(super) async fn owners_of(fs: &Arc<FileSystem>, problem: &Problem) -> Vec<BlockOwner> {
    let Some(logical) = problem.logical else { return Vec::new() };
    let mut lines = Vec::new();
    let found = async {
        for owned in backref::owners(fs, logical, u64::from(problem.len)).await? {
            describe(fs, &owned, &mut lines).await?;
        }
        Ok::<_, TreeError>(())
    };
    if let Err(error) = found.await {
        lines.push(BlockOwner::unnamed(format!("not all names could be found out: {error}")));
    }
    lines
}

async fn describe(
    fs: &Arc<FileSystem>,
    owned: &OwnedExtent,
    lines: &mut Vec<BlockOwner>,
) -> Result<(), TreeError> {
    match &owned.owners {
        Owners::Data(parts) => {
            for part in parts {
                let place =
                    format!("root {} inode {} offset {}", part.root, part.inode, part.offset);
                let names = backref::names_of(fs, part.root, part.inode).await?;
                if names.is_empty() {
                    let words = format!("path unknown ({place}: a file without a name)");
                    lines.push(BlockOwner::unnamed(words));
                }
                lines.extend(names.iter().map(|name| BlockOwner {
                    path: Some(name.full().to_string()),
                    words: format!("path {} ({place})", name.full()),
                }));
            }
        }
        Owners::Tree { level, first_key, roots } => {
            let first = first_key.map(|key| format!(", first key {}", inspect::key(key)));
            let first = first.unwrap_or_default();
            lines.extend(roots.iter().map(|root| {
                let name = inspect::object(*root, 0);
                BlockOwner::unnamed(format!("tree {root} ({name}), level {level}{first}"))
            }));
        }
    }
    if owned.more {
        lines.push(BlockOwner::unnamed("and perhaps more".to_owned()));
    }
    Ok(())
}
