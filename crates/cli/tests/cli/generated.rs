//! Completions and manual pages.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::Command;

use super::support::{Daemon, Images, MIB, as_user, ashlar, run};

#[test]
fn there_are_completions_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let run = ashlar(&["completions", shell]).ok();
        assert!(run.out.contains("ashlar") && run.out.contains("assume-clean"), "{shell}");
    }
    assert_eq!(ashlar(&["completions", "dos"]).code, Some(2));
}

/// The script of bash, in a bash that completes what was typed.
#[test]
fn the_names_of_the_daemons_arrays_volumes_and_jobs_are_completed() {
    let user = 54341;
    let images = Images::array(2, 32 * MIB, &["-l1", "--name=data", "--assume-clean"]);
    let dir = images.dir.path();
    // The place of its control socket.
    let ours = || {
        let mut command = as_user(&images, user, user, &[])?;
        command.env("XDG_RUNTIME_DIR", dir);
        Some(command)
    };
    let Some(mut command) = ours() else { return };
    for path in [dir.to_owned(), images.path("d0"), images.path("d1")] {
        chown(path, Some(user), Some(user)).unwrap();
    }
    let script = ashlar(&["completions", "bash", "--dynamic"]).ok().out;
    fs::write(dir.join("script"), script).unwrap();
    let completed = |typed: &str| {
        let words: Vec<&str> = typed.split(' ').collect();
        let last = words.len() - 1;
        let text = format!(
            "source ./script; COMP_WORDS=({typed}) COMP_CWORD={last} COMP_TYPE=9; \
             _clap_complete_ashlar ashlar '{}' '{}'; echo ${{COMPREPLY[@]}}",
            words[last].trim_matches('"'),
            words[last - 1]
        );
        let command = ours().unwrap();
        let mut bash = Command::new("setpriv");
        let is_bash = |arg: &&std::ffi::OsStr| Path::new(arg) != images.path("ashlar");
        bash.args(command.get_args().take_while(is_bash)).args(["bash", "-c", &text]);
        bash.current_dir(dir)
            .env("XDG_RUNTIME_DIR", dir)
            .env("PATH", format!("{}:{}", dir.display(), std::env::var("PATH").unwrap()));
        let words = run(bash).ok().out;
        let names = words.split_whitespace().filter(|word| !word.starts_with("--"));
        names.collect::<Vec<_>>().join(" ")
    };
    let pause = r#"ashlar jobs pause """#;
    let fail = r#"ashlar md fail """#;
    // Without a daemon there are the words of the program.
    assert_eq!([completed("ashlar md det"), completed(fail), completed(pause)], ["detail", "", ""]);
    command.args(["serve", "d0", "d1", "--model", "d1=custom:bandwidth=10M"]);
    let daemon = Daemon::of(command, dir);
    assert_eq!(completed(fail), "md127 md/data");
    assert_eq!(completed("ashlar md monitor md/"), "md/data");
    assert_eq!(completed("ashlar md detail md1"), "md127");
    assert_eq!(completed("ashlar md detail d"), "d0 d1");
    assert_eq!(completed("ashlar trace md12"), "md127");
    let mut check = ours().unwrap();
    check.args(["md", "action", "md127", "check", "--no-wait"]);
    run(check).ok();
    assert_eq!(completed(pause), "md127 md/data");
    daemon.end();
}

#[test]
fn the_manual_pages_of_the_repository_are_up_to_date() {
    let dir = tempfile::tempdir().unwrap();
    ashlar(&["man", dir.path().to_str().unwrap()]).ok();
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/man");
    let names = |dir: &Path| {
        let names = fs::read_dir(dir).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        // `ashlar-bench` writes its own.
        let mut names: Vec<_> = names.filter(|name| !name.starts_with("ashlar-bench")).collect();
        names.sort();
        names
    };
    assert_eq!(names(dir.path()), names(&kept), "run: ashlar man docs/man");
    for name in names(&kept) {
        let (new, old) = (fs::read(dir.path().join(&name)), fs::read(kept.join(&name)));
        assert!(new.unwrap() == old.unwrap(), "{name} is old; run: ashlar man docs/man");
    }
}

/// All pages by one groff, which is where man has it from.
#[test]
fn the_manual_pages_are_rendered_without_warnings() {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/man");
    let pages = fs::read_dir(kept).unwrap().map(|entry| entry.unwrap().path());
    let mut groff = Command::new("groff");
    groff.args(["-K", "utf8", "-T", "utf8", "-man", "-ww", "-z"]).args(pages);
    let out = match groff.output() {
        Ok(out) => out,
        Err(error) if error.kind() == ErrorKind::NotFound => return eprintln!("skipped: no groff"),
        Err(error) => panic!("{error}"),
    };
    assert_eq!(String::from_utf8_lossy(&out.stderr), "");
    assert!(out.status.success());
}

#[test]
fn manual_pages_have_the_sections_that_readers_look_for() {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/man");
    for entry in fs::read_dir(kept).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if name.starts_with("ashlar-bench") {
            continue;
        }
        let page = fs::read_to_string(&path).unwrap();
        for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "\"EXIT STATUS\"", "\"SEE ALSO\""] {
            assert!(page.contains(&format!("\n.SH {section}\n")), "{name}: {section}");
        }
    }
}

#[test]
fn manual_pages_go_to_a_directory_that_exists() {
    ashlar(&["man", "/nonexistent/man"]).fails(1, &["/nonexistent/man"]);
}
