//! What a program says: standard output, standard error, and the log.
//!
//! # Theory
//!
//! A program sets its [`Voice`] once, by [`begin`], after it has parsed its options and before anything else. From then
//! on it calls [`print`] for requested output, [`tell`] and [`note`] for what `--quiet` suppresses, [`report`] for failures, and
//! `tracing` for the rest. [`bulk`] is output that may be large, [`table`] makes tables, and [`progress`] shows long work.
//!
//! Invariants: names come from disks and clients; neither in the output nor in the log do they control the terminal or
//! start a line; JSON stays JSON. A failure is one line, with its advice in a second one. A reader that closes its end of the
//! pipe, and a closed terminal, do not end the program.
//!
//! Ordering: each text is flushed before the function returns, so output and log of one thread are in order. A separate thread
//! writes a daemon's log: no thread that serves waits for a reader of the log.
//!
//! Assumptions: one program is one process. Options belong to the programs; the crates below write nothing, but
//! return an [`Error`], call a [`Console`], or log.

#![forbid(unsafe_code)]

pub mod bulk;
mod log;
pub mod progress;
pub mod table;

pub use log::{Severity, SystemLog};

use std::backtrace::{Backtrace, BacktraceStatus};
use std::borrow::Cow;
use std::fmt;
use std::io::{self, Write};
use std::panic::PanicHookInfo;
use std::sync::OnceLock;

use ashlar_block::text::one_line;
use ashlar_control::console::{Console, LogPlace};
use ashlar_control::error::{Error, Result};
use serde::Serialize;
use tracing::field::Field;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::format::{self, Writer};

/// Writes `text` to standard output and flushes it.
///
/// A reader that has closed the pipe (`ashlar scan | head`) is not an error.
///
/// # Errors
/// Writing to standard output failed for another reason (a full disk).
pub fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(visible(text).as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::plain("cannot write the output", error))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The columns for a text on standard output: those of the terminal, but at least 80; without a terminal `otherwise`.
pub fn width(otherwise: usize) -> usize {
    let size = rustix::termios::tcgetwinsize(io::stdout());
    let columns = size.map_or(0, |size| usize::from(size.ws_col));
    // A serial line that was told no size has none.
    if columns == 0 { otherwise } else { columns.max(80) }
}

/// `text` with control characters escaped, except newlines and tabs: names come from disks and clients, and must not
/// control the terminal. A name that becomes part of a line is escaped by
/// [`one_line`], including newlines.
fn visible(text: &str) -> Cow<'_, str> {
    let commands = |c: char| c.is_control() && c != '\n' && c != '\t';
    if !text.contains(commands) {
        return Cow::Borrowed(text);
    }
    // With JSON's escapes, so that JSON stays valid.
    let escape = |c: char| match commands(c) {
        true => format!("\\u{:04x}", u32::from(c)),
        false => c.to_string(),
    };
    Cow::Owned(text.chars().map(escape).collect())
}

/// The settings of a program's output.
#[derive(Clone, Copy, Debug, Default)]
pub struct Voice {
    /// Its name, which is printed before a failure.
    pub program: &'static str,
    /// How many `-v` were given.
    pub verbose: u8,
    /// Whether to print only errors and requested output: `--quiet`.
    pub quiet: bool,
    /// Whether it may become a daemon, which logs its activity, and its panics.
    pub daemon: bool,
}

static VOICE: OnceLock<Voice> = OnceLock::new();

fn voice() -> Voice {
    VOICE.get().copied().unwrap_or_default()
}

/// Whether only errors and requested output are printed.
pub fn is_quiet() -> bool {
    voice().quiet
}

/// Reports on standard output what the program did. The user did not request this output, so `--quiet` suppresses it.
///
/// # Errors
/// As [`print`].
pub fn tell(text: &str) -> Result<()> {
    if is_quiet() { Ok(()) } else { print(text) }
}

/// As [`tell`], on standard error, ignoring failures.
pub fn note(text: &str) {
    if !is_quiet() {
        to_stderr(text);
    }
}

/// Writes `text` to standard error and ignores failures: a closed terminal must not end the program.
pub fn to_stderr(text: &str) {
    log::to_stderr(&visible(text));
}

/// Waits until the log is written, as long as something reads it. Call this before the process ends.
pub fn end() {
    log::flush();
}

/// Prints a failure to standard error: its message as one line, and its advice. Returns the exit code.
pub fn report(error: &Error) -> u8 {
    // One line, even if a layer's message has several.
    let text = error.to_string();
    let text = text.lines().map(str::trim).collect::<Vec<_>>().join(" ");
    log::log_said(|| tracing::error!(hint = error.advice(), "{text}"));
    let hint = error.advice().map_or_else(String::new, |hint| format!("hint: {hint}\n"));
    to_stderr(&format!("{}: {text}\n{hint}", voice().program));
    error.exit_code()
}

/// Standard output, standard error and the log, for a daemon.
pub struct Terminal;

impl Console for Terminal {
    fn open_log(&mut self, place: &LogPlace, and_stderr: bool) -> Result<()> {
        log::open(place, and_stderr, voice().program)
    }

    fn hand_over_log(&mut self) -> fn() {
        log::hand_over();
        end
    }

    fn announce(&mut self, text: &str) -> Result<()> {
        tell(text)
    }

    fn complain(&mut self, error: &Error) {
        report(error);
    }
}

/// Writes `value` as JSON to standard output.
///
/// # Errors
/// As [`print`].
pub fn print_json(value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value);
    let text = text.map_err(|error| Error::plain("cannot write JSON", error))?;
    print(&format!("{text}\n"))
}

/// Whether the user passed `-v`, for commands that then print more, like the commands they are named after.
pub fn is_verbose() -> bool {
    voice().verbose > 0
}

/// Uses this voice from now on, and sends the log to standard error, filtered by `ASHLAR_LOG`, or by `-v` and `-q`.
/// Call this once.
pub fn begin(voice: Voice) {
    let Voice { verbose, quiet, daemon, .. } = *VOICE.get_or_init(|| voice);
    let level = match (verbose, daemon) {
        (0, _) if quiet => "error",
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
        .with_writer(log::Lines)
        .fmt_fields(format::debug_fn(write_field).delimited(" "))
        .with_ansi(terminal)
        .with_target(false)
        // The subscriber would report the error to standard error, and panic if that fails.
        .log_internal_errors(false)
        .init();
    if daemon {
        std::panic::set_hook(Box::new(log_panic));
    }
}

/// Writes a field of a log line, or its message. An event is one line: newlines and other control characters of names
/// are shown as escapes.
fn write_field(writer: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    let value = one_line(&format!("{value:?}"));
    match field.name() {
        "message" => writer.write_str(&value),
        name if writer.has_ansi_escapes() => {
            write!(writer, "\u{1b}[3m{name}\u{1b}[0m\u{1b}[2m=\u{1b}[0m{value}")
        }
        name => write!(writer, "{name}={value}"),
    }
}

/// Logs a panic.
fn log_panic(info: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("unnamed");
    let at = info.location().map(ToString::to_string);
    let message = info.payload_as_str().unwrap_or("without a message");
    tracing::error!(thread, at, "panicked: {message}");
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        to_stderr(&backtrace.to_string());
    }
    // The process may be about to end.
    end();
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::field::MakeExt;
    use tracing_subscriber::fmt::format;

    use super::{visible, write_field};

    /// A log that keeps what is written to it.
    #[derive(Clone, Default)]
    struct KeptLog(Arc<Mutex<Vec<u8>>>);

    impl Write for KeptLog {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_name_in_the_log_is_neither_a_command_nor_a_line() {
        for ansi in [false, true] {
            let kept = KeptLog::default();
            let writer = kept.clone();
            let log = tracing_subscriber::fmt()
                .with_writer(move || writer.clone())
                .fmt_fields(format::debug_fn(write_field).delimited(" "))
                .with_ansi(ansi)
                .finish();
            let name = "a\n2026 ERROR b\u{1b}[31m\u{9b}";
            tracing::subscriber::with_default(log, || {
                tracing::warn!(device = name, path = %name, "{name} fails");
            });
            let text = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
            assert_eq!(text.lines().count(), 1, "{text:?}");
            assert!(!text.contains("\u{1b}[31m") && !text.contains('\u{9b}'), "{text:?}");
            let plain = r"a\n2026 ERROR b\u{1b}[31m\u{9b}";
            assert!(text.contains(&format!("{plain} fails ")), "{text:?}");
            assert_eq!(text.matches(plain).count(), 3, "{text:?}");
            assert_eq!(text.contains("path=a"), !ansi, "{text:?}");
        }
    }

    #[test]
    fn text_does_not_command_the_terminal_and_json_stays_json() {
        assert_eq!(visible("a\tb\nc\u{e4}"), "a\tb\nc\u{e4}");
        assert_eq!(visible("\u{1b}[31m\r"), r"\u001b[31m\u000d");
        let odd = "\u{9b}31m\u{7f}\u{1b}";
        let json = serde_json::to_string(odd).unwrap();
        assert_eq!(serde_json::from_str::<String>(&visible(&json)).unwrap(), odd);
    }
}
