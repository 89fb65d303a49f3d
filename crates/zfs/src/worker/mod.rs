//! The worker: the process that holds a pool.
//!
//! Its control channel is its standard input. The main thread executes commands one at a time, in
//! order; data channels have separate threads ([`channel`], [`taskq`]). When the control channel
//! closes, the daemon is finished or dead: the worker completes received requests, closes volumes
//! and exports the pool, so that nothing acknowledged is lost, and the next user finds a pool that
//! is not in use.

pub mod channel;
mod commands;
mod parameters;
pub mod taskq;
mod volumes;

use std::io::{self, Write};
use std::os::fd::AsFd;

use ashlar_engine::file::FINISHER;

use crate::control;
use crate::ffi::{files, heap, process};
use crate::protocol::{Command, Refusal};

use commands::Worker;

/// Runs a worker until the process exits.
///
/// With `confine` it loads libzpool, calls that, and only then receives its first command: it moves data through windows,
/// and uses its disks by the descriptors that come with [`Command::Part`].
pub fn main(confine: Option<fn() -> Result<(), String>>) -> ! {
    process::ignore_endings();
    // Whoever finds the disks locked sees by whom.
    let (Ok(()) | Err(_)) = rustix::thread::set_name(FINISHER);
    heap::keep_freed();
    let mut worker = Worker::default();
    if let Some(confine) = confine {
        worker.load();
        files::share_descriptions();
        if let Err(error) = confine() {
            let (Ok(()) | Err(_)) = writeln!(io::stderr(), "{error}");
            process::end(false)
        }
    }
    // Acknowledged data is kept even if the channel can no longer be read.
    let served = serve(&mut worker).map_err(|error| error.to_string());
    let ended = worker.end().and(served);
    if let Err(error) = &ended {
        // Standard error is the daemon's log, which may be closed already.
        let (Ok(()) | Err(_)) = writeln!(io::stderr(), "{error}");
    }
    process::end(ended.is_ok())
}

/// Executes commands until the channel closes.
fn serve(worker: &mut Worker) -> io::Result<()> {
    let channel = io::stdin();
    let channel = channel.as_fd();
    while let Some(message) = control::receive(channel)? {
        let result = match serde_json::from_slice::<Command>(&message.bytes) {
            Ok(command) => worker.run(command, message.descriptor),
            Err(error) => Err(Refusal::invalid(format!("it is not a command: {error}"))),
        };
        match control::send(channel, &serde_json::to_vec(&result)?, None) {
            // Nothing waits for the reply; the next receive returns the end.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            sent => sent?,
        }
    }
    Ok(())
}
