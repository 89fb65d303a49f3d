//! `ashlar zpool get`.

use std::collections::BTreeMap;
use std::process::ExitCode;

use ashlar_commands::pools::ImportMode;
use ashlar_daemon::error::Result;
use ashlar_view::zfs_text::{is_pool_property, pool_properties, pool_value};
use ashlar_zfs::protocol::Property;
use clap::{ArgAction, Args};
use serde::Serialize;

use super::form::invalid_property;
use super::place::PoolArgs;
use super::property_table::{Layout, Row};
use crate::output;

/// Show properties and features of pools
///
/// With --devices the pool is imported read-only for this command: its `readonly` is on, and as in any
/// pool that is imported so, OpenZFS does not count what is allocated.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar zpool get all tank
  ashlar zpool get -H -p -o value size,alloc tank
  ashlar zpool get feature@lz4_compress
  ashlar zpool get autotrim,comment -d a.img,b.img")]
pub(crate) struct Get {
    #[command(flatten)]
    layout: Layout,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// Properties, separated by commas, or all
    #[arg(
        value_name = "PROPERTY",
        value_delimiter = ',',
        action = ArgAction::Set,
        num_args = 1,
        required = true
    )]
    properties: Vec<String>,

    /// Pools, or their disks [default: all]
    #[arg(value_name = "POOL")]
    names: Vec<String>,

    #[command(flatten)]
    place: PoolArgs,
}

/// A pool with the requested properties, as JSON.
#[derive(Serialize)]
struct PoolProperties<'a> {
    name: &'a str,
    properties: BTreeMap<&'a str, Property>,
}

impl Get {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let (place, names) = self.place.with_named(self.names);
        let only = if let [name] = &names[..] { Some(name.as_str()) } else { None };
        let pools = place.with(only, ImportMode::READ, |session| session.statuses(&names))?;
        let wanted = if self.properties == ["all"] { None } else { Some(&self.properties[..]) };
        let mut names = wanted.unwrap_or_default().iter();
        if let Some(unknown) = names.find(|name| !is_pool_property(&pools, name)) {
            return Err(invalid_property(unknown));
        }
        let shown: Vec<_> =
            pools.iter().map(|pool| (pool, pool_properties(pool, wanted))).collect();
        if self.json {
            let json = shown.iter().map(|(pool, properties)| PoolProperties {
                name: &pool.name,
                properties: properties.iter().cloned().collect(),
            });
            return output::print_json(&json.collect::<Vec<_>>()).map(|()| ExitCode::SUCCESS);
        }
        let rows = shown.iter().flat_map(|(pool, properties)| {
            properties.iter().map(|(property, Property { value, source })| Row {
                name: &pool.name,
                property,
                value,
                source,
            })
        });
        let rows: Vec<Row<'_>> = rows.collect();
        output::print(&self.layout.table(&rows, pool_value))?;
        Ok(ExitCode::SUCCESS)
    }
}
