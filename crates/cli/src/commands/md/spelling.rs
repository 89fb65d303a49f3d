//! Translates mdadm's mode options, `--detail`, `-D`, `-Es`, into our subcommands, `detail`, `examine -s`.
//!
//! In mdadm the first option sets the mode, and only options about the output may precede it. A device before any
//! option is an array whose members should be changed.

use std::ffi::OsString;

use ashlar_stack::names::parse_array_name;
use clap::Subcommand;

use super::Md;

/// The options that set a mode: their long forms, the letter, and our equivalent.
const MODES: &[(&[&str], Option<char>, &[&str])] = &[
    (&["assemble"], Some('A'), &["assemble"]),
    (&["build"], Some('B'), &["build"]),
    (&["create"], Some('C'), &["create"]),
    (&["detail"], Some('D'), &["detail"]),
    (&["examine"], Some('E'), &["examine"]),
    (&["examine-badblocks"], None, &["examine", "--badblocks"]),
    (&["examine-bitmap"], Some('X'), &["examine", "--bitmap"]),
    (&["grow"], Some('G'), &["grow"]),
    (&["incremental"], Some('I'), &["incremental"]),
    (&["manage"], None, &["manage"]),
    (&["monitor", "follow"], Some('F'), &["monitor"]),
    (&["query"], Some('Q'), &["query"]),
    (&["readonly"], Some('o'), &["readonly"]),
    (&["readwrite"], Some('w'), &["readwrite"]),
    (&["stop"], Some('S'), &["stop"]),
    (&["wait"], Some('W'), &["wait"]),
    (&["zero-superblock", "zero"], None, &["zero-superblock"]),
];

/// Options that change members, and thus set the mode to manage.
const CHANGES: &[&str] = &[
    "--add",
    "-a",
    "--add-spare",
    "--re-add",
    "--fail",
    "-f",
    "--set-faulty",
    "--remove",
    "-r",
    "--replace",
];

/// Options that set a mode, and may stand behind the array.
const AFTER: &[&str] = &["--readonly", "-o", "--readwrite", "-w", "--stop", "-S", "--wait", "-W"];

/// Options that may precede the mode.
const BEFORE: &[&str] = &["-v", "-vv", "--verbose", "-b", "--brief", "-Y", "--export"];

/// The program's arguments, with `md` commands in our syntax.
pub(crate) fn ours(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut args: Vec<OsString> = args.into_iter().collect();
    let is_verbose = |arg: &OsString| arg == "--verbose" || arg == "-v" || arg == "-vv";
    let command = args.iter().skip(1).position(|arg| !is_verbose(arg)).map(|at| at + 1);
    if let Some(at) = command.filter(|at| args[*at] == "md") {
        let words = args.split_off(at + 1);
        args.extend(translate(words));
    }
    args
}

/// The words after `md`.
fn translate(mut words: Vec<OsString>) -> Vec<OsString> {
    words.retain(|word| word != "--misc");
    let is_before = |word: &&OsString| word.to_str().is_some_and(|text| BEFORE.contains(&text));
    let first = words.iter().take_while(is_before).count();
    let Some(mut word) = words.get(first).and_then(|word| word.to_str()).map(str::to_owned) else {
        return words;
    };
    // Before --detail and --examine, mdadm's --query says nothing more.
    let is_look =
        |word: &OsString| ["-D", "--detail", "-E", "--examine"].iter().any(|look| word == look);
    if (word == "-Q" || word == "--query") && words.get(first + 1).is_some_and(is_look) {
        words.remove(first);
        return translate(words);
    }
    if let Some(look @ ("D" | "E")) = word.strip_prefix("-Q") {
        word = format!("-{look}");
    }
    let (before, behind) = (words[..first].to_vec(), words[first + 1..].to_vec());
    let given = |ours: &[&str]| ours.iter().map(OsString::from).chain(before).collect::<Vec<_>>();
    if let Some(name) = word.strip_prefix("--") {
        if let Some((_, _, ours)) = MODES.iter().find(|(long, ..)| long.contains(&name)) {
            return given(ours).into_iter().chain(behind).collect();
        }
        let mut behind = behind.iter().cloned();
        let action = match name.strip_prefix("action=") {
            Some(action) => Some(action.into()),
            None if name == "action" => behind.next(),
            None => None,
        };
        if let Some(action) = action {
            // mdadm --action returns at once; --wait waits.
            let behind = behind.chain([action, "--no-wait".into()]);
            return given(&["action"]).into_iter().chain(behind).collect();
        }
    }
    if CHANGES.contains(&word.as_str()) {
        return manage(words.split_off(first));
    }
    let mut letters = word.chars();
    if let (Some('-'), Some(mode)) = (letters.next(), letters.next())
        && let Some((_, _, ours)) = MODES.iter().find(|(_, letter, _)| *letter == Some(mode))
    {
        let rest = letters.as_str();
        let rest = (!rest.is_empty()).then(|| OsString::from(format!("-{rest}")));
        return given(ours).into_iter().chain(rest).chain(behind).collect();
    }
    let is_array = first == 0 && parse_array_name(&word).is_some() && words.len() > 1;
    if is_array && !Md::has_subcommand(&word) {
        let is_among = |word: &OsString, list: &[&str]| list.iter().any(|option| word == option);
        let changes = words.iter().any(|word| is_among(word, CHANGES));
        if is_among(&words[1], AFTER) && !changes {
            words.swap(0, 1);
            return translate(words);
        }
        words.insert(0, "manage".into());
    }
    words
}

/// A change of members with the array named after its first option.
fn manage(mut words: Vec<OsString>) -> Vec<OsString> {
    let is_option = |word: &OsString| word.to_str().is_some_and(|text| text.starts_with('-'));
    if let Some(at) = words.iter().position(|word| !is_option(word)) {
        let array = words.remove(at);
        words.insert(0, array);
    }
    words.insert(0, "manage".into());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(line: &str) -> String {
        let words = ours(line.split(' ').map(OsString::from));
        let words: Vec<String> =
            words.into_iter().map(|word| word.into_string().unwrap()).collect();
        words.join(" ")
    }

    #[test]
    fn modes_become_commands() {
        for (theirs, expected) in [
            ("ashlar md --detail /dev/md0", "ashlar md detail /dev/md0"),
            ("ashlar md -Dbv md0", "ashlar md detail -bv md0"),
            ("ashlar md -v --detail --brief md0", "ashlar md detail -v --brief md0"),
            ("ashlar -v md -D md0", "ashlar -v md detail md0"),
            ("ashlar md -Es", "ashlar md examine -s"),
            ("ashlar md --brief --examine a", "ashlar md examine --brief a"),
            ("ashlar md -X a", "ashlar md examine --bitmap a"),
            ("ashlar md --examine-badblocks a", "ashlar md examine --badblocks a"),
            ("ashlar md -As", "ashlar md assemble -s"),
            ("ashlar md -C md0 -l1 -n2 a b", "ashlar md create md0 -l1 -n2 a b"),
            ("ashlar md -B md0 a", "ashlar md build md0 a"),
            ("ashlar md --misc --stop md0", "ashlar md stop md0"),
            ("ashlar md -S --scan", "ashlar md stop --scan"),
            ("ashlar md -G md0 -n3", "ashlar md grow md0 -n3"),
            ("ashlar md --follow -1", "ashlar md monitor -1"),
            ("ashlar md -IRs", "ashlar md incremental -Rs"),
            ("ashlar md -Q a md0", "ashlar md query a md0"),
            ("ashlar md --query a", "ashlar md query a"),
            ("ashlar md -Q --detail md0", "ashlar md detail md0"),
            ("ashlar md --query -E a", "ashlar md examine a"),
            ("ashlar md -QD md0", "ashlar md detail md0"),
            ("ashlar md --misc --zero-superblock a b", "ashlar md zero-superblock a b"),
            ("ashlar md --zero-superblock --force a", "ashlar md zero-superblock --force a"),
            ("ashlar md -o /dev/md0", "ashlar md readonly /dev/md0"),
            ("ashlar md --readwrite md0 md1", "ashlar md readwrite md0 md1"),
            ("ashlar md /dev/md0 --readonly", "ashlar md readonly /dev/md0"),
            ("ashlar md md/data -w", "ashlar md readwrite md/data"),
            ("ashlar md /dev/md0 -S", "ashlar md stop /dev/md0"),
            ("ashlar md -W md0", "ashlar md wait md0"),
            ("ashlar md --action=check md0", "ashlar md action md0 check --no-wait"),
            ("ashlar md --action check md0", "ashlar md action md0 check --no-wait"),
        ] {
            assert_eq!(translated(theirs), expected);
        }
    }

    #[test]
    fn changes_of_members_are_managed_wherever_the_array_is_named() {
        for (theirs, expected) in [
            ("ashlar md /dev/md0 --fail a -r a", "ashlar md manage /dev/md0 --fail a -r a"),
            ("ashlar md md/data -a x", "ashlar md manage md/data -a x"),
            ("ashlar md --manage md0 --add x", "ashlar md manage md0 --add x"),
            ("ashlar md --fail md0 a --remove a", "ashlar md manage md0 --fail a --remove a"),
            ("ashlar md -a md0 x", "ashlar md manage md0 -a x"),
            ("ashlar md md0 -w -a x", "ashlar md manage md0 -w -a x"),
        ] {
            assert_eq!(translated(theirs), expected);
        }
    }

    #[test]
    fn our_own_spelling_stays() {
        for line in [
            "ashlar md detail -D md0",
            "ashlar md create -l1 -n1 a",
            "ashlar md",
            "ashlar md --help",
            "ashlar md md0",
            "ashlar lvm -D",
            "ashlar -v md add md0 a",
            "ashlar md -Z",
            "ashlar md -v",
            "ashlar md disk.img --add x",
            "ashlar get md --detail",
        ] {
            assert_eq!(translated(line), line);
        }
    }

    #[test]
    fn every_mode_is_a_command_of_ours() {
        for (_, _, ours) in MODES {
            assert!(Md::has_subcommand(ours[0]), "{ours:?}");
        }
    }
}
