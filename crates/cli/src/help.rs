//! The texts of help, made from the one tree of commands: `-h` on a screen, `--help` in full, and the manual pages.
//!
//! The text of an option is written once, in full. `-h` shows as many of its clauses as fit on the option's line; where even the first
//! does not fit, the text has two paragraphs, of which the first is the short one.

use std::collections::BTreeMap;

use clap::{Arg, Command};

/// The heading of the options that all commands have, or all of a family.
pub(crate) const GLOBAL: &str = "Global options";

/// Columns of a terminal on which `-h` has a line for each option.
const WIDTH: usize = 80;
/// Blanks before a name, and between it and its text.
const BLANKS: usize = 4;

/// How the paragraph of exit codes begins.
pub(crate) const EXIT_CODES: &str = "Exit codes";

/// Arranges the help of all commands of `root`.
pub(crate) fn arranged(mut root: Command) -> Command {
    root.build();
    command(root, None)
}

/// Arranges the help of a command and of those below it; `above` are the exit codes of the one above it.
fn command(command: Command, above: Option<&str>) -> Command {
    let typed = name(&command).to_owned();
    let page = typed.replace(' ', "-");
    let paragraphs = paragraphs(&command, above.unwrap_or_default());
    let codes = paragraphs.iter().find(|it| it.starts_with(EXIT_CODES)).cloned();
    let command = command
        .mut_args(|arg| match arg.get_id().as_str() {
            "help" => arg
                .help_heading(GLOBAL)
                .help("Print a summary")
                .long_help("Print this text; -h prints a summary"),
            "version" => arg.help_heading(GLOBAL).hide_short_help(above.is_some()),
            _ => arg,
        })
        .after_help(format!("Full help: {typed} --help, man {page}"))
        .after_long_help(paragraphs.join("\n\n"));
    let mut longest = BTreeMap::new();
    for arg in
        command.get_arguments().filter(|arg| !arg.is_hide_set() && !arg.is_hide_short_help_set())
    {
        // A long option leaves room for a short one.
        let width =
            arg.to_string().chars().count() + if arg.get_long().is_some() { BLANKS } else { 0 };
        let longest = longest.entry(heading(arg).to_owned()).or_insert(0);
        *longest = width.max(*longest);
    }
    let inner = command.get_subcommands().filter(|inner| !inner.is_hide_set());
    let longest_name = inner.map(|inner| inner.get_name().len()).max().unwrap_or_default();
    command
        .mut_args(|arg| {
            let longest = longest.get(heading(&arg)).copied().unwrap_or_default();
            argument(arg, WIDTH.saturating_sub(longest + BLANKS))
        })
        .mut_subcommands(|inner| {
            // Its help is the parser's, and says less than -h.
            if inner.get_name() == "help" {
                return inner.hide(true);
            }
            let about = inner.get_about().map(ToString::to_string).unwrap_or_default();
            let long = inner.get_long_about().map_or(about.clone(), ToString::to_string);
            let aliases: usize =
                inner.get_visible_aliases().map(|it| " [alias: ]".len() + it.len()).sum();
            let short =
                clause(&about, WIDTH.saturating_sub(longest_name + BLANKS + aliases)).to_owned();
            self::command(inner.about(short).long_about(long), codes.as_deref())
        })
}

/// The words of a command: `ashlar md create`.
pub(crate) fn name(command: &Command) -> &str {
    command.get_bin_name().unwrap_or_else(|| command.get_name())
}

fn heading(arg: &Arg) -> &str {
    let other = if arg.is_positional() { "Arguments" } else { "Options" };
    arg.get_help_heading().unwrap_or(other)
}

/// Gives an argument its two texts; the short one has at most `room` columns.
fn argument(arg: Arg, room: usize) -> Arg {
    let Some(short) = arg.get_help().map(ToString::to_string) else { return arg };
    let mut long = arg.get_long_help().map_or(short.clone(), ToString::to_string);
    let aliases = arg.get_visible_aliases().unwrap_or_default();
    let room = room.saturating_sub(aliases.iter().map(|it| " [alias: --]".len() + it.len()).sum());
    let takes_values = arg.get_num_args().is_some_and(|count| count.takes_values());
    if takes_values {
        let defaults: Vec<_> =
            arg.get_default_values().iter().map(|it| it.to_string_lossy()).collect();
        if !defaults.is_empty() && !arg.is_hide_default_value_set() {
            long += &format!(" [default: {}]", defaults.join(","));
        }
        let values = arg.get_possible_values();
        let values: Vec<_> =
            values.iter().filter(|it| !it.is_hide_set()).map(|it| it.get_name()).collect();
        let placeholder = arg.get_value_names().unwrap_or_default().join(" ");
        if !values.iter().all(|value| names(&long, value) || names(&placeholder, value)) {
            long += &format!(" [possible values: {}]", values.join(", "));
        }
    }
    // A text of one paragraph is the short one as well.
    let whole = if arg.get_long_help().is_some() { &short } else { &long };
    let short = clause(whole, room).to_owned();
    arg.help(short).long_help(long).hide_default_value(true).hide_possible_values(true)
}

/// Whether `text` has the word `value`.
fn names(text: &str, value: &str) -> bool {
    text.split(|c: char| !c.is_alphanumeric() && c != '-').any(|word| word == value)
}

/// The longest beginning of `text` that has at most `room` columns and ends with a sentence or a clause; the whole text if no clause fits.
fn clause(text: &str, room: usize) -> &str {
    let fits = |text: &&str| {
        let is_closed = [('(', ')'), ('[', ']')]
            .iter()
            .all(|(open, close)| text.matches(*open).count() == text.matches(*close).count());
        is_closed && text.chars().count() <= room
    };
    if fits(&text) {
        return text;
    }
    let before = |marks: &[&str]| {
        let ends = marks.iter().flat_map(|mark| text.match_indices(mark));
        ends.map(|(at, _)| &text[..at]).filter(fits).max_by_key(|text| text.len())
    };
    before(&["; ", ". ", ": ", " (", " ["]).or_else(|| before(&[", "])).unwrap_or(text)
}

/// The paragraphs behind the options, with the exit codes of the command above unless it has its own.
fn paragraphs(command: &Command, above: &str) -> Vec<String> {
    let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let mut all: Vec<_> = text.split("\n\n").filter(|it| !it.is_empty()).map(joined).collect();
    if !all.iter().any(|it| it.starts_with(EXIT_CODES)) {
        all.insert(0, above.to_owned());
    }
    all
}

/// A paragraph as one line, which is broken where it is shown; indented lines are kept.
fn joined(paragraph: &str) -> String {
    let (mut text, mut is_indented) = (String::new(), false);
    for line in paragraph.lines() {
        let mark = if is_indented || line.starts_with(' ') { '\n' } else { ' ' };
        text.extend((!text.is_empty()).then_some(mark));
        text += line;
        is_indented = line.starts_with(' ');
    }
    text
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;

    /// Lines of a terminal, for the help of a command with few options; and of the help of all others.
    const SCREEN: usize = 24;
    const LONG: usize = 50;
    /// The commands with many options, or many commands below them.
    const MANY: &[&str] = &[
        "ashlar",
        "ashlar btrfs get",
        "ashlar btrfs restore",
        "ashlar btrfs scrub resume",
        "ashlar btrfs scrub start",
        "ashlar btrfs subvolume list",
        "ashlar lvm",
        "ashlar lvm lvcreate",
        "ashlar lvm lvdisplay",
        "ashlar lvm lvs",
        "ashlar lvm pvdisplay",
        "ashlar lvm pvs",
        "ashlar lvm vgcreate",
        "ashlar lvm vgdisplay",
        "ashlar lvm vgs",
        "ashlar md",
        "ashlar md assemble",
        "ashlar md create",
        "ashlar serve",
        "ashlar zpool",
    ];

    /// All commands that users see, with their help as on a terminal of `width` columns.
    fn all(width: usize) -> Vec<Command> {
        fn below(command: &Command, all: &mut Vec<Command>) {
            all.push(command.clone());
            let shown =
                command.get_subcommands().filter(|it| !it.is_hide_set() && it.get_name() != "help");
            shown.for_each(|inner| below(inner, all));
        }
        let mut found = Vec::new();
        below(&arranged(Cli::command().term_width(width)), &mut found);
        assert!(found.len() > 100);
        found
    }

    #[test]
    fn short_help_fits_on_a_screen() {
        let mut wrong = Vec::new();
        for mut command in all(WIDTH) {
            let help = command.render_help().to_string();
            let name = name(&command);
            let lines = help.lines().count();
            let limit = if MANY.contains(&name) { LONG } else { SCREEN };
            if lines > limit {
                wrong.push(format!("{name}: {lines} lines"));
            }
            if MANY.contains(&name) && lines <= SCREEN {
                wrong.push(format!("{name} fits on a screen"));
            }
            let wide = help.lines().filter(|line| line.chars().count() > WIDTH);
            wrong.extend(wide.map(|line| format!("{name}: wide: {line}")));
            for arg in command
                .get_arguments()
                .filter(|arg| !arg.is_hide_set() && !arg.is_hide_short_help_set())
            {
                let text = arg.get_help().map(ToString::to_string).unwrap_or_default();
                let typed = arg.to_string();
                let is_shown = |line: &str| line.contains(&typed) && line.contains(&text);
                if text.is_empty() || !help.lines().any(is_shown) {
                    wrong.push(format!("{name}: {arg}: not on one line: {text}"));
                }
            }
            if !help.contains(&format!("Full help: {name} --help")) {
                wrong.push(format!("{name} does not name its full help"));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn long_help_has_all_options_and_those_of_all_commands_last() {
        for mut command in all(100) {
            let help = command.render_long_help().to_string();
            let name = name(&command);
            assert!(help.lines().all(|line| line.chars().count() <= 100), "{name}: {help}");
            let (_, global) =
                help.split_once("\nGlobal options:\n").unwrap_or_else(|| panic!("{name}"));
            for arg in command.get_arguments().filter(|arg| arg.is_global_set()) {
                assert!(arg.is_hide_set() || global.contains(&arg.to_string()), "{name}: {arg}");
            }
            let after = command.get_after_long_help().unwrap().to_string();
            let (options, _) = global.split_once(&after[..20]).unwrap();
            assert!(options.lines().all(|line| line.is_empty() || line.starts_with(' ')), "{name}");
            for arg in command.get_arguments() {
                let Some(long) = arg.get_long() else { continue };
                let is_shown = help.lines().map(str::trim_start).any(|line| {
                    line.split([' ', ',', '=', '[', '.'])
                        .any(|word| word.strip_prefix("--") == Some(long))
                        && line.starts_with('-')
                });
                assert_eq!(is_shown, !arg.is_hide_set(), "{name}: {long}");
            }
        }
    }

    /// Options that are known only so that the message can say why ashlar does not take them.
    #[test]
    fn options_that_are_only_refused_are_not_in_the_help() {
        let late = [
            ("ashlar md grow", &["level", "layout", "chunk"][..]),
            ("ashlar btrfs restore", &["superblock", "tree", "find_directory"]),
        ];
        let mut count = 0;
        for command in all(WIDTH) {
            let name = name(&command);
            let late =
                late.iter().find(|(of, _)| *of == name).map_or(&[][..], |(_, options)| *options);
            for arg in command.get_arguments() {
                let long = arg.get_long().into_iter();
                let mut typed = long.flat_map(|long| [format!("--{long}"), format!("--{long}=x")]);
                let is_refused = late.contains(&arg.get_id().as_str())
                    || typed.any(|option| {
                        let words = name.split(' ').chain([&*option]);
                        let refused = Cli::command().try_get_matches_from(words).err();
                        refused.is_some_and(|error| {
                            error.use_stderr() && error.to_string().contains(" is refused: ")
                        })
                    });
                count += usize::from(is_refused);
                assert!(!is_refused || arg.is_hide_set(), "{name}: {arg}");
            }
        }
        assert!(count > 100, "{count}");
    }

    #[test]
    fn a_text_is_cut_behind_a_clause() {
        let text = "Where to log: a file, to which lines are added (one each), or syslog. Lines are counted";
        assert_eq!(clause(text, 100), text);
        assert_eq!(
            clause(text, 70),
            "Where to log: a file, to which lines are added (one each), or syslog"
        );
        assert_eq!(clause(text, 60), "Where to log: a file, to which lines are added");
        assert_eq!(clause(text, 40), "Where to log");
        assert_eq!(clause("Fields to show, separated by commas", 20), "Fields to show");
        assert_eq!(clause("A text without any of them", 10), "A text without any of them");
    }
}
