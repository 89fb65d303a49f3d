//! How a worker exits, and which signals it ignores.

use std::ffi::c_int;

/// Ignores the signals that a terminal or a service manager sends to all processes: a worker exits
/// when its control channel closes, with its pool exported, whatever happens to its parent.
pub(crate) fn ignore_endings() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGPIPE] {
        // SAFETY: no handler is involved, and the signals exist.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// Exits at once. libzpool's threads still run, and ending them all cleanly (`kernel_fini()`) would
/// take more than a second: with no pool open, they have nothing left to do.
pub(crate) fn end(success: bool) -> ! {
    // SAFETY: the process ends.
    unsafe { libc::_exit(c_int::from(!success)) }
}
