//! Standard output and the log.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU8, Ordering};

use serde::Serialize;
use tracing_subscriber::EnvFilter;

use crate::error::{Error, Result};

/// Writes `text` to standard output and flushes it.
///
/// A reader that has gone away (`ashlar scan | head`) is no error.
///
/// # Errors
/// Standard output failed otherwise (a full disk).
pub(crate) fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::plain("cannot write the output", error))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Writes `value` as JSON to standard output.
///
/// # Errors
/// As [`print`].
pub(crate) fn print_json(value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value);
    let text = text.map_err(|error| Error::plain("cannot write JSON", error))?;
    print(&format!("{text}\n"))
}

/// How many `-v` were given.
static VERBOSE: AtomicU8 = AtomicU8::new(0);

/// Whether `-v` was given, for commands that print more then, as those that they are named after do.
pub(crate) fn is_verbose() -> bool {
    VERBOSE.load(Ordering::Relaxed) > 0
}

/// Sends the log to standard error: what `ASHLAR_LOG` says, or by `-v`s.
pub(crate) fn log(verbose: u8, daemon: bool) {
    VERBOSE.store(verbose, Ordering::Relaxed);
    let level = match (verbose, daemon) {
        (0, false) => "warn",
        (0, true) => "info",
        (1, _) => "debug",
        (2.., _) => "trace",
    };
    let filter = match std::env::var("ASHLAR_LOG") {
        Ok(text) if !text.is_empty() => EnvFilter::builder().parse_lossy(text),
        Ok(_) | Err(_) => EnvFilter::new(level),
    };
    let terminal = io::IsTerminal::is_terminal(&io::stderr());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(terminal)
        .with_target(false)
        .init();
}
