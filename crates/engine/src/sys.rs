//! The results of system calls.

use std::io;

/// The result of a system call; a negative one is an error, which errno has.
pub(crate) fn checked<T: Default + PartialOrd>(result: T) -> io::Result<T> {
    if result < T::default() { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Repeats a system call until no signal interrupts it.
pub(crate) fn uninterrupted<T: Default + PartialOrd>(call: impl Fn() -> T) -> io::Result<T> {
    loop {
        match checked(call()) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
