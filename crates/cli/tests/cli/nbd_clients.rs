//! NBD clients that behave badly, spoken raw, and the sockets they come through.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::support::{Daemon, Images, MIB, program};

/// A connection in transmission, with simple replies.
struct Client(UnixStream);

impl Client {
    /// Connects to `socket` and greets.
    fn greet(socket: &Path) -> Self {
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.read_exact(&mut [0; 18]).unwrap();
        // Fixed newstyle, no zeroes.
        stream.write_all(&[0, 0, 0, 3]).unwrap();
        Self(stream)
    }

    /// Connects to `socket` and chooses `export` with EXPORT_NAME.
    fn connect(socket: &Path, export: &str) -> Self {
        let mut client = Self::greet(socket);
        client.choose(export);
        client.0.read_exact(&mut [0; 10]).unwrap();
        client
    }

    fn choose(&mut self, export: &str) {
        let mut option = b"IHAVEOPT\0\0\0\x01".to_vec();
        option.extend((export.len() as u32).to_be_bytes());
        option.extend(export.as_bytes());
        self.0.write_all(&option).unwrap();
    }

    /// Sends the header of a request.
    fn request(&mut self, command: u16, offset: u64, length: u32) {
        let mut header = 0x2560_9513_u32.to_be_bytes().to_vec();
        header.extend([0; 2]);
        header.extend(command.to_be_bytes());
        header.extend(7_u64.to_be_bytes());
        header.extend(offset.to_be_bytes());
        header.extend(length.to_be_bytes());
        self.0.write_all(&header).unwrap();
    }
}

const WRITE: u16 = 1;

#[test]
fn a_client_that_dies_within_a_write_does_not_keep_the_daemon_from_stopping() {
    let images = Images::array(2, 32 * MIB, &["--level=1"]);
    let daemon = images.serve(&["--nbd", "unix:nbd.sock"]);
    let mut client = Client::connect(&images.path("nbd.sock"), "md0");
    client.request(WRITE, 0, MIB as u32);
    client.0.write_all(&vec![7; MIB as usize / 2]).unwrap();
    drop(client);
    daemon.client(&["stop"]).ok();
    assert_eq!(daemon.wait().0.code(), Some(0));
}

#[test]
fn the_socket_of_another_daemon_survives_the_end_of_this_one() {
    let (images, others) = (Images::new(1, MIB), Images::new(1, MIB));
    let socket = images.path("nbd.sock");
    let nbd = format!("unix:{}", socket.display());
    let first = images.serve(&["--nbd", &nbd]);
    // An administrator makes room for the second.
    fs::remove_file(&socket).unwrap();
    fs::remove_file(&first.control).unwrap();
    let control = first.control.to_str().unwrap();
    let mut command = program();
    command.args(["serve", "--control", control, "--nbd", &nbd, "d0"]);
    command.current_dir(others.dir.path());
    let second = Daemon::of(command, images.dir.path());
    first.end();
    assert!(second.client(&["status"]).ok().out.contains(&second.pid().to_string()));
    drop(Client::connect(&socket, "d0"));
    second.end();
    assert!(!socket.exists());
}

#[test]
fn sockets_are_open_to_their_owner_alone_whatever_the_umask() {
    let images = Images::new(1, MIB);
    for umask in ["0", "077"] {
        let mut command = Command::new("sh");
        let serve = "umask $0; exec \"$@\"";
        command.args(["-c", serve, umask, env!("CARGO_BIN_EXE_ashlar"), "serve", "d0"]);
        command.args(["--control", "control", "--nbd", "unix:nbd.sock"]);
        command.current_dir(images.dir.path());
        let daemon = Daemon::of(command, images.dir.path());
        for name in ["control", "nbd.sock"] {
            let mode = fs::metadata(images.path(name)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{name} under umask {umask}");
        }
        daemon.end();
    }
}
