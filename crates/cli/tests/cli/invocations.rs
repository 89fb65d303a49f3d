//! The table of what people type who know mdadm, LVM, btrfs-progs and ZFS: `invocations.txt`, which says how it is read.

use std::fmt::Write;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::support::{Daemon, Run, program, run};
use super::zvol::has_libzpool;

const TABLE: &str = include_str!("invocations.txt");

/// How many rows there are at least, and how many of a hundred ashlar knows.
const ROWS: usize = 80;
const KNOWN_PERCENT: usize = 90;

/// What a row says of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    Known,
    /// Known, and compared with the tool.
    Same,
    Lacks,
    Refused,
}

/// A command line, and the exit code and output that it must have.
#[derive(Debug)]
struct Row {
    line: &'static str,
    verdict: Verdict,
    code: i32,
    /// Parts of the output.
    texts: Vec<&'static str>,
}

/// A step of a section.
#[derive(Debug)]
enum Step {
    /// `$ COMMAND`.
    Shell(&'static str),
    /// `+ ARGUMENTS`.
    Appended(&'static str),
    Row(Row),
}

/// The steps of the sections whose titles begin with `subject`, by section.
fn sections(subject: &str) -> Vec<Vec<Step>> {
    let sections = TABLE.split("\n== ").skip(1);
    let wanted = sections.filter(|section| section.starts_with(subject));
    wanted.map(|section| steps(section.lines().skip(1))).collect()
}

fn steps(lines: impl Iterator<Item = &'static str>) -> Vec<Step> {
    let mut steps = Vec::new();
    for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(command) = line.strip_prefix("$ ") {
            steps.push(Step::Shell(command));
        } else if let Some(arguments) = line.strip_prefix('+') {
            steps.push(Step::Appended(arguments));
        } else if let Some(expected) = line.strip_prefix("    ") {
            let Some(Step::Row(row)) = steps.last_mut() else { panic!("no line above {line:?}") };
            row.expect(expected);
        } else {
            let texts = Vec::new();
            steps.push(Step::Row(Row { line, verdict: Verdict::Known, code: -1, texts }));
        }
    }
    steps
}

impl Row {
    /// Takes what is below the line: `VERDICT CODE [TEXT]`, then a text on each line.
    fn expect(&mut self, expected: &'static str) {
        if self.code >= 0 {
            self.texts.push(expected);
            return;
        }
        let mut words = expected.splitn(3, ' ');
        self.verdict = match words.next() {
            Some("known") => Verdict::Known,
            Some("same") => Verdict::Same,
            Some("lacks") => Verdict::Lacks,
            Some("refused") => Verdict::Refused,
            other => panic!("{}: the verdict {other:?}", self.line),
        };
        self.code = words.next().and_then(|code| code.parse().ok()).expect(self.line);
        self.texts.extend(words.next());
    }

    /// What is typed for it with ashlar.
    fn ours(&self) -> Vec<&'static str> {
        let mut words: Vec<&str> = self.line.split(' ').collect();
        match words[0] {
            "mdadm" => words[0] = "md",
            "btrfs" | "zpool" | "zfs" => {}
            _ => words.insert(0, "lvm"),
        }
        words
    }

    /// What is wrong with a run.
    fn faults(&self, run: &Run) -> String {
        let mut faults = String::new();
        let output = format!("{}{}", run.out, run.err);
        if run.code != Some(self.code) {
            faults += &format!("exit code {:?}, not {}; ", run.code, self.code);
        }
        for text in self.texts.iter().filter(|text| !output.contains(**text)) {
            faults += &format!("no {text:?}; ");
        }
        faults
    }

    /// What is wrong with the reason of a refusal: a message of ours has words, and a hint or a sentence.
    fn faults_of_reason(&self, run: &Run) -> &'static str {
        let is_bare = ["unexpected argument", "unrecognized subcommand", "required arguments"]
            .iter()
            .any(|bare| run.err.contains(bare));
        let is_sentence = run.err.lines().any(|line| line.split_whitespace().count() >= 5);
        match () {
            () if self.code == 0 => "a refusal ends with 0; ",
            () if is_bare => "only the parser's message; ",
            () if self.texts.is_empty() || !is_sentence => "no reason; ",
            () => "",
        }
    }
}

/// A place where the rows of a section run, one after the other.
struct Place {
    daemon: Option<Daemon>,
    dir: TempDir,
    appended: Vec<&'static str>,
}

impl Place {
    /// A directory with the program in `bin`, for the shell.
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        fs::create_dir(dir.path().join("bin")).unwrap();
        symlink(program().get_program(), dir.path().join("bin/ashlar")).unwrap();
        Self { daemon: None, dir, appended: Vec::new() }
    }

    /// A command here: no archives of groups elsewhere, and system programs of an ordinary user's, too.
    fn command(&self, mut command: Command) -> Command {
        let path = std::env::var("PATH").unwrap_or_default();
        let own = self.dir.path().join("bin");
        command.env("PATH", format!("{}:{path}:/usr/sbin:/sbin", own.display()));
        command.env("XDG_STATE_HOME", self.dir.path().join("state"));
        command.current_dir(self.dir.path()).stdin(Stdio::null());
        command
    }

    fn shell(&mut self, line: &str) {
        if let Some(arguments) = line.strip_prefix("ashlar serve ") {
            let mut command = self.command(program());
            command.arg("serve").args(arguments.split(' '));
            self.daemon = Some(Daemon::of(command, self.dir.path()));
            return;
        }
        let mut command = Command::new("sh");
        command.args(["-c", line]);
        let done = run(self.command(command));
        assert_eq!(done.code, Some(0), "{line}: {done:?}");
    }

    /// Runs a line; returns what is wrong.
    fn row(&self, row: &Row) -> String {
        let mut command = self.command(program());
        command.args(row.ours()).args(&self.appended);
        let ours = run(command);
        let mut faults = row.faults(&ours);
        if row.verdict == Verdict::Refused {
            faults += row.faults_of_reason(&ours);
        }
        if !faults.is_empty() {
            faults = format!("{}: {faults}{ours:?}\n", row.line);
        }
        if row.verdict == Verdict::Same && is_installed(row.line) {
            let words: Vec<&str> = row.line.split(' ').collect();
            let mut command = Command::new(words[0]);
            command.args(&words[1..]);
            let theirs = run(self.command(command));
            let differs = row.faults(&theirs);
            if !differs.is_empty() {
                writeln!(faults, "{} of the tool: {differs}{theirs:?}", row.line).unwrap();
            }
        }
        faults
    }
}

/// Whether the tool that a line begins with is installed.
fn is_installed(line: &str) -> bool {
    let tool = line.split(' ').next().unwrap_or_default();
    ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].iter().any(|at| Path::new(at).join(tool).exists())
}

/// Runs the sections of a subject.
fn all_rows_hold(subject: &str) {
    let mut faults = String::new();
    let sections = sections(subject);
    assert!(!sections.is_empty(), "no section {subject}");
    for section in sections {
        let mut place = Place::new();
        for step in &section {
            match step {
                Step::Shell(line) => place.shell(line),
                Step::Appended(arguments) => {
                    place.appended = arguments.split_whitespace().collect();
                }
                Step::Row(row) => faults += &place.row(row),
            }
        }
        // Some lines end it.
        if let Some(mut daemon) = place.daemon.take() {
            if daemon.is_running() {
                daemon.end();
            } else {
                daemon.wait();
            }
        }
    }
    assert!(faults.is_empty(), "\n{faults}");
}

#[test]
fn lines_of_mdadm_do_here_what_they_do_there() {
    all_rows_hold("mdadm");
}

#[test]
fn lines_of_lvm_on_disks_do_here_what_they_do_there() {
    all_rows_hold("LVM: groups of disks");
}

#[test]
fn lines_of_lvm_on_groups_in_use_do_here_what_they_do_there() {
    all_rows_hold("LVM: groups in use");
}

#[test]
fn lines_of_lvm_that_move_extents_do_here_what_they_do_there() {
    all_rows_hold("LVM: extents that move");
}

#[test]
fn lines_of_lvm_that_merge_do_here_what_they_do_there() {
    all_rows_hold("LVM: a snapshot that is merged");
}

#[test]
fn lines_of_btrfs_do_here_what_they_do_there() {
    all_rows_hold("btrfs");
}

#[test]
fn lines_of_zpool_on_disks_do_here_what_they_do_there() {
    if has_libzpool("lines of zpool on disks") {
        all_rows_hold("ZFS: pools on disks");
    }
}

#[test]
fn lines_of_zpool_and_zfs_on_a_pool_in_use_do_here_what_they_do_there() {
    if has_libzpool("lines of zpool and zfs on a pool in use") {
        all_rows_hold("ZFS: a pool in use");
    }
}

#[test]
fn nine_lines_of_ten_are_known_and_the_others_are_refused() {
    let steps = sections("").into_iter().flatten();
    let rows: Vec<Row> =
        steps.filter_map(|step| if let Step::Row(row) = step { Some(row) } else { None }).collect();
    let count =
        |verdicts: &[Verdict]| rows.iter().filter(|row| verdicts.contains(&row.verdict)).count();
    let (known, lacks) = (count(&[Verdict::Known, Verdict::Same]), count(&[Verdict::Lacks]));
    let refused = count(&[Verdict::Refused]);
    println!(
        "{} lines: {known} known, {refused} refused with a reason, {lacks} print less than the tool",
        rows.len()
    );
    assert!(rows.iter().all(|row| row.code >= 0), "a line says nothing of what comes of it");
    let mut lines: Vec<&str> = rows.iter().map(|row| row.line).collect();
    assert!(lines.len() >= ROWS, "only {} lines", lines.len());
    lines.sort_unstable();
    let twice = lines.windows(2).find(|pair| pair[0] == pair[1]);
    assert_eq!(twice, None, "a line counts once");
    assert!(known * 100 >= rows.len() * KNOWN_PERCENT, "only {known} of {} known", rows.len());
    for (subject, least) in [("mdadm", 25), ("LVM", 30), ("btrfs", 15), ("ZFS", 15)] {
        let steps = sections(subject).into_iter().flatten();
        let own = steps.filter(|step| matches!(step, Step::Row(_))).count();
        assert!(own >= least, "only {own} lines of {subject}");
    }
}
