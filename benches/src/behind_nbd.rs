//! Volumes behind the NBD server as the daemon runs it, with fio as the client.
//!
//! Each job of fio is a connection of its own, and the server spreads connections over its threads, as the daemon does
//! (`ashlar_export::nbd::placement`). Server and client share the machine's processors.

use std::future::pending;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ashlar_block::{ByteVolume, Gateway};
use ashlar_engine::Engine;
use ashlar_engine::net::Listener;
use ashlar_export::nbd::export::{Export, Exports};
use ashlar_export::nbd::listen::{Config, Tls, listen};
use ashlar_export::nbd::placement::Placement;

use crate::common::{Outcome, Settings, cpu_time};
use crate::fio;
use crate::load::{Load, Score};
use crate::report::{Grid, Unit};

/// Threads of the server: a table for each.
const THREADS: [usize; 2] = [1, 2];
const COLUMNS: [&str; 5] = ["1 job", "2 jobs", "4 jobs", "8 jobs", "40 jobs"];
const JOBS: [usize; 5] = [1, 2, 4, 8, 40];

/// A server of one volume, which ends when it is dropped.
pub(crate) struct Server {
    socket: PathBuf,
    _engine: Engine,
}

impl Server {
    pub(crate) fn start(threads: usize, volume: &Gateway) -> Outcome<Self> {
        let socket = std::env::temp_dir().join(format!("ashlar-nbd-{}", std::process::id()));
        let exports = Arc::new(Exports::new());
        let export = Export::new("", ByteVolume::new(volume.clone()));
        let added = export.and_then(|export| exports.add(export));
        added.map_err(|error| error.to_string())?;
        let engine = Engine::start(threads)?;
        let placement = Placement::on(engine.handles());
        let path = socket.clone();
        // It is never told to stop: its tasks end with their reactors.
        let served = engine.handles()[0].spawn_on(move || async move {
            let listener = Listener::bind_unix(path, 0o600)?;
            let config = Config::default();
            listen(listener, exports, Arc::default(), placement, config, Tls::default(), pending())
                .await
        });
        drop(served);
        let since = Instant::now();
        while !socket.exists() {
            if since.elapsed() > Duration::from_secs(10) {
                return Err(format!("no server at {}", socket.display()).into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(Self { socket, _engine: engine })
    }

    /// Where it listens.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// The score of a client's jobs, with the CPU time of this process, which is the server's.
    fn measure(&self, load: &Load, jobs: usize, run: Duration) -> Outcome<Score> {
        let engine = format!("--ioengine=nbd --uri=nbd+unix:///?socket={}", self.socket.display());
        let before = cpu_time();
        let done = fio::run(&engine, load, jobs, run)?;
        Ok(Score::new(done.ios, load.bytes, done.time, cpu_time() - before))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.socket) {
            eprintln!("{}: {error}", self.socket.display());
        }
    }
}

/// Prints and records the rates of `volumes`, one for each row, with one and with two threads of the server, and the ratios of
/// two rows in `compared`.
///
/// # Errors
/// A reactor or fio could not be started, or an I/O failed.
pub(crate) fn tables(
    title: &str,
    rows: &[&str],
    volumes: &[Gateway],
    load: &Load,
    settings: Settings,
    compared: (usize, usize),
) -> Outcome {
    for threads in THREADS {
        let run = settings.run;
        let measure = |_, row: usize, column: usize| {
            Server::start(threads, &volumes[row])?.measure(load, JOBS[column], run)
        };
        let grid = Grid::measure(&COLUMNS, rows, Unit::Kiops, settings.rounds, measure)?;
        let name =
            format!("{title}, {threads} {}", if threads == 1 { "thread" } else { "threads" });
        grid.print(&name)?;
        grid.print_cpu();
        grid.record_cpu(&format!("CPU: {name}"))?;
        grid.print_ratio(compared.0, compared.1, None);
    }
    Ok(())
}
