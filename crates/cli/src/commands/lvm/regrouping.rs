//! `ashlar lvm vgsplit|vgmerge`: physical volumes that go from one group to another, with the logical volumes on them.

use std::process::ExitCode;

use ashlar_commands::lvm::Moved;
use ashlar_commands::lvm::names::{group_name, split_name};
use ashlar_daemon::error::Result;
use clap::Args;

use super::session::{asking, tell};
use super::{ChangeOptions, Devices, on_disks_only};

/// Move physical volumes, and the logical volumes on them, to another volume group
///
/// The other group is made if it does not exist. Works on disks that no daemon serves.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar lvm vgsplit --devices a.img,b.img vg archive b.img
  ashlar lvm vgsplit --devices a.img,b.img -n old vg archive")]
pub(crate) struct Vgsplit {
    #[command(flatten)]
    disks: Devices,

    #[command(flatten)]
    change_options: ChangeOptions,

    /// Move the physical volumes of this volume
    #[arg(short, long, value_name = "LV", conflicts_with = "pvs")]
    name: Option<String>,

    /// The group that has the physical volumes
    #[arg(value_name = "VG")]
    from: String,

    /// The group that gets them
    #[arg(value_name = "NEW")]
    to: String,

    /// The physical volumes
    #[arg(required_unless_present = "name", value_name = "PV")]
    pvs: Vec<String>,
}

/// Move all physical and logical volumes of a volume group to another one
///
/// Works on disks that no daemon serves.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar lvm vgmerge --devices a.img,b.img vg archive")]
pub(crate) struct Vgmerge {
    #[command(flatten)]
    disks: Devices,

    #[command(flatten)]
    change_options: ChangeOptions,

    /// The group that gets the volumes
    #[arg(value_name = "VG")]
    to: String,

    /// The group that exists no more afterwards
    #[arg(value_name = "OTHER")]
    from: String,
}

impl Vgsplit {
    pub(crate) fn run(self) -> Result<ExitCode> {
        on_disks_only(&self.disks, "vgsplit")?;
        let (from, to) = (group_name(&self.from), group_name(&self.to));
        let volume = self.name.as_deref().map(split_name).transpose()?;
        let moved = match volume {
            Some((_, Some(volume)) | (volume, None)) => Moved::Volume(volume),
            None => Moved::Physical(&self.pvs),
        };
        let archives = self.change_options.archives()?;
        let existed = asking(&self.disks.devices, self.change_options.yes, async |session| {
            session.split_group(from, to, moved, &archives).await
        })?;
        let kind = if existed { "Existing" } else { "New" };
        tell(&[format!("  {kind} volume group \"{to}\" successfully split from \"{from}\"")])?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Vgmerge {
    pub(crate) fn run(self) -> Result<ExitCode> {
        on_disks_only(&self.disks, "vgmerge")?;
        let (from, to) = (group_name(&self.from), group_name(&self.to));
        let archives = self.change_options.archives()?;
        asking(&self.disks.devices, self.change_options.yes, async |session| {
            session.merge_groups(to, from, &archives).await
        })?;
        tell(&[format!("  Volume group \"{from}\" successfully merged into \"{to}\"")])?;
        Ok(ExitCode::SUCCESS)
    }
}
