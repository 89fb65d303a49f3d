//! `ashlar lvm pvs|vgs|lvs`: reports.

use std::process::ExitCode;

use ashlar_commands::lvm::Groups;
use ashlar_daemon::error::{Error, Result};
use ashlar_lvm::report::display::{Display, Form};
use ashlar_lvm::report::{
    self, Field, FieldError, Item, LVS, Of, PIECES, PVS, Prefixes, PvRow, Report, SEGMENTS,
    Selection, Style, Units, VGS, VgRow,
};
use clap::Args;

use super::spellings::Refused;
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

    /// Show only what meets the conditions
    ///
    /// On its fields, as 'lv_size>1g && lv_name=~"^d"'; help lists fields and operators
    #[arg(short = 'S', long, value_name = "CONDITIONS", overrides_with = "select")]
    select: Option<String>,

    /// Omit the column headings
    #[arg(long)]
    noheadings: bool,

    /// Separator of columns, which then have no fixed width
    #[arg(long, value_name = "TEXT")]
    separator: Option<String>,

    /// Keep columns aligned with --separator
    #[arg(long)]
    aligned: bool,

    /// Unit of sizes: r, h, b, s, k, m, g, t, p or e
    ///
    /// With r and h the largest that fits, r with < if rounded up; in upper case powers of 1000
    #[arg(long, value_name = "UNIT", default_value = "r")]
    units: Units,

    /// Show 1, 0 and -1 for yes, no and unknown
    #[arg(long)]
    binary: bool,

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

    #[command(flatten)]
    ineffective: Ineffective,
}

/// Options of LVM's reports that make no difference here: reports only read, show groups of other hosts, too, with a warning, are
/// printed at once, and there are no volumes of the past.
#[derive(Args, Debug)]
struct Ineffective {
    #[arg(long, hide = true)]
    unbuffered: bool,

    #[arg(long, hide = true)]
    readonly: bool,

    #[arg(long, hide = true)]
    foreign: bool,

    #[arg(long, hide = true)]
    shared: bool,

    #[arg(short = 'P', long, hide = true)]
    partial: bool,

    #[arg(long, hide = true)]
    ignoreskippedcluster: bool,

    #[arg(long, hide = true)]
    trustcache: bool,

    #[arg(short = 'H', long, hide = true)]
    history: bool,

    #[arg(long, hide = true, value_parser = Refused(ONE_REPORT))]
    configreport: Option<String>,

    #[arg(long, hide = true, num_args = 0, default_missing_value = "", value_parser = Refused(ONE_REPORT))]
    logonly: Option<String>,
}

const ONE_REPORT: &str =
    "there is one report at a time here, and none of the log: ask for fields of others with -o";

impl Look {
    /// Prints `rows`, or a list of the available fields.
    fn run<R: Into<Item>>(
        &self,
        report: &Report,
        rows: impl FnOnce() -> Result<Vec<R>>,
    ) -> Result<ExitCode> {
        if self.options.last().is_some_and(|options| options == "help") {
            output::print(&report::help(false))?;
            return Ok(ExitCode::SUCCESS);
        }
        let fields = report.requested(&self.options).map_err(unknown)?;
        let keys = report.sort_keys(self.sort.as_deref().unwrap_or(report.sorted_by));
        let keys = keys.map_err(unknown)?;
        let Some(selection) = self.selection(report)? else { return Ok(ExitCode::SUCCESS) };
        let mut used = selection.fields();
        used.extend(fields.iter().copied().chain(keys.iter().map(|key| key.field)));
        // Fields that do not go together are refused before any disk is read.
        report.rows(Vec::new(), &used).map_err(Error::failed)?;
        let rows = rows()?.into_iter().map(R::into).collect();
        let mut rows = report.rows(rows, &used).map_err(Error::failed)?;
        rows.retain(|row| selection.selects(row));
        report::sort(&mut rows, &keys);
        output::print(&self.text(report, &fields, &rows))?;
        Ok(ExitCode::SUCCESS)
    }

    /// Prints rows in a form other than a table.
    ///
    /// # Errors
    /// Options for tables are given.
    pub(super) fn display<R: Into<Item> + Clone + Display>(
        &self,
        report: &Report,
        form: Form,
        rows: impl FnOnce() -> Result<Vec<R>>,
    ) -> Result<ExitCode> {
        let is_table = !self.options.is_empty()
            || self.sort.is_some()
            || self.separator.is_some()
            || self.reportformat.is_some()
            || matches!(report.of, Of::Segment | Of::Piece)
            || [self.noheadings, self.nameprefixes, self.unquoted, self.rows, self.json]
                .contains(&true);
        if is_table {
            return Err(Error::usage("Incompatible options selected: only tables (-C) take them"));
        }
        let Some(selection) = self.selection(report)? else { return Ok(ExitCode::SUCCESS) };
        let used = selection.fields();
        let mut text = String::new();
        let units = self.units();
        for row in rows()? {
            let items = report.rows(vec![row.clone().into()], &used).map_err(Error::failed)?;
            if items.iter().any(|item| selection.selects(item)) {
                text += &row.display(form, &units);
            }
        }
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }

    /// The conditions on rows; `None` after printing help on selections.
    fn selection(&self, report: &Report) -> Result<Option<Selection<Item>>> {
        let text = self.select.as_deref().unwrap_or_default();
        if text == "help" {
            output::print(&format!("{}\n{}", report::help(true), report::SELECTION_HELP))?;
            return Ok(None);
        }
        let selection = report.selection(text).map_err(|error| {
            Error::failed(error).hint("--select help lists fields and operators")
        })?;
        Ok(Some(selection))
    }

    fn units(&self) -> Units {
        let mut units = self.units;
        units.suffix = !self.nosuffix;
        units.binary = self.binary;
        units
    }

    fn text(&self, report: &Report, fields: &[&'static Field<Item>], rows: &[Item]) -> String {
        let units = self.units();
        if self.json || self.reportformat.as_deref() == Some("json") {
            return report::json(report.name, fields, rows, &units);
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
            &Style { headings, separator, aligned: self.aligned, prefixes, rows: self.rows },
        )
    }
}

/// Prints all fields, as LVM does after an unknown one.
fn unknown(error: FieldError) -> Error {
    output::to_stderr(&report::help(false));
    Error::failed(error)
}

const NO_OTHERS: &str =
    "ashlar lvm lists physical volumes only; ashlar scan DISK... says what is on other disks";

/// Show physical volumes
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar lvm pvs a.img b.img
  ashlar lvm pvs --devices a.img,b.img -o +pv_used,pv_uuid --units m
  ashlar lvm pvs --devices a.img,b.img --segments -o +lv_name")]
pub(crate) struct Pvs {
    #[command(flatten)]
    pub(super) disks: Devices,

    #[command(flatten)]
    pub(super) look: Look,

    /// Show a row for each run of extents
    ///
    /// That a volume uses, or none
    #[arg(long)]
    pub(super) segments: bool,

    #[arg(short, long, hide = true, num_args = 0, default_missing_value = "", value_parser = Refused(NO_OTHERS))]
    all: Option<String>,

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

    /// Show a row for each segment
    #[arg(long)]
    pub(super) segments: bool,

    /// Volumes to show, or groups whose volumes to show [default: all]
    #[arg(value_name = "VG[/LV]")]
    pub(super) names: Vec<String>,
}

impl Pvs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        self.look.run(self.report(), || self.rows())
    }

    pub(super) fn report(&self) -> &'static Report {
        if self.segments { &PIECES } else { &PVS }
    }

    pub(super) fn rows(&self) -> Result<Vec<PvRow>> {
        groups::read_with(&self.disks, &self.names)?.pvs(&self.names)
    }
}

impl Vgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        self.look.run(&VGS, || self.rows())
    }

    pub(super) fn rows(&self) -> Result<Vec<VgRow>> {
        groups::read(&self.disks, &self.disks.devices)?.vgs(&self.names)
    }
}

impl Lvs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        self.look.run(self.report(), || self.groups()?.lvs(&self.names, self.all))
    }

    pub(super) fn report(&self) -> &'static Report {
        if self.segments { &SEGMENTS } else { &LVS }
    }

    pub(super) fn groups(&self) -> Result<Groups> {
        groups::read(&self.disks, &self.disks.devices)
    }
}
