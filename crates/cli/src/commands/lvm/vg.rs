//! `ashlar lvm vgcreate|vgextend|vgreduce|vgremove`: groups, and their physical volumes.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;

use ashlar_block::Sectors;
use ashlar_host::disks::Access;
use ashlar_host::error::{Error, Result};
use ashlar_host::lvm::new_uuid;
use ashlar_lvm::command::{Command, Membership, NewGroup};
use ashlar_lvm::format::plan;
use ashlar_lvm::metadata::is_valid_name;
use ashlar_lvm::ondisk::PvLabel;
use ashlar_lvm::{PhysicalVolume, VolumeGroup};
use ashlar_stack::volume_groups::new_member;
use clap::Args;

use super::pv::{self, PvLayout};
use super::session::{Draft, Pv, Session, served_members, with, with_named};
use super::{Changing, Devices, confirm, sizes};
use crate::output;

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
    changing: Changing,

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
    #[arg(long, value_name = "TAG", value_parser = super::lvcreate::tag)]
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
    changing: Changing,

    #[command(flatten)]
    layout: PvLayout,

    /// The group
    #[arg(value_name = "VG")]
    name: String,

    /// The physical volumes
    #[arg(required = true, value_name = "PV")]
    names: Vec<String>,
}

/// Remove physical volumes that no logical volume uses from a volume group
///
/// They are free physical volumes afterwards.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar lvm vgreduce vg c.img
  ashlar lvm vgreduce --devices a.img,b.img,c.img vg c.img
  ashlar lvm vgreduce --devices a.img,b.img,c.img -a vg")]
pub(crate) struct Vgreduce {
    #[command(flatten)]
    disks: Devices,

    #[command(flatten)]
    changing: Changing,

    /// Remove all that no logical volume uses
    #[arg(short, long, conflicts_with = "names")]
    all: bool,

    /// The group
    #[arg(value_name = "VG")]
    name: String,

    /// The physical volumes
    #[arg(required_unless_present = "all", value_name = "PV")]
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
    changing: Changing,

    /// Do not ask
    #[arg(short, long)]
    force: bool,

    /// The group
    #[arg(value_name = "VG")]
    name: String,
}

impl Vgcreate {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let name = self.name.strip_prefix("/dev/").unwrap_or(&self.name);
        if !is_valid_name(name) {
            return Err(Error::usage(format_args!(
                "\"{name}\" is no name for a volume group: letters, digits, and . _ + - but no - in front"
            )));
        }
        // Disks that exist are taken as they are, unless a daemon is named: it may have none of them.
        let is_served =
            self.disks.daemon.is_named() || !self.names.iter().all(|n| Path::new(n).exists());
        if self.disks.devices.is_empty() && is_served {
            let new = NewGroup {
                extent_sectors: self.extent_size().0,
                max_lv: self.maxlogicalvolumes,
                max_pv: self.maxphysicalvolumes,
                tags: self.addtag.clone(),
                physical: self.names.clone(),
                layout: self.layout.layout().into(),
            };
            return served_members(&self.disks, &self.changing, name, &Membership::Create(new));
        }
        let archives = self.changing.archives()?;
        let disks = with_named(&self.disks.devices, &self.names);
        with(&disks, Access::Write, async |session| {
            let group = self.group(name);
            group.check().map_err(|error| Error::new("Cannot make VG", name, error))?;
            self.check(session, name)?;
            // Nothing is written if copies cannot be archived.
            archives.before(None)?;
            make_plain(session, &self.names, &self.layout).await?;
            let mut draft = Draft::of(None, group, Vec::new());
            add(session, &mut draft, &self.names)?;
            session.commit(draft, &[], &archives).await
        })?;
        output::tell(&format!("  Volume group \"{name}\" successfully created\n"))?;
        Ok(ExitCode::SUCCESS)
    }

    /// Checks everything before the first write.
    fn check(&self, session: &Session, name: &str) -> Result<()> {
        if session.found.groups.iter().any(|group| group.metadata.group.name == name) {
            return Err(Error::failed(format_args!(
                "A volume group called {name} already exists."
            )));
        }
        let most = self.maxphysicalvolumes as usize;
        if most != 0 && self.names.len() > most {
            let count = self.names.len();
            return Err(Error::failed(format_args!(
                "{count} physical volumes are more than {most}"
            )));
        }
        let areas = check_new(session, &self.names, &self.layout, self.extent_size())?;
        if areas == 0 {
            return Err(Error::failed("None of the physical volumes has a metadata area"));
        }
        Ok(())
    }

    /// The group without physical volumes.
    fn group(&self, name: &str) -> VolumeGroup {
        let mut group = VolumeGroup::new(name, new_uuid(), self.extent_size());
        group.max_lv = self.maxlogicalvolumes;
        group.max_pv = self.maxphysicalvolumes;
        group.tags.clone_from(&self.addtag);
        group
    }

    fn extent_size(&self) -> Sectors {
        self.physicalextentsize.unwrap_or(EXTENT)
    }
}

/// Checks physical volumes that are to join a group; returns how many metadata areas they have.
///
/// # Errors
/// One cannot join it.
fn check_new(
    session: &Session,
    names: &[String],
    layout: &PvLayout,
    extent_size: Sectors,
) -> Result<usize> {
    let refuse = |text: String| Err(Error::failed(text));
    let mut areas = 0;
    for (at, name) in names.iter().enumerate() {
        let place = pv::find(session, name)?;
        let same = |other: &String| {
            session.place(other).is_some_and(|other| other.gateway.is_same(&place.gateway))
        };
        if names[..at].iter().any(same) {
            return refuse(format!("{name} is named twice"));
        }
        let Some(index) = session.pv(name) else {
            pv::refuse_foreign(session, place)?;
            let size = place.gateway.capacity().bytes();
            let label = plan(new_uuid(), size, &layout.layout())
                .map_err(|error| Error::new("Cannot make a physical volume", &place.path, error))?;
            member(name, &label, extent_size)?;
            areas += label.metadata_areas.len();
            continue;
        };
        if let Some(group) = session.group_of(index) {
            let group = &group.metadata.group.name;
            return refuse(format!(
                "Physical volume '{name}' is already in volume group '{group}'"
            ));
        }
        if !session.found.free.contains(&index) {
            return refuse(format!(
                "Physical volume '{name}' is a copy, or marked as used by a group that is not here"
            ));
        }
        if let Some(Pv { on_disk, .. }) = session.pvs.get(index) {
            member(name, &on_disk.label, extent_size)?;
            areas += on_disk.areas.iter().filter(|area| area.state.is_ok()).count();
        }
    }
    Ok(areas)
}

/// Makes physical volumes of those disks that are none, and reads all again.
async fn make_plain(session: &mut Session, names: &[String], layout: &PvLayout) -> Result<()> {
    let plain: Vec<String> =
        names.iter().filter(|name| session.pv(name).is_none()).cloned().collect();
    pv::make(session, &plain, &layout.layout(), None).await?;
    if !plain.is_empty() {
        session.look().await;
    }
    Ok(())
}

/// Adds physical volumes to a group.
fn add(session: &Session, draft: &mut Draft, names: &[String]) -> Result<()> {
    for name in names {
        let index = session.pv(name);
        let Some((index, pv)) = index.and_then(|i| Some((i, session.pvs.get(i)?))) else {
            return Err(Error::failed(format_args!("{name} cannot be read back")));
        };
        let mut member = member(name, &pv.on_disk.label, draft.group.extent_size)?;
        // A hint for LVM, which does not know image files.
        member.device = Some(pv.path.clone()).filter(|path| path.starts_with("/dev/"));
        let group = draft.group.name.clone();
        let failed = |error| Error::new("Cannot extend the volume group", group, error);
        draft.group.add_physical(member).map_err(failed)?;
        draft.members.push(index);
    }
    Ok(())
}

/// The group's entry for the physical volume of that name and label.
fn member(name: &str, label: &PvLabel, extent_size: Sectors) -> Result<PhysicalVolume> {
    let member = new_member(name, label, extent_size);
    member.map_err(|text| Error::failed(text).hint("choose another -s"))
}

impl Vgextend {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let name = self.name.strip_prefix("/dev/").unwrap_or(&self.name);
        if self.disks.devices.is_empty() {
            let (physical, layout) = (self.names.clone(), self.layout.layout().into());
            let command = Membership::Extend { physical, layout };
            return served_members(&self.disks, &self.changing, name, &command);
        }
        let archives = self.changing.archives()?;
        let disks = with_named(&self.disks.devices, &self.names);
        with(&disks, Access::Write, async |session| {
            let draft = session.draft(name).await?;
            check_new(session, &self.names, &self.layout, draft.group.extent_size)?;
            let most = draft.group.max_pv as usize;
            if most != 0 && draft.group.pvs.len() + self.names.len() > most {
                let text = format!("Volume group \"{name}\" may have {most} physical volumes");
                return Err(Error::failed(text));
            }
            make_plain(session, &self.names, &self.layout).await?;
            // The places of the physical volumes may have changed.
            let mut draft = session.draft(name).await?;
            add(session, &mut draft, &self.names)?;
            session.commit(draft, &[], &archives).await
        })?;
        output::tell(&format!("  Volume group \"{name}\" successfully extended\n"))?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Vgreduce {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let name = self.name.strip_prefix("/dev/").unwrap_or(&self.name);
        if self.disks.devices.is_empty() {
            let command = Membership::Reduce { physical: self.names.clone() };
            return served_members(&self.disks, &self.changing, name, &command);
        }
        let archives = self.changing.archives()?;
        let disks = with_named(&self.disks.devices, &self.names);
        with(&disks, Access::Write, async |session| {
            let mut draft = session.draft(name).await?;
            let (removed, lines) = self.remove(session, &mut draft)?;
            if removed.is_empty() {
                return output::tell("  No physical volumes are unused\n");
            }
            session.commit(draft, &[], &archives).await?;
            // A crash leaves them with the text of a group that no longer lists them.
            session.release(&removed).await?;
            output::tell(&lines)
        })?;
        Ok(ExitCode::SUCCESS)
    }

    /// Removes the physical volumes from the description; returns their indices in the session, and what to say.
    fn remove(&self, session: &Session, draft: &mut Draft) -> Result<(Vec<usize>, String)> {
        let name = draft.group.name.clone();
        let mut wanted = Vec::new();
        for path in &self.names {
            let index = session.pv(path).filter(|index| draft.members.contains(index));
            wanted.push(index.ok_or_else(|| {
                let text =
                    format!("Physical volume \"{path}\" not found in volume group \"{name}\"");
                Error::failed(text)
            })?);
        }
        if self.all {
            let used: BTreeSet<usize> =
                draft.group.lvs.iter().flat_map(|lv| lv.pv_extents()).map(|on| on.pv).collect();
            let unused = draft.members.iter().enumerate().filter(|(at, _)| !used.contains(at));
            wanted.extend(unused.map(|(_, index)| *index));
            if wanted.len() == draft.members.len() {
                // As in LVM: one stays.
                wanted.remove(0);
            }
        }
        let mut lines = String::new();
        for index in &wanted {
            let path = session.pvs.get(*index).map_or("", |pv| pv.path.as_str());
            let Some(at) = draft.members.iter().position(|member| member == index) else {
                return Err(Error::failed(format_args!("{path} is named twice")));
            };
            let failed = |error| Error::new("Cannot remove the physical volume", path, error);
            draft.group.remove_physical(at).map_err(failed)?;
            draft.members.remove(at);
            lines += &format!("  Removed \"{path}\" from volume group \"{name}\"\n");
        }
        Ok((wanted, lines))
    }
}

impl Vgremove {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let name = self.name.strip_prefix("/dev/").unwrap_or(&self.name);
        if self.disks.devices.is_empty() {
            let command = Membership::Remove { force: self.force };
            return served_members(&self.disks, &self.changing, name, &command);
        }
        let archives = self.changing.archives()?;
        with(&self.disks.devices, Access::Write, async |session| {
            let mut draft = session.draft(name).await?;
            let volumes = draft.group.visible().into_iter().filter(|seen| *seen).count();
            if volumes > 0 {
                let question = format!(
                    "Do you really want to remove volume group \"{name}\" containing {volumes} logical volumes?"
                );
                if !confirm(&question, self.changing.yes || self.force)? {
                    let text = format!("Volume group \"{name}\" not removed");
                    return Err(Error::failed(text));
                }
                let members = draft.members.clone();
                let command = Command::Remove { volumes: Vec::new() };
                draft.apply(session, &command)?;
                session.commit(draft, &[], &archives).await?;
                return session.release(&members).await;
            }
            archives.before(session.group(name).ok().map(|group| &*group.metadata))?;
            session.release(&draft.members).await
        })?;
        output::tell(&format!("  Volume group \"{name}\" successfully removed\n"))?;
        Ok(ExitCode::SUCCESS)
    }
}
