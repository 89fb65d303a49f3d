//! `ashlar zpool list`.

use std::process::ExitCode;

use ashlar_commands::pools::ImportMode;
use ashlar_daemon::error::Result;
use ashlar_view::zfs_text::{POOL_NAMES, pool_value};
use ashlar_zfs::protocol::PoolStatus;
use clap::Args;

use super::form::{Form, columns, invalid_property};
use super::place::PoolArgs;
use crate::output;

/// Show pools, a line each
///
/// With --devices the pools are imported read-only for this command; OpenZFS does not count what is
/// allocated then: ALLOC is 0.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar zpool list
  ashlar zpool list -H -p -o name,size,free tank
  ashlar zpool list -d a.img,b.img")]
pub(crate) struct List {
    #[command(flatten)]
    form: Form,

    /// Properties, separated by commas [default: name, size, alloc, free, ckpoint, expandsz, frag, cap, dedup, health, altroot]
    #[arg(
        short = 'o',
        value_name = "PROPERTY",
        value_delimiter = ',',
        hide_default_value = true,
        default_value = "name,size,alloc,free,ckpoint,expandsz,frag,cap,dedup,health,altroot"
    )]
    columns: Vec<String>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// Pools, or their disks [default: all]
    #[arg(value_name = "POOL")]
    names: Vec<String>,

    #[command(flatten)]
    place: PoolArgs,
}

impl List {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let (place, names) = self.place.with_named(self.names);
        let only = if let [name] = &names[..] { Some(name.as_str()) } else { None };
        let pools = place.with(only, ImportMode::READ, |session| session.statuses(&names))?;
        if self.json {
            return output::print_json(&pools).map(|()| ExitCode::SUCCESS);
        }
        if pools.is_empty() && !self.form.for_programs {
            output::print("no pools available\n")?;
            return Ok(ExitCode::SUCCESS);
        }
        let value = |pool: &PoolStatus, column: &String| {
            let name = POOL_NAMES.full(column);
            let found = pool.properties.get(name).ok_or_else(|| invalid_property(column))?;
            Ok(if self.form.exact { found.value.clone() } else { pool_value(name, &found.value) })
        };
        let rows = pools.iter().map(|pool| self.columns.iter().map(|c| value(pool, c)).collect());
        let rows: Vec<Vec<String>> = rows.collect::<Result<_>>()?;
        output::print(&self.form.table(&columns(&self.columns, &POOL_NAMES), &rows))?;
        Ok(ExitCode::SUCCESS)
    }
}
