//! A message that names an option must name one of the command that prints it.
//!
//! The sources are searched for texts with `--option` in them. The file of a text determines which commands can print
//! it: a command's own file, or a file shared by several commands, which are listed here. A text may name the option's
//! command (`ashlar md grow --bitmap adds one`, `pvcreate --force`). The libraries do not know which command uses them,
//! so they must always name it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::support::ashlar;

/// The rooms whose messages name the options of the program.
const ROOMS: [&str; 5] =
    ["daemon/src", "commands/src", "disks/src", "client/src", "export/src/nbd"];

/// Files and folders of `crates/cli/src`, or of [`ROOMS`], whose texts several commands print, or a command of another
/// name; the longest matching prefix counts. A command stands for its subcommands, too.
const SHARED: &[(&str, &[&str])] = &[
    ("daemon/src/confinement.rs", &["serve", "md assemble"]),
    ("export/src/nbd", &["serve", "md assemble"]),
    ("daemon/src/service.rs", &["md add", "md incremental", "lvm vgextend"]),
    ("cli.rs", &["status", "zpool list"]),
    ("help.rs", &["status"]),
    ("commands/btrfs/inspect.rs", &["btrfs inspect super"]),
    ("commands/btrfs/resolve.rs", &["btrfs inspect inode-resolve"]),
    ("commands/btrfs/scrub/start.rs", &["btrfs scrub start", "btrfs scrub resume"]),
    ("commands/lvm/activation.rs", &["lvm lvchange", "lvm vgchange"]),
    ("commands/lvm/check.rs", &["lvm vgck"]),
    ("commands/lvm/display.rs", &["lvm pvdisplay"]),
    ("commands/lvm/pv.rs", &["lvm pvcreate"]),
    ("commands/lvm/regrouping.rs", &["lvm vgsplit", "lvm vgmerge"]),
    ("commands/lvm/spellings.rs", &["lvm vgs", "lvm pvs", "lvm lvs"]),
    ("commands/lvm/vgcfg.rs", &["lvm vgcfgrestore"]),
    ("commands/lvm/report.rs", &["lvm pvs", "lvm vgs", "lvm lvs", "lvm vgdisplay"]),
    ("commands/md/alert.rs", &["md monitor"]),
    ("commands/md/create.rs", &["md create"]),
    ("commands/md/erase.rs", &["md zero-superblock"]),
    ("commands/serve.rs", &["serve"]),
    ("commands/zpool/place.rs", &["zpool list", "zpool scrub", "zvol list", "zvol create"]),
    // A test beside it looks for what it names.
    ("words/table.rs", &[]),
    ("daemon/src/absent.rs", &["serve", "md assemble"]),
    ("client/src/access.rs", &["serve", "md assemble"]),
    ("commands/src/acceptance.rs", &["serve"]),
    ("commands/src/btrfs/scrub", &["btrfs scrub start"]),
    ("commands/src/btrfs", &["btrfs ls", "btrfs get", "btrfs restore", "btrfs scrub start"]),
    (
        "client/src/client.rs",
        &["status", "get", "set", "stop", "trace", "md add", "md wait", "zpool list", "zvol list"],
    ),
    ("client/src/control_path.rs", &["serve", "md assemble", "status", "zpool list"]),
    ("daemon/src/serve.rs", &["serve", "md assemble"]),
    ("disks/src/maps.rs", &["scan", "serve", "md examine", "btrfs get", "lvm lvs"]),
    ("daemon/src/groups.rs", &["lvm lvreduce"]),
    // Comments of the interface.
    ("client/src/interface", &[]),
    ("daemon/src/jobs.rs", &["lvm pvmove"]),
    ("commands/src/lvm/archive.rs", &["lvm vgcreate", "lvm lvcreate"]),
    ("commands/src/lvm/session.rs", &["lvm lvs", "lvm vgs", "lvm lvcreate", "lvm lvremove"]),
    ("commands/src/md/assemble.rs", &["md assemble"]),
    ("commands/src/md/erase.rs", &["md zero-superblock"]),
    ("commands/src/md/create.rs", &["md create"]),
    ("daemon/src/manage.rs", &["md add", "md manage"]),
    ("daemon/src/front_ends", &["serve", "md assemble"]),
    ("disks/src/sandbox.rs", &["scan", "md examine", "md detail", "btrfs get", "lvm lvs"]),
    ("commands/src/trace", &["trace"]),
    ("commands/src/pools", &["zpool list", "zpool scrub", "zvol list", "zvol create"]),
    (
        "commands/src/pools/create.rs",
        &["zpool create", "zpool add", "zpool attach", "zpool replace"],
    ),
    ("commands/src/pools/labels.rs", &["zpool labelclear"]),
];

/// Other programs whose options messages recommend.
const FOREIGN: &[&str] =
    &["vgextend", "LVM's lvconvert", "LVM's vgchange", "mdadm", "mdadm --assemble"];

/// A text, and where it is.
struct Text {
    file: PathBuf,
    line: usize,
    text: String,
}

/// The string literals of a source file, without those of tests, attributes and comments.
fn literals(file: &Path, source: &str) -> Vec<Text> {
    let mut all = Vec::new();
    let mut is_error = false;
    for (index, line) in source.lines().enumerate() {
        if line.starts_with("#[cfg(test)]") {
            break;
        }
        let code = line.trim_start();
        // Of attributes, only error texts are messages.
        is_error |= code.starts_with("#[error(");
        if code.starts_with("//") || (code.starts_with("#[") && !is_error) {
            continue;
        }
        is_error &= !code.ends_with(")]");
        let texts = code.split('"').enumerate().filter(|(n, _)| n % 2 == 1).map(|(_, text)| text);
        // Single words are arguments of other programs, or used in comparisons.
        let mut text = texts.filter(|text| text.contains(' ')).collect::<Vec<_>>().join(" ");
        // A continuation line of a text.
        if !code.contains('"') || code.find('"') == code.rfind('"') {
            text = code.to_owned();
        }
        if text.contains("--") {
            all.push(Text { file: file.to_owned(), line: index + 1, text });
        }
    }
    all
}

fn sources(dir: &Path, all: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            // Tests, also those of the daemon on the simulator.
            if path.file_name().is_some_and(|name| name != "tests" && name != "simulation") {
                sources(&path, all);
            }
        } else if path.extension().is_some_and(|it| it == "rs") {
            all.push(path);
        }
    }
}

/// The options in a text: `--` and a word.
fn options(text: &str) -> Vec<(usize, &str)> {
    let is_word = |c: char| c.is_ascii_lowercase() || c == '-';
    let starts = text.match_indices("--").map(|(at, _)| at);
    // Not the second dash of `---`, nor dashes inside a word.
    let starts = starts.filter(|at| *at == 0 || !text[..*at].ends_with(is_word));
    let option = |at: usize| {
        let end = text[at..].find(|c| !is_word(c)).map_or(text.len(), |len| at + len);
        (at, text[at..end].trim_end_matches('-'))
    };
    starts.map(option).filter(|(_, option)| option.len() > 3).collect()
}

/// All commands, from the names of their manual pages, without `ashlar`.
fn commands() -> BTreeSet<String> {
    let pages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/man");
    let name = |entry: std::io::Result<fs::DirEntry>| {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let name = name.strip_prefix("ashlar-")?.strip_suffix(".1")?.to_owned();
        // A dash is a blank or a dash: try what may be, one of them is a command.
        let first = |count| name.replacen('-', " ", count);
        Some([name.replace('-', " "), first(1), first(2), name.clone()])
    };
    // The command without a page.
    let hidden = ["md manage".to_owned()];
    fs::read_dir(pages).unwrap().filter_map(name).flatten().chain(hidden).collect()
}

/// The command named before an option in a text: `ashlar md grow --bitmap`, `pvcreate --force`.
fn named(text: &str, at: usize, commands: &BTreeSet<String>) -> Option<String> {
    let words: Vec<&str> = text[..at].split_whitespace().collect();
    if let Some(ours) = words.iter().rposition(|word| word.ends_with("ashlar")) {
        let behind = &words[ours + 1..];
        let names = (1..=behind.len()).rev().map(|len| behind[..len].join(" "));
        let names = names.map(|name| name.trim_end_matches([',', ';', ':', '`']).to_owned());
        return names.into_iter().find(|name| commands.contains(name));
    }
    let last = words.last()?.trim_start_matches('(');
    Some(format!("lvm {last}")).filter(|name| commands.contains(name))
}

/// The options in a command's help.
fn help(command: &str, known: &mut BTreeMap<String, BTreeSet<String>>) -> BTreeSet<String> {
    let found = known.entry(command.to_owned()).or_insert_with(|| {
        let words: Vec<&str> = command.split(' ').chain(["--help"]).collect();
        let run = ashlar(&words).ok();
        let text = run.out.split("Examples:").next().unwrap_or_default().to_owned();
        options(&text).into_iter().map(|(_, option)| option.to_owned()).collect()
    });
    found.clone()
}

/// The commands that print the texts of a file of `crates/cli/src`, or of [`ROOMS`].
fn printers(file: &str) -> Vec<String> {
    let shared = SHARED.iter().filter(|(prefix, _)| file.starts_with(prefix));
    if let Some((_, commands)) = shared.max_by_key(|(prefix, _)| prefix.len()) {
        return commands.iter().map(|&command| command.to_owned()).collect();
    }
    let own =
        file.strip_prefix("commands/").unwrap_or_else(|| panic!("which commands print {file}?"));
    let own = own.strip_suffix(".rs").unwrap_or(own);
    vec![own.trim_end_matches("/mod").replace('/', " ").replace('_', "-")]
}

#[test]
fn every_option_that_a_message_names_is_one_of_the_command_that_prints_it() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = Vec::new();
    for entry in fs::read_dir(&crates).unwrap() {
        let source = entry.unwrap().path().join("src");
        if source.is_dir() {
            sources(&source, &mut files);
        }
    }
    let commands = commands();
    let (mut known, mut wrong, mut count) = (BTreeMap::new(), Vec::new(), 0);
    for file in files {
        let relative = file.strip_prefix(&crates).unwrap().to_owned();
        for Text { file, line, text } in literals(&relative, &fs::read_to_string(&file).unwrap()) {
            let ours = match file.strip_prefix("cli/src") {
                Ok(file) => file.to_str(),
                Err(_) if ROOMS.iter().any(|room| file.starts_with(room)) => file.to_str(),
                Err(_) => None,
            };
            for (at, option) in options(&text) {
                if FOREIGN.iter().any(|other| text[..at].trim_end().ends_with(other)) {
                    continue;
                }
                let printers = match (named(&text, at, &commands), ours) {
                    (Some(command), _) => vec![command],
                    (None, Some(file)) => printers(file),
                    (None, None) => {
                        wrong
                            .push(format!("{}:{line}: {option} of which command?", file.display()));
                        continue;
                    }
                };
                count += 1;
                for command in printers {
                    if !help(&command, &mut known).contains(option) {
                        let file = file.display();
                        wrong
                            .push(format!("{file}:{line}: {option} is not an option of {command}"));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 25, "only {count} options were found: the search is broken");
}

#[test]
fn an_array_that_lacks_members_names_the_option_of_the_command_that_was_typed() {
    let images = super::support::Images::array(2, 8 << 20, &["--level=1", "--assume-clean"]);
    let lacks = ["1 of the 2 members"];
    let served = images.run(&["serve", "--control", "c"], &["d0"]).fails(1, &lacks);
    assert!(served.err.contains("--run") && !served.err.contains("--degraded"), "{served:?}");
    for command in [&["ls", "/"][..], &["get", "/", "out"], &["subvolume", "list"]] {
        let run = images.run(&[&["btrfs"], command].concat(), &["d0"]).fails(1, &lacks);
        assert!(run.err.contains("--degraded") && !run.err.contains("--run"), "{run:?}");
    }
}

#[test]
fn the_alert_rules_name_commands_and_options_that_exist() {
    let rules =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/prometheus/ashlar.rules.yml");
    // Their lines are folded.
    let text = fs::read_to_string(rules).unwrap();
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let (commands, mut known, mut count) = (commands(), BTreeMap::new(), 0);
    for (_, behind) in
        text.match_indices("ashlar ").map(|(at, word)| text.split_at(at + word.len()))
    {
        let words: Vec<&str> = behind.split(' ').take(3).collect();
        let names = (1..=words.len()).rev().map(|len| words[..len].join(" "));
        let names = names.map(|name| name.trim_end_matches([',', '.', ':', ';']).to_owned());
        let found = names.into_iter().find(|name| commands.contains(name));
        // A group of commands is not a command.
        let is_command = |name: &str| !["md", "lvm", "zpool", "zvol", "btrfs"].contains(&name);
        assert!(found.as_deref().is_some_and(is_command), "no command: ashlar {}", words.join(" "));
        count += 1;
    }
    assert!(count >= 10, "{text}");
    for (at, option) in options(&text).into_iter().filter(|(_, option)| *option != "--control") {
        let command = named(&text, at, &commands).unwrap();
        assert!(help(&command, &mut known).contains(option), "{option} of {command}");
    }
}
