//! `ashlar lvm pvs|vgs|lvs`: reports.

use std::process::ExitCode;
use std::rc::Rc;

use ashlar_lvm::group::{Group, MemberState};
use ashlar_lvm::report::{self, Field, LvRow, PvRow, Row, Style, Units, VgRow};
use clap::Args;

use super::session::{self, Session, with_named};
use super::{Devices, split_name};
use crate::disks::Access;
use crate::error::{Error, Result};
use crate::output;

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
        disks: &[std::path::PathBuf],
        rows: impl AsyncFnOnce(&Session) -> Result<Vec<R>>,
    ) -> Result<ExitCode> {
        if self.options.as_deref() == Some("help") {
            output::print(&help::<R>())?;
            return Ok(ExitCode::SUCCESS);
        }
        let fields = report::select::<R>(self.options.as_deref()).map_err(Error::usage)?;
        let text = session::with(disks, Access::Look, async |session| {
            Ok(self.text(&fields, &rows(session).await?))
        })?;
        output::print(&text)?;
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
    pub(crate) fn run(self) -> Result<ExitCode> {
        let disks = with_named(&self.disks.devices, &self.names);
        self.look.run(&disks, async |session| {
            let mut rows = physical_volumes(session);
            if !self.names.is_empty() {
                let mut wanted = Vec::new();
                for name in &self.names {
                    let pv = session.pv(name).and_then(|index| session.pvs.get(index));
                    let Some(pv) = pv else {
                        let text = format!("Failed to find physical volume \"{name}\"");
                        return Err(Error::failed(text));
                    };
                    wanted.push(&pv.path);
                }
                rows.retain(|row| wanted.contains(&&row.device));
            }
            Ok(rows)
        })
    }
}

impl Vgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        self.look.run(&self.disks.devices, async |session| {
            let groups = groups(session, &self.names)?;
            Ok(groups.into_iter().map(|group| VgRow(Rc::new(group.clone()))).collect())
        })
    }
}

impl Lvs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        self.look.run(&self.disks.devices, async |session| {
            let mut names = Vec::new();
            for name in &self.names {
                let (group, volume) = split_name(name)?;
                let found = &session.group(group)?.metadata.group;
                if let Some(volume) = volume.filter(|volume| found.lv(volume).is_none()) {
                    let text = format!("Failed to find logical volume \"{}/{volume}\"", found.name);
                    return Err(Error::failed(text));
                }
                names.push((found.id, volume));
            }
            let mut rows = Vec::new();
            for group in groups(session, &[])? {
                let id = group.metadata.group.id;
                let asked = |lv: &str| {
                    let is = |(of, volume): &(ashlar_lvm::Uuid, Option<&str>)| {
                        *of == id && volume.is_none_or(|volume| volume == lv)
                    };
                    names.is_empty() || names.iter().any(is)
                };
                rows.extend(self.volumes(session, group, asked));
            }
            Ok(rows)
        })
    }

    /// The volumes of a group, sorted by name.
    fn volumes(
        &self,
        session: &Session,
        group: &Group,
        asked: impl Fn(&str) -> bool,
    ) -> Vec<LvRow> {
        let devices = Rc::new(group.members.iter().map(|m| path(session, m)).collect::<Vec<_>>());
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
        let row = |(index, _)| {
            let (group, devices) = (Rc::clone(&shared), Rc::clone(&devices));
            LvRow { group, index, devices }
        };
        seen.into_iter().map(row).collect()
    }
}

/// The groups of these names, or all if there are none, sorted by name.
fn groups<'a>(session: &'a Session, names: &[String]) -> Result<Vec<&'a Group>> {
    let mut wanted = Vec::new();
    for name in names {
        wanted.push(session.group(name)?.metadata.group.id);
    }
    let mut groups: Vec<&Group> = session.found.groups.iter().collect();
    groups.retain(|group| names.is_empty() || wanted.contains(&group.metadata.group.id));
    groups.sort_by_key(|group| (&group.metadata.group.name, group.metadata.group.id));
    Ok(groups)
}

/// The path of a group's member.
fn path(session: &Session, member: &MemberState) -> String {
    match member {
        MemberState::Present(index) | MemberState::Stale(index) | MemberState::Returned(index) => {
            session.pvs.get(*index).map_or_else(String::new, |pv| pv.path.clone())
        }
        MemberState::Missing => "[unknown]".to_owned(),
    }
}

/// All physical volumes, including those missing from their groups, sorted by path.
fn physical_volumes(session: &Session) -> Vec<PvRow> {
    let mut rows = Vec::new();
    let mut listed = session.found.duplicates.clone();
    for group in &session.found.groups {
        let shared = Rc::new(group.clone());
        for (at, member) in group.members.iter().enumerate() {
            let index = match member {
                MemberState::Present(index)
                | MemberState::Stale(index)
                | MemberState::Returned(index) => Some(*index),
                MemberState::Missing => None,
            };
            listed.extend(index);
            rows.push(PvRow {
                device: path(session, member),
                on_disk: index.and_then(|i| session.pvs.get(i)).map(|pv| pv.on_disk.clone()),
                of: Some((Rc::clone(&shared), at)),
            });
        }
    }
    for (index, pv) in session.pvs.iter().enumerate().filter(|(i, _)| !listed.contains(i)) {
        debug_assert!(session.group_of(index).is_none(), "members were listed");
        let on_disk = Some(pv.on_disk.clone());
        rows.push(PvRow { device: pv.path.clone(), on_disk, of: None });
    }
    rows.sort_by(|a, b| a.device.cmp(&b.device));
    rows
}
