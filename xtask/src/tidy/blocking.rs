//! What waits in the kernel stays off the reactors: a file system or another machine may be silent forever, and with a
//! reactor all its clients would wait.
//!
//! The rule looks at the crates whose code runs on reactors. There such calls are made only in the listed files, each of which
//! says why no reactor waits in it. `disks::asked` has a thread of the pool ask, with a deadline.

use super::lex::without_tests;
use super::{Finding, Tree};

/// The crates with code on reactors.
const CRATES: &[&str] = &[
    "crates/client/src/",
    "crates/commands/src/",
    "crates/disks/src/",
    "crates/export/src/",
    "crates/daemon/src/",
    "crates/nbd/src/",
    "crates/vhost/src/",
];

/// The files with calls that wait, and why no reactor waits in them.
const PLACES: &[(&str, &str)] = &[
    ("crates/client/src/access.rs", "the start, before a disk is read"),
    ("crates/client/src/client.rs", "commands"),
    ("crates/client/src/control_path.rs", "commands and the start"),
    ("crates/client/src/disk_path.rs", "what `disks::asked` asks"),
    ("crates/client/src/interface/messages.rs", "commands: a path for the daemon"),
    ("crates/commands/src/background.rs", "the command that starts a daemon; /dev/null"),
    ("crates/commands/src/btrfs/", "commands"),
    ("crates/commands/src/lvm/", "commands, and what `asked` asks"),
    ("crates/commands/src/md/", "commands"),
    ("crates/commands/src/pools/", "commands"),
    ("crates/commands/src/trace/files.rs", "commands"),
    ("crates/disks/src/", "commands and the start, and what `disks::asked` asks"),
    ("crates/export/src/fuse/mount.rs", "mounts at the start; at the end the daemon's own mount"),
    ("crates/daemon/src/absent.rs", "the start"),
    ("crates/daemon/src/serve.rs", "the start"),
    ("crates/daemon/src/defect.rs", "tests"),
    ("crates/daemon/src/ending.rs", "a thread of its own"),
    ("crates/daemon/src/front_ends/metrics.rs", "the start"),
    ("crates/daemon/src/front_ends/mount/users.rs", "the cleanup helper"),
    ("crates/daemon/src/front_ends/nbd.rs", "the start"),
    ("crates/daemon/src/front_ends/vhost_user.rs", "the start"),
    ("crates/nbd/src/network.rs", "in the pool, which looks names up"),
    ("crates/nbd/src/tls/credentials.rs", "the server's start; a client's in the pool"),
    ("crates/nbd/src/tls/server.rs", "the start, and later in the pool"),
];

/// Calls that wait; those of a module are recognised by its name and a function's.
const CALLS: &[&str] = &[
    "File::create",
    "File::open",
    "File::options",
    "OpenOptions::new",
    "TcpStream::connect",
    "UnixStream::connect",
    ".to_socket_addrs(",
    ".canonicalize(",
    ".exists(",
    ".is_dir(",
    ".sync_all(",
    ".sync_data(",
    ".symlink_metadata(",
    "thread::sleep(",
    // Our own that make such calls.
    "disks::identity(",
    "disks::is_same(",
    "Opener::new(",
    "opener.all(",
    "opener.one(",
    "opener.openable(",
    "opener.present(",
    "disks::device_number(",
    "disk_path::identity(",
    "disk_path::is_same(",
];

/// The call that waits in a line of code, if there is one.
fn call(line: &str) -> Option<&'static str> {
    let found = CALLS.iter().find(|call| line.contains(**call));
    found.copied().or_else(|| calls_of_fs(line).then_some("a function of fs"))
}

/// Whether a line calls a function of a module `fs`: std's or rustix's.
fn calls_of_fs(line: &str) -> bool {
    line.match_indices("fs::").any(|(at, module)| {
        let before = line[..at].chars().next_back();
        let is_module = before.is_none_or(|c| !(c.is_alphanumeric() || c == '_'));
        let name = line[at + module.len()..].split(|c: char| !(c.is_alphanumeric() || c == '_'));
        let name = name.into_iter().next().unwrap_or_default();
        let behind = &line[at + module.len() + name.len()..];
        // Arithmetic on device numbers asks nobody.
        let is_number = ["major", "minor", "makedev"].contains(&name);
        let is_function = name.starts_with(|c: char| c.is_ascii_lowercase());
        is_module && is_function && behind.starts_with('(') && !is_number
    })
}

fn is_under(path: &str, place: &str) -> bool {
    path == place || (place.ends_with('/') && path.starts_with(place))
}

/// Calls that wait are made only in the listed places, which have some.
pub(crate) fn off_reactors(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut used = Vec::new();
    for file in tree.rust() {
        let is_test =
            file.path.split('/').any(|part| part == "tests" || part.ends_with("tests.rs"));
        if is_test || !CRATES.iter().any(|of| file.path.starts_with(of)) {
            continue;
        }
        let place = PLACES.iter().position(|(place, _)| is_under(&file.path, place));
        for (index, line) in without_tests(&file.code).lines().enumerate() {
            let Some(call) = call(line) else { continue };
            match place {
                Some(place) => used.push(place),
                None => {
                    let message = format!("{call} waits on a reactor: ask by disks::asked");
                    found.push(Finding::error(&file.path, index + 1, message));
                }
            }
        }
    }
    for (index, (place, _)) in PLACES.iter().enumerate() {
        let exists = tree.rust().any(|file| is_under(&file.path, place));
        if exists && !used.contains(&index) {
            let message = "has no call that waits: remove it from the list of tidy's rule";
            found.push(Finding::error(place, 0, message));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        off_reactors(&Tree::of(&[(path, text)])).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn a_call_that_waits_is_found_in_code_of_reactors_alone() {
        let calls = "use std::fs;\n\
            // fs::read(path)\n\
            fs::read(path)?;\n\
            std::fs::metadata(path);\n\
            rustix::fs::open(path, flags, mode);\n\
            let file = File::open(path);\n\
            std::thread::sleep(PAUSE);\n\
            sleep(PAUSE).await;\n\
            if path.exists() {}\n\
            rustix::fs::major(number); vfs::read(1); let x: fs::Metadata;\n\
            let wanted = disks::identity(path);\n\
            directory.sync_all()?;\n\
            \"fs::read(path)\";\n\
            #[cfg(test)]\nmod tests {\n    fn x() { fs::read(path); }\n}\n";
        let expected = [3, 4, 5, 6, 7, 9, 11, 12];
        assert_eq!(lines("crates/daemon/src/manage.rs", calls), expected);
        assert_eq!(lines("crates/export/src/nbd/x.rs", calls), expected);
        for elsewhere in ["crates/cli/src/x.rs", "crates/daemon/src/metrics/tests.rs"] {
            assert_eq!(lines(elsewhere, calls), [], "{elsewhere}");
        }
        assert_eq!(lines("crates/commands/src/lvm/archive.rs", calls), []);
    }

    #[test]
    fn a_place_without_such_a_call_leaves_the_list() {
        assert_eq!(lines("crates/client/src/client.rs", "fn x() {}"), [0]);
        assert_eq!(lines("crates/client/src/client.rs", "fn x() { fs::read(y); }"), []);
    }
}
