//! `ashlar zvol get`.

use std::process::ExitCode;

use ashlar_zfs::protocol::Dataset;
use clap::Args;

use crate::commands::zpool::session::{How, Where, pool_of};
use crate::commands::zpool::values::{Column, shown, table};
use crate::error::{Error, Result};
use crate::output;

/// Show properties of volumes and snapshots
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 done, 1 failed, 2 wrong usage.

Examples:
  ashlar zvol get all tank/vol
  ashlar zvol get -H -p -o value volsize,used tank/vol
  ashlar zvol get -r compressratio tank")]
pub(crate) struct Get {
    /// No headings, and a tab between values
    #[arg(short = 'H')]
    for_programs: bool,

    /// Exact numbers
    #[arg(short = 'p')]
    exact: bool,

    /// Also of everything below
    #[arg(short = 'r')]
    recursive: bool,

    /// Columns, separated by commas: name, property, value, source, or all of these
    #[arg(
        short = 'o',
        value_name = "FIELD",
        value_delimiter = ',',
        default_value = "all",
        value_parser = ["name", "property", "value", "source", "all"]
    )]
    fields: Vec<String>,

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
    place: Where,
}

impl Get {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let only = if let [name] = &self.names[..] { Some(pool_of(name)) } else { None };
        let mut datasets = self.place.with(only, How::READ, |session| {
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
                    return Err(Error::usage(format!(
                        "bad property list: invalid property '{name}'"
                    )));
                }
            }
        }
        if self.json {
            for dataset in &mut datasets {
                dataset.properties.retain(|name, _| wants_all || self.properties.contains(name));
            }
            output::print_json(&datasets)?;
            return Ok(ExitCode::SUCCESS);
        }
        let fields: Vec<&str> = match self.fields.iter().any(|field| field == "all") {
            true => vec!["name", "property", "value", "source"],
            false => self.fields.iter().map(String::as_str).collect(),
        };
        let mut rows = Vec::new();
        for dataset in &datasets {
            let names: Vec<&String> = match wants_all {
                true => dataset.properties.keys().collect(),
                false => self.properties.iter().collect(),
            };
            for name in names {
                let property = dataset.properties.get(name);
                let value = match property {
                    Some(property) if self.exact => property.value.clone(),
                    Some(property) => shown(name, &property.value),
                    None => "-".to_owned(),
                };
                let source = property.map_or("-", |property| &property.source);
                let cell = |field: &&str| match *field {
                    "name" => dataset.name.clone(),
                    "property" => name.clone(),
                    "value" => value.clone(),
                    _ => source.to_owned(),
                };
                rows.push(fields.iter().map(cell).collect::<Vec<String>>());
            }
        }
        let columns: Vec<Column> = fields
            .iter()
            .map(|field| Column { heading: field.to_uppercase(), right: false })
            .collect();
        output::print(&table(&columns, &rows, self.for_programs))?;
        Ok(ExitCode::SUCCESS)
    }
}
