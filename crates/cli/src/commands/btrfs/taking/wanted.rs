//! What is wanted, and what came of it.

use std::path::PathBuf;

use regex_automata::nfa::thompson::pikevm::PikeVM;

use super::Telling;

/// What becomes of what is at the destination already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Existing {
    /// Nothing may be there.
    Refuse,
    /// A file of the same size and time is complete; another one is an error.
    Resume,
    /// A file of the same size and time is complete; another one is replaced.
    ResumeAndReplace,
    /// It stays as it is.
    Keep,
    /// Files and links are replaced.
    Replace,
}

/// What is taken out, and how.
#[derive(Debug)]
pub(crate) struct Wanted {
    /// Where it is, from the root directory of the subvolume on.
    pub(crate) path: Vec<u8>,
    /// What it becomes.
    pub(crate) dest: PathBuf,
    pub(crate) existing: Existing,
    /// Files that have lost something are kept.
    pub(crate) keep_partial: bool,
    /// Nothing follows the first failure.
    pub(crate) stop_at_first: bool,
    /// Nothing is written.
    pub(crate) dry_run: bool,
    /// What is taken out is named on standard output.
    pub(crate) verbose: bool,
    pub(crate) links: bool,
    /// Snapshots within the subvolume that is taken out; other subvolumes are in any case.
    pub(crate) snapshots: bool,
    pub(crate) modes_and_times: bool,
    pub(crate) owners: bool,
    pub(crate) xattrs: bool,
    /// Only paths that it matches are taken out.
    pub(crate) only: Option<PikeVM>,
    /// What is told meanwhile.
    pub(crate) telling: Telling,
    /// How the options of the command are called.
    pub(crate) options: Names,
}

/// How a command calls the options that messages name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Names {
    /// Sets owners.
    pub(crate) owners: &'static str,
    /// Replaces what is there.
    pub(crate) overwrite: &'static str,
    /// What to do after an interruption.
    pub(crate) go_on: &'static str,
    /// What to do if something is at the destination.
    pub(crate) merge: &'static str,
}

/// What came of it.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Counts {
    pub(crate) files: u64,
    pub(crate) directories: u64,
    pub(crate) links: u64,
    /// Bytes of files, as they were read.
    pub(crate) bytes: u64,
    /// Files and links that were there.
    pub(crate) there: u64,
    /// Device nodes, pipes and sockets.
    pub(crate) special: u64,
    /// Attributes that give rights, without the owner.
    pub(crate) privileged: u64,
    pub(crate) failures: u64,
}
