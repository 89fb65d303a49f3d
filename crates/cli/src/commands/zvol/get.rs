//! `ashlar zvol get`.

use std::process::ExitCode;

use ashlar_commands::pools::{ImportMode, only_pool_of};
use ashlar_daemon::error::Result;
use ashlar_view::zfs_text::dataset_value;
use ashlar_zfs::protocol::Dataset;
use clap::Args;

use crate::commands::zpool::form::invalid_property;
use crate::commands::zpool::place::PoolArgs;
use crate::commands::zpool::property_table::{Layout, Row};
use crate::output;

/// Show properties of volumes and snapshots
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar zvol get all tank/vol
  ashlar zvol get -H -p -o value volsize,used tank/vol
  ashlar zvol get -r compressratio tank")]
pub(crate) struct Get {
    #[command(flatten)]
    layout: Layout,

    /// Also of everything below
    #[arg(short = 'r')]
    recursive: bool,

    /// Only values from there, separated by commas: local, default, inherited, received, temporary or
    /// none
    #[arg(
        short = 's',
        value_name = "SOURCE",
        value_delimiter = ',',
        conflicts_with = "json",
        value_parser = ["local", "default", "inherited", "received", "temporary", "none"]
    )]
    sources: Vec<String>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// Properties, separated by commas, or all
    #[arg(value_name = "PROPERTY", value_delimiter = ',', num_args = 1, required = true)]
    properties: Vec<String>,

    /// Volumes, snapshots, or their parents
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,

    #[command(flatten)]
    place: PoolArgs,
}

impl Get {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let only = only_pool_of(&self.names);
        let mut datasets = self.place.with(only, ImportMode::READ, |session| {
            let mut all: Vec<Dataset> = Vec::new();
            for name in &self.names {
                let mut found = session.datasets(name)?;
                found.retain(|dataset| self.recursive || dataset.name == *name);
                all.extend(found);
            }
            Ok(all)
        })?;
        let wants_all = self.properties.iter().any(|name| name == "all");
        if !wants_all {
            for name in self.properties.iter().filter(|name| !name.contains(':')) {
                if !datasets.iter().any(|dataset| dataset.properties.contains_key(name)) {
                    return Err(invalid_property(name));
                }
            }
        }
        if self.json {
            for dataset in &mut datasets {
                dataset.properties.retain(|name, _| wants_all || self.properties.contains(name));
            }
            return output::print_json(&datasets).map(|()| ExitCode::SUCCESS);
        }
        let mut rows = Vec::new();
        for dataset in &datasets {
            let names: Vec<&String> = match wants_all {
                true => dataset.properties.keys().collect(),
                false => self.properties.iter().collect(),
            };
            rows.extend(names.into_iter().map(|name| {
                let found = dataset.properties.get(name);
                let (value, source) =
                    found.map_or(("-", "-"), |found| (&found.value, &found.source));
                Row { name: &dataset.name, property: name, value, source }
            }));
        }
        // "inherited from tank" is inherited; what has no source has a dash.
        let kind = |row: &Row<'_>| match row.source.split(' ').next() {
            Some("-") | None => "none".to_owned(),
            Some(source) => source.to_owned(),
        };
        rows.retain(|row| self.sources.is_empty() || self.sources.contains(&kind(row)));
        output::print(&self.layout.table(&rows, dataset_value))?;
        Ok(ExitCode::SUCCESS)
    }
}
