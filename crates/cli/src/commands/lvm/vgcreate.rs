//! `ashlar lvm vgcreate`: a new group.

use std::process::ExitCode;

use ashlar_block::Sectors;
use ashlar_lvm::format::plan;
use ashlar_lvm::metadata::is_valid_name;
use ashlar_lvm::ondisk::PvLabel;
use ashlar_lvm::report::long;
use ashlar_lvm::{PhysicalVolume, VolumeGroup};
use clap::Args;

use super::archive::Archives;
use super::pv::{self, PvLayout};
use super::session::{Draft, Pv, Session, new_uuid, with, with_named};
use super::{Changing, Devices, sizes};
use crate::disks::Access;
use crate::error::{Error, Result};
use crate::output;

/// LVM's default extent size.
const EXTENT: Sectors = Sectors(8192);

/// Make a volume group of physical volumes
///
/// Plain disks first become physical volumes, with the same options as for pvcreate. Disks with
/// known contents, and physical volumes of other groups, are refused; a refusal changes nothing.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  truncate -s 1G a.img b.img
  ashlar lvm vgcreate vg a.img b.img
  ashlar lvm vgcreate -s 1M --addtag backup vg a.img")]
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

impl Vgcreate {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let name = self.name.strip_prefix("/dev/").unwrap_or(&self.name);
        if !is_valid_name(name) {
            return Err(Error::usage(format_args!(
                "\"{name}\" is no name for a volume group: letters, digits, and . _ + - but no - in front"
            )));
        }
        let archives = Archives::new(self.changing.autobackup)?;
        let disks = with_named(&self.disks.devices, &self.names);
        with(&disks, Access::Write, async |session| {
            let group = self.group(name);
            group.check().map_err(|error| Error::new("Cannot make VG", name, error))?;
            self.check(session, name)?;
            let plain: Vec<String> =
                self.names.iter().filter(|name| session.pv(name).is_none()).cloned().collect();
            // Nothing is written if copies cannot be archived.
            archives.before(None)?;
            pv::make(session, &plain, &self.layout.layout(), None).await?;
            if !plain.is_empty() {
                session.look().await;
            }
            let draft = self.draft(session, group)?;
            session.commit(draft, &[], &archives).await
        })?;
        output::tell(&format!("  Volume group \"{name}\" successfully created\n"))?;
        Ok(ExitCode::SUCCESS)
    }

    /// Checks everything before the first write.
    fn check(&self, session: &Session, name: &str) -> Result<()> {
        let refuse = |text: String| Err(Error::failed(text));
        if session.found.groups.iter().any(|group| group.metadata.group.name == name) {
            return refuse(format!("A volume group called {name} already exists."));
        }
        let most = self.maxphysicalvolumes as usize;
        if most != 0 && self.names.len() > most {
            return refuse(format!("{} physical volumes are more than {most}", self.names.len()));
        }
        let mut areas = 0;
        for (at, pv) in self.names.iter().enumerate() {
            let place = pv::find(session, pv)?;
            let same = |other: &String| {
                session.place(other).is_some_and(|other| other.gateway.is_same(&place.gateway))
            };
            if self.names[..at].iter().any(same) {
                return refuse(format!("{pv} is named twice"));
            }
            let Some(index) = session.pv(pv) else {
                pv::refuse_foreign(session, place)?;
                let size = place.gateway.capacity().bytes();
                let label = plan(new_uuid(), size, &self.layout.layout()).map_err(|error| {
                    Error::new("Cannot make a physical volume", &place.path, error)
                })?;
                self.member(pv, &label)?;
                areas += label.metadata_areas.len();
                continue;
            };
            if let Some(group) = session.group_of(index) {
                let group = &group.metadata.group.name;
                return refuse(format!(
                    "Physical volume '{pv}' is already in volume group '{group}'"
                ));
            }
            if !session.found.free.contains(&index) {
                return refuse(format!(
                    "Physical volume '{pv}' is a copy, or marked as used by a group that is not here"
                ));
            }
            if let Some(Pv { on_disk, .. }) = session.pvs.get(index) {
                self.member(pv, &on_disk.label)?;
                areas += on_disk.areas.iter().filter(|area| area.state.is_ok()).count();
            }
        }
        if areas == 0 {
            return refuse("None of the physical volumes has a metadata area".to_owned());
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

    /// The group's entry for the physical volume of that name and label.
    fn member(&self, name: &str, label: &PvLabel) -> Result<PhysicalVolume> {
        let member = PhysicalVolume::of_label(label, self.extent_size());
        member.filter(|member| member.pe_count > 0).ok_or_else(|| {
            let size = long(self.extent_size());
            let text = format!("{name} has no room for an extent of {size}, or for too many");
            Error::failed(text).hint("choose another -s")
        })
    }

    fn draft(&self, session: &Session, mut group: VolumeGroup) -> Result<Draft> {
        let mut members = Vec::new();
        for name in &self.names {
            let index = session.pv(name);
            let Some((index, pv)) = index.and_then(|i| Some((i, session.pvs.get(i)?))) else {
                return Err(Error::failed(format_args!("{name} cannot be read back")));
            };
            let mut member = self.member(name, &pv.on_disk.label)?;
            // A hint for LVM, which does not know image files.
            member.device = Some(pv.path.clone()).filter(|path| path.starts_with("/dev/"));
            group.pvs.push(member);
            members.push(index);
        }
        Ok(Draft::of_new(group, members))
    }
}
