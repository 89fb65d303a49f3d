//! `ashlar lvm pvs|vgs|lvs`: reports.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;

use ashlar_host::disks::{self, Access};
use ashlar_host::error::{Error, Result};
use ashlar_host::interface::GroupsReply;
use ashlar_lvm::Metadata;
use ashlar_lvm::group::{Group, MemberState};
use ashlar_lvm::report::{self, Field, LvRow, LvState, PvFacts, PvRow, Row, Style, Units, VgRow};
use ashlar_stack::volume_groups::{ServedGroup, ServedMember, ServedVolume};
use clap::Args;

use super::session::{self, Session, with_named};
use super::{Devices, split_name};
use crate::output;

/// Physical volumes and groups, of the daemon or on disks.
struct Groups {
    /// The paths and labels of the physical volumes; the groups' indices refer to them.
    physical: Vec<(String, PvFacts)>,
    groups: Vec<Group>,
    /// The active volumes of each group.
    volumes: Vec<Vec<ServedVolume>>,
}

impl Groups {
    /// The groups on disks.
    fn on_disks(session: &Session) -> Self {
        let physical = session.pvs.iter().map(|pv| (pv.path.clone(), PvFacts::of(&pv.on_disk)));
        let groups = session.found.groups.clone();
        let volumes = groups.iter().map(|_| Vec::new()).collect();
        Self { physical: physical.collect(), groups, volumes }
    }

    /// The groups of the daemon.
    fn served(reply: GroupsReply) -> Result<Self> {
        let failed = |why: &dyn std::fmt::Display| {
            Error::plain("the daemon's answer was not understood", why)
        };
        let mut physical = Vec::new();
        for pv in reply.physical {
            let uuid = pv.uuid.parse().map_err(|error| failed(&error))?;
            let (size_bytes, is_used, areas) = (pv.size_bytes, pv.is_used, pv.areas);
            physical.push((pv.path, PvFacts { uuid, size_bytes, is_used, areas }));
        }
        let (mut groups, mut volumes) = (Vec::new(), Vec::new());
        for ServedGroup { text, members, volumes: active } in reply.groups {
            let metadata = Metadata::parse(text.as_bytes()).map_err(|error| failed(&error))?;
            let member = |member: &ServedMember| match *member {
                ServedMember::Present(index) => MemberState::Present(index),
                ServedMember::Stale(index) => MemberState::Stale(index),
                ServedMember::Returned(index) => MemberState::Returned(index),
                ServedMember::Missing => MemberState::Missing,
            };
            let members = members.iter().map(member).collect();
            groups.push(Group { metadata: Arc::new(metadata), members, outdated: Vec::new() });
            volumes.push(active);
        }
        Ok(Self { physical, groups, volumes })
    }

    /// The physical volume at a path.
    fn physical(&self, path: &str) -> Option<&str> {
        let wanted = disks::identity(Path::new(path));
        let same = |other: &str| {
            other == path || wanted.is_some() && wanted == disks::identity(Path::new(other))
        };
        self.physical.iter().map(|(path, _)| path.as_str()).find(|path| same(path))
    }

    /// The group of that name or UUID.
    fn group(&self, name: &str) -> Result<&Group> {
        session::only_group(&self.groups, name)
    }

    /// The path of a group's member.
    fn path(&self, member: &MemberState) -> String {
        let found = index_of(member).and_then(|index| self.physical.get(index));
        found.map_or_else(|| "[unknown]".to_owned(), |(path, _)| path.clone())
    }

    /// The groups of these names, or all if there are none, sorted by name.
    fn named(&self, names: &[String]) -> Result<Vec<&Group>> {
        let mut wanted = Vec::new();
        for name in names {
            wanted.push(self.group(name)?.metadata.group.id);
        }
        let mut groups: Vec<&Group> = self.groups.iter().collect();
        groups.retain(|group| names.is_empty() || wanted.contains(&group.metadata.group.id));
        groups.sort_by_key(|group| (&group.metadata.group.name, group.metadata.group.id));
        Ok(groups)
    }

    /// The state of a volume.
    fn state(&self, group: &Group, volume: &str) -> Option<LvState> {
        let id = group.metadata.group.id;
        let at = self.groups.iter().position(|group| group.metadata.group.id == id)?;
        let volume = self.volumes.get(at)?.iter().find(|served| served.name == volume)?;
        Some(LvState { is_open: volume.is_open, status: volume.status.clone() })
    }
}

/// The index of a member that is there.
fn index_of(member: &MemberState) -> Option<usize> {
    match member {
        MemberState::Present(index) | MemberState::Stale(index) | MemberState::Returned(index) => {
            Some(*index)
        }
        MemberState::Missing => None,
    }
}

/// How a report looks.
#[derive(Args, Debug)]
struct Look {
    /// Fields to show, separated by commas; with a leading + in addition to the usual ones; help
    /// lists all
    #[arg(short, long, value_name = "[+]FIELD,...")]
    options: Option<String>,

    /// Omit the column headings
    #[arg(long)]
    noheadings: bool,

    /// Separator of columns, which then have no fixed width
    #[arg(long, value_name = "TEXT")]
    separator: Option<String>,

    /// The unit of sizes: r or h (the largest that fits, with < if rounded up, or without), b, s, k, m, g,
    /// t, p, e; in upper case powers of 1000
    #[arg(long, value_name = "UNIT", default_value = "r")]
    units: Units,

    /// Show no unit behind sizes
    #[arg(long)]
    nosuffix: bool,

    /// Print JSON, of LVM's structure
    #[arg(long)]
    json: bool,

    /// basic, or json as --json
    #[arg(long, value_name = "FORMAT", value_parser = ["basic", "json"])]
    reportformat: Option<String>,
}

impl Look {
    /// Prints `rows`, or a list of the available fields.
    fn run<R: Row>(
        &self,
        from: &Devices,
        disks: &[PathBuf],
        rows: impl FnOnce(&Groups) -> Result<Vec<R>>,
    ) -> Result<ExitCode> {
        if self.options.as_deref() == Some("help") {
            output::print(&help::<R>())?;
            return Ok(ExitCode::SUCCESS);
        }
        let fields = report::select::<R>(self.options.as_deref()).map_err(Error::usage)?;
        let groups = if disks.is_empty() {
            Groups::served(from.connect()?.groups()?)?
        } else {
            session::with(disks, Access::Look, async |session| Ok(Groups::on_disks(session)))?
        };
        output::print(&self.text(&fields, &rows(&groups)?))?;
        Ok(ExitCode::SUCCESS)
    }

    fn text<R: Row>(&self, fields: &[&'static Field<R>], rows: &[R]) -> String {
        let mut units = self.units;
        units.suffix = !self.nosuffix;
        if self.json || self.reportformat.as_deref() == Some("json") {
            return json(fields, rows, &units);
        }
        let style = Style { headings: !self.noheadings, separator: self.separator.clone() };
        report::table(fields, rows, &units, &style)
    }
}

/// The fields of a report.
fn help<R: Row>() -> String {
    let width = R::FIELDS.iter().map(|field| field.name.len()).max().unwrap_or(0);
    let line = |field: &Field<R>| format!("  {:width$} - {}\n", field.name, field.about);
    R::FIELDS.iter().map(line).collect()
}

/// A report in LVM's JSON format: all values are strings, and fields appear in the requested order.
fn json<R: Row>(fields: &[&'static Field<R>], rows: &[R], units: &Units) -> String {
    let row = |row: &R| {
        let pairs = fields.iter().map(|field| {
            let value = serde_json::Value::from((field.get)(row, units));
            format!("\"{}\":{value}", field.name)
        });
        format!("                  {{{}}}", pairs.collect::<Vec<_>>().join(", "))
    };
    let rows: Vec<String> = rows.iter().map(row).collect();
    let name = R::NAME;
    let head = format!("  {{\n      \"report\": [\n          {{\n              \"{name}\": [\n");
    let rows = rows.join(",\n");
    let end = if rows.is_empty() { "" } else { "\n" };
    format!("{head}{rows}{end}              ]\n          }}\n      ]\n  }}\n")
}

/// Show physical volumes
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar lvm pvs a.img b.img
  ashlar lvm pvs --devices a.img,b.img -o +pv_used,pv_uuid --units m")]
pub(crate) struct Pvs {
    #[command(flatten)]
    disks: Devices,

    #[command(flatten)]
    look: Look,

    /// Physical volumes to show [default: all]
    #[arg(value_name = "PV")]
    names: Vec<String>,
}

/// Show volume groups
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar lvm vgs --devices a.img,b.img
  ashlar lvm vgs --devices a.img,b.img vg -o vg_name,vg_free --units b --json")]
pub(crate) struct Vgs {
    #[command(flatten)]
    disks: Devices,

    #[command(flatten)]
    look: Look,

    /// Volume groups to show, by name or UUID [default: all]
    #[arg(value_name = "VG")]
    names: Vec<String>,
}

/// Show logical volumes
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar lvm lvs --devices a.img,b.img
  ashlar lvm lvs --devices a.img,b.img -a -o +devices,segtype vg/data")]
pub(crate) struct Lvs {
    #[command(flatten)]
    disks: Devices,

    #[command(flatten)]
    look: Look,

    /// Also show the components of other volumes
    #[arg(short, long)]
    all: bool,

    /// Volumes to show, or groups whose volumes to show [default: all]
    #[arg(value_name = "VG[/LV]")]
    names: Vec<String>,
}

impl Pvs {
    /// Whether the daemon has one of the named physical volumes.
    fn is_served(&self) -> bool {
        let groups = self.disks.connect().and_then(|mut client| client.groups());
        let groups = groups.and_then(Groups::served);
        let has = |groups: Groups| self.names.iter().any(|name| groups.physical(name).is_some());
        self.names.is_empty() || groups.is_ok_and(has)
    }

    pub(crate) fn run(self) -> Result<ExitCode> {
        // Disks that are named without --devices are looked at themselves, unless the daemon has them.
        let disks = match self.disks.devices.is_empty() && self.is_served() {
            true => Vec::new(),
            false => with_named(&self.disks.devices, &self.names),
        };
        self.look.run(&self.disks, &disks, |groups| {
            let mut rows = physical_volumes(groups);
            if !self.names.is_empty() {
                let mut wanted = Vec::new();
                for name in &self.names {
                    let Some(path) = groups.physical(name) else {
                        let text = format!("Failed to find physical volume \"{name}\"");
                        return Err(Error::failed(text));
                    };
                    wanted.push(path);
                }
                rows.retain(|row| wanted.contains(&row.device.as_str()));
            }
            Ok(rows)
        })
    }
}

impl Vgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        self.look.run(&self.disks, &self.disks.devices, |groups| {
            let groups = groups.named(&self.names)?;
            Ok(groups.into_iter().map(|group| VgRow(Rc::new(group.clone()))).collect())
        })
    }
}

impl Lvs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        self.look.run(&self.disks, &self.disks.devices, |groups| {
            let mut names = Vec::new();
            for name in &self.names {
                let (group, volume) = split_name(name)?;
                let found = &groups.group(group)?.metadata.group;
                if let Some(volume) = volume.filter(|volume| found.lv(volume).is_none()) {
                    let text = format!("Failed to find logical volume \"{}/{volume}\"", found.name);
                    return Err(Error::failed(text));
                }
                names.push((found.id, volume));
            }
            let mut rows = Vec::new();
            for group in groups.named(&[])? {
                let id = group.metadata.group.id;
                let asked = |lv: &str| {
                    let is = |(of, volume): &(ashlar_lvm::Uuid, Option<&str>)| {
                        *of == id && volume.is_none_or(|volume| volume == lv)
                    };
                    names.is_empty() || names.iter().any(is)
                };
                rows.extend(self.volumes(groups, group, asked));
            }
            Ok(rows)
        })
    }

    /// The volumes of a group, sorted by name.
    fn volumes(&self, groups: &Groups, group: &Group, asked: impl Fn(&str) -> bool) -> Vec<LvRow> {
        let devices = Rc::new(group.members.iter().map(|m| groups.path(m)).collect::<Vec<_>>());
        let shared = Rc::new(group.clone());
        let lvs = &group.metadata.group.lvs;
        let mut seen: Vec<(usize, bool)> =
            group.metadata.group.visible().into_iter().enumerate().collect();
        // Volumes that only tie a snapshot to its origin are not shown.
        let ties: Vec<&str> =
            group.metadata.group.snapshots().map(|found| &*found.lv.name).collect();
        seen.retain(|(index, visible)| {
            let name = &*lvs[*index].name;
            (*visible || self.all) && !ties.contains(&name) && asked(name)
        });
        seen.sort_by_key(|(index, _)| &lvs[*index].name);
        let row = |(index, _): (usize, bool)| {
            let state = groups.state(group, &lvs[index].name);
            let (group, devices) = (Rc::clone(&shared), Rc::clone(&devices));
            LvRow { group, index, devices, state }
        };
        seen.into_iter().map(row).collect()
    }
}

/// All physical volumes, including those missing from their groups, sorted by path.
fn physical_volumes(groups: &Groups) -> Vec<PvRow> {
    let mut rows = Vec::new();
    let mut listed = Vec::new();
    for group in &groups.groups {
        let shared = Rc::new(group.clone());
        for (at, member) in group.members.iter().enumerate() {
            let index = index_of(member);
            listed.extend(index);
            let label = index.and_then(|index| groups.physical.get(index));
            let label = label.map(|(_, label)| label.clone());
            let (device, of) = (groups.path(member), Some((Rc::clone(&shared), at)));
            rows.push(PvRow { device, label, of });
        }
    }
    // The copy of another one is not shown.
    let mut known: Vec<_> = rows.iter().filter_map(|row| Some(row.label.as_ref()?.uuid)).collect();
    for (index, (path, label)) in groups.physical.iter().enumerate() {
        if !listed.contains(&index) && !known.contains(&label.uuid) {
            known.push(label.uuid);
            rows.push(PvRow { device: path.clone(), label: Some(label.clone()), of: None });
        }
    }
    rows.sort_by(|a, b| a.device.cmp(&b.device));
    rows
}
