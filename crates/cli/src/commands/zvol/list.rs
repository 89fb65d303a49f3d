//! `ashlar zvol list`.

use std::process::ExitCode;

use ashlar_host::error::Result;
use ashlar_host::pools::{ImportMode, only_pool_of};
use ashlar_stack::zfs_text::{DATASET_NAMES, dataset_value};
use ashlar_zfs::protocol::Dataset;
use clap::Args;

use crate::commands::zpool::form::{Form, columns, invalid_property};
use crate::commands::zpool::place::Where;
use crate::output;

/// Show volumes, a line each
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 done, 1 failed, 2 wrong usage.

Examples:
  ashlar zvol list
  ashlar zvol list -t snapshot tank/vol
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

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// Volumes, or pools and other datasets with volumes [default: all]
    #[arg(value_name = "NAME")]
    names: Vec<String>,

    #[command(flatten)]
    place: Where,
}

/// Properties that are always accepted, although some kinds of datasets lack them.
const ALWAYS: [&str; 6] = ["name", "available", "mountpoint", "volsize", "volblocksize", "origin"];

impl List {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let is_wanted = |dataset: &Dataset| {
            self.kinds.iter().any(|kind| match kind.as_str() {
                "vol" => dataset.kind == "volume",
                "snap" => dataset.kind == "snapshot",
                "fs" => dataset.kind == "filesystem",
                "all" => true,
                kind => dataset.kind == kind,
            })
        };
        let only = only_pool_of(&self.names);
        let datasets = self.place.with(only, ImportMode::READ, |session| {
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
        if self.json {
            output::print_json(&datasets)?;
            return Ok(ExitCode::SUCCESS);
        }
        if datasets.is_empty() {
            output::print(if self.form.for_programs { "" } else { "no datasets available\n" })?;
            return Ok(ExitCode::SUCCESS);
        }
        for column in &self.columns {
            let name = DATASET_NAMES.full(column);
            let has = |dataset: &Dataset| dataset.properties.contains_key(name);
            // A user property may be set on none of them.
            if !ALWAYS.contains(&name) && !name.contains(':') && !datasets.iter().any(has) {
                return Err(invalid_property(column));
            }
        }
        let value = |dataset: &Dataset, column: &String| {
            let name = DATASET_NAMES.full(column);
            if name == "name" {
                return dataset.name.clone();
            }
            let is_volumes = name.starts_with("vol") && dataset.kind == "filesystem";
            let property = dataset.properties.get(name).filter(|_| !is_volumes);
            let Some(property) = property else { return "-".to_owned() };
            if self.form.exact {
                property.value.clone()
            } else {
                dataset_value(name, &property.value)
            }
        };
        let rows: Vec<Vec<String>> = datasets
            .iter()
            .map(|dataset| self.columns.iter().map(|column| value(dataset, column)).collect())
            .collect();
        output::print(&self.form.table(&columns(&self.columns, &DATASET_NAMES), &rows))?;
        Ok(ExitCode::SUCCESS)
    }
}
