//! The dependencies between crates, and the parts of the standard library that a crate may use.
//!
//! `cli -> daemon -> {export, commands -> disks -> {sandbox, client}} -> {plot, view -> stack} -> {lvm -> dm, md, btrfs -> files, zfs} -> block`; `engine` and `sim` are beside `block`.
//! `top` stands on `client` and `terminal`, and these, like all above them, on `control`. The layers that run in the simulator must not bypass it and use the machine: no clocks, threads, files or system calls.

use super::lex::{line_of, without_tests};
use super::{File, Finding, Tree};
use crate::mentions::mentions;

/// The crates that each crate may depend on. Dev-dependencies are not restricted: tests may put any device under a layer.
const ARROWS: &[(&str, &[&str])] = &[
    ("block", &[]),
    ("parity", &[]),
    ("control", &[]),
    ("engine", &["block"]),
    ("sandbox", &[]),
    ("sim", &["block"]),
    ("md", &["block", "parity"]),
    ("dm", &["block"]),
    ("lvm", &["block", "dm"]),
    ("files", &["block"]),
    ("btrfs", &["block", "parity", "files"]),
    ("zfs", &["block", "engine"]),
    ("nbd", &["block", "engine"]),
    ("rbd", &["block", "engine"]),
    ("export", &["block", "engine", "nbd"]),
    ("vhost", &["block", "engine"]),
    ("ublk", &["block", "engine"]),
    ("plot", &["block"]),
    ("stack", &["block", "sim", "md", "dm", "lvm", "btrfs", "zfs"]),
    ("view", &["block", "md", "lvm", "zfs", "stack"]),
    (
        "client",
        &[
            "block", "control", "engine", "plot", "stack", "view", "lvm", "btrfs", "zfs", "nbd",
            "rbd",
        ],
    ),
    (
        "disks",
        &["block", "control", "client", "engine", "nbd", "rbd", "sandbox", "sim", "stack", "view"],
    ),
    (
        "commands",
        &[
            "control", "client", "disks", "block", "files", "engine", "md", "dm", "lvm", "btrfs",
            "zfs", "stack", "view", "plot",
        ],
    ),
    (
        "daemon",
        &[
            "control", "client", "disks", "commands", "block", "engine", "md", "dm", "lvm",
            "btrfs", "zfs", "export", "vhost", "ublk", "sandbox", "stack", "view", "plot",
        ],
    ),
    ("terminal", &["block", "control"]),
    ("top", &["block", "engine", "view", "control", "client", "terminal"]),
    (
        "cli",
        &[
            "block", "files", "engine", "md", "dm", "lvm", "btrfs", "zfs", "stack", "view",
            "daemon", "plot", "client", "disks", "commands", "terminal", "top",
        ],
    ),
];

/// Crates that run unchanged in the simulator: they use no clock, thread or file.
const SIMULATED: &[&str] = &["block", "parity", "sim", "md", "dm", "lvm", "files", "btrfs"];

/// Crates that reach the operating system, which simulated crates may not use.
const SYSTEM_CRATES: &[&str] =
    &["libc", "rustix", "nix", "io-uring", "tokio", "mio", "polling", "memmap2", "signal-hook"];
const SYSTEM_MODULES: &[&str] = &["fs", "thread", "time", "net", "process", "os", "env"];
/// Only values, without access to the system: a descriptor comes from a crate that may open files.
const HARMLESS: &[&str] =
    &["time::Duration", "thread::LocalKey", "thread::panicking", "os::fd::OwnedFd"];

/// Crates for a command line, which only a program has.
const PROGRAM_CRATES: &[&str] = &[OPTIONS_CRATE, "clap_complete", "clap_mangen", BAR_CRATE];
/// The crate of options: the configuration of a daemon, which only the program has, is the struct of its options.
const OPTIONS_CRATE: &str = "clap";
/// The crate of progress bars, which the crate `terminal` has, too.
const BAR_CRATE: &str = "indicatif";
/// The crate that formats the log, which only the crate `terminal` prints.
const LOG_CRATE: &str = "tracing-subscriber";

/// Every dependency follows an arrow of the design.
pub(crate) fn dependencies(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (manifest, name) in manifests(tree) {
        let Some((_, allowed)) = ARROWS.iter().find(|(known, _)| *known == name) else {
            found.push(Finding::error(
                &manifest.path,
                0,
                format!("crate {name} has no arrows yet: give it some in xtask"),
            ));
            continue;
        };
        for (line, dependency) in normal_dependencies(&manifest.text) {
            if let Some(ours) = our_crate(&dependency) {
                if !allowed.contains(&ours) {
                    found.push(Finding::error(
                        &manifest.path,
                        line,
                        format!("there is no arrow {name} -> {ours}"),
                    ));
                }
            } else if SIMULATED.contains(&name) && SYSTEM_CRATES.contains(&dependency.as_str()) {
                let message = format!("{dependency} reaches around the simulator, {name} must not");
                found.push(Finding::error(&manifest.path, line, message));
            } else if name != "cli"
                && PROGRAM_CRATES.contains(&dependency.as_str())
                && (name != "terminal" || dependency != BAR_CRATE)
                && (name != "daemon" || dependency != OPTIONS_CRATE)
            {
                let message = format!("{dependency} is for a program, {name} has no options");
                found.push(Finding::error(&manifest.path, line, message));
            } else if name != "terminal" && dependency == LOG_CRATE {
                let message =
                    format!("{dependency} prints the log, which is for the crate terminal");
                found.push(Finding::error(&manifest.path, line, message));
            }
        }
    }
    found
}

/// Every package uses the lints of the workspace.
pub(crate) fn lints(tree: &Tree) -> Vec<Finding> {
    let takes = |text: &str| {
        let mut lines = text.lines().map(str::trim).skip_while(|line| *line != "[lints]");
        lines.nth(1).is_some_and(|line| line.replace(' ', "") == "workspace=true")
    };
    let missing = tree.files.iter().filter(|file| {
        let of_workspace = manifest_name(&file.path).is_some() || file.path == "xtask/Cargo.toml";
        of_workspace && !takes(&file.text)
    });
    missing.map(|file| Finding::error(&file.path, 0, "misses [lints] workspace = true")).collect()
}

/// Simulated crates use no module of std that reaches the machine, except in tests.
pub(crate) fn standard_library(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in tree.rust() {
        let Some((name, inside)) =
            file.path.strip_prefix("crates/").and_then(|path| path.split_once("/src/"))
        else {
            continue;
        };
        let only_tests = inside
            .split('/')
            .any(|part| part == "tests" || part == "tests.rs" || part.ends_with("_tests.rs"));
        if !SIMULATED.contains(&name) || only_tests {
            continue;
        }
        let code = without_tests(&file.code);
        for (line, path) in std_paths(&code) {
            let module = path.split("::").next().unwrap_or_default();
            let harmless = HARMLESS
                .iter()
                .any(|known| path == *known || path.starts_with(&format!("{known}::")));
            if SYSTEM_MODULES.contains(&module) && !harmless {
                found.push(Finding::error(
                    &file.path,
                    line,
                    format!("std::{path} reaches around the simulator"),
                ));
            }
        }
    }
    found
}

fn manifests(tree: &Tree) -> impl Iterator<Item = (&File, &str)> {
    tree.files.iter().filter_map(|file| Some((file, manifest_name(&file.path)?)))
}

/// The name of the crate with this manifest.
fn manifest_name(path: &str) -> Option<&str> {
    path.strip_prefix("crates/")?.strip_suffix("/Cargo.toml").filter(|name| !name.contains('/'))
}

/// The short name of a package of this repository: `md` for `ashlar-md`.
pub(crate) fn our_crate(dependency: &str) -> Option<&str> {
    if dependency == "ashlar" { Some("cli") } else { dependency.strip_prefix("ashlar-") }
}

/// The dependencies that are linked into the shipped program: (line, package).
pub(crate) fn normal_dependencies(manifest: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut inside = false;
    for (index, line) in manifest.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if let Some(section) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            let section = section.trim();
            inside = section == "dependencies" || section.ends_with(".dependencies");
            if let Some(at) =
                section.find("dependencies.").filter(|at| !section[..*at].ends_with('-'))
            {
                found.push((
                    index + 1,
                    section[at + "dependencies.".len()..].trim_matches('"').to_owned(),
                ));
            }
        } else if inside && let Some(end) = line.find(['=', '.', ' ']) {
            let renamed = line.split("package").nth(1).and_then(|rest| rest.split('"').nth(1));
            found.push((index + 1, renamed.unwrap_or(&line[..end]).trim_matches('"').to_owned()));
        }
    }
    found
}

/// Every path below `std`, with grouped uses expanded: (line, path without `std::`).
fn std_paths(code: &str) -> Vec<(usize, String)> {
    let all = mentions(code).into_iter().filter(|mention| mention.path[0] == "std");
    let below = all.map(|mention| (line_of(code, mention.at), mention.path[1..].join("::")));
    below.filter(|(_, path)| !path.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::findings;
    use super::*;

    fn arrows_of(name: &str, body: &str) -> Vec<(usize, String)> {
        findings(dependencies, &[(&format!("crates/{name}/Cargo.toml"), body)])
    }

    #[test]
    fn a_dependency_against_the_arrows_is_found() {
        let body = "[dependencies]\nashlar-engine.workspace = true\n";
        assert_eq!(arrows_of("md", body), [(2, "there is no arrow md -> engine".to_owned())]);
        assert_eq!(arrows_of("export", body), []);
        assert_eq!(arrows_of("daemon", body), []);
        assert_eq!(arrows_of("cli", body), []);
        assert_eq!(arrows_of("cli", "[dependencies]\nashlar-sim.workspace = true").len(), 1);
        assert_eq!(arrows_of("block", "[dependencies]\nashlar-md = { path = \"../md\" }").len(), 1);
        assert_eq!(arrows_of("stack", "[dependencies]\nashlar.workspace = true").len(), 1);
        assert_eq!(arrows_of("stack", "[dependencies]\nashlar-daemon.workspace = true").len(), 1);
    }

    #[test]
    fn only_the_program_has_a_command_line() {
        let body = "[dependencies]\nclap.workspace = true";
        assert_eq!(arrows_of("disks", body).len(), 1);
        assert_eq!(arrows_of("cli", body), []);
        assert_eq!(arrows_of("terminal", body).len(), 1);
        assert_eq!(arrows_of("daemon", body), [], "the options of a daemon");
        assert_eq!(arrows_of("daemon", "[dependencies]\nclap_mangen.workspace = true").len(), 1);
        let log = "[dependencies]\ntracing-subscriber.workspace = true";
        assert_eq!(arrows_of("cli", log).len(), 1);
        assert_eq!(arrows_of("terminal", log), []);
    }

    #[test]
    fn every_way_to_write_a_dependency_is_seen() {
        for body in [
            "[dependencies.ashlar-engine]\nworkspace = true",
            "[target.'cfg(unix)'.dependencies]\nashlar-engine = \"1\"",
            "[dependencies]\ne = { package = \"ashlar-engine\", path = \"x\" }",
            "[dependencies]\n\"ashlar-engine\" = \"1\"",
            "[build-dependencies]\n[dependencies]\nashlar-engine={}",
        ] {
            assert_eq!(arrows_of("md", body).len(), 1, "{body}");
        }
    }

    #[test]
    fn tests_may_use_any_crate() {
        assert_eq!(
            arrows_of(
                "md",
                "[dev-dependencies]\nashlar-sim.workspace = true\nlibc.workspace = true"
            ),
            []
        );
        assert_eq!(arrows_of("md", "[dev-dependencies.ashlar-engine]\nworkspace = true"), []);
    }

    #[test]
    fn system_crates_and_unknown_crates_are_found() {
        assert_eq!(arrows_of("md", "[dependencies]\nlibc = \"0.2\"").len(), 1);
        assert_eq!(arrows_of("engine", "[dependencies]\nlibc = \"0.2\""), []);
        assert_eq!(arrows_of("bcache", "").len(), 1);
    }

    #[test]
    fn a_package_without_the_lints_is_found() {
        let check = |text| findings(lints, &[("crates/md/Cargo.toml", text)]).len();
        assert_eq!(check("[package]\n\n[lints]\nworkspace = true\n"), 0);
        assert_eq!(check("[package]\n[lints]\nworkspace = false"), 1);
        assert_eq!(check("[package]"), 1);
    }

    #[test]
    fn doors_to_the_machine_are_found() {
        let check = |text| findings(standard_library, &[("crates/md/src/a.rs", text)]).len();
        assert_eq!(check("use std::fs::File;"), 1);
        assert_eq!(check("fn f() { std::thread::sleep(d) }"), 1);
        assert_eq!(check("use std::{cell::Cell, fs, time::{Duration, Instant}};"), 2);
        assert_eq!(
            check("use std::{\n    collections::HashMap,\n    sync::{Arc, atomic::AtomicU64},\n};"),
            0
        );
        assert_eq!(
            check(
                "use std::time::Duration;\nfn f() -> std::time::Duration { std::time::Duration::from_secs(1) }"
            ),
            0
        );
        assert_eq!(check("use std::time::SystemTime;"), 1);
        assert_eq!(check("use std::time::*;"), 1);
        assert_eq!(check("// std::fs\nfn f() { g(\"std::fs\") }"), 0);
    }

    #[test]
    fn tests_and_the_engine_may_use_the_machine() {
        let check = |path, text| findings(standard_library, &[(path, text)]).len();
        assert_eq!(check("crates/md/src/a.rs", "#[cfg(test)]\nmod tests { use std::fs; }"), 0);
        assert_eq!(check("crates/md/src/raid1/tests.rs", "use std::fs;"), 0);
        assert_eq!(check("crates/md/tests/a.rs", "use std::fs;"), 0);
        assert_eq!(check("crates/engine/src/a.rs", "use std::fs;"), 0);
    }
}
