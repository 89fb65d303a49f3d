//! Whether a pool is usable now, determined without blocking on it.
//!
//! While a pool is suspended, a thread of libzpool may wait for the pool's disks while holding the
//! lock of all pools: `spa_async_thread` does this in `spa_config_update` (module/zfs/spa.c). A
//! caller that opens a pool by name then waits for that lock indefinitely. So a pool's address is
//! stored at the first query, and later queries take no lock.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;

use super::kernel::{TAG, Zfs};
use super::spa::spa_t;
use super::{Library, LoadError, Release, symbols};

/// How often to try the lock.
const INTERVAL: Duration = Duration::from_millis(5);

/// Whether a pool can be changed now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Condition {
    /// Whether it was imported writable.
    pub(crate) is_writable: bool,
    /// Whether its disks failed: writes wait until they are back.
    pub(crate) is_suspended: bool,
}

symbols! {
    /// sys/zfs_context.h.
    MutexFunctions {
        mutex_tryenter: fn(*mut c_void) -> c_int;
        mutex_exit: fn(*mut c_void);
    }
}

symbols! {
    /// sys/spa.h since 2.4, which does not export the lock.
    NamespaceFunctions {
        spa_namespace_tryenter: fn(*const c_void) -> c_int;
        spa_namespace_exit: fn(*const c_void);
    }
}

/// The lock of all pools.
enum Namespace {
    /// A variable, up to 2.3.
    Lock(*mut c_void, MutexFunctions),
    Functions(NamespaceFunctions),
}

/// An imported pool.
#[derive(Clone, Copy)]
struct KnownPool(*mut spa_t);

/// The stored pools, by name.
pub(super) struct Conditions {
    namespace: Namespace,
    known: Mutex<BTreeMap<String, KnownPool>>,
}

impl Conditions {
    /// Without stored pools.
    ///
    /// # Errors
    /// The library does not match its release.
    pub(super) fn load(library: &Library) -> Result<Self, LoadError> {
        let namespace = if library.release() >= Release::V2_4 {
            Namespace::Functions(NamespaceFunctions::load(library)?)
        } else {
            let (lock, _) = library.variable("spa_namespace_lock")?;
            Namespace::Lock(lock.cast(), MutexFunctions::load(library)?)
        };
        Ok(Self { namespace, known: Mutex::default() })
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<String, KnownPool>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets a pool; called before the pool is freed.
    pub(super) fn forget(&self, name: &CStr) {
        self.known().remove(&*name.to_string_lossy());
    }

    /// Whether no thread holds the lock of all pools.
    fn is_free(&self) -> bool {
        match &self.namespace {
            // SAFETY: it is that lock, and this thread holds it if `mutex_tryenter` succeeds.
            Namespace::Lock(lock, functions) => unsafe {
                let entered = (functions.mutex_tryenter)(*lock) != 0;
                if entered {
                    (functions.mutex_exit)(*lock);
                }
                entered
            },
            // SAFETY: this thread holds the lock if `spa_namespace_tryenter` succeeds.
            Namespace::Functions(functions) => unsafe {
                let entered = (functions.spa_namespace_tryenter)(TAG) != 0;
                if entered {
                    (functions.spa_namespace_exit)(TAG);
                }
                entered
            },
        }
    }
}

impl Zfs {
    /// Whether a pool can be changed now. Waits for the holder of the lock of all pools, unless the
    /// pool is suspended.
    ///
    /// # Errors
    /// The pool cannot be opened.
    pub(crate) fn pool_condition(&self, name: &str) -> Result<Condition, Errno> {
        let known = self.conditions.known().get(name).copied();
        let Some(KnownPool(spa)) = known else {
            let pool = self.open_pool(name)?;
            self.conditions.known().insert(name.to_owned(), KnownPool(pool.spa));
            return Ok(self.condition(pool.spa));
        };
        loop {
            let condition = self.condition(spa);
            if condition.is_suspended || self.conditions.is_free() {
                return Ok(condition);
            }
            thread::sleep(INTERVAL);
        }
    }

    fn condition(&self, spa: *mut spa_t) -> Condition {
        // SAFETY: the pool is imported: it is forgotten before it is freed. Both functions read
        // fields of it, and take no lock.
        unsafe {
            Condition {
                is_writable: (self.spa.spa_writeable)(spa) != 0,
                is_suspended: (self.spa.spa_suspended)(spa) != 0,
            }
        }
    }
}
