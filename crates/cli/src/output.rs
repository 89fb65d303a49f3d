//! Standard output and the log.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::borrow::Cow;
use std::fmt;
use std::io::{self, Write};
use std::panic::PanicHookInfo;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use ashlar_host::daemon::Console;
use ashlar_host::error::{Error, Result};
use ashlar_md::ondisk::text::one_line;
use serde::Serialize;
use tracing::field::Field;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::format::{self, Writer};

/// Writes `text` to standard output and flushes it.
///
/// A reader that has gone away (`ashlar scan | head`) is no error.
///
/// # Errors
/// Standard output failed otherwise (a full disk).
pub(crate) fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(visible(text).as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::plain("cannot write the output", error))
        }
        Ok(()) | Err(_) => Ok(()),
    }
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

/// Whether to print only errors and requested output: `--quiet`.
static QUIET: AtomicBool = AtomicBool::new(false);

/// From now on prints only errors and requested output.
pub(crate) fn be_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

/// Whether only errors and requested output are printed.
pub(crate) fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// Reports on standard output what was done. This output was not requested, so `--quiet` suppresses it.
///
/// # Errors
/// As [`print`].
pub(crate) fn tell(text: &str) -> Result<()> {
    if is_quiet() { Ok(()) } else { print(text) }
}

/// As [`tell`], on standard error, ignoring failures.
pub(crate) fn note(text: &str) {
    if !is_quiet() {
        to_stderr(text);
    }
}

/// Writes `text` to standard error and ignores failures: a closed terminal must not end the program.
pub(crate) fn to_stderr(text: &str) {
    // There is no place to report a failure.
    let (Ok(()) | Err(_)) = io::stderr().lock().write_all(visible(text).as_bytes());
}

/// Prints a failure to standard error: its message as one line, and its advice. Returns the exit code.
pub(crate) fn report(error: &Error) -> u8 {
    // One line, even if a layer's message has several.
    let text = error.to_string();
    let text = text.lines().map(str::trim).collect::<Vec<_>>().join(" ");
    let hint = error.advice().map_or_else(String::new, |hint| format!("hint: {hint}\n"));
    to_stderr(&format!("ashlar: {text}\n{hint}"));
    error.exit_code()
}

/// Standard output and standard error, for a daemon.
pub(crate) struct Terminal;

impl Console for Terminal {
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
pub(crate) fn print_json(value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value);
    let text = text.map_err(|error| Error::plain("cannot write JSON", error))?;
    print(&format!("{text}\n"))
}

/// How many `-v` were given.
static VERBOSE: AtomicU8 = AtomicU8::new(0);

/// Whether `-v` was given, for commands that then print more, like the commands they are named after.
pub(crate) fn is_verbose() -> bool {
    VERBOSE.load(Ordering::Relaxed) > 0
}

/// Sends the log to standard error, filtered by `ASHLAR_LOG`, or by `-v`s and `-q`.
pub(crate) fn log(verbose: u8, daemon: bool) {
    VERBOSE.store(verbose, Ordering::Relaxed);
    let level = match (verbose, daemon) {
        (0, _) if is_quiet() => "error",
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
        .fmt_fields(format::debug_fn(write_field).delimited(" "))
        .with_ansi(terminal)
        .with_target(false)
        // It would report the error to standard error, which has just failed, and panic.
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
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
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
            let kept = Kept::default();
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
