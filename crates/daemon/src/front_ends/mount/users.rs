//! The users of a mount, for the message that it is in use.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use ashlar_engine::file::Process;
use ashlar_export::fuse::mount::MountPlace;

/// Loop devices backed by files of the mount and processes with files open there, as far as they are visible to this user;
/// without such users, other mount namespaces with a copy of the mount.
pub(crate) fn users(mount: &MountPlace) -> Vec<String> {
    let mut users = loop_devices(&mount.path);
    users.extend(processes(&mount.path));
    if users.is_empty() {
        users = namespaces(&mount.device);
    }
    users
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    names
}

fn loop_devices(mount: &Path) -> Vec<String> {
    let block = Path::new("/sys/block");
    let backed = |name: &String| {
        let file = fs::read_to_string(block.join(name).join("loop/backing_file"));
        file.is_ok_and(|file| Path::new(file.trim_end()).starts_with(mount))
    };
    names(block).into_iter().filter(backed).map(|name| format!("/dev/{name}")).collect()
}

/// The directories of all other processes.
fn others() -> impl Iterator<Item = PathBuf> {
    let own = std::process::id().to_string();
    let is_pid =
        move |name: &String| name.bytes().all(|byte| byte.is_ascii_digit()) && *name != own;
    names(Path::new("/proc")).into_iter().filter(is_pid).map(|pid| Path::new("/proc").join(pid))
}

/// A process by its directory.
fn named(process: &Path) -> Option<String> {
    Some(Process::of(process.file_name()?.to_str()?.parse().ok()?).to_string())
}

fn processes(mount: &Path) -> Vec<String> {
    let uses = |process: &PathBuf| {
        let links = ["cwd", "root", "exe"].map(|name| process.join(name));
        let open = names(&process.join("fd")).into_iter().map(|fd| process.join("fd").join(fd));
        // The links are read, not followed: stat on the files would call this daemon.
        open.chain(links).any(|link| fs::read_link(link).is_ok_and(|to| to.starts_with(mount)))
    };
    others().filter(uses).filter_map(|process| named(&process)).collect()
}

/// The mount namespaces other than this process's own in which the file system `device` is mounted, each by a process in it.
fn namespaces(device: &str) -> Vec<String> {
    let namespace = |process: &Path| fs::read_link(process.join("ns/mnt")).ok();
    let mut seen: BTreeSet<PathBuf> = namespace(Path::new("/proc/self")).into_iter().collect();
    let has_copy = |process: &PathBuf| {
        let is_new = namespace(process).is_some_and(|namespace| seen.insert(namespace));
        let table = is_new.then(|| fs::read_to_string(process.join("mountinfo")).ok()).flatten();
        // proc_pid_mountinfo(5): the third field is the device.
        table.is_some_and(|table| table.lines().any(|line| line.split(' ').nth(2) == Some(device)))
    };
    let with_copy = others().filter(has_copy);
    with_copy
        .filter_map(|process| Some(format!("the mount namespace of {}", named(&process)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_with_an_open_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        let mount = MountPlace { path: path.clone(), device: "none".into(), by_helper: false };
        assert_eq!(users(&mount), [""; 0]);
        let mut child = Command::new("sleep")
            .arg("60")
            .stdin(Stdio::null())
            .current_dir(&path)
            .spawn()
            .unwrap();
        let found = users(&mount);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found, [format!("sleep (process {})", child.id())]);
    }
}
