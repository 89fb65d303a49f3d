//! libzpool, loaded at run time: the only code that knows its binary interface.
//!
//! The declarations are ours and cover only what is used; each group names the OpenZFS header that
//! it follows. Differences between releases are resolved here. All differences between 2.1 and 2.4
//! in the used functions are arguments added at the end, which an older release ignores (both ABIs
//! of OpenZFS's packages pass them in registers), and new results, for which [`Release`] decides.

use std::ffi::{OsStr, OsString, c_int};
use std::fmt;

use rustix::io::Errno;
use thiserror::Error;

pub(crate) mod condition;
mod disk_ops;
pub(crate) mod dmu;
pub(crate) mod dsl;
pub(crate) mod files;
pub(crate) mod heap;
pub(crate) mod kernel;
#[cfg(test)]
mod layout;
pub(crate) mod memory;
pub(crate) mod nvlist;
pub(crate) mod process;
pub(crate) mod properties;
pub(crate) mod replay;
pub(crate) mod shared_memory;
mod slabs;
pub(crate) mod spa;
mod surroundings;
pub(crate) mod transaction;
mod vdevs;
pub(crate) mod volume_objects;
pub(crate) mod zil;

/// The releases of OpenZFS with a known interface.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Release {
    /// 2.1.x, libzpool.so.5
    V2_1,
    /// 2.2.x, libzpool.so.5
    V2_2,
    /// 2.3.x, libzpool.so.6
    V2_3,
    /// 2.4.x, libzpool.so.7
    V2_4,
}

impl fmt::Display for Release {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::V2_1 => "2.1",
            Self::V2_2 => "2.2",
            Self::V2_3 => "2.3",
            Self::V2_4 => "2.4",
        })
    }
}

/// Converts a result, which is 0 or an errno: one of Linux, or one of ZFS, from 1024 on (sys/fs/zfs.h).
pub(crate) fn check(result: c_int) -> Result<(), Errno> {
    if result == 0 { Ok(()) } else { Err(Errno::from_raw_os_error(result)) }
}

/// Why libzpool is unusable.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The file does not exist, or cannot be loaded.
    #[error("there is no libzpool: {0}")]
    Absent(String),
    /// Its release is not supported.
    #[error("{path} is not of a release of OpenZFS that is known (2.1 to 2.4): {why}")]
    Unknown {
        /// The name by which it was loaded.
        path: String,
        /// How this was detected.
        why: String,
    },
}

impl LoadError {
    /// The remedy.
    pub fn hint(&self) -> &'static str {
        "install OpenZFS's libraries, release 2.1 to 2.4 (Debian: libzpool6linux or libzpool5linux, from contrib), or name \
         the file with ASHLAR_LIBZPOOL"
    }
}

/// The environment variable with the library's file name.
pub const LIBRARY: &str = "ASHLAR_LIBZPOOL";

/// A function that 2.4 introduced.
const MARK_OF_2_4: &str = "zil_commit_flags";

/// The names to try, newest first; each denotes an interface (soname).
const SONAMES: [&str; 3] = ["libzpool.so.7", "libzpool.so.6", "libzpool.so.5"];

/// The loaded libzpool.
pub struct Library {
    library: libloading::Library,
    release: Release,
    path: OsString,
}

impl Library {
    /// Loads the library that [`LIBRARY`] names, or the newest installed one, and detects its release.
    ///
    /// # Errors
    /// The library is not installed, or its release is unknown.
    pub fn open() -> Result<Self, LoadError> {
        let named = std::env::var_os(LIBRARY);
        let names = match &named {
            Some(name) => vec![name.as_os_str()],
            None => SONAMES.iter().map(OsStr::new).collect(),
        };
        let mut failures = Vec::new();
        for name in names {
            // SAFETY: libzpool's initialisers only register its own tables; the caller is a worker
            // process without other code.
            match unsafe { libloading::Library::new(name) } {
                Ok(library) => return Self::recognise(library, name.to_owned()),
                Err(error) => failures.push(error.to_string()),
            }
        }
        Err(LoadError::Absent(failures.join("; ")))
    }

    /// Detects the release by functions that it introduced: the soname does not distinguish 2.1 from 2.2.
    fn recognise(library: libloading::Library, path: OsString) -> Result<Self, LoadError> {
        let has = |name: &str| {
            // SAFETY: the address is not used.
            unsafe { library.get::<*const ()>(name.as_bytes()) }.is_ok()
        };
        let unknown = |why: &str| LoadError::Unknown {
            path: path.to_string_lossy().into_owned(),
            why: why.to_owned(),
        };
        if !has("kernel_init") || !has("dmu_buf_hold_array_by_bonus") {
            return Err(unknown("it has no kernel_init"));
        }
        // A function that each release has and the one before lacks.
        let marks = [has("brt_init"), has("dmu_write_direct"), has(MARK_OF_2_4)];
        let release = match marks {
            [false, false, false] => Release::V2_1,
            [true, false, false] => Release::V2_2,
            [true, true, false] => Release::V2_3,
            [true, true, true] => Release::V2_4,
            _ => {
                return Err(unknown(
                    "it has what belongs to a newer release, but not what came before",
                ));
            }
        };
        Ok(Self { library, release, path })
    }

    /// Its release.
    pub fn release(&self) -> Release {
        self.release
    }

    /// The name by which it was loaded.
    pub fn path(&self) -> &OsStr {
        &self.path
    }

    /// Checks that the library calls our replacements of its functions.
    ///
    /// # Errors
    /// It does not: the program does not export them.
    fn check_replaced(&self) -> Result<(), LoadError> {
        for (name, ours) in
            files::replaced().into_iter().chain(surroundings::replaced()).chain(slabs::replaced())
        {
            // SAFETY: the name is a valid string; the address is only compared.
            let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
            if !std::ptr::addr_eq(found, ours) {
                return Err(LoadError::Unknown {
                    path: self.path.to_string_lossy().into_owned(),
                    why: format!("this program does not export {}", name.to_string_lossy()),
                });
            }
        }
        Ok(())
    }

    /// The address of a function or variable.
    ///
    /// # Errors
    /// It does not exist.
    ///
    /// # Safety
    /// `T` must be the type of this symbol in this release.
    unsafe fn symbol<T: Copy>(&self, name: &'static str) -> Result<T, LoadError> {
        // SAFETY: guaranteed by the caller.
        let symbol = unsafe { self.library.get::<T>(name.as_bytes()) };
        symbol.map(|found| *found).map_err(|error| LoadError::Unknown {
            path: self.path.to_string_lossy().into_owned(),
            why: error.to_string(),
        })
    }
}

/// Declares a table of libzpool's functions and its loader. The functions are called as fields:
/// `(dmu.dmu_tx_create)(os)`.
macro_rules! symbols {
    ($(#[$about:meta])* $table:ident { $($(#[$doc:meta])* $name:ident: fn($($argument:ty),* $(,)?) $(-> $result:ty)?;)* }) => {
        $(#[$about])*
        #[allow(missing_docs, reason = "the names and meanings are OpenZFS's")]
        #[derive(Clone, Copy)]
        pub(crate) struct $table {
            $($(#[$doc])* pub(crate) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl $table {
            /// Looks up all functions.
            ///
            /// # Errors
            /// A function is missing: the library does not match its release.
            pub(crate) fn load(library: &$crate::ffi::Library) -> Result<Self, $crate::ffi::LoadError> {
                Ok(Self {
                    // SAFETY: the declarations follow the headers of the releases that `Library` recognises.
                    $($name: unsafe { library.symbol(stringify!($name)) }?,)*
                })
            }
        }
    };
}
pub(crate) use symbols;
