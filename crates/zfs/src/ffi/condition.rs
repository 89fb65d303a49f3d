//! Whether a pool can be used just now, found out without waiting for it.
//!
//! While a pool is suspended, a thread of libzpool may wait for its disks and hold the lock of all pools: `spa_async_thread` does so in
//! `spa_config_update` (module/zfs/spa.c). Whoever opens a pool by its name waits for that lock then, for ever. So a pool is kept in mind
//! from the first time it is asked about, and what is asked of it takes no lock.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;

use super::kernel::{TAG, Zfs};
use super::spa::spa_t;
use super::{Library, LoadError, Release, symbols};

/// How often the lock is tried.
const INTERVAL: Duration = Duration::from_millis(5);

/// Whether a pool can be changed just now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Condition {
    /// It was not imported read-only.
    pub(crate) is_writable: bool,
    /// Its disks failed: what writes, waits until they are back.
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
    /// sys/spa.h since 2.4, which has the lock no more.
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

/// A pool that is imported.
#[derive(Clone, Copy)]
struct Known(*mut spa_t);

/// The pools that are kept in mind, by name.
pub(super) struct Conditions {
    namespace: Namespace,
    known: Mutex<BTreeMap<String, Known>>,
}

impl Conditions {
    /// None is known.
    ///
    /// # Errors
    /// The release is not what it seems.
    pub(super) fn load(library: &Library) -> Result<Self, LoadError> {
        let namespace = if library.release() >= Release::V2_4 {
            Namespace::Functions(NamespaceFunctions::load(library)?)
        } else {
            let (lock, _) = library.variable("spa_namespace_lock")?;
            Namespace::Lock(lock.cast(), MutexFunctions::load(library)?)
        };
        Ok(Self { namespace, known: Mutex::default() })
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<String, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets a pool, before it goes.
    pub(super) fn forget(&self, name: &CStr) {
        self.known().remove(&*name.to_string_lossy());
    }

    /// Whether nobody has the lock of all pools.
    fn is_free(&self) -> bool {
        match &self.namespace {
            // SAFETY: it is that lock, and ours if it says so.
            Namespace::Lock(lock, functions) => unsafe {
                let entered = (functions.mutex_tryenter)(*lock) != 0;
                if entered {
                    (functions.mutex_exit)(*lock);
                }
                entered
            },
            // SAFETY: the lock is ours if it says so.
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
    /// Whether a pool can be changed just now. Waits for who has the lock of all pools, unless that waits for this pool in turn.
    ///
    /// # Errors
    /// The pool cannot be opened.
    pub(crate) fn pool_condition(&self, name: &str) -> Result<Condition, Errno> {
        let known = self.conditions.known().get(name).copied();
        let Some(Known(spa)) = known else {
            let pool = self.open_pool(name)?;
            self.conditions.known().insert(name.to_owned(), Known(pool.spa));
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
        // SAFETY: the pool is imported: it is forgotten before it goes. Both look at fields of it, and take no lock.
        unsafe {
            Condition {
                is_writable: (self.spa.spa_writeable)(spa) != 0,
                is_suspended: (self.spa.spa_suspended)(spa) != 0,
            }
        }
    }
}
