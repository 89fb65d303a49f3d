//! Sockets that a service manager has made for the daemon.

use std::fs;
use std::process::Command;

use super::run::run;
use super::support::{Daemon, Images, MIB, Nbd, program};

/// Makes the sockets that its first argument lists, and becomes the program: what a service manager does.
const MANAGER: &str = "
import fcntl, os, socket, sys
made = []
for kind in sys.argv[1].split(','):
    one = socket.socket(socket.AF_INET if kind in ('tcp', 'idle') else socket.AF_UNIX,
                        socket.SOCK_DGRAM if kind == 'datagram' else socket.SOCK_STREAM)
    if kind == 'tcp':
        one.bind(('127.0.0.1', 0))
    elif kind not in ('idle', 'datagram'):
        one.bind(kind)
    if kind not in ('idle', 'datagram'):
        one.listen()
    made.append(fcntl.fcntl(one, fcntl.F_DUPFD, 100))
for number, fd in enumerate(made):
    os.dup2(fd, 3 + number)
os.environ.setdefault('LISTEN_PID', str(os.getpid()))
os.environ['LISTEN_FDS'] = str(len(made))
os.execv(sys.argv[2], sys.argv[2:])
";

/// `serve` with these sockets, separated by commas.
fn activated(images: &Images, sockets: &str, args: &[&str]) -> Command {
    let mut command = Command::new("python3");
    command.args(["-c", MANAGER, sockets]).arg(program().get_program());
    command.args(["serve", "--control", "control"]).args(args).args(images.refs());
    command.current_dir(images.dir.path());
    command.env_remove("ASHLAR_LOG").env_remove("LISTEN_PID");
    command
}

#[test]
fn clients_reach_the_sockets_of_the_service_manager_beside_the_daemons_own() {
    let images = Images::array(2, 16 * MIB, &["-l1"]);
    let command = activated(&images, "passed,tcp", &["--nbd", "unix:own"]);
    let daemon = Daemon::of(command, images.dir.path());
    let data = vec![7; 4096];
    Nbd::open(&images.path("passed"), "md0").write_at(4096, &data);
    assert_eq!(Nbd::open(&images.path("own"), "md0").read_at(4096, 4096), data);
    let status = daemon.client(&["status"]).ok().out;
    assert!(status.contains("sandbox: on"), "{status}");
    for address in ["unix:passed", "unix:own", "tcp:127.0.0.1:"] {
        assert!(status.contains(address), "{address}: {status}");
    }
    daemon.end();
    assert!(images.path("passed").exists(), "it is the manager's");
    assert!(!images.path("own").exists());
}

#[test]
fn sockets_for_another_process_are_left_alone() {
    let images = Images::array(2, 16 * MIB, &["-l1"]);
    let mut command = activated(&images, "passed", &["--nbd", "unix:own"]);
    command.env("LISTEN_PID", "1");
    let daemon = Daemon::of(command, images.dir.path());
    let status = daemon.client(&["status"]).ok().out;
    assert!(status.contains("unix:own") && !status.contains("unix:passed"), "{status}");
    daemon.end();
}

#[test]
fn what_is_no_socket_that_listens_is_refused() {
    let images = Images::array(2, 16 * MIB, &["-l1"]);
    let before = images.bytes();
    for (sockets, number) in [("idle", 3), ("datagram", 3), ("passed,idle", 4)] {
        let run = run(activated(&images, sockets, &[]));
        let what = format!("descriptor {number}: not a stream socket that listens");
        run.fails(
            1,
            &["cannot use the sockets of the service manager", &what, "hint: a socket unit"],
        );
        assert!(!images.path("control").exists());
        let (Ok(()) | Err(_)) = fs::remove_file(images.path("passed"));
    }
    assert_eq!(images.bytes(), before);
}
