//! `ashlar lvm lvremove`: removes volumes, with their snapshots.

use std::process::ExitCode;

use clap::{ArgAction, Args};

use super::archive::Archives;
use super::session::with;
use super::{Changing, Devices, confirm, split_name};
use crate::disks::Access;
use crate::error::{Error, Result};
use crate::output;

/// Remove logical volumes
///
/// Removing a volume also removes its snapshots; removing a snapshot leaves its origin unchanged.
/// Asks for confirmation, unless -y or -f is given.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar lvm lvremove --devices a.img,b.img vg/before
  ashlar lvm lvremove --devices a.img,b.img -y vg/data vg/scratch")]
pub(crate) struct Lvremove {
    #[command(flatten)]
    disks: Devices,

    #[command(flatten)]
    changing: Changing,

    /// Do not ask
    #[arg(short, long, action = ArgAction::Count)]
    force: u8,

    /// The volumes, all of one group; a group for all of its volumes
    #[arg(required = true, value_name = "VG[/LV]")]
    names: Vec<String>,
}

impl Lvremove {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let names: Vec<_> =
            self.names.iter().map(|name| split_name(name)).collect::<Result<_>>()?;
        let group = names[0].0;
        if names.iter().any(|(other, _)| *other != group) {
            return Err(Error::usage("volumes of one group at a time"));
        }
        let archives = Archives::new(self.changing.autobackup)?;
        with(&self.disks.devices, Access::Write, async |session| {
            let mut draft = session.draft(group).await?;
            let found = &draft.group;
            let mut wanted: Vec<String> = Vec::new();
            for (_, name) in names {
                match name {
                    Some(name) => wanted.push(name.to_owned()),
                    None => {
                        let all = found.lvs.iter().zip(found.visible());
                        wanted.extend(all.filter(|(_, seen)| *seen).map(|(lv, _)| lv.name.clone()));
                    }
                }
            }
            if wanted.is_empty() {
                return Ok(());
            }
            let mut gone: Vec<String> = Vec::new();
            for name in wanted {
                // Removing an origin removes its snapshots.
                if !gone.contains(&name) {
                    let failed = |error| Error::new("Cannot remove the volume", &name, error);
                    gone.extend(draft.group.remove(&name).map_err(failed)?);
                }
            }
            for name in &gone {
                let question =
                    format!("Do you really want to remove logical volume {group}/{name}?");
                if !confirm(&question, self.changing.yes || self.force > 0)? {
                    return Err(Error::failed(format_args!(
                        "Logical volume {group}/{name} not removed"
                    )));
                }
            }
            session.commit(draft, &[], &archives).await?;
            let line =
                |name: &String| format!("  Logical volume \"{name}\" successfully removed.\n");
            output::tell(&gone.iter().map(line).collect::<String>())
        })?;
        Ok(ExitCode::SUCCESS)
    }
}
