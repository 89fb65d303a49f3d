//! `ashlar zvol list`.

use std::cmp::Ordering;
use std::process::ExitCode;

use ashlar_commands::pools::{ImportMode, only_pool_of};
use ashlar_daemon::error::Result;
use ashlar_view::zfs_text::{DATASET_NAMES, dataset_cell, has_column, is_kind};
use ashlar_zfs::protocol::Dataset;
use clap::Args;

use crate::commands::zpool::form::{Form, columns, invalid_property};
use crate::commands::zpool::place::PoolArgs;
use crate::output;

/// The order of two values: numbers by their size, others as texts.
fn compare(one: &str, other: &str) -> Ordering {
    match (one.parse::<u64>(), other.parse::<u64>()) {
        (Ok(one), Ok(other)) => one.cmp(&other),
        _ => one.cmp(other),
    }
}

/// Show volumes, a line each
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar zvol list
  ashlar zvol list -t snapshot -s creation tank/vol
  ashlar zvol list -H -p -o name,volsize,compressratio")]
pub(crate) struct List {
    #[command(flatten)]
    form: Form,

    /// Properties, separated by commas
    #[arg(
        short = 'o',
        value_name = "PROPERTY",
        value_delimiter = ',',
        default_value = "name,used,avail,refer,volsize"
    )]
    columns: Vec<String>,

    /// Types to show, separated by commas: volume, snapshot, filesystem or all
    #[arg(
        short = 't',
        value_name = "TYPE",
        value_delimiter = ',',
        default_value = "volume",
        value_parser = ["volume", "vol", "snapshot", "snap", "filesystem", "fs", "all"]
    )]
    kinds: Vec<String>,

    /// Sort by this property, ascending (may be repeated: the first counts most) [default: by name]
    #[arg(short = 's', value_name = "PROPERTY", conflicts_with = "descending")]
    ascending: Vec<String>,

    /// Sort by this property, descending (may be repeated)
    #[arg(short = 'S', value_name = "PROPERTY")]
    descending: Vec<String>,

    /// Taken for zfs's sake: what is below a name is shown anyway
    #[arg(short = 'r', hide = true)]
    recursive: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// Volumes, or pools and other datasets with volumes [default: all]
    #[arg(value_name = "NAME")]
    names: Vec<String>,

    #[command(flatten)]
    place: PoolArgs,
}

impl List {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let is_wanted = |dataset: &Dataset| self.kinds.iter().any(|kind| is_kind(dataset, kind));
        let only = only_pool_of(&self.names);
        let mut datasets = self.place.with(only, ImportMode::READ, |session| {
            let roots = if self.names.is_empty() { session.pools()? } else { self.names.clone() };
            let mut all: Vec<Dataset> = Vec::new();
            for root in roots {
                let found = session.datasets(&root)?;
                // Snapshots that are named are always shown.
                let named = |dataset: &Dataset| {
                    self.names.contains(&dataset.name) && dataset.kind == "snapshot"
                };
                all.extend(
                    found.into_iter().filter(|dataset| is_wanted(dataset) || named(dataset)),
                );
            }
            Ok(all)
        })?;
        let keys = if self.descending.is_empty() { &self.ascending } else { &self.descending };
        for key in keys {
            if !has_column(&datasets, key) {
                return Err(invalid_property(key));
            }
        }
        // Stable sorts, the least key first.
        for key in keys.iter().rev() {
            datasets.sort_by(|one, other| {
                let order = compare(&dataset_cell(one, key, true), &dataset_cell(other, key, true));
                if self.descending.is_empty() { order } else { order.reverse() }
            });
        }
        if self.json {
            return output::print_json(&datasets).map(|()| ExitCode::SUCCESS);
        }
        if datasets.is_empty() {
            output::print(if self.form.for_programs { "" } else { "no datasets available\n" })?;
            return Ok(ExitCode::SUCCESS);
        }
        if let Some(column) = self.columns.iter().find(|column| !has_column(&datasets, column)) {
            return Err(invalid_property(column));
        }
        let cell =
            |dataset: &Dataset, column: &String| dataset_cell(dataset, column, self.form.exact);
        let row = |dataset| self.columns.iter().map(|column| cell(dataset, column)).collect();
        let rows: Vec<Vec<String>> = datasets.iter().map(row).collect();
        output::print(&self.form.table(&columns(&self.columns, &DATASET_NAMES), &rows))?;
        Ok(ExitCode::SUCCESS)
    }
}
