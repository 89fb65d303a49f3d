//! Words that people type who know other tools: what to type here, or why there is nothing to type.
//!
//! The parser of the command line offers the most similar word, which is often another thing. This table comes first; after it
//! the commands of that name at other places; and only then the parser's own offer, unless that is hidden from users.

mod table;

use std::ffi::OsString;

use ashlar_daemon::error::Error;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory};

use crate::cli::Cli;

/// What to type instead of `word` behind the command `scope` (`btrfs device`; empty for none), or why there is nothing. An option
/// that the scope does not know may be one of the commands above.
pub(crate) fn advice(scope: &str, word: &str) -> Option<&'static str> {
    let of = |scope: &str| {
        let (_, answers) = table::TABLE.iter().find(|(at, _)| *at == scope)?;
        answers.iter().find(|(words, _)| words.contains(&word)).map(|(_, answer)| *answer)
    };
    let mut scope = scope;
    loop {
        match of(scope) {
            Some(answer) => return Some(answer),
            None if word.starts_with('-') && !scope.is_empty() => {
                scope = scope.rsplit_once(' ').map_or("", |(above, _)| above);
            }
            None => return None,
        }
    }
}

/// The error for a word that the parser does not know, if there is a better one than the parser's; otherwise the parser's, without
/// the offer of what is hidden.
pub(crate) fn explained(mut error: clap::Error, args: &[OsString]) -> Result<Error, clap::Error> {
    if let Some(explained) = missing(&error, args) {
        return Ok(explained);
    }
    let (kind, tip, what) = if error.kind() == ErrorKind::InvalidSubcommand {
        (ContextKind::InvalidSubcommand, ContextKind::SuggestedSubcommand, "command")
    } else if error.kind() == ErrorKind::UnknownArgument {
        (ContextKind::InvalidArg, ContextKind::SuggestedArg, "option")
    } else {
        return Err(error);
    };
    let Some(ContextValue::String(word)) = error.get(kind) else { return Err(error) };
    // `--option=value` as well.
    let word = word.split('=').next().unwrap_or_default().to_owned();
    let root = Cli::command();
    let (scope, command) = place(&root, args, &word);
    let hint = match advice(&scope, &word) {
        Some(answer) => Some(answer.to_owned()),
        None if word.starts_with('-') => None,
        None => elsewhere(&root, &scope, command, &word),
    };
    if let Some(hint) = hint {
        let typed = ["ashlar", &scope, &word].map(str::trim).join(" ").replace("  ", " ");
        return Ok(Error::usage(format_args!("no such {what}: {typed}")).hint(hint));
    }
    let offered = match error.get(tip) {
        Some(ContextValue::String(one)) => vec![one.clone()],
        Some(ContextValue::Strings(all)) => all.clone(),
        Some(_) | None => Vec::new(),
    };
    if offered.iter().any(|offer| is_hidden(command, offer)) {
        error.remove(tip);
    }
    Err(error)
}

/// The error for a required argument that is missing, if the table has the reason why there is no other way.
fn missing(error: &clap::Error, args: &[OsString]) -> Option<Error> {
    let missing = error.get(ContextKind::InvalidArg);
    let Some(ContextValue::Strings(missing)) =
        missing.filter(|_| error.kind() == ErrorKind::MissingRequiredArgument)
    else {
        return None;
    };
    let root = Cli::command();
    let (scope, _) = place(&root, args, "");
    let found = missing.iter().find_map(|one| Some((one, advice(&scope, one)?)))?;
    Some(Error::usage(format_args!("{} is missing: ashlar {scope}", found.0)).hint(found.1))
}

/// The command that the words before `word` lead to, and its name without the program's.
fn place<'a>(root: &'a Command, args: &[OsString], word: &str) -> (String, &'a Command) {
    let (mut command, mut scope) = (root, Vec::new());
    for arg in args.iter().skip(1).take_while(|arg| *arg != word && *arg != "--") {
        if let Some(below) = arg.to_str().and_then(|arg| command.find_subcommand(arg)) {
            scope.push(below.get_name());
            command = below;
        }
    }
    (scope.join(" "), command)
}

/// The commands named `word` below `command`, or directly below the program.
fn elsewhere(root: &Command, scope: &str, command: &Command, word: &str) -> Option<String> {
    // LVM's verbs are at one place, and have messages of their own.
    if scope == "lvm" {
        return None;
    }
    let mut found = Vec::new();
    below(command, scope, word, &mut found);
    if found.is_empty() && root.find_subcommand(word).is_some_and(|it| !it.is_hide_set()) {
        found.push(format!("ashlar {word}"));
    }
    if !found.is_empty() {
        return Some(format!("type {}", found.join(" or ")));
    }
    let is_lvms = scope.is_empty() && ["lv", "pv", "vg"].iter().any(|noun| word.starts_with(noun));
    is_lvms.then(|| "LVM's verbs follow ashlar lvm: ashlar lvm --help lists them".to_owned())
}

fn below(command: &Command, scope: &str, word: &str, found: &mut Vec<String>) {
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        let path = format!("{scope} {}", inner.get_name()).trim_start().to_owned();
        if inner.get_name() == word {
            found.push(format!("ashlar {path}"));
        }
        below(inner, &path, word, found);
    }
}

/// Whether an offer of the parser is a command or an option that users do not see.
fn is_hidden(command: &Command, offer: &str) -> bool {
    let mut options = command.get_arguments();
    let long = offer.trim_start_matches("--");
    command.find_subcommand(offer).is_some_and(Command::is_hide_set)
        || options.any(|option| option.get_long() == Some(long) && option.is_hide_set())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command_at<'a>(root: &'a Command, scope: &str) -> &'a Command {
        let mut words = scope.split_whitespace();
        words.try_fold(root, |at, word| at.find_subcommand(word)).unwrap()
    }

    #[test]
    fn no_word_of_the_table_is_known_where_it_is_typed() {
        let root = Cli::command();
        for (scope, answers) in table::TABLE {
            let command = command_at(&root, scope);
            let mut seen = Vec::new();
            for word in answers.iter().flat_map(|(words, _)| *words) {
                assert!(command.find_subcommand(word).is_none(), "{scope} {word}");
                let mut options = command.get_arguments();
                let is_known = options.any(|option| {
                    let long = option.get_long_and_visible_aliases().unwrap_or_default();
                    let short = option.get_short().map(|short| format!("-{short}"));
                    long.iter().any(|long| format!("--{long}") == **word)
                        || short.as_deref() == Some(*word)
                });
                assert!(!is_known, "{scope} {word}");
                assert!(!seen.contains(word), "{scope} {word} twice");
                seen.push(word);
            }
        }
    }

    #[test]
    fn all_commands_and_options_that_are_named_exist() {
        let root = Cli::command();
        let mut count = 0;
        for answer in
            table::TABLE.iter().flat_map(|(_, answers)| *answers).map(|(_, answer)| answer)
        {
            for typed in answer.split("ashlar ").skip(1) {
                let typed = typed.split([',', ';', ':']).next().unwrap();
                let (mut command, mut is_first) = (&root, true);
                for word in typed.split_whitespace() {
                    if let Some(long) = word.strip_prefix("--") {
                        let long = long.split('=').next().unwrap();
                        let mut options = command.get_arguments().chain(root.get_arguments());
                        let is_ours = options.any(|option| option.get_long() == Some(long));
                        assert!(is_ours || long == "version", "{answer}: {long}");
                    } else if let Some(inner) = command.find_subcommand(word) {
                        assert!(!inner.is_hide_set(), "{answer}");
                        (command, is_first) = (inner, false);
                    } else {
                        break;
                    }
                }
                // A sentence about the program itself has a small verb behind its name.
                count += usize::from(!is_first);
            }
        }
        assert!(count > 50, "only {count} commands are named");
    }

    #[test]
    fn options_are_also_those_of_the_commands_above() {
        assert!(advice("md assemble", "--config").is_some());
        assert_eq!(advice("md monitor", "-c"), advice("md", "--config"));
        assert!(advice("md assemble", "check").is_none() && advice("md", "check").is_some());
        assert!(advice("btrfs", "--config").is_none());
    }
}
