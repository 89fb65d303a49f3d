//! `ashlar zpool`: pools of ZFS, with zpool's verbs, options and output.
//!
//! A command works on a pool that a running daemon serves, or on the disks it is given: these are locked, and the pool
//! is imported in a separate process and exported at the end ([`ashlar_commands::pools`]).

mod create;
mod destroy;
mod devices;
mod export;
pub(crate) mod form;
mod get;
mod import;
mod list;
pub(crate) mod place;
pub(crate) mod property_table;
mod scrub;
mod set;
mod status;

use clap::Subcommand;

use crate::commands::verbs::verbs;

verbs! {
    /// Make, show, check and change ZFS pools
    ///
    /// The verbs, options and output are zpool's. ZFS itself is OpenZFS's library libzpool, which must be installed. The pool is one that a
    /// running daemon serves; with --devices it is imported from these disks, and exported when the command ends.
    #[derive(Subcommand, Debug)]
    #[command(after_help = "\
Examples:
  ashlar zpool create tank mirror a.img b.img
  ashlar zpool import -d a.img,b.img
  ashlar serve a.img b.img --mount /mnt/volumes
  ashlar zpool status tank
  ashlar zpool get all tank
  ashlar zpool scrub -w tank")]
    pub(crate) enum Zpool {
        Create(create::Create),
        Import(import::Import),
        Export(export::Export),
        Destroy(destroy::Destroy),
        #[command(name = "labelclear")]
        LabelClear(destroy::LabelClear),
        List(list::List),
        Get(get::Get),
        Set(set::Set),
        Status(status::Status),
        Scrub(scrub::Scrub),
        Clear(devices::Clear),
        Add(devices::Add),
        Attach(devices::Attach),
        Replace(devices::Replace),
        Detach(devices::Detach),
        Offline(devices::Offline),
        Online(devices::Online),
    }
}
