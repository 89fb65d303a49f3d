//! The users of a mount, for the message that it is in use.

use std::fs;
use std::path::Path;

use ashlar_engine::file::Process;

/// Loop devices backed by files below `mount` and processes with files open there, as far as they are visible to this
/// user.
pub(crate) fn users(mount: &Path) -> Vec<String> {
    let mut users = loop_devices(mount);
    users.extend(processes(mount));
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

fn processes(mount: &Path) -> Vec<String> {
    let own = std::process::id().to_string();
    let is_pid = |name: &String| name.bytes().all(|byte| byte.is_ascii_digit()) && *name != own;
    let uses = |pid: &String| {
        let process = Path::new("/proc").join(pid);
        let links = ["cwd", "root", "exe"].map(|name| process.join(name));
        let open = names(&process.join("fd")).into_iter().map(|fd| process.join("fd").join(fd));
        // The links are read, not followed: stat on the files would call this daemon.
        open.chain(links).any(|link| fs::read_link(link).is_ok_and(|to| to.starts_with(mount)))
    };
    let all = names(Path::new("/proc")).into_iter().filter(is_pid).filter(uses);
    all.filter_map(|pid| Some(Process::of(pid.parse().ok()?).to_string())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_with_an_open_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        assert_eq!(users(&path), [""; 0]);
        let mut child = Command::new("sleep")
            .arg("60")
            .stdin(Stdio::null())
            .current_dir(&path)
            .spawn()
            .unwrap();
        let found = users(&path);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found, [format!("sleep (process {})", child.id())]);
    }
}
