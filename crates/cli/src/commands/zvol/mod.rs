//! `ashlar zvol`: volumes of ZFS pools, with the verbs, options and output of zfs.

mod change;
mod create;
mod get;
mod list;
mod snapshots;

use clap::Subcommand;

use crate::commands::verbs::verbs;

verbs! {
    /// Make, show and change volumes of ZFS pools
    ///
    /// The verbs, options and output are those of zfs. Changes of volumes of a served pool appear at
    /// once below dev/zvol of the daemon's mount; with --devices, the pool is imported from these
    /// disks, and exported when the command ends. File systems (datasets) are not made or mounted: they
    /// need the kernel.
    #[derive(Subcommand, Debug)]
    #[command(after_help = "\
Examples:
  ashlar zvol create -V 10G -o compression=lz4 tank/vol
  ashlar zvol snapshot tank/vol@before
  ashlar zvol list -t all
  ashlar zvol set volsize=20G tank/vol
  ashlar zvol rollback tank/vol@before")]
    pub(crate) enum Zvol {
        Create(create::Create),
        List(list::List),
        Get(get::Get),
        Set(change::Set),
        Inherit(change::Inherit),
        Rename(change::Rename),
        Destroy(change::Destroy),
        #[command(visible_alias = "snap")]
        Snapshot(snapshots::Snapshot),
        Clone(snapshots::Clone),
        Rollback(snapshots::Rollback),
        Promote(snapshots::Promote),
    }
}

/// `PROPERTY=VALUE`.
pub(super) fn property(text: &str) -> Result<(String, String), String> {
    let (name, value) =
        text.split_once('=').ok_or_else(|| format!("`{text}` is not PROPERTY=VALUE"))?;
    Ok((name.to_owned(), value.to_owned()))
}
