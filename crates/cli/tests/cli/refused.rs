//! The program where io_uring is refused, as by Docker's seccomp profile, or unknown to the kernel.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use super::support::{Daemon, Images, MIB, Nbd, Run, program, run};

/// A filter of system calls: those of io_uring fail with an error.
fn filter(errno: i32) -> [libc::sock_filter; 6] {
    let line = |code: u32, jt, jf, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    // The number of the call is the first field of `struct seccomp_data`.
    let load = line(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0);
    // Jumps over so many lines if it is this call.
    let is = |call: libc::c_long, over| {
        line(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, over, 0, call as u32)
    };
    let end = |action| line(libc::BPF_RET | libc::BPF_K, 0, 0, action);
    [
        load,
        is(libc::SYS_io_uring_setup, 3),
        is(libc::SYS_io_uring_enter, 2),
        is(libc::SYS_io_uring_register, 1),
        end(libc::SECCOMP_RET_ALLOW),
        end(libc::SECCOMP_RET_ERRNO | errno as u32),
    ]
}

/// Has a command and its children run without io_uring.
fn without_io_uring(mut command: Command, errno: i32) -> Command {
    let mut filter = filter(errno);
    let install = move || {
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // SAFETY: the call names no memory.
        let alone = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
        let mode = libc::SECCOMP_MODE_FILTER;
        // SAFETY: the program, which the kernel copies, lives until the call has ended.
        let set = unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program) };
        if alone == 0 && set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    // SAFETY: between fork and exec there are two system calls, and no memory is allocated.
    unsafe { command.pre_exec(install) };
    command.env_remove("ASHLAR_IO");
    command
}

fn command(images: &Images, args: &[&str]) -> Command {
    let mut command = program();
    command.args(args).args(images.refs()).current_dir(images.dir.path()).env_remove("ASHLAR_IO");
    command
}

fn refused(images: &Images, errno: i32, args: &[&str]) -> Run {
    run(without_io_uring(command(images, args), errno))
}

/// That the log of a daemon says once what is refused and what that costs.
fn told_once(log: &str) {
    assert_eq!(log.matches("no io_uring").count(), 1, "{log}");
    for part in ["io_uring", "threads", "CPU time"] {
        assert!(log.contains(part), "no {part:?} in {log}");
    }
}

/// Scans, serves and asks where the calls of io_uring fail with this error.
fn works_with_threads(errno: i32) {
    let images = Images::array(2, 32 * MIB, &["--level=1", "--name=data"]);
    let plain = run(command(&images, &["scan"])).ok();
    let scan = refused(&images, errno, &["scan"]).ok();
    assert_eq!(scan.out, plain.out);
    assert!(scan.out.contains("raid1"), "{scan:?}");
    assert_eq!(scan.err, "");

    let serve = ["serve", "--control", "control", "--nbd", "unix:nbd.sock"];
    let daemon = Daemon::of(without_io_uring(command(&images, &serve), errno), images.dir.path());
    let status = daemon.client(&["status"]).ok().out;
    assert!(status.contains("I/O by threads, without io_uring\n"), "{status}");
    let json = daemon.client(&["status", "--json"]).ok().out;
    assert!(json.contains("\"io\": \"threads\""), "{json}");
    let mut client = Nbd::open(&images.path("nbd.sock"), "md/data");
    let data: Vec<u8> = (0..MIB).map(|n| (n / 512 + n) as u8).collect();
    client.write_at(12_345, &data);
    client.flush();
    assert!(client.read_at(12_345, MIB as u32) == data);
    drop(client);
    let copy = images.path("copy");
    let uri = format!("nbd+unix:///md/data?socket={}", images.path("nbd.sock").display());
    let copied = Command::new("nbdcopy").args([&uri, copy.to_str().unwrap()]).status();
    match copied {
        Ok(status) => {
            assert!(status.success(), "{status}");
            let copied = fs::read(&copy).unwrap();
            assert_eq!(copied.len() as u64, 31 * MIB);
            assert!(copied[12_345..12_345 + MIB as usize] == data);
        }
        Err(error) => eprintln!("not copied: no nbdcopy ({error})"),
    }
    told_once(&daemon.end());

    // What it wrote is there for a daemon that asks the other way, if it is allowed to.
    let daemon = Daemon::of(command(&images, &serve), images.dir.path());
    assert!(Nbd::open(&images.path("nbd.sock"), "md/data").read_at(12_345, MIB as u32) == data);
    daemon.end();
}

#[test]
fn threads_do_the_work_where_a_container_refuses_io_uring() {
    works_with_threads(libc::EPERM);
}

#[test]
fn threads_do_the_work_where_the_kernel_has_no_io_uring() {
    works_with_threads(libc::ENOSYS);
}

#[test]
fn io_uring_that_was_asked_for_is_not_replaced() {
    let images = Images::array(2, 32 * MIB, &["--level=1"]);
    let serve = ["serve", "--control", "control", "--nbd", "unix:nbd.sock", "--io=uring"];
    for (errno, why) in [(libc::EPERM, "seccomp"), (libc::ENOSYS, "not in this kernel")] {
        let parts = ["cannot set up io_uring", why, "--io=threads"];
        let failed = refused(&images, errno, &serve).fails(1, &parts);
        assert!(!failed.err.contains("WARN"), "{failed:?}");
    }
    assert!(!images.path("nbd.sock").exists());
    let failed = refused(&images, libc::EPERM, &["serve", "--io=bogus"]);
    assert_eq!(failed.code, Some(2), "{failed:?}");
    assert!(failed.err.contains("`bogus` is neither auto, uring nor threads"), "{failed:?}");
}

#[test]
fn the_way_is_chosen_by_option_file_and_environment() {
    let images = Images::array(2, 32 * MIB, &["--level=1"]);
    let serve = ["serve", "--control", "control", "--nbd", "unix:nbd.sock"];
    let shown = |command: Command| {
        let daemon = Daemon::of(command, images.dir.path());
        let status = daemon.client(&["status", "--json"]).ok().out;
        let log = daemon.end();
        assert!(!log.contains("WARN"), "{log}");
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        status["io"].as_str().unwrap().to_owned()
    };
    assert_eq!(shown(command(&images, &[&serve[..], &["--io=threads"]].concat())), "threads");
    let mut by_variable = command(&images, &serve);
    by_variable.env("ASHLAR_IO", "threads");
    assert_eq!(shown(by_variable), "threads");
    fs::write(images.path("stack.toml"), "io = \"threads\"\n").unwrap();
    let file = [&serve[..], &["--config", "stack.toml"]].concat();
    assert_eq!(shown(command(&images, &file)), "threads");
    // Where threads are chosen, nothing asks for io_uring: there is no warning.
    let chosen = without_io_uring(command(&images, &file), libc::EPERM);
    assert_eq!(shown(chosen), "threads");
    fs::write(images.path("stack.toml"), "io = \"bogus\"\n").unwrap();
    run(command(&images, &file)).fails(2, &["neither auto, uring nor threads"]);
}
