//! `ashlar lvm vgck|pvck`: whether the metadata of groups and physical volumes is as it should be.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use ashlar_commands::lvm::names::group_name;
use ashlar_commands::lvm::{Groups, Pv, Session, with_named};
use ashlar_daemon::error::{Error, Result};
use ashlar_disks::Access;
use ashlar_lvm::group::MemberState;
use ashlar_lvm::report::display::{checked, headers, metadata_text};
use clap::Args;

use super::session::{asking, looking, with};
use super::spellings::Refused;
use super::{ChangeOptions, Devices, groups, warn};
use crate::output;

/// Check the metadata of volume groups
///
/// Warns of copies that are damaged or outdated; fails if a physical volume is missing or has damaged metadata. Without
/// --updatemetadata nothing is written.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar lvm vgck --devices a.img,b.img
  ashlar lvm vgck --devices a.img,b.img --updatemetadata vg")]
pub(crate) struct Vgck {
    #[command(flatten)]
    disks: Devices,

    #[command(flatten)]
    change_options: ChangeOptions,

    /// Write the metadata to all physical volumes anew, and free those that were removed from the group while they were missing
    #[arg(long, requires = "names")]
    updatemetadata: bool,

    /// The groups [default: all]
    #[arg(value_name = "VG")]
    names: Vec<String>,
}

/// Check the label and the metadata areas of physical volumes
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar lvm pvck a.img
  ashlar lvm pvck --dump metadata -f vg.txt a.img")]
pub(crate) struct Pvck {
    #[command(flatten)]
    disks: Devices,

    /// Print the headers, or the text of the group's metadata
    #[arg(long, value_name = "WHAT", value_parser = ["headers", "metadata"])]
    dump: Option<String>,

    /// With --dump metadata: write the text to this file
    #[arg(short, long, value_name = "FILE", requires = "dump")]
    file: Option<PathBuf>,

    #[arg(long, hide = true, num_args = 0, default_missing_value = "", value_parser = Refused(NO_REPAIR))]
    repair: Option<String>,

    /// The physical volumes
    #[arg(required = true, value_name = "PV")]
    names: Vec<String>,
}

const NO_REPAIR: &str = "pvcreate --uuid makes a lost label again, vgcfgrestore a group's metadata, and vgck --updatemetadata outdated copies";

/// Whether metadata of the physical volume with this index cannot be used.
fn is_damaged(session: &Session, index: usize, pv: &Pv) -> bool {
    let is_unreadable = session.found.damaged.iter().any(|(other, _)| *other == index);
    is_unreadable || pv.on_disk.defects().next().is_some()
}

impl Vgck {
    pub(crate) fn run(self) -> Result<ExitCode> {
        if self.updatemetadata {
            return self.update();
        }
        if self.disks.devices.is_empty() {
            // A daemon has read all that it serves, and says in its log what is damaged.
            let groups = groups::read(&self.disks, &[])?;
            return self.check(&groups, &[]);
        }
        let (groups, damaged) = looking(&self.disks.devices, async |session| {
            let path = |index: usize| session.pvs.get(index).map_or("", |pv| &*pv.path);
            for group in &session.found.groups {
                let name = &group.metadata.group.name;
                for member in &group.members {
                    if let MemberState::Stale(index) = member {
                        let path = path(*index);
                        warn(format_args!(
                            "{path} has older metadata of VG {name}: vgck --updatemetadata renews it"
                        ));
                    }
                }
            }
            let damaged = session
                .pvs
                .iter()
                .enumerate()
                .filter(|(index, pv)| is_damaged(session, *index, pv));
            let damaged: Vec<_> = damaged.map(|(index, pv)| (index, pv.path.clone())).collect();
            Ok((Groups::on_disks(session), damaged))
        })?;
        self.check(&groups, &damaged)
    }

    /// Fails if a group lacks something, or its physical volumes (without names any) are damaged; the details were printed when
    /// it was read.
    fn check(&self, groups: &Groups, damaged: &[(usize, String)]) -> Result<ExitCode> {
        let names = if self.names.is_empty() { groups.names() } else { self.names.clone() };
        let (mut bad, mut members) = (Vec::new(), Vec::new());
        for name in &names {
            let group = groups.group(group_name(name))?;
            let missing = group.missing().count();
            if missing > 0 {
                bad.push(format!("The volume group {name} is missing {missing} physical volumes"));
            }
            members.extend(group.members.iter().filter_map(|member| member.index()));
        }
        let is_meant = |index: &usize| self.names.is_empty() || members.contains(index);
        let damaged = damaged.iter().filter(|(index, _)| is_meant(index));
        bad.extend(damaged.map(|(_, path)| format!("The metadata on {path} is damaged")));
        match bad.is_empty() {
            true => Ok(ExitCode::SUCCESS),
            false => Err(Error::failed(bad.join("; "))),
        }
    }

    fn update(&self) -> Result<ExitCode> {
        if self.disks.devices.is_empty() {
            let hint = "each change of a served group writes it to all physical volumes; on disks without a daemon, name them with \
                        --devices DISK,...";
            return Err(Error::usage("--updatemetadata works only on disks that no daemon serves")
                .hint(hint));
        }
        let archives = self.change_options.archives()?;
        asking(&self.disks.devices, self.change_options.yes, async |session: &mut Session| {
            for name in &self.names {
                session.update_metadata(group_name(name), &archives).await?;
            }
            Ok(())
        })?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Pvck {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let disks = with_named(&self.disks.devices, &self.names);
        let mut bad = Vec::new();
        with(&disks, Access::Look, async |session| {
            for name in &self.names {
                let found =
                    session.pv(name).and_then(|index| Some((index, session.pvs.get(index)?)));
                let Some((index, pv)) = found else {
                    bad.push(format!("No usable LVM label on {name}"));
                    continue;
                };
                if is_damaged(session, index, pv) {
                    bad.push(format!("The metadata on {name} is damaged"));
                }
                match self.dump.as_deref() {
                    None => output::print(&checked(name, &pv.on_disk))?,
                    Some("headers") => {
                        let text = headers(&pv.on_disk);
                        output::print(&text.map_err(|error| {
                            Error::new("Cannot print the headers", name, error)
                        })?)?;
                    }
                    Some(_) => self.dump_text(name, metadata_text(&pv.on_disk))?,
                }
            }
            Ok(())
        })?;
        match bad.is_empty() {
            true => Ok(ExitCode::SUCCESS),
            false => Err(Error::failed(bad.join("; "))),
        }
    }

    fn dump_text(&self, name: &str, found: Option<(String, &[u8])>) -> Result<()> {
        let Some((place, text)) = found else {
            warn(format_args!("{name} has no metadata of a group"));
            return Ok(());
        };
        output::print(&place)?;
        match &self.file {
            Some(file) => fs::write(file, text)
                .map_err(|error| Error::new("Cannot write the metadata", file.display(), error)),
            None => output::print(&format!("  ---\n{}\n  ---\n", String::from_utf8_lossy(text))),
        }
    }
}
