//! The options of a copy, and its result.

use std::path::PathBuf;

use regex_automata::nfa::thompson::pikevm::PikeVM;

use super::Telling;

/// What to do with existing files at the destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Existing {
    /// The destination must not exist.
    Refuse,
    /// A file of the same size and time is complete; a different one is an error.
    Resume,
    /// A file of the same size and time is complete; a different one is replaced.
    ResumeAndReplace,
    /// Existing files are kept.
    Keep,
    /// Existing files and links are replaced.
    Replace,
}

/// What to copy, and how.
#[derive(Debug)]
pub(crate) struct Wanted {
    /// The source path, relative to the subvolume's root directory.
    pub(crate) path: Vec<u8>,
    /// The destination.
    pub(crate) dest: PathBuf,
    pub(crate) existing: Existing,
    /// Keep incomplete files.
    pub(crate) keep_partial: bool,
    /// Stop at the first failure.
    pub(crate) stop_at_first: bool,
    /// Write nothing.
    pub(crate) dry_run: bool,
    /// Print the names of copied files on standard output.
    pub(crate) verbose: bool,
    pub(crate) links: bool,
    /// Copy snapshots inside the subvolume, too; other subvolumes are always copied.
    pub(crate) snapshots: bool,
    pub(crate) modes_and_times: bool,
    pub(crate) owners: bool,
    pub(crate) xattrs: bool,
    /// Copy only paths that match.
    pub(crate) only: Option<PikeVM>,
    /// What to report meanwhile.
    pub(crate) telling: Telling,
    /// The command's names for its options.
    pub(crate) options: Names,
}

/// The names of a command's options, for messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Names {
    /// The option that sets owners.
    pub(crate) owners: &'static str,
    /// The option that replaces existing files.
    pub(crate) overwrite: &'static str,
    /// What to do after an interruption.
    pub(crate) go_on: &'static str,
    /// What to do if the destination exists.
    pub(crate) merge: &'static str,
}

/// The result of a copy.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Counts {
    pub(crate) files: u64,
    pub(crate) directories: u64,
    pub(crate) links: u64,
    /// Bytes read of files.
    pub(crate) bytes: u64,
    /// Files and links that already existed.
    pub(crate) there: u64,
    /// Device nodes, pipes and sockets.
    pub(crate) special: u64,
    /// Attributes that give rights, left out because owners are not set.
    pub(crate) privileged: u64,
    pub(crate) failures: u64,
}
