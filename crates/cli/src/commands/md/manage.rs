//! `ashlar md manage`: mdadm's syntax for member changes, `--manage MD --fail A --add B`.

use std::path::PathBuf;
use std::process::ExitCode;

use ashlar_client::interface::{self, ManageAction, disk_for_daemon};
use ashlar_daemon::error::{Error, Result};
use ashlar_disks::lending_client;
use clap::Args;

use super::ArrayName;
use super::members::change;

/// Change the members of a running array, with mdadm's options
///
/// --add, --add-spare, --re-add, --fail, --remove, --replace and --with, each with the disks behind it,
/// in the order given; --write-mostly, --readwrite, --failfast, --nofailfast and --force hold for the disks
/// that follow. --control PATH says where the daemon listens.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar md manage /dev/md0 --fail disk1.img --remove failed --add disk4.img")]
pub(crate) struct Manage {
    /// The array: md0, /dev/md0 or /dev/md/NAME
    array: ArrayName,

    /// Options and disks
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

/// What to do with the disks that follow.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Do(ManageAction),
    With,
}

impl Manage {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let (changes, control) = parse(self.array.as_str(), &self.words)?;
        change(&mut lending_client(control.as_deref())?, changes, false)
    }
}

/// The changes, and the control socket.
fn parse(name: &str, words: &[String]) -> Result<(Vec<interface::Manage>, Option<PathBuf>)> {
    let mut changes: Vec<interface::Manage> = Vec::new();
    // Its flags apply to the disks that follow.
    let mut next = interface::Manage { name: name.to_owned(), ..Default::default() };
    let (mut mode, mut control) = (None, None);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--add" | "-a" => mode = Some((Mode::Do(ManageAction::Add), None)),
            "--add-spare" => mode = Some((Mode::Do(ManageAction::Add), Some(true))),
            "--re-add" => mode = Some((Mode::Do(ManageAction::ReAdd), None)),
            "--fail" | "-f" | "--set-faulty" => mode = Some((Mode::Do(ManageAction::Fail), None)),
            "--remove" | "-r" => mode = Some((Mode::Do(ManageAction::Remove), None)),
            "--replace" => mode = Some((Mode::Do(ManageAction::Replace), None)),
            "--with" => mode = Some((Mode::With, None)),
            "--write-mostly" | "-W" => next.write_mostly = Some(true),
            "--readwrite" | "-w" => next.write_mostly = Some(false),
            "--failfast" => next.failfast = Some(true),
            "--nofailfast" => next.failfast = Some(false),
            "--force" => next.force = Some(true),
            "--control" => {
                let path = words.next().ok_or_else(|| Error::usage("--control needs a path"))?;
                control = Some(PathBuf::from(path));
            }
            option if option.starts_with('-') => {
                return Err(Error::usage(format_args!("no such option: {option}")));
            }
            disk => match mode {
                None => {
                    let hint = "say --add, --re-add, --fail, --remove or --replace first";
                    return Err(Error::usage(format_args!("what to do with {disk}?")).hint(hint));
                }
                Some((Mode::Do(action), spare)) => {
                    let disk = disk_for_daemon(disk);
                    changes.push(interface::Manage { action, disk, spare, ..next.clone() });
                }
                Some((Mode::With, _)) => {
                    let waits = |change: &&mut interface::Manage| {
                        change.action == ManageAction::Replace && change.with.is_none()
                    };
                    let replaced = changes.iter_mut().find(waits).ok_or_else(|| {
                        Error::usage(format_args!("no --replace for --with {disk}"))
                    })?;
                    replaced.with = Some(disk_for_daemon(disk));
                }
            },
        }
    }
    Ok((changes, control))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Vec<(ManageAction, String, Option<String>)> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let changes = parse("md0", &words).unwrap().0;
        changes.into_iter().map(|change| (change.action, change.disk, change.with)).collect()
    }

    #[test]
    fn changes_are_made_in_the_order_given() {
        use ManageAction::{Add, Fail, Remove, Replace};
        let plain = |action, disk: &str| (action, disk.to_owned(), None);
        assert_eq!(
            parsed("--fail x1 x2 -r failed -a x3"),
            [plain(Fail, "x1"), plain(Fail, "x2"), plain(Remove, "failed"), plain(Add, "x3")]
        );
        let with = |old: &str, new: &str| (Replace, old.to_owned(), Some(new.to_owned()));
        assert_eq!(
            parsed("--replace x1 x2 x3 --with y1 y2"),
            [with("x1", "y1"), with("x2", "y2"), plain(Replace, "x3")]
        );
    }

    #[test]
    fn flags_hold_for_the_disks_that_follow() {
        let words = ["--add", "x", "--write-mostly", "y", "--readwrite", "z"].map(str::to_owned);
        let flags = parse("md0", &words).unwrap().0.into_iter().map(|change| change.write_mostly);
        assert_eq!(flags.collect::<Vec<_>>(), [None, Some(true), Some(false)]);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for line in ["x", "--with x", "--add x --with y", "--nosuch x", "--add x --control"] {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            assert!(parse("md0", &words).is_err(), "{line}");
        }
    }
}
