//! `ashlar btrfs subvolume`: subvolumes and snapshots.

use std::process::ExitCode;
use std::sync::Arc;

use ashlar_btrfs::backref::subvolume_path;
use ashlar_btrfs::inspect::utc;
use ashlar_btrfs::ondisk::items::RootFlags;
use ashlar_btrfs::ondisk::key::objectid;
use ashlar_btrfs::roots::Subvolume;
use ashlar_btrfs::volume::FileSystem;
use ashlar_host::error::{Error, Result};
use clap::{Args, Subcommand, ValueEnum};
use uuid::Uuid;

use super::volumes::Chosen;
use super::with;
use crate::output;

/// Look at subvolumes and snapshots
#[derive(Subcommand, Debug)]
pub(crate) enum SubvolumeCommand {
    List(List),
}

impl SubvolumeCommand {
    pub(super) fn run(self) -> Result<ExitCode> {
        match self {
            Self::List(command) => command.run(),
        }
    }
}

/// List subvolumes and snapshots, as btrfs subvolume list does
///
/// Paths are those from the root directory of the first subvolume on, which is not listed. Times are in UTC.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 done, 1 failed, 2 wrong usage.

Examples:
  ashlar btrfs subvolume list disk*.img
  ashlar btrfs subvolume list -s -u -q disk*.img")]
pub(crate) struct List {
    #[command(flatten)]
    chosen: Chosen,

    /// Mark those that are not directly in the first subvolume with <FS_TREE>
    #[arg(short)]
    all: bool,

    /// List only those that are directly in the first subvolume
    #[arg(short = 'o')]
    below: bool,

    /// Print the number of the subvolume that it is in
    #[arg(short)]
    parent: bool,

    /// Print the generation that made it
    #[arg(short = 'c')]
    made_in: bool,

    /// Print the generation; it is printed in any case
    #[arg(short)]
    generation: bool,

    /// Print the UUID
    #[arg(short)]
    uuid: bool,

    /// Print the UUID of the subvolume that it is a snapshot of
    #[arg(short = 'q')]
    parent_uuid: bool,

    /// In place of the option of all commands, whose -q has another meaning here
    #[arg(long = "quiet", id = "quiet", hide = true)]
    _quiet: bool,

    /// Print the UUID of the subvolume that it was received as
    #[arg(short = 'R')]
    received_uuid: bool,

    /// List only snapshots, with the time and the generation of each
    #[arg(short)]
    snapshots: bool,

    /// List only those that cannot be written
    #[arg(short)]
    readonly: bool,

    /// Print a table
    #[arg(short)]
    table: bool,

    /// In the order of these, each with a - in front for the reverse
    #[arg(
        long,
        value_name = "gen,ogen,rootid,path",
        value_delimiter = ',',
        allow_hyphen_values = true
    )]
    sort: Vec<Order>,
}

/// The sort key, and whether it is reversed.
#[derive(Clone, Copy, Debug)]
struct Order {
    by: By,
    reverse: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum By {
    Gen,
    Ogen,
    Rootid,
    Path,
}

impl std::str::FromStr for Order {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (reverse, name) = match text.strip_prefix('-') {
            Some(name) => (true, name),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        Ok(Self { by: By::from_str(name, false)?, reverse })
    }
}

/// A line of the list.
struct Line {
    subvolume: Subvolume,
    /// The subvolume that contains it.
    outer: u64,
    path: String,
}

/// A column: its name, its value for a line, and its minimum width.
type Column = (&'static str, fn(&Line) -> String, usize);

impl List {
    fn run(self) -> Result<ExitCode> {
        with(&self.chosen, async |fs| {
            let mut lines = self.lines(fs).await?;
            // The least important key first: the sort is stable.
            for order in self.sort.iter().rev() {
                lines.sort_by(|a, b| {
                    let ordering = match order.by {
                        By::Gen => a.generation().cmp(&b.generation()),
                        By::Ogen => a.subvolume.made_in.cmp(&b.subvolume.made_in),
                        By::Rootid => a.subvolume.id.cmp(&b.subvolume.id),
                        By::Path => a.path.cmp(&b.path),
                    };
                    if order.reverse { ordering.reverse() } else { ordering }
                });
            }
            let text = if self.table { self.table(&lines) } else { self.text(&lines) };
            output::print(&text)?;
            Ok(ExitCode::SUCCESS)
        })
    }

    async fn lines(&self, fs: &Arc<FileSystem>) -> Result<Vec<Line>> {
        let failed = |why| Error::plain("cannot list the subvolumes", why);
        let mut lines = Vec::new();
        for subvolume in fs.subvolumes().await.map_err(failed)? {
            let Some(place) = &subvolume.place else { continue };
            let (outer, is_top) = (place.outer, place.outer == objectid::FS_TREE);
            let is_left_out = (self.below && !is_top)
                || (self.snapshots && subvolume.parent_uuid.is_none())
                || (self.readonly && !subvolume.flags.contains(RootFlags::RDONLY));
            if is_left_out {
                continue;
            }
            let Some(path) = subvolume_path(fs, subvolume.id).await.map_err(failed)? else {
                continue;
            };
            let mark = if self.all && !is_top { "<FS_TREE>/" } else { "" };
            lines.push(Line { subvolume, outer, path: format!("{mark}{path}") });
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
                self.made_in || self.snapshots,
                ("cgen", |line| line.subvolume.made_in.to_string(), 0),
            ),
            (self.parent, ("parent", |line| line.outer.to_string(), 0)),
            (true, (TOP_LEVEL, |line| line.outer.to_string(), 0)),
            (self.snapshots, ("otime", |line| utc(line.subvolume.made_at).to_string(), 0)),
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

    fn text(&self, lines: &[Line]) -> String {
        let columns = self.columns();
        let line = |line: &Line| {
            let words: Vec<String> = columns
                .iter()
                .map(|(name, value, width)| format!("{name} {:<width$}", value(line)))
                .collect();
            words.join(" ") + "\n"
        };
        lines.iter().map(line).collect()
    }

    fn table(&self, lines: &[Line]) -> String {
        let columns = self.columns();
        let head: String = columns.iter().map(|(name, ..)| format!("{name}\t")).collect();
        let rule: String = columns.iter().map(|(name, ..)| "-".repeat(name.len()) + "\t").collect();
        let line = |line: &Line| {
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

impl Line {
    fn generation(&self) -> u64 {
        self.subvolume.root.generation
    }
}

fn dash(uuid: Option<Uuid>) -> String {
    uuid.map_or_else(|| "-".to_owned(), |uuid| uuid.to_string())
}
