//! libzpool's start, its tunables, and the handle to all of it.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use rustix::io::Errno;

use super::condition::Conditions;
use super::dsl::DslFunctions;
use super::nvlist::NvFunctions;
use super::properties::{Properties, PropertyFunctions};
use super::spa::SpaFunctions;
use super::{Library, LoadError, check, disk_ops, slabs, symbols};

symbols! {
    /// sys/zfs_context.h, and sys/arc_impl.h for the last two.
    KernelFunctions {
        kernel_init: fn(c_int);
        /// The host's number as labels have it; 0 if it has none.
        zone_get_hostid: fn(*mut c_void) -> u32;
        /// What the ARC takes for the machine's memory.
        arc_all_memory: fn() -> u64;
        /// Takes the ARC's tunables over.
        arc_tuning_update: fn(c_int);
    }
}

/// SPA_MODE_READ and SPA_MODE_WRITE of sys/spa.h.
const READ_AND_WRITE: c_int = 3;

/// Where pools are remembered: nowhere. No such file can be opened, and none is written, since each pool has
/// `cachefile=none`.
const NO_CACHE_FILE: &CStr = c"";

/// The tunables that may be set: OpenZFS's module parameters that matter for what a worker does and are plain numbers. Those that a
/// release does not have are refused.
const PARAMETERS: [&str; 39] = [
    "zfs_arc_max",
    "zfs_arc_min",
    "zfs_arc_meta_limit",
    "zfs_arc_sys_free",
    "zfs_compressed_arc_enabled",
    "zfs_abd_scatter_enabled",
    "zfs_dirty_data_max",
    "zfs_dirty_data_max_max",
    "zfs_dirty_data_sync_percent",
    "zfs_flags",
    "zfs_delay_min_dirty_percent",
    "zfs_delay_scale",
    "zfs_txg_timeout",
    "zfs_commit_timeout_pct",
    "zfs_nopwrite_enabled",
    "zfs_prefetch_disable",
    "zfs_max_recordsize",
    "zfs_max_missing_tvds",
    "zfs_multihost_interval",
    "zfs_multihost_import_intervals",
    "zfs_nocacheflush",
    "zfs_scan_vdev_limit",
    "zfs_scrub_min_time_ms",
    "zfs_scan_legacy",
    "zfs_scan_issue_strategy",
    "zfs_scan_suspend_progress",
    "zfs_vdev_max_active",
    "zfs_vdev_sync_read_max_active",
    "zfs_vdev_sync_write_max_active",
    "zfs_vdev_async_read_max_active",
    "zfs_vdev_async_write_max_active",
    "zfs_vdev_scrub_max_active",
    "zfs_vdev_aggregation_limit",
    "zil_maxblocksize",
    "zil_replay_disable",
    "zil_slog_bulk",
    "zio_taskq_batch_pct",
    "zio_taskq_batch_tpq",
    "zio_dva_throttle_enabled",
];

/// Tunables that are not as libzpool has them.
///
/// It is made for tests, and has all of its checks on (`zfs_flags`), unlike the kernel module: it sums up each cached buffer
/// whenever somebody lets go of it, and again before it changes, to find out who wrote to it in between: for a write of 4 KiB to a
/// block of 1 MiB that is 1 MiB, twice.
///
/// The ARC's own copy of a buffer is of single pages (`zfs_abd_scatter_enabled`), because a kernel finds no large pieces of memory; so
/// what is written is copied once more. Here it finds them, and the ARC keeps the buffer itself.
const TUNED: [(&str, u64); 2] = [("zfs_flags", 0), (ABD_SCATTER_ENABLED, 0)];

/// Why a tunable was not set.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ParameterError {
    /// There is none of that name in this release, or none that may be set.
    #[error("there is no parameter '{0}' in this release of OpenZFS")]
    Unknown(String),
    /// libzpool would ignore it.
    #[error("'{name}' cannot be {value}: {why}")]
    Ignored {
        /// Its name.
        name: String,
        /// What it was to be.
        value: u64,
        /// What it must be.
        why: &'static str,
    },
    /// It has fewer bits.
    #[error("{value} is more than '{name}' can hold")]
    TooLarge {
        /// Its name.
        name: String,
        /// What it was to be.
        value: u64,
    },
}

/// libzpool, started. There is one in a process, for as long as it lives.
pub(crate) struct Zfs {
    library: &'static Library,
    kernel: KernelFunctions,
    pub(super) nv: NvFunctions,
    pub(super) spa: SpaFunctions,
    pub(super) dsl: DslFunctions,
    pub(super) property: PropertyFunctions,
    properties: Properties,
    pub(super) conditions: Conditions,
}

impl Zfs {
    /// Starts the library, with these tunables. It reads and writes no cache file.
    ///
    /// # Errors
    /// It lacks what its release should have, or a parameter cannot be set.
    pub(crate) fn start(
        library: &'static Library,
        parameters: &BTreeMap<String, u64>,
    ) -> Result<Self, StartError> {
        let kernel = KernelFunctions::load(library)?;
        let nv = NvFunctions::load(library)?;
        let spa = SpaFunctions::load(library)?;
        let dsl = DslFunctions::load(library)?;
        let property = PropertyFunctions::load(library)?;
        let conditions = Conditions::load(library)?;
        let (cache_file, _) = library.variable("spa_config_path")?;
        // SAFETY: the variable is a `char *` (sys/spa.h); nothing else runs yet.
        unsafe { cache_file.cast::<*const c_char>().write(NO_CACHE_FILE.as_ptr()) };
        library.check_replaced()?;
        disk_ops::complete(library)?;
        for (name, value) in TUNED {
            set(library, name, value)?;
        }
        for (name, value) in parameters {
            set(library, name, *value)?;
        }
        // SAFETY: once in this process, before all else.
        unsafe { (kernel.kernel_init)(READ_AND_WRITE) };
        let properties = Properties::read(&property);
        Ok(Self { library, kernel, nv, spa, dsl, property, properties, conditions })
    }

    /// The library itself.
    pub(crate) fn library(&self) -> &'static Library {
        self.library
    }

    /// Its tables of properties.
    pub(crate) fn properties(&self) -> &Properties {
        &self.properties
    }

    /// This host's number, as labels have it; 0 if it has none.
    pub(crate) fn host_id(&self) -> u64 {
        // SAFETY: the argument is not looked at.
        u64::from(unsafe { (self.kernel.zone_get_hostid)(ptr::null_mut()) })
    }

    /// Sets a tunable while it runs; those of the ARC take effect at once.
    ///
    /// # Errors
    /// There is none of that name, or it cannot hold the value.
    pub(crate) fn set_parameter(&self, name: &str, value: u64) -> Result<(), ParameterError> {
        // SAFETY: it takes nothing.
        if name == ARC_MAX && value >= unsafe { (self.kernel.arc_all_memory)() } {
            let why = "it must be less than half of the memory";
            return Err(ParameterError::Ignored { name: name.to_owned(), value, why });
        }
        set(self.library, name, value)?;
        if name.starts_with("zfs_arc_") {
            // SAFETY: the ARC is there since the start.
            unsafe { (self.kernel.arc_tuning_update)(0) };
        }
        Ok(())
    }
}

/// Why libzpool could not be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    /// The library is not what it should be.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A parameter cannot be set.
    #[error(transparent)]
    Parameter(#[from] ParameterError),
}

/// The ARC's limit.
const ARC_MAX: &str = "zfs_arc_max";
/// The ARC's buffers are of single pages.
const ABD_SCATTER_ENABLED: &str = "zfs_abd_scatter_enabled";
/// Compressed blocks are so in memory, too.
const COMPRESSED_ARC_ENABLED: &str = "zfs_compressed_arc_enabled";
/// What the ARC keeps at least.
const ARC_MIN: &str = "zfs_arc_min";
/// The least that either can be (`MIN_ARC_MAX` of sys/arc_impl.h, and two of the largest blocks).
const LEAST_ARC_MAX_BYTES: u64 = 64 << 20;
const LEAST_ARC_MIN_BYTES: u64 = 32 << 20;

fn set(library: &Library, name: &str, value: u64) -> Result<(), ParameterError> {
    if name == ARC_MAX && value != 0 {
        if value < LEAST_ARC_MAX_BYTES {
            let why = "it must be 64M or more";
            return Err(ParameterError::Ignored { name: name.to_owned(), value, why });
        }
        // A limit below what is kept at least, which is a share of the memory, would be ignored.
        store(library, ARC_MIN, LEAST_ARC_MIN_BYTES)?;
    }
    store(library, name, value)?;
    match name {
        ARC_MAX => slabs::follow_arc_max(value),
        ABD_SCATTER_ENABLED => slabs::set_scattered(value != 0),
        // OpenZFS issue 15764: without both, cache devices end in an assertion.
        COMPRESSED_ARC_ENABLED if value == 0 => set(library, ABD_SCATTER_ENABLED, 1)?,
        _ => {}
    }
    Ok(())
}

fn store(library: &Library, name: &str, value: u64) -> Result<(), ParameterError> {
    let unknown = || ParameterError::Unknown(name.to_owned());
    let known = PARAMETERS.iter().find(|known| **known == name).ok_or_else(unknown)?;
    let (address, size) = library.variable(known).map_err(|_| unknown())?;
    match size {
        // SAFETY: the variable is a plain number of this size; the library reads it whole.
        8 => unsafe { address.cast::<u64>().write_volatile(value) },
        4 => {
            let too_large = || ParameterError::TooLarge { name: name.to_owned(), value };
            let value = i32::try_from(value).map_err(|_| too_large())?;
            // SAFETY: as above.
            unsafe { address.cast::<i32>().write_volatile(value) };
        }
        _ => return Err(unknown()),
    }
    Ok(())
}

impl Library {
    /// The address and size of an exported variable.
    ///
    /// # Errors
    /// There is none of that name.
    pub(super) fn variable(&self, name: &'static str) -> Result<(*mut c_void, usize), LoadError> {
        // SAFETY: only the address is taken.
        let address = unsafe { self.symbol::<*mut c_void>(name) }?;
        let mut info = libc::Dl_info {
            dli_fname: ptr::null(),
            dli_fbase: ptr::null_mut(),
            dli_sname: ptr::null(),
            dli_saddr: ptr::null_mut(),
        };
        let mut symbol: *mut libc::Elf64_Sym = ptr::null_mut();
        // SAFETY: it writes what it is given the addresses of.
        let found =
            unsafe { dladdr1(address, &raw mut info, (&raw mut symbol).cast(), RTLD_DL_SYMENT) };
        if found == 0 || symbol.is_null() {
            return Err(LoadError::Unknown {
                path: self.path().to_string_lossy().into_owned(),
                why: format!("{name} has no symbol"),
            });
        }
        // SAFETY: the symbol is in the library's own table, which stays.
        let size = unsafe { (*symbol).st_size };
        Ok((address, usize::try_from(size).unwrap_or(usize::MAX)))
    }
}

/// dlfcn.h: the symbol's entry of the table is wanted.
const RTLD_DL_SYMENT: c_int = 1;

unsafe extern "C" {
    /// dlfcn.h of the GNU C library.
    fn dladdr1(
        address: *const c_void,
        info: *mut libc::Dl_info,
        extra: *mut *mut c_void,
        flags: c_int,
    ) -> c_int;
}

/// What holds are marked with.
pub(super) const TAG: *const c_void = c"ashlar".as_ptr().cast();

/// Calls a function with the address of what it shall write, which begins as null.
///
/// # Errors
/// What the function returns.
pub(super) fn written<T>(call: impl FnOnce(*mut *mut T) -> c_int) -> Result<*mut T, Errno> {
    let mut result = ptr::null_mut();
    check(call(&raw mut result))?;
    Ok(result)
}
