//! `ashlar lvm vgcreate|vgextend|vgreduce|vgremove|vgexport|vgimport`: groups, their physical volumes, and their hosts.

use std::process::ExitCode;

use ashlar_block::Sectors;
use ashlar_commands::lvm::archive::Archives;
use ashlar_commands::lvm::names::group_name;
use ashlar_commands::lvm::{Groups, Session, with_named};
use ashlar_daemon::error::{Error, Result};
use ashlar_disks as disks;
use ashlar_lvm::command::{Membership, NewGroup};
use ashlar_lvm::metadata::{is_valid_name, parse_tag};
use ashlar_lvm::sizes;
use clap::Args;

use super::pv::PvLayout;
use super::session::{asking, change_members, served_members, tell};
use super::{ChangeOptions, Devices, on_disks_only};

/// LVM's default extent size.
const EXTENT: Sectors = Sectors(8192);

/// Make a volume group of physical volumes
///
/// Plain disks first become physical volumes, with the same options as for pvcreate. Disks with
/// known contents, and physical volumes of other groups, are refused; a refusal changes nothing.
///
/// With --control, or if a disk is not here, a running daemon makes the group and serves it.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  truncate -s 1G a.img b.img
  ashlar lvm vgcreate vg a.img b.img
  ashlar lvm vgcreate -s 1M --addtag backup vg a.img
  ashlar lvm vgcreate --control /run/ashlar.sock vg c.img")]
pub(crate) struct Vgcreate {
    #[command(flatten)]
    disks: Devices,

    #[command(flatten)]
    change_options: ChangeOptions,

    /// Size of extents, in MiB or with a unit [default: 4M]
    #[arg(short = 's', long, value_name = "SIZE", value_parser = sizes::size)]
    physicalextentsize: Option<Sectors>,

    /// Maximum number of logical volumes [default: any number]
    #[arg(short = 'l', long, value_name = "COUNT", default_value_t = 0, hide_default_value = true)]
    maxlogicalvolumes: u32,

    /// Maximum number of physical volumes [default: any number]
    #[arg(short = 'p', long, value_name = "COUNT", default_value_t = 0, hide_default_value = true)]
    maxphysicalvolumes: u32,

    /// A tag for the administrator; may be repeated
    #[arg(long, value_name = "TAG", value_parser = parse_tag)]
    addtag: Vec<String>,

    #[command(flatten)]
    layout: PvLayout,

    /// The group's name
    #[arg(value_name = "VG")]
    name: String,

    /// The physical volumes
    #[arg(required = true, value_name = "PV")]
    names: Vec<String>,
}

/// Add physical volumes to a volume group
///
/// Plain disks first become physical volumes, with the same options as for pvcreate. Disks with known contents, and
/// physical volumes of other groups, are refused; a refusal changes nothing.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar lvm vgextend vg c.img
  ashlar lvm vgextend vg /dev/md1
  ashlar lvm vgextend --devices a.img,b.img vg c.img")]
pub(crate) struct Vgextend {
    #[command(flatten)]
    disks: Devices,

    #[command(flatten)]
    change_options: ChangeOptions,

    #[command(flatten)]
    layout: PvLayout,

    /// Take back missing physical volumes
    ///
    /// Those of the group that were missing while it was changed, with what is on them; on disks that no daemon
    /// serves
    #[arg(long)]
    restoremissing: bool,

    /// The group
    #[arg(value_name = "VG")]
    name: String,

    /// The physical volumes
    #[arg(required = true, value_name = "PV")]
    names: Vec<String>,
}

/// Remove physical volumes that no logical volume uses, or that are missing, from a volume group
///
/// Those that are there are free physical volumes afterwards. A group of which physical volumes are missing is not changed
/// otherwise; --removemissing works on disks that no daemon serves.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar lvm vgreduce vg c.img
  ashlar lvm vgreduce --devices a.img,b.img,c.img vg c.img
  ashlar lvm vgreduce --devices a.img,b.img,c.img -a vg
  ashlar lvm vgreduce --devices a.img,b.img --removemissing vg")]
pub(crate) struct Vgreduce {
    #[command(flatten)]
    disks: Devices,

    #[command(flatten)]
    change_options: ChangeOptions,

    /// Remove all that no logical volume uses
    #[arg(short, long, conflicts_with = "names")]
    all: bool,

    /// Remove those that are missing, unless logical volumes have extents there
    #[arg(long, conflicts_with_all = ["all", "names"])]
    removemissing: bool,

    /// With --removemissing: also remove damaged volumes
    ///
    /// These are the logical volumes that have extents there, with what is left of their data
    #[arg(short, long, requires = "removemissing")]
    force: bool,

    /// The group
    #[arg(value_name = "VG")]
    name: String,

    /// The physical volumes
    #[arg(required_unless_present_any = ["all", "removemissing"], value_name = "PV")]
    names: Vec<String>,
}

/// Remove a volume group
///
/// Its physical volumes are free afterwards. A group with logical volumes is removed with them, after a question
/// that -y or -f answers.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar lvm vgremove vg
  ashlar lvm vgremove --devices a.img,b.img vg")]
pub(crate) struct Vgremove {
    #[command(flatten)]
    disks: Devices,

    #[command(flatten)]
    change_options: ChangeOptions,

    /// Do not ask
    #[arg(short, long)]
    force: bool,

    /// The group
    #[arg(value_name = "VG")]
    name: String,
}

/// Mark volume groups as ones that another host may import
///
/// No host uses an exported group; lvs and vgs still show it.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar lvm vgexport --devices a.img,b.img vg")]
pub(crate) struct Vgexport {
    #[command(flatten)]
    handed: Handed,
}

/// Make exported volume groups this host's
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar lvm vgimport --devices a.img,b.img vg")]
pub(crate) struct Vgimport {
    #[command(flatten)]
    handed: Handed,
}

/// Groups that go from one host to another.
#[derive(Args, Debug)]
struct Handed {
    #[command(flatten)]
    disks: Devices,

    #[command(flatten)]
    change_options: ChangeOptions,

    /// All groups on the disks
    #[arg(short, long, conflicts_with = "names")]
    all: bool,

    /// The groups
    #[arg(required_unless_present = "all", value_name = "VG")]
    names: Vec<String>,
}

impl Handed {
    /// Calls `work` with the session, the name of each group in turn, and the archives; then says that each is `done`.
    fn each(
        &self,
        verb: &str,
        done: &str,
        work: impl AsyncFn(&mut Session, &str, &Archives) -> Result<()>,
    ) -> Result<ExitCode> {
        on_disks_only(&self.disks, verb)?;
        let archives = self.change_options.archives()?;
        asking(&self.disks.devices, self.change_options.yes, async |session| {
            let names =
                if self.all { Groups::on_disks(session).names() } else { self.names.clone() };
            for name in &names {
                let name = group_name(name);
                work(session, name, &archives).await?;
                tell(&[format!("  Volume group \"{name}\" successfully {done}")])?;
            }
            Ok(())
        })?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Vgexport {
    pub(crate) fn run(self) -> Result<ExitCode> {
        self.handed.each("vgexport", "exported", async |session, name, archives| {
            session.export_group(name, archives).await
        })
    }
}

impl Vgimport {
    pub(crate) fn run(self) -> Result<ExitCode> {
        self.handed.each("vgimport", "imported", async |session, name, archives| {
            session.import_group(name, archives).await
        })
    }
}

impl Vgcreate {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let name = group_name(&self.name);
        if !is_valid_name(name) {
            return Err(Error::usage(format_args!(
                "\"{name}\" is not a name for a volume group: letters, digits, and . _ + - but no - in front"
            )));
        }
        // Disks that exist are taken as they are, unless a daemon is named: it may have none of them.
        let is_served = self.disks.daemon.is_named()
            || !self.names.iter().all(|n| disks::may_exist(n.as_ref()));
        let command = Membership::Create(NewGroup {
            extent_sectors: self.physicalextentsize.unwrap_or(EXTENT).0,
            max_lv: self.maxlogicalvolumes,
            max_pv: self.maxphysicalvolumes,
            tags: self.addtag,
            physical: self.names.clone(),
            layout: self.layout.layout().into(),
        });
        if self.disks.devices.is_empty() && is_served {
            return served_members(&self.disks, &self.change_options, name, &command);
        }
        change_members(&self.disks, &self.change_options, name, &command, &self.names)
    }
}

impl Vgextend {
    pub(crate) fn run(self) -> Result<ExitCode> {
        if self.restoremissing {
            return self.restore_missing();
        }
        let (physical, layout) = (self.names.clone(), self.layout.layout().into());
        let command = Membership::Extend { physical, layout };
        run(&self.disks, &self.change_options, &self.name, &command, &self.names)
    }
}

impl Vgreduce {
    pub(crate) fn run(self) -> Result<ExitCode> {
        if self.removemissing {
            return self.remove_missing();
        }
        let command = Membership::Reduce { physical: self.names.clone() };
        run(&self.disks, &self.change_options, &self.name, &command, &self.names)
    }
}

impl Vgextend {
    fn restore_missing(&self) -> Result<ExitCode> {
        on_disks_only(&self.disks, "vgextend --restoremissing")?;
        let archives = self.change_options.archives()?;
        let name = group_name(&self.name);
        let disks = with_named(&self.disks.devices, &self.names);
        asking(&disks, self.change_options.yes, async |session| {
            session.restore_missing(name, &self.names, &archives).await
        })?;
        tell(&[format!("  Volume group \"{name}\" successfully extended")])?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Vgreduce {
    fn remove_missing(&self) -> Result<ExitCode> {
        on_disks_only(&self.disks, "vgreduce --removemissing")?;
        let archives = self.change_options.archives()?;
        let name = group_name(&self.name);
        let work =
            async |session: &mut Session| session.remove_missing(name, self.force, &archives).await;
        tell(&asking(&self.disks.devices, self.change_options.yes, work)?)?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Vgremove {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let command = Membership::Remove { force: self.force };
        run(&self.disks, &self.change_options, &self.name, &command, &[])
    }
}

/// Has the daemon carry out a command, or does it on the disks that are given.
fn run(
    disks: &Devices,
    change_options: &ChangeOptions,
    name: &str,
    command: &Membership,
    named: &[String],
) -> Result<ExitCode> {
    let name = group_name(name);
    if disks.devices.is_empty() {
        return served_members(disks, change_options, name, command);
    }
    change_members(disks, change_options, name, command, named)
}
