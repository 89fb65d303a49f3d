//! `ashlar md`: arrays, with mdadm's verbs and option names.

pub(crate) mod assemble;
pub(crate) mod create;
pub(crate) mod detail;
pub(crate) mod examine;

use std::process::ExitCode;

use clap::Subcommand;

use crate::error::Result;

/// Make, look at and assemble md arrays
///
/// The verbs and options are mdadm's.
#[derive(Subcommand, Debug)]
#[command(after_help = "\
Exit codes are mdadm's: 0 done, 1 failed, 2 wrong usage.

Examples:
  ashlar md create --level=1 --raid-devices=2 a.img b.img
  ashlar md examine a.img
  ashlar md detail a.img b.img
  ashlar md assemble a.img b.img")]
pub(crate) enum Md {
    Create(create::Create),
    Examine(examine::Examine),
    Detail(detail::DetailCommand),
    Assemble(Box<assemble::Assemble>),
}

impl Md {
    pub(crate) fn is_daemon(&self) -> bool {
        match self {
            Self::Assemble(command) => command.serves(),
            Self::Create(_) | Self::Examine(_) | Self::Detail(_) => false,
        }
    }

    pub(crate) fn run(self) -> Result<ExitCode> {
        match self {
            Self::Create(command) => command.run(),
            Self::Examine(command) => command.run(),
            Self::Detail(command) => command.run(),
            Self::Assemble(command) => command.run(),
        }
    }
}
