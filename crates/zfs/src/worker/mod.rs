//! The worker: the process that has a pool.
//!
//! Its control channel is its standard input. Commands are carried out one at a time, in the order in which they come, by the main
//! thread; data channels have threads of their own ([`channel`], [`taskq`]). When the control channel ends, the daemon has no more to say or
//! is dead: what came is finished, volumes are closed and the pool is exported, so that nothing is lost which was answered,
//! and whoever comes next finds a pool that nobody uses.

pub mod channel;
mod commands;
mod parameters;
pub mod taskq;
mod volumes;

use std::io::{self, Write};
use std::os::fd::AsFd;

use crate::control;
use crate::ffi::{heap, process};
use crate::protocol::{Command, Refusal};

use commands::Worker;

/// Runs a worker to its end: the process's end.
pub fn main() -> ! {
    process::ignore_endings();
    heap::keep_freed();
    let mut worker = Worker::default();
    // What was answered is kept, also if the channel cannot be read any more.
    let served = serve(&mut worker).map_err(|error| error.to_string());
    let ended = worker.end().and(served);
    if let Err(error) = &ended {
        // Standard error is the daemon's log, which may have ended before.
        let (Ok(()) | Err(_)) = writeln!(io::stderr(), "{error}");
    }
    process::end(ended.is_ok())
}

/// Carries out commands until the channel ends.
fn serve(worker: &mut Worker) -> io::Result<()> {
    let channel = io::stdin();
    let channel = channel.as_fd();
    while let Some(message) = control::receive(channel)? {
        let result = match serde_json::from_slice::<Command>(&message.bytes) {
            Ok(command) => worker.run(command, message.descriptor),
            Err(error) => Err(Refusal::invalid(format!("it is no command: {error}"))),
        };
        match control::send(channel, &serde_json::to_vec(&result)?, None) {
            // Nobody waits for the answer any more; the next one to receive is the end.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            sent => sent?,
        }
    }
    Ok(())
}
