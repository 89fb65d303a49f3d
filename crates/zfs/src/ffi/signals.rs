//! Signals that a worker does not end by.

/// Ignores the signals that a terminal or a service manager sends to all processes: a worker ends when its control channel does, with its pool
/// exported, whatever becomes of its parent.
pub(crate) fn ignore_endings() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGPIPE] {
        // SAFETY: no handler is involved, and the signals exist.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}
