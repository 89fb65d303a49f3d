//! Lists of subvolumes and snapshots, as `btrfs subvolume list` prints them.

use std::cmp::Ordering;
use std::str::FromStr;
use std::sync::Arc;

use ashlar_files::utc;
use uuid::Uuid;

use crate::backref::subvolume_path;
use crate::error::TreeError;
use crate::ondisk::items::RootFlags;
use crate::ondisk::key::objectid;
use crate::roots::Subvolume;
use crate::volume::FileSystem;

/// What a list of subvolumes contains.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SubvolumeList {
    /// Mark those that are not directly in the first subvolume with `<FS_TREE>`.
    pub mark_nested: bool,
    /// Only those that are directly in the first subvolume.
    pub only_top: bool,
    /// Only snapshots, with the time and the generation of each.
    pub only_snapshots: bool,
    /// Only those that cannot be written.
    pub only_readonly: bool,
    /// A column with the number of the subvolume that it is in.
    pub parent: bool,
    /// A column with the generation that made it.
    pub made_in: bool,
    /// A column with the UUID.
    pub uuid: bool,
    /// A column with the UUID of the subvolume that it is a snapshot of.
    pub parent_uuid: bool,
    /// A column with the UUID of the subvolume that it was received as.
    pub received_uuid: bool,
}

/// By what a list is sorted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SubvolumeOrder {
    /// The generation of the last change.
    Generation,
    /// The generation that made it.
    MadeIn,
    /// The number.
    Id,
    /// The path.
    Path,
}

impl SubvolumeOrder {
    fn compare(self, a: &ListedSubvolume, b: &ListedSubvolume) -> Ordering {
        match self {
            Self::Generation => a.generation().cmp(&b.generation()),
            Self::MadeIn => a.subvolume.made_in.cmp(&b.subvolume.made_in),
            Self::Id => a.subvolume.id.cmp(&b.subvolume.id),
            Self::Path => a.path.cmp(&b.path),
        }
    }
}

/// A key that a list is sorted by: `gen`, `ogen`, `rootid` or `path`, with `-` in front for descending order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SubvolumeKey {
    by: SubvolumeOrder,
    reverse: bool,
}

impl FromStr for SubvolumeKey {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (reverse, name) = match text.strip_prefix('-') {
            Some(name) => (true, name),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let by = match name {
            "gen" => SubvolumeOrder::Generation,
            "ogen" => SubvolumeOrder::MadeIn,
            "rootid" => SubvolumeOrder::Id,
            "path" => SubvolumeOrder::Path,
            _ => return Err(format!("invalid variant: {name}")),
        };
        Ok(Self { by, reverse })
    }
}

impl SubvolumeKey {
    /// Sorts a list by keys, the most important one first.
    pub fn sort(keys: &[Self], lines: &mut [ListedSubvolume]) {
        // The least important key first: the sort is stable.
        for Self { by, reverse } in keys.iter().rev() {
            lines.sort_by(|a, b| if *reverse { by.compare(b, a) } else { by.compare(a, b) });
        }
    }
}

/// A subvolume in a list.
#[derive(Clone, Debug)]
pub struct ListedSubvolume {
    subvolume: Subvolume,
    /// The subvolume that contains it.
    outer: u64,
    path: String,
}

/// A column: its name, its value for a line, and its minimum width.
type Column = (&'static str, fn(&ListedSubvolume) -> String, usize);

impl SubvolumeList {
    /// The subvolumes of the list, in the order of their numbers.
    ///
    /// # Errors
    /// A tree is damaged.
    pub async fn read(&self, fs: &Arc<FileSystem>) -> Result<Vec<ListedSubvolume>, TreeError> {
        let mut lines = Vec::new();
        for subvolume in fs.subvolumes().await? {
            let Some(place) = &subvolume.place else { continue };
            let (outer, is_top) = (place.outer, place.outer == objectid::FS_TREE);
            let is_left_out = (self.only_top && !is_top)
                || (self.only_snapshots && subvolume.parent_uuid.is_none())
                || (self.only_readonly && !subvolume.flags.contains(RootFlags::RDONLY));
            if is_left_out {
                continue;
            }
            let Some(path) = subvolume_path(fs, subvolume.id).await? else { continue };
            let mark = if self.mark_nested && !is_top { "<FS_TREE>/" } else { "" };
            lines.push(ListedSubvolume { subvolume, outer, path: format!("{mark}{path}") });
        }
        Ok(lines)
    }

    /// The columns to print.
    fn columns(&self) -> Vec<Column> {
        const UUID_LEN: usize = 36;
        let all: [(bool, Column); 10] = [
            (true, ("ID", |line| line.subvolume.id.to_string(), 0)),
            (true, ("gen", |line| line.generation().to_string(), 0)),
            (
                self.made_in || self.only_snapshots,
                ("cgen", |line| line.subvolume.made_in.to_string(), 0),
            ),
            (self.parent, ("parent", |line| line.outer.to_string(), 0)),
            (true, (TOP_LEVEL, |line| line.outer.to_string(), 0)),
            (self.only_snapshots, ("otime", |line| utc(line.subvolume.made_at).to_string(), 0)),
            (self.parent_uuid, ("parent_uuid", |line| dash(line.subvolume.parent_uuid), UUID_LEN)),
            (
                self.received_uuid,
                ("received_uuid", |line| dash(line.subvolume.received_uuid), UUID_LEN),
            ),
            (self.uuid, ("uuid", |line| dash(line.subvolume.uuid), UUID_LEN)),
            (true, ("path", |line| line.path.clone(), 0)),
        ];
        all.into_iter().filter(|(shown, _)| *shown).map(|(_, column)| column).collect()
    }

    /// The list, a line for each subvolume.
    pub fn text(&self, lines: &[ListedSubvolume]) -> String {
        let columns = self.columns();
        let line = |line: &ListedSubvolume| {
            let words: Vec<String> = columns
                .iter()
                .map(|(name, value, width)| format!("{name} {:<width$}", value(line)))
                .collect();
            words.join(" ") + "\n"
        };
        lines.iter().map(line).collect()
    }

    /// The list as a table.
    pub fn table(&self, lines: &[ListedSubvolume]) -> String {
        let columns = self.columns();
        let head: String = columns.iter().map(|(name, ..)| format!("{name}\t")).collect();
        let rule: String = columns.iter().map(|(name, ..)| "-".repeat(name.len()) + "\t").collect();
        let line = |line: &ListedSubvolume| {
            let words: Vec<String> = columns
                .iter()
                .map(|(name, value, _)| {
                    // Its header is two tabs wide.
                    let tab = if *name == TOP_LEVEL { "\t" } else { "" };
                    value(line) + tab
                })
                .collect();
            words.join("\t") + "\n"
        };
        let lines: String = lines.iter().map(line).collect();
        format!("{head}\n{rule}\n{lines}")
    }
}

const TOP_LEVEL: &str = "top level";

impl ListedSubvolume {
    fn generation(&self) -> u64 {
        self.subvolume.root.generation
    }
}

pub(super) fn dash(uuid: Option<Uuid>) -> String {
    uuid.map_or_else(|| "-".to_owned(), |uuid| uuid.to_string())
}
