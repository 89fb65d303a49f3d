//! The client of NBD compared with fio's, which is libnbd: one connection to nbdkit's memory plugin, filled.
//!
//! With `REMOTE=URI` the bench takes that disk instead, and overwrites its contents. For an image of Ceph, which only one of
//! the two can lock, `REMOTE_FIO` has fio's options for another one:
//!
//! ```text
//! REMOTE='rbd:rbd/a?conf=ceph.conf' CEPH_CONF=ceph.conf \
//!     REMOTE_FIO='--ioengine=rbd --clientname=admin --pool=rbd --rbdname=b' ashlar-benches remote 2 5
//! ```

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ashlar_block::Gateway;
use ashlar_disks::{Access, Opener};
use ashlar_engine::Engine;

use crate::common::{Outcome, Settings};
use crate::fio;
use crate::load::{JobEnd, Load, Order, Score, on_engine};
use crate::report::{Grid, Unit};

const ROWS: [&str; 2] = ["fio", "ashlar's client"];
const COLUMNS: [&str; 4] = ["read 4K", "write 4K", "read 128K", "write 128K"];
const BYTES: u64 = 256 << 20;

/// What a column measures.
fn load(column: usize, run: Duration) -> Load {
    let (bytes, depth, order) = match column {
        0 | 1 => (4 << 10, 32, Order::Random),
        _ => (128 << 10, 8, Order::Sequential),
    };
    Load { write: column % 2 == 1, bytes, depth, order, span: 0..BYTES, until: JobEnd::Passed(run) }
}

/// nbdkit, which is killed when it is dropped, and its socket.
struct Server<'a>(Child, &'a Path);

impl<'a> Server<'a> {
    fn start(socket: &'a Path) -> Outcome<Self> {
        let mut command = Command::new("nbdkit");
        command.args(["--foreground", "--unix"]).arg(socket).args(["memory", &BYTES.to_string()]);
        let this = Self(command.stdout(Stdio::null()).spawn()?, socket);
        let since = Instant::now();
        while !socket.exists() && since.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(this)
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        let (Ok(()) | Err(_)) = self.0.kill();
        let (Ok(_) | Err(_)) = self.0.wait();
        let (Ok(()) | Err(_)) = std::fs::remove_file(self.1);
    }
}

/// Prints the table.
///
/// # Errors
/// A server or fio could not be started, or an I/O failed.
pub(crate) fn run(settings: Settings) -> Outcome {
    let socket = std::env::temp_dir().join(format!("ashlar-remote-{}", std::process::id()));
    let (_server, uri) = match std::env::var("REMOTE") {
        Ok(uri) => (None, uri),
        Err(_) => {
            let uri = format!("nbd+unix:///?socket={}", socket.display());
            (Some(Server::start(&socket)?), uri)
        }
    };
    let fio_engine = match std::env::var("REMOTE_FIO") {
        Ok(options) => options,
        Err(_) => format!("--ioengine=nbd --uri={uri}"),
    };
    let engine = Engine::start(1)?;
    let disk = Opener::new(Access::Write).one(Path::new(&uri));
    let disk = disk.map_err(|error| error.to_string())?;
    let gateway: &Gateway = &disk.gateway;
    let fill = Load { until: JobEnd::Moved(BYTES), ..load(3, settings.run) };
    on_engine(&engine, &[(gateway, fill)])?;
    let grid =
        Grid::measure(&COLUMNS, &ROWS, Unit::Megabytes, settings.rounds, |_, row, column| {
            let load = load(column, settings.run);
            match row {
                0 => {
                    let done = fio::run(&fio_engine, &load, 1, settings.run)?;
                    Ok(Score::new(done.ios, load.bytes, done.time, done.cpu))
                }
                _ => on_engine(&engine, &[(gateway, load)]),
            }
        })?;
    grid.print("A disk on the network")?;
    grid.print_cpu();
    grid.print_ratio(1, 0, Some(1.0));
    engine.shutdown();
    Ok(())
}
