//! Landlock: the files that a thread may open, and whom it may connect to and signal.

use std::path::{Path, PathBuf};
use std::sync::Once;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, PathBeneath, PathFd, PathFdError, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

use crate::{SandboxError, Sockets};

/// The newest landlock version whose rights this code knows. An older kernel gets only the rights that it knows.
const NEWEST: ABI = ABI::V7;

fn reading() -> BitFlags<AccessFs> {
    AccessFs::ReadFile | AccessFs::ReadDir
}

/// Without the rights to execute, to make device nodes and to send ioctls to existing ones.
fn writing(sockets: Sockets) -> BitFlags<AccessFs> {
    let mut rights = reading()
        | AccessFs::WriteFile
        | AccessFs::Truncate
        | AccessFs::RemoveDir
        | AccessFs::RemoveFile
        | AccessFs::MakeDir
        | AccessFs::MakeReg
        | AccessFs::MakeSym
        | AccessFs::Refer;
    if sockets >= Sockets::Listen {
        rights |= AccessFs::MakeSock;
    }
    rights
}

/// Confines the thread.
///
/// # Errors
/// A path cannot be opened, or the kernel refused.
pub(crate) fn confine(
    reads: &[PathBuf],
    writes: &[PathBuf],
    sockets: Sockets,
) -> Result<(), SandboxError> {
    let mut rules = Vec::new();
    for path in reads {
        rules.push((opened(path)?, reading()));
    }
    for path in writes {
        rules.push((opened(path)?, writing(sockets)));
    }
    let status = restrict(rules, sockets)
        .map_err(|why| SandboxError::step("confine the process by landlock", why))?;
    match status {
        RulesetStatus::FullyEnforced => {}
        RulesetStatus::PartiallyEnforced => {
            tracing::debug!("an older landlock: the sandbox lets more through than on Linux 6.12");
        }
        RulesetStatus::NotEnforced => {
            static WARNED: Once = Once::new();
            WARNED.call_once(|| {
                tracing::warn!(
                    "this kernel has no landlock: in the sandbox, rights of files alone decide which \
                     files can be opened"
                );
            });
        }
    }
    Ok(())
}

fn opened(path: &Path) -> Result<PathFd, SandboxError> {
    PathFd::new(path).map_err(|why| {
        let source = match why {
            PathFdError::OpenCall { source, .. } => source,
            other => std::io::Error::other(other.to_string()),
        };
        SandboxError::Path { path: path.to_owned(), source }
    })
}

fn restrict(
    rules: Vec<(PathFd, BitFlags<AccessFs>)>,
    sockets: Sockets,
) -> Result<RulesetStatus, RulesetError> {
    let mut ruleset = Ruleset::default()
        .handle_access(AccessFs::from_all(NEWEST))?
        .scope(Scope::from_all(NEWEST))?;
    if sockets < Sockets::Connect {
        ruleset = ruleset.handle_access(AccessNet::from_all(NEWEST))?;
    }
    let mut created = ruleset.create()?;
    for (path, rights) in rules {
        // A file does not get the rights that only directories have.
        created = created.add_rule(PathBeneath::new(path, rights))?;
    }
    Ok(created.restrict_self()?.ruleset)
}
