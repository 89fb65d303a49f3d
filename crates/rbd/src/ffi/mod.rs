//! librados and librbd, loaded at run time: the only code that knows their binary interface.
//!
//! The declarations are ours, follow `rados/librados.h` and `rbd/librbd.h`, and cover only what is used. Both interfaces only grow: a
//! library without one of these functions is too old, and refused. The libraries stay loaded, because their
//! threads and thread-local destructors outlive the last handle.

use std::ffi::{CString, c_int};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use rustix::io::Errno;
use thiserror::Error;

mod connection;
mod declarations;
mod image;

pub(crate) use connection::{Connection, IoContext};
pub(crate) use declarations::{RadosFunctions, RbdFunctions};
pub(crate) use image::{Command, Image, ImageInfo, Mode, errno};

/// Why the libraries cannot be used.
#[derive(Clone, Debug, Error)]
#[error("{library} cannot be loaded: {why}")]
pub struct LoadError {
    /// The name of the library.
    pub library: &'static str,
    /// The Debian package that has it.
    pub package: &'static str,
    /// What the linker says.
    pub why: String,
}

/// A call of a library failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CallError {
    /// The function.
    pub(crate) call: &'static str,
    pub(crate) errno: Errno,
}

/// The functions of both libraries.
pub(crate) struct Libraries {
    pub(crate) rados: RadosFunctions,
    pub(crate) rbd: RbdFunctions,
}

impl Libraries {
    /// Loads them, unless that has been done.
    ///
    /// # Errors
    /// One of them is missing or too old.
    pub(crate) fn get() -> Result<&'static Self, LoadError> {
        static LIBRARIES: OnceLock<Result<Libraries, LoadError>> = OnceLock::new();
        LIBRARIES.get_or_init(Self::load).as_ref().map_err(Clone::clone)
    }

    fn load() -> Result<Self, LoadError> {
        let rados = Library::open("librados.so.2", "librados2")?;
        let rbd = Library::open("librbd.so.1", "librbd1")?;
        Ok(Self { rados: RadosFunctions::load(rados)?, rbd: RbdFunctions::load(rbd)? })
    }
}

/// A loaded library.
#[derive(Clone, Copy)]
struct Library {
    library: &'static libloading::Library,
    name: &'static str,
    package: &'static str,
}

impl Library {
    fn open(name: &'static str, package: &'static str) -> Result<Self, LoadError> {
        // SAFETY: the initialisers of these libraries set up their own state, and may run on any thread.
        match unsafe { libloading::Library::new(name) } {
            Ok(library) => Ok(Self { library: Box::leak(Box::new(library)), name, package }),
            Err(error) => Err(LoadError { library: name, package, why: error.to_string() }),
        }
    }

    /// The address of a function.
    ///
    /// # Safety
    /// `T` must be its type.
    unsafe fn function<T: Copy>(self, function: &'static str) -> Result<T, LoadError> {
        // SAFETY: guaranteed by the caller.
        let found = unsafe { self.library.get::<T>(function.as_bytes()) };
        let failed = |why: String| LoadError { library: self.name, package: self.package, why };
        found.map(|found| *found).map_err(|error| failed(format!("it is too old: {error}")))
    }
}

/// The result of a call: negative for an errno.
fn check(call: &'static str, result: c_int) -> Result<(), CallError> {
    if result >= 0 {
        return Ok(());
    }
    Err(CallError { call, errno: Errno::from_raw_os_error(-result) })
}

/// A text for a library. (URIs have no zero bytes.)
fn text(text: &str) -> Result<CString, CallError> {
    CString::new(text)
        .map_err(|_| CallError { call: "a name with a zero byte", errno: Errno::INVAL })
}

/// Has `hook` called when the process ends by exit(3) or by returning from `main`, before the libraries' own ends; once, however
/// often this is called.
pub(crate) fn at_exit(hook: extern "C" fn()) {
    static DONE: AtomicBool = AtomicBool::new(false);
    if DONE.swap(true, SeqCst) {
        return;
    }
    // SAFETY: the hook is a function of this program, which stays loaded. Handlers run in the reverse order of their
    // registration, and the libraries have registered theirs when they were loaded.
    if unsafe { libc::atexit(hook) } != 0 {
        tracing::warn!(
            "no room for another handler of the process's end: images may stay locked for half a minute"
        );
    }
}
