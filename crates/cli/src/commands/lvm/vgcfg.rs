//! `ashlar lvm vgcfgbackup|vgcfgrestore`: copies of a group's description, and a group as one of them has it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ashlar_commands::lvm::archive::{self, Archives, Copy};
use ashlar_commands::lvm::{Draft, Session};
use ashlar_daemon::error::{Error, Result};
use ashlar_disks::Access;
use ashlar_lvm::Metadata;
use ashlar_lvm::command::restoring::{self, KnownPhysical, RestoredGroup};
use ashlar_lvm::command::{Command, Restore, RestoreError};
use ashlar_lvm::text::Form;
use ashlar_lvm::text::dates::ctime;
use clap::Args;

use super::session::{self, described, with};
use super::{ChangeOptions, Devices};
use crate::output;

/// Keep a copy of the descriptions of volume groups
///
/// As every change does, below $XDG_STATE_HOME/ashlar/lvm/backup (as root /var/lib/ashlar/lvm/backup), or in a file.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar lvm vgcfgbackup
  ashlar lvm vgcfgbackup --devices a.img,b.img -f vg.txt vg")]
pub(crate) struct Vgcfgbackup {
    #[command(flatten)]
    disks: Devices,

    /// The file to write; `%s` is the name of the group
    #[arg(short, long, value_name = "FILE")]
    file: Option<String>,

    /// The groups [default: all]
    #[arg(value_name = "VG")]
    names: Vec<String>,
}

/// Have a volume group be as a copy of its description says
///
/// The command writes the description and no data. Every physical volume that the copy names must be present; pvcreate --uuid makes a
/// lost label again. In a served group, volumes that are the same in the copy may be in use; volumes that the copy has not, or
/// has elsewhere or with another size, may not.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar lvm vgcfgrestore -l vg
  ashlar lvm vgcfgrestore -f vg_00003-8217436.vg vg
  ashlar lvm vgcfgrestore --devices a.img,b.img vg
  ashlar lvm vgcfgrestore --devices a.img,b.img -f vg_00003-8217436.vg vg")]
pub(crate) struct Vgcfgrestore {
    #[command(flatten)]
    disks: Devices,

    #[command(flatten)]
    change_options: ChangeOptions,

    /// List the copies of this group, the oldest first
    #[arg(short, long)]
    list: bool,

    /// The copy [default: the last one]
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,

    /// Restore a group with thin pools, although their own metadata may no longer match the copy
    #[arg(long)]
    force: bool,

    /// The group
    #[arg(value_name = "VG")]
    name: String,
}

impl Vgcfgbackup {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let all: Vec<Metadata> = if self.disks.devices.is_empty() {
            let groups = self.disks.connect()?.groups()?.groups;
            groups.iter().map(described).collect::<Result<_>>()?
        } else {
            with(&self.disks.devices, Access::Look, async |session| {
                Ok(session
                    .found
                    .groups
                    .iter()
                    .map(|group| Metadata::clone(&group.metadata))
                    .collect())
            })?
        };
        let named = |name: &String| {
            let found = all.iter().find(|metadata| metadata.group.name == *name);
            found.ok_or_else(|| Error::failed(format_args!("Volume group \"{name}\" not found")))
        };
        let chosen: Vec<&Metadata> = match self.names.is_empty() {
            true => all.iter().collect(),
            false => self.names.iter().map(named).collect::<Result<_>>()?,
        };
        if let Some(file) = self.file.as_ref().filter(|file| !file.contains("%s"))
            && chosen.len() > 1
        {
            let text = format!("{} groups do not go into the file {file}", chosen.len());
            return Err(Error::usage(text).hint("%s in the name stands for that of the group"));
        }
        let archives = Archives::new(true, &archive::command())?;
        for metadata in chosen {
            let name = &metadata.group.name;
            match &self.file {
                Some(file) => archives.write(Path::new(&file.replace("%s", name)), metadata)?,
                None => {
                    archives.before(None)?;
                    archives.after(metadata)?;
                }
            }
            output::tell(&format!("  Volume group \"{name}\" successfully backed up.\n"))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Vgcfgrestore {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let name = self.name.strip_prefix("/dev/").unwrap_or(&self.name).to_owned();
        let archives = Archives::new(true, &archive::command())?;
        let copies = archives.copies(&name)?;
        if self.list {
            output::print(&copies.iter().map(listed).collect::<String>())?;
            return Ok(ExitCode::SUCCESS);
        }
        let path = match self.file {
            Some(file) => file,
            None => copies.into_iter().next_back().map(|copy| copy.path).ok_or_else(|| {
                Error::failed(format_args!("No copies of \"{name}\" are here"))
                    .hint("name one with -f")
            })?,
        };
        let wanted = archive::read(&path)?;
        if wanted.group.name != name {
            let of = &wanted.group.name;
            return Err(Error::new(
                "Cannot restore the volume group",
                path.display(),
                format_args!("it is of the group \"{of}\""),
            ));
        }
        restoring::check(&wanted, &name, self.force).map_err(refused)?;
        if self.disks.devices.is_empty() {
            let text = wanted.print(Form::Disk);
            let text = String::from_utf8(text);
            let text = text.map_err(|error| Error::plain("cannot send the copy", error))?;
            let command = Command::Restore(Restore { text, force: self.force });
            session::served(&mut self.disks.connect()?, &self.change_options, &name, &command)?;
            return Ok(ExitCode::SUCCESS);
        }
        let archives = self.change_options.archives()?;
        with(&self.disks.devices, Access::Write, async |session| {
            let (draft, left) = draft(session, wanted)?;
            session.commit(draft, &[], &archives).await?;
            // Those that the copy does not list are in no group any more.
            session.release(&left).await
        })?;
        output::tell(&format!("  Restored volume group {name}.\n"))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// A copy, as vgcfgrestore -l lists it.
fn listed(Copy { path, metadata }: &Copy) -> String {
    let header = metadata.header();
    format!(
        "   \n  File:\t\t{}\n  VG name:    \t{}\n  Description:\t{}\n  Backup Time:\t{}\n\n",
        path.display(),
        metadata.group.name,
        header.description,
        ctime(header.creation_time, 0),
    )
}

/// The refusal of a copy.
fn refused(error: RestoreError) -> Error {
    match error.hint() {
        Some(hint) => Error::failed(&error).hint(hint),
        None => Error::failed(&error),
    }
}

/// The change to a description, and the indices of physical volumes that are in the group now and not in that description.
fn draft(session: &Session, wanted: Metadata) -> Result<(Draft, Vec<usize>)> {
    let known = session.pvs.iter();
    let known = known.map(|pv| KnownPhysical { label: &pv.on_disk.label, path: &pv.path });
    let restored = RestoredGroup::new(wanted.group, &session.found, &known.collect::<Vec<_>>());
    let RestoredGroup { group, before, members, left } = restored.map_err(refused)?;
    let before = before.map(|before| Metadata::clone(&before));
    Ok((Draft::of(before, group, members), left))
}
