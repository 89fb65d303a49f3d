//! `ashlar md`: arrays, with mdadm's verbs and option names.

pub(crate) mod action;
mod alert;
pub(crate) mod assemble;
pub(crate) mod build;
pub(crate) mod create;
pub(crate) mod detail;
pub(crate) mod erase;
pub(crate) mod examine;
pub(crate) mod grow;
pub(crate) mod incremental;
pub(crate) mod manage;
pub(crate) mod members;
pub(crate) mod monitor;
pub(crate) mod query;
pub(crate) mod spelling;
pub(crate) mod state;
pub(crate) mod stop;
pub(crate) mod suspect;

pub(crate) use ashlar_commands::md::ServedArrayName as ArrayName;
use clap::Subcommand;

use crate::commands::verbs::verbs;

verbs! {
    /// Create, examine, assemble and change md arrays
    ///
    /// The verbs and options are mdadm's, and may be spelled as mdadm's as well: --detail, -D, -Es, /dev/md0 --fail
    /// DISK. incremental, add, re-add, fail, remove, replace, grow, action, wait, suspect, monitor, readonly, readwrite and stop talk
    /// to the daemon that serves the array.
    #[derive(Subcommand, Debug)]
    #[command(after_help = "\
Exit codes are mdadm's: 0 done, 1 failed, 2 wrong usage.

Examples:
  ashlar md create --level=1 --raid-devices=2 a.img b.img
  ashlar md examine a.img
  ashlar md detail a.img b.img
  ashlar md assemble a.img b.img
  ashlar md fail md0 a.img
  ashlar md add md0 c.img
  ashlar md action md0 check")]
    pub(crate) enum Md {
        Create(create::Create),
        Examine(examine::Examine),
        Detail(detail::DetailCommand),
        Query(query::Query),
        Assemble(Box<assemble::Assemble>),
        Incremental(incremental::Incremental),
        Add(members::Add),
        ReAdd(members::ReAdd),
        #[command(alias = "set-faulty")]
        Fail(members::Fail),
        Remove(members::Remove),
        Replace(members::Replace),
        Grow(grow::GrowCommand),
        Action(action::Action),
        Wait(action::Wait),
        Suspect(suspect::Suspect),
        Monitor(monitor::MonitorCommand),
        #[command(name = "readonly")]
        ReadOnly(state::ReadOnly),
        #[command(name = "readwrite")]
        ReadWrite(state::ReadWrite),
        Stop(stop::Stop),
        ZeroSuperblock(erase::ZeroSuperblock),
        #[command(hide = true)]
        Build(build::Build),
        #[command(hide = true)]
        Manage(manage::Manage),
    }
}

impl Md {
    pub(crate) fn is_daemon(&self) -> bool {
        matches!(self, Self::Assemble(command) if command.serves())
    }
}
