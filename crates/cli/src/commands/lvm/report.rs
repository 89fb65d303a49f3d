//! `ashlar lvm pvs|vgs|lvs`: reports.

use std::process::ExitCode;

use ashlar_host::error::{Error, Result};
use ashlar_host::lvm::Groups;
use ashlar_lvm::report::display::{Display, Form};
use ashlar_lvm::report::{
    self, Field, FieldError, Prefixes, PvRow, Row, Selection, Style, Units, VgRow,
};
use clap::Args;

use super::{Devices, groups};
use crate::output;

/// How a report looks.
#[derive(Args, Debug)]
pub(super) struct Look {
    /// Fields to show, separated by commas; with a leading + in addition to the usual ones, with - without them; help
    /// lists all
    #[arg(short, long, value_name = "[+|-]FIELD,...", allow_hyphen_values = true)]
    options: Vec<String>,

    /// Fields to sort by, separated by commas; with a leading - in descending order
    #[arg(
        short = 'O',
        long,
        value_name = "[-]FIELD,...",
        allow_hyphen_values = true,
        overrides_with = "sort"
    )]
    sort: Option<String>,

    /// Show only what meets the conditions on its fields, as 'lv_size>1g && lv_name=~"^d"'; help lists fields and operators
    #[arg(short = 'S', long, value_name = "CONDITIONS", overrides_with = "select")]
    select: Option<String>,

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

    /// Name the fields beside their values, as in LVM2_PV_NAME='/dev/sda'
    #[arg(long)]
    nameprefixes: bool,

    /// With --nameprefixes: values without quotes
    #[arg(long)]
    unquoted: bool,

    /// Print each field as a line, not as a column
    #[arg(long)]
    rows: bool,

    /// Print JSON, of LVM's structure
    #[arg(long)]
    json: bool,

    /// basic, or json as --json
    #[arg(long, value_name = "FORMAT", value_parser = ["basic", "json"])]
    reportformat: Option<String>,
}

impl Look {
    /// Prints `rows`, or a list of the available fields.
    fn run<R: Row>(&self, rows: impl FnOnce() -> Result<Vec<R>>) -> Result<ExitCode> {
        if self.options.last().is_some_and(|options| options == "help") {
            output::print(&report::help::<R>())?;
            return Ok(ExitCode::SUCCESS);
        }
        let fields = report::requested::<R>(&self.options).map_err(unknown::<R>)?;
        let keys = report::sort_keys(self.sort.as_deref().unwrap_or(R::SORTED_BY));
        let keys = keys.map_err(unknown::<R>)?;
        let Some(mut rows) = self.selected(rows)? else { return Ok(ExitCode::SUCCESS) };
        report::sort(&mut rows, &keys);
        output::print(&self.text(&fields, &rows))?;
        Ok(ExitCode::SUCCESS)
    }

    /// Prints rows in a form that is no table.
    ///
    /// # Errors
    /// Options for tables are given.
    pub(super) fn display<R: Row + Display>(
        &self,
        form: Form,
        rows: impl FnOnce() -> Result<Vec<R>>,
    ) -> Result<ExitCode> {
        let is_table = !self.options.is_empty()
            || self.sort.is_some()
            || self.separator.is_some()
            || self.reportformat.is_some()
            || [self.noheadings, self.nameprefixes, self.unquoted, self.rows, self.json]
                .contains(&true);
        if is_table {
            return Err(Error::usage("Incompatible options selected: only tables (-C) take them"));
        }
        let Some(rows) = self.selected(rows)? else { return Ok(ExitCode::SUCCESS) };
        let units = self.units();
        output::print(&rows.iter().map(|row| row.display(form, &units)).collect::<String>())?;
        Ok(ExitCode::SUCCESS)
    }

    /// The rows that are selected; `None` after printing help on selections.
    fn selected<R: Row>(&self, rows: impl FnOnce() -> Result<Vec<R>>) -> Result<Option<Vec<R>>> {
        let text = self.select.as_deref().unwrap_or_default();
        if text == "help" {
            output::print(&format!("{}\n{}", report::help::<R>(), report::SELECTION_HELP))?;
            return Ok(None);
        }
        let selection = Selection::parse(text).map_err(|error| {
            Error::failed(error).hint("--select help lists fields and operators")
        })?;
        let mut rows = rows()?;
        rows.retain(|row| selection.selects(row));
        Ok(Some(rows))
    }

    fn units(&self) -> Units {
        let mut units = self.units;
        units.suffix = !self.nosuffix;
        units
    }

    fn text<R: Row>(&self, fields: &[&'static Field<R>], rows: &[R]) -> String {
        let units = self.units();
        if self.json || self.reportformat.as_deref() == Some("json") {
            return report::json(fields, rows, &units);
        }
        let prefixes = match (self.nameprefixes, self.unquoted) {
            (false, _) => Prefixes::None,
            (true, false) => Prefixes::Quoted,
            (true, true) => Prefixes::Bare,
        };
        let (headings, separator) = (!self.noheadings, self.separator.clone());
        report::table(
            fields,
            rows,
            &units,
            &Style { headings, separator, prefixes, rows: self.rows },
        )
    }
}

/// Prints all fields, as LVM does after an unknown one.
fn unknown<R: Row>(error: FieldError) -> Error {
    output::to_stderr(&report::help::<R>());
    Error::failed(error)
}

/// Show physical volumes
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar lvm pvs a.img b.img
  ashlar lvm pvs --devices a.img,b.img -o +pv_used,pv_uuid --units m")]
pub(crate) struct Pvs {
    #[command(flatten)]
    pub(super) disks: Devices,

    #[command(flatten)]
    pub(super) look: Look,

    /// Physical volumes to show [default: all]
    #[arg(value_name = "PV")]
    pub(super) names: Vec<String>,
}

/// Show volume groups
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar lvm vgs --devices a.img,b.img
  ashlar lvm vgs --devices a.img,b.img vg -o vg_name,vg_free --units b --json")]
pub(crate) struct Vgs {
    #[command(flatten)]
    pub(super) disks: Devices,

    #[command(flatten)]
    pub(super) look: Look,

    /// Volume groups to show, by name or UUID [default: all]
    #[arg(value_name = "VG")]
    pub(super) names: Vec<String>,
}

/// Show logical volumes
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar lvm lvs --devices a.img,b.img
  ashlar lvm lvs --devices a.img,b.img -a -o +devices,segtype vg/data")]
pub(crate) struct Lvs {
    #[command(flatten)]
    pub(super) disks: Devices,

    #[command(flatten)]
    pub(super) look: Look,

    /// Also show the components of other volumes
    #[arg(short, long)]
    pub(super) all: bool,

    /// Volumes to show, or groups whose volumes to show [default: all]
    #[arg(value_name = "VG[/LV]")]
    pub(super) names: Vec<String>,
}

impl Pvs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        self.look.run(|| self.rows())
    }

    pub(super) fn rows(&self) -> Result<Vec<PvRow>> {
        groups::read_with(&self.disks, &self.names)?.pvs(&self.names)
    }
}

impl Vgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        self.look.run(|| self.rows())
    }

    pub(super) fn rows(&self) -> Result<Vec<VgRow>> {
        groups::read(&self.disks, &self.disks.devices)?.vgs(&self.names)
    }
}

impl Lvs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        self.look.run(|| self.groups()?.lvs(&self.names, self.all))
    }

    pub(super) fn groups(&self) -> Result<Groups> {
        groups::read(&self.disks, &self.disks.devices)
    }
}
