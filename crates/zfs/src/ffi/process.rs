//! How a worker ends, and how it does not.

use std::ffi::c_int;

/// Ignores the signals that a terminal or a service manager sends to all processes: a worker ends when its control channel does, with its pool
/// exported, whatever becomes of its parent.
pub(crate) fn ignore_endings() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGPIPE] {
        // SAFETY: no handler is involved, and the signals exist.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// Ends the process at once. libzpool's threads still run, and it would take a second and more to end them all in good
/// order (`kernel_fini()`): nothing is left to do for them when no pool is open.
pub(crate) fn end(success: bool) -> ! {
    // SAFETY: the process ends.
    unsafe { libc::_exit(c_int::from(!success)) }
}
