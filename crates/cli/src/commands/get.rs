//! `ashlar get`: attributes of a running daemon.

use std::collections::BTreeMap;
use std::process::ExitCode;

use ashlar_client::client::Client;
use ashlar_client::interface::EntryKind;
use ashlar_daemon::error::Result;
use clap::Args;

use super::Daemon;
use crate::output;

/// Print attributes of a running daemon
///
/// Paths, units and texts are those of a Linux root, as in the FUSE mount. Prints the value of an
/// attribute; for a directory, every attribute below it, with its path.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar get proc/mdstat
  ashlar get sys/block/md0/queue/discard_max_bytes
  ashlar get --json sys/block/md0")]
pub(crate) struct Get {
    /// Attributes or directories
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<String>,

    /// Print a JSON object from paths to values
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    daemon: Daemon,
}

impl Get {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let mut client = self.daemon.connect()?;
        let mut values = BTreeMap::new();
        let mut text = String::new();
        let single = self.paths.len() == 1;
        for path in &self.paths {
            let path = path.trim_matches('/');
            let mut found = Vec::new();
            let directory = collect(&mut client, path, &mut found)?;
            for (path, value) in found {
                let plain = single && !directory;
                text += &if plain { value.clone() } else { labelled(&path, &value) };
                values.insert(path, value.strip_suffix('\n').unwrap_or(&value).to_owned());
            }
        }
        if self.json {
            output::print_json(&values)?
        } else {
            output::print(&text)?
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// `path: value`, with the further lines of a value indented.
fn labelled(path: &str, value: &str) -> String {
    let value = value.strip_suffix('\n').unwrap_or(value);
    format!("{path}: {}\n", value.replace('\n', "\n  "))
}

/// Adds the attribute at `path`, or all attributes below it; returns whether it was a directory. Symlinks below are not
/// followed: their targets appear elsewhere in the tree.
fn collect(client: &mut Client, path: &str, found: &mut Vec<(String, String)>) -> Result<bool> {
    let Some(entries) = client.list(path)? else {
        found.push((path.to_owned(), client.get(path)?));
        return Ok(false);
    };
    for entry in entries {
        let below = if path.is_empty() { entry.name } else { format!("{path}/{}", entry.name) };
        match entry.kind {
            EntryKind::Directory => {
                collect(client, &below, found)?;
            }
            EntryKind::Attribute => found.push((below.clone(), client.get(&below)?)),
            EntryKind::Symlink | EntryKind::WriteOnly | EntryKind::Volume => {}
        }
    }
    Ok(true)
}
