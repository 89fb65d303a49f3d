//! Where a command works, in the daemon or on disks, and what it says and asks there.

use std::fmt::Display;
use std::path::PathBuf;
use std::process::ExitCode;

use ashlar_client::client::Client;
use ashlar_client::interface::{Lvm, LvmMembers, LvmReply};
use ashlar_commands::lvm::archive;
use ashlar_commands::lvm::{Dialogue, Session, with_named, with_session};
use ashlar_daemon::error::{Error, Result};
use ashlar_disks::Access;
use ashlar_disks::sandbox::Sandbox;
use ashlar_lvm::Metadata;
use ashlar_lvm::command::{Command, Membership};
use ashlar_stack::volume_groups::ServedGroup;

use super::{ChangeOptions, Devices, warn};
use crate::commands::confirm;
use crate::output;

/// The terminal, as commands on disks use it.
struct Terminal {
    /// Whether questions are answered with yes.
    yes: bool,
}

impl Dialogue for Terminal {
    fn warn(&self, text: &dyn Display) {
        warn(text);
    }

    fn tell(&self, lines: &[String]) -> Result<()> {
        tell(lines)
    }

    fn confirm(&self, question: &str) -> Result<bool> {
        confirm(question, self.yes)
    }
}

/// Changes a group: one that the daemon serves, or one on disks.
///
/// # Errors
/// The group is as it was, unless the message says that this is not known.
pub(super) fn change(
    disks: &Devices,
    change_options: &ChangeOptions,
    group: &str,
    command: &Command,
) -> Result<ExitCode> {
    if disks.devices.is_empty() {
        served(&mut disks.connect()?, change_options, group, command)?;
    } else {
        let archives = change_options.archives()?;
        let work = async |session: &mut Session| session.change(group, command, &archives).await;
        asking(&disks.devices, change_options.yes, work)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Changes which physical volumes a group on disks has. The command also opens the disks at the paths `named`.
///
/// # Errors
/// As for [`change`].
pub(super) fn change_members(
    disks: &Devices,
    change_options: &ChangeOptions,
    group: &str,
    command: &Membership,
    named: &[String],
) -> Result<ExitCode> {
    let archives = change_options.archives()?;
    let disks = with_named(&disks.devices, named);
    let work =
        async |session: &mut Session| session.change_members(group, command, &archives).await;
    tell(&asking(&disks, change_options.yes, work)?)?;
    Ok(ExitCode::SUCCESS)
}

/// The description of a group of the daemon.
///
/// # Errors
/// The daemon did not send a description.
pub(super) fn described(group: &ServedGroup) -> Result<Metadata> {
    let parsed = group.metadata();
    parsed.map_err(|error| Error::plain("the daemon's answer was not understood", error))
}

/// Has the daemon change a group.
///
/// # Errors
/// As for [`change`].
pub(super) fn served(
    client: &mut Client,
    change_options: &ChangeOptions,
    group: &str,
    command: &Command,
) -> Result<()> {
    let call = |confirmed| {
        client.lvm(&Lvm {
            group: group.to_owned(),
            command: command.clone(),
            confirmed: Some(confirmed),
            archive: Some(change_options.autobackup),
            line: archive::command(),
        })
    };
    ask(call, change_options.yes)
}

/// Has the daemon change which physical volumes a group has.
///
/// # Errors
/// As for [`change`].
pub(super) fn served_members(
    disks: &Devices,
    change_options: &ChangeOptions,
    group: &str,
    command: &Membership,
) -> Result<ExitCode> {
    let mut client = disks.connect()?;
    let directory = std::env::current_dir();
    let directory = directory.map_err(|error| Error::plain("cannot find the directory", error))?;
    let call = |confirmed| {
        client.lvm_members(&LvmMembers {
            group: group.to_owned(),
            command: command.clone(),
            directory: directory.clone(),
            confirmed: Some(confirmed),
            archive: Some(change_options.autobackup),
            line: archive::command(),
        })
    };
    ask(call, change_options.yes)?;
    Ok(ExitCode::SUCCESS)
}

/// Calls the daemon, and if it has questions, once more with the answers.
fn ask(mut call: impl FnMut(bool) -> Result<LvmReply>, yes: bool) -> Result<()> {
    let mut reply = call(yes)?;
    if !reply.questions.is_empty() {
        let terminal: &dyn Dialogue = &Terminal { yes: false };
        terminal.confirm_all(&reply.questions)?;
        reply = call(true)?;
    }
    tell(&reply.notes)?;
    tell(&reply.done)
}

/// Says these lines, which have no newlines.
///
/// # Errors
/// They cannot be written.
pub(super) fn tell(lines: &[String]) -> Result<()> {
    if lines.is_empty() {
        return Ok(());
    }
    output::tell(&lines.iter().map(|line| format!("{line}\n")).collect::<String>())
}

/// Calls `work` with what is on `disks`, and stops everything cleanly afterwards.
///
/// # Errors
/// As [`with_session`].
pub(super) fn with<T>(
    disks: &[PathBuf],
    access: Access,
    work: impl AsyncFnOnce(&mut Session) -> Result<T>,
) -> Result<T> {
    with_session(disks, access, Sandbox::none(), Box::new(Terminal { yes: false }), work)
}

/// Calls `work` with what is on `disks`, for reading in the sandbox.
///
/// # Errors
/// As [`with_session`].
pub(super) fn looking<T>(
    disks: &[PathBuf],
    work: impl AsyncFnOnce(&mut Session) -> Result<T>,
) -> Result<T> {
    let terminal = Box::new(Terminal { yes: false });
    with_session(disks, Access::Look, Sandbox::of(disks), terminal, work)
}

/// As [`with`], for writing; with `yes` the answer to all questions.
///
/// # Errors
/// As there.
pub(super) fn asking<T>(
    disks: &[PathBuf],
    yes: bool,
    work: impl AsyncFnOnce(&mut Session) -> Result<T>,
) -> Result<T> {
    with_session(disks, Access::Write, Sandbox::none(), Box::new(Terminal { yes }), work)
}
