//! `ashlar man`: manual pages, from the same texts as `--help`.

use std::any::TypeId;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ashlar_daemon::config::Config;
use ashlar_daemon::error::{Error, Result};
use ashlar_disks::options::{Bytes, Group, Options};
use clap::{Arg, ArgAction, Args, Command};
use clap_mangen::Man as Page;
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};

use crate::help::{self, EXIT_CODES, GLOBAL};

/// Write the manual pages
///
/// One for each command: ashlar.1, ashlar-serve.1, ashlar-md-create.1 and so on; and ashlar-stack.toml.5 for the configuration
/// of a daemon.
#[derive(Args, Debug)]
pub(crate) struct Man {
    /// Where to: a directory that exists
    directory: PathBuf,
}

/// The page of the configuration.
const STACK: &str = "ashlar-stack.toml";

/// Sections behind the options, in the order of a page, and how the paragraphs of the help that they have begin.
const SECTIONS: &[(&str, &str)] = &[
    ("EXIT STATUS", EXIT_CODES),
    ("ENVIRONMENT", "Environment"),
    ("FILES", ""),
    ("EXAMPLES", "Examples"),
];

/// The files that belong to an option, by the option's name in the code.
const FILES: &[(&str, &str, &str)] = &[
    (
        "config",
        "/etc/ashlar/NAME.toml",
        "What the unit ashlar@NAME.service of the Debian package serves; see ashlar-stack.toml(5).",
    ),
    ("control", "/run/ashlar.sock", "The control socket of root's daemon."),
    (
        "control",
        "$XDG_RUNTIME_DIR/ashlar.sock, /run/user/UID/ashlar.sock, /tmp/ashlar-UID/ashlar.sock",
        "The control socket of another user's daemon: the first of these whose directory exists; the last is made.",
    ),
    (
        "autobackup",
        "/var/lib/ashlar/lvm, $XDG_STATE_HOME/ashlar/lvm, ~/.local/state/ashlar/lvm",
        "Descriptions of volume groups, as root and as another user: archive/ has those before each change, backup/ the current ones.",
    ),
    (
        "status_dir",
        "/var/lib/ashlar/scrub.status.UUID, ~/.local/state/ashlar/scrub.status.UUID",
        "State of the last scrub of a file system, as root and as another user.",
    ),
    (
        "map",
        "IMAGE.map, NAME.map beside NAME.img",
        "The map of GNU ddrescue that belongs to an image.",
    ),
];

/// What the page of the configuration says before its keys.
const DESCRIPTION: &str = r#"A configuration is a file in TOML. It has the options of ashlar serve as keys, with _ for -, and the
disks. Every key may be left out. Relative paths are relative to the file's directory. A key that is
not known here is an error, and the daemon does not start. Options of the command line take
precedence; disks, device models and attributes are added to those of the file.
  disks = ["disk0.img", "disk1.img"]
  mount = "/mnt/volumes"
  read_only = true

  [set]
  "sys/block/md0/queue/nomerges" = 2

  [model]
  "disk0.img" = "hdd"

  [limit]
  "vg/*" = "rbps=100M,wbps=100M"
The table set has the attributes of ashlar-set(1) by their paths. The key model is the name of a
model for all disks, or a table by disk. The table limit has the limits of volumes by their names."#;

/// An example for the page of the configuration.
const EXAMPLE: &str = include_str!("../../../../packaging/examples/vol.toml");

impl Man {
    /// Writes the pages of `cli`.
    pub(crate) fn run(self, cli: Command) -> Result<ExitCode> {
        write_all(cli, &self.directory).map_err(|error| {
            Error::new("cannot write the manual pages", self.directory.display(), error)
        })?;
        Ok(ExitCode::SUCCESS)
    }
}

fn write_all(cli: Command, directory: &Path) -> io::Result<()> {
    let root = help::arranged(cli.disable_help_subcommand(true));
    write(&root, None, directory)?;
    if let Some(serve) = root.find_subcommand("serve") {
        std::fs::write(directory.join(format!("{STACK}.5")), stack(serve).render())?;
    }
    Ok(())
}

/// Writes the page of `command` and those of the commands below it.
fn write(command: &Command, above: Option<&Command>, directory: &Path) -> io::Result<()> {
    std::fs::write(directory.join(format!("{}.1", name(command))), page(command, above)?)?;
    shown(command).try_for_each(|inner| write(inner, Some(command), directory))
}

/// The name of a page: `ashlar-md-create`.
fn name(command: &Command) -> String {
    help::name(command).replace(' ', "-")
}

/// The commands below `command` that have pages.
fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|inner| !inner.is_hide_set())
}

fn page(command: &Command, above: Option<&Command>) -> io::Result<String> {
    let version = command.get_version().unwrap_or_default();
    let page = Page::new(command.clone()).source(format!("ashlar {version}")).manual("ashlar");
    let text = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
    let (sections, more): (Vec<&str>, Vec<&str>) = text.split("\n\n").partition(|paragraph| {
        SECTIONS.iter().any(|(_, start)| !start.is_empty() && paragraph.starts_with(start))
    });
    let mut out = Vec::new();
    page.render_title(&mut out)?;
    plain().to_writer(&mut out)?;
    page.render_name_section(&mut out)?;
    synopsis(command).to_writer(&mut out)?;
    page.render_description_section(&mut out)?;
    let mut roff = Roff::new();
    for paragraph in more {
        roff.control("PP", []);
        lines(&mut roff, paragraph);
    }
    roff.to_writer(&mut out)?;
    page.render_options_section(&mut out)?;
    if shown(command).next().is_some() {
        page.render_subcommands_section(&mut out)?;
    }
    let mut roff = Roff::new();
    for (heading, start) in SECTIONS {
        let text = sections.iter().find(|it| !start.is_empty() && it.starts_with(start));
        let files: Vec<_> = FILES.iter().filter(|(option, ..)| has(command, option)).collect();
        match text {
            Some(text) => {
                roff.control("SH", [*heading]);
                let text =
                    text.strip_prefix(start).and_then(|it| it.strip_prefix(':')).unwrap_or(text);
                lines(&mut roff, text.strip_prefix('\n').unwrap_or(text.trim_start()));
            }
            None if *heading == "FILES" && !files.is_empty() => {
                roff.control("SH", [*heading]);
                for (_, path, what) in files {
                    roff.control("TP", []).text([italic(*path)]).text([roman(*what)]);
                }
            }
            None => {}
        }
    }
    see_also(&mut roff, related(command, above));
    roff.to_writer(&mut out)?;
    // Each part begins with the definition of an apostrophe: once is enough.
    let preamble = Roff::new().render();
    let text = String::from_utf8_lossy(&out).replace(&preamble, "");
    Ok(preamble + &text)
}

/// Lines that end where words do: options and paths can be copied, and searched for.
fn plain() -> Roff {
    let mut roff = Roff::new();
    roff.control("nh", []).control("ad", ["l"]);
    roff
}

/// Whether a command has an option, which for an option of all commands is said on the program's page only.
fn has(command: &Command, option: &str) -> bool {
    let is_root = !name(command).contains('-');
    let mut options = command.get_arguments().filter(|arg| !arg.is_hide_set());
    options.any(|arg| arg.get_id() == option && (is_root || !arg.is_global_set()))
}

/// Text whose indented lines are not filled.
fn lines(roff: &mut Roff, text: &str) {
    let mut is_verbatim = false;
    for line in text.lines() {
        if line.starts_with(' ') != is_verbatim {
            is_verbatim = !is_verbatim;
            if is_verbatim {
                roff.control("EX", []);
            } else {
                end_verbatim(roff);
            }
        }
        roff.text([roman(line)]);
    }
    if is_verbatim {
        end_verbatim(roff);
    }
}

/// Ends verbatim lines, behind which words would be broken again.
fn end_verbatim(roff: &mut Roff) {
    roff.control("EE", []).control("nh", []);
}

/// How a command is typed, each option with its value.
fn synopsis(command: &Command) -> Roff {
    let mut line = vec![bold(help::name(command))];
    let mut add = |is_optional: bool, is_repeated: bool, what: Vec<Inline>| {
        let (open, close) = if is_optional { (" [", "]") } else { (" ", "") };
        line.push(roman(open));
        line.extend(what);
        line.push(roman(format!("{close}{}", if is_repeated { "..." } else { "" })));
    };
    let own = |arg: &&Arg| !arg.is_hide_set() && arg.get_help_heading() != Some(GLOBAL);
    let choices = command.get_groups().filter(|group| group.is_required_set());
    let choices: Vec<_> = choices.map(|group| group.get_args().collect::<Vec<_>>()).collect();
    let in_choice = |arg: &&Arg| choices.iter().flatten().any(|id| *id == arg.get_id());
    for arg in command
        .get_arguments()
        .filter(|arg| !arg.is_positional())
        .filter(own)
        .filter(|arg| !in_choice(arg))
    {
        add(!arg.is_required_set(), is_repeated(arg), typed(arg));
    }
    for choice in &choices {
        let members = command.get_arguments().filter(|arg| choice.contains(&arg.get_id()));
        let members: Vec<_> = members.map(typed).collect();
        let mut what = vec![roman("{")];
        what.extend(members.join(&roman("|")));
        what.push(roman("}"));
        add(false, false, what);
    }
    add(true, false, vec![italic("GLOBAL\u{a0}OPTIONS")]);
    for arg in command.get_positionals().filter(own) {
        add(!arg.is_required_set(), is_repeated(arg), typed(arg));
    }
    if shown(command).next().is_some() {
        add(!command.is_subcommand_required_set(), false, vec![italic("COMMAND")]);
    }
    let mut roff = Roff::new();
    roff.control("SH", ["SYNOPSIS"]).text(line);
    roff
}

fn is_repeated(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Append | ArgAction::Count)
        || arg.get_num_args().is_some_and(|count| count.max_values() > 1)
}

/// An argument as it is typed: `-L SIZE`, on one line.
fn typed(arg: &Arg) -> Vec<Inline> {
    let value = arg.get_value_names().map(|names| names.join(" ").replace(' ', "\u{a0}"));
    let flag = match (arg.get_short(), arg.get_long()) {
        (Some(short), _) => format!("-{short}"),
        (None, Some(long)) => format!("--{long}"),
        (None, None) => return vec![italic(value.unwrap_or_default())],
    };
    let takes_values = arg.get_num_args().is_some_and(|count| count.takes_values());
    let Some(value) = value.filter(|_| takes_values) else { return vec![bold(flag)] };
    let needs_value = arg.get_num_args().is_some_and(|count| count.min_values() > 0);
    match (needs_value, arg.is_require_equals_set()) {
        (true, false) => vec![bold(flag), roman("\u{a0}"), italic(value)],
        (true, true) => vec![bold(flag), roman("="), italic(value)],
        (false, _) => vec![bold(flag), roman("[="), italic(value), roman("]")],
    }
}

/// The pages to read next: of the commands above, below and beside `command`, and of the tool that users know it from.
fn related(command: &Command, above: Option<&Command>) -> Vec<String> {
    let ours = above.into_iter().chain(shown(command)).chain(above.into_iter().flat_map(shown));
    let ours =
        ours.map(name).filter(|other| *other != name(command)).map(|name| format!("{name}(1)"));
    let words = name(command);
    let words: Vec<&str> = words.splitn(3, '-').skip(1).collect();
    let known = match words[..] {
        ["serve"] => format!("{STACK}(5) fusermount3(1) nbd-client(8) systemd.service(5)"),
        ["scan"] => "blkid(8) lsblk(8)".to_owned(),
        ["trace"] => "blkparse(1) blktrace(8) btrace(8) btt(1)".to_owned(),
        ["top"] => "iostat(1)".to_owned(),
        ["md", ..] => "md(4) mdadm(8)".to_owned(),
        ["lvm", verb] => format!("lvm(8) {verb}(8)"),
        ["btrfs", verb] => {
            let known = match verb.split('-').next().unwrap_or_default() {
                "cat" | "get" | "ls" | "restore" => "restore",
                "inspect" => "inspect-internal",
                other => other,
            };
            format!("btrfs(8) btrfs-{known}(8)")
        }
        ["zvol"] => "zfs(8)".to_owned(),
        ["zvol", verb] => format!("zfs(8) zfs-{verb}(8)"),
        ["zpool", verb] => format!("zpool(8) zpool-{verb}(8)"),
        [tool @ ("lvm" | "btrfs" | "zpool")] => format!("{tool}(8)"),
        _ => String::new(),
    };
    ours.chain(known.split_whitespace().map(str::to_owned)).collect()
}

fn see_also(roff: &mut Roff, pages: Vec<String>) {
    if pages.is_empty() {
        return;
    }
    roff.control("SH", ["SEE ALSO"]);
    let pages = pages.iter().map(|page| {
        let (name, section) = page.split_once('(').unwrap_or((page, ""));
        vec![bold(name), roman(format!("({section}"))]
    });
    roff.text(pages.collect::<Vec<_>>().join(&roman(", ")));
}

/// The page of the configuration: the keys that its parser knows, with the texts of the options of the same names.
fn stack(serve: &Command) -> Roff {
    let keys = Config::keys();
    let mut roff = Roff::new();
    let version = format!("ashlar {}", serve.get_version().unwrap_or_default());
    roff.control("TH", [STACK, "5", "", &version, "ashlar"]);
    roff.extend([plain()]);
    roff.control("SH", ["NAME"])
        .text([roman(format!("{STACK} - what a daemon of ashlar serves, and how"))]);
    roff.control("SH", ["SYNOPSIS"]);
    roff.text([bold("ashlar serve --config"), roman(" "), italic("FILE")]);
    roff.control("br", []).text([italic("/etc/ashlar/NAME.toml")]);
    roff.control("SH", ["DESCRIPTION"]);
    lines(&mut roff, DESCRIPTION);
    roff.control("SH", ["KEYS"]);
    for arg in serve.get_arguments().filter(|arg| keys.contains(&arg.get_id().as_str())) {
        let head = [bold(arg.get_id().as_str()), roman(" = "), italic(kind(arg))];
        roff.control("TP", []).text(head);
        let help = arg.get_long_help().map(ToString::to_string).unwrap_or_default();
        for paragraph in help.split("\n\n") {
            roff.text([roman(paragraph)]).control("sp", []);
        }
    }
    roff.control("SH", ["EXIT STATUS"]);
    roff.text([roman(
        "ashlar serve exits with 2 if the file cannot be read or used, and has changed nothing.",
    )]);
    roff.control("SH", ["FILES"]).control("TP", []).text([italic("/etc/ashlar/NAME.toml")]);
    roff.text([roman("What the unit ashlar@NAME.service of the Debian package serves.")]);
    roff.control("SH", ["EXAMPLES"]).control("EX", []);
    for line in EXAMPLE.lines() {
        roff.text([roman(line)]);
    }
    end_verbatim(&mut roff);
    see_also(
        &mut roff,
        vec!["ashlar(1)".to_owned(), "ashlar-serve(1)".to_owned(), "ashlar-set(1)".to_owned()],
    );
    roff
}

/// The kind of a key's value.
fn kind(arg: &Arg) -> &'static str {
    let parser = arg.get_value_parser().type_id();
    match (arg.get_id().as_str(), arg.get_action()) {
        ("set" | "limit", _) => "table",
        ("model", _) => "string or table",
        (_, ArgAction::SetTrue) => "boolean",
        (_, ArgAction::Append) => "array of strings",
        _ if parser == TypeId::of::<Group>() || parser == TypeId::of::<Bytes>() => {
            "string or integer"
        }
        _ if parser == TypeId::of::<u16>() || parser == TypeId::of::<u32>() => "integer",
        _ => "string",
    }
}
