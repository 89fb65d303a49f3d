//! libzpool's start, its tunables, and the handle to the whole library.

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
        /// The host ID in labels; 0 without a host ID.
        zone_get_hostid: fn(*mut c_void) -> u32;
        /// The machine's memory, as the ARC sees it.
        arc_all_memory: fn() -> u64;
        /// Applies the ARC's tunables.
        arc_tuning_update: fn(c_int);
    }
}

/// SPA_MODE_READ and SPA_MODE_WRITE of sys/spa.h.
const READ_AND_WRITE: c_int = 3;

/// The path of the cache file: none. An empty path cannot be opened, and no file is written because
/// each pool has `cachefile=none`.
const NO_CACHE_FILE: &CStr = c"";

/// The settable tunables: OpenZFS's module parameters that affect a worker and are plain numbers.
/// Those missing in a release are refused.
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

/// Tunables that differ from libzpool's defaults.
///
/// libzpool is made for tests, and unlike the kernel module it enables all of its checks
/// (`zfs_flags`): it checksums each cached buffer when a user releases it, and again before it
/// changes, to detect stray writes in between: for a write of 4 KiB to a block of 1 MiB, that is 1
/// MiB, twice.
///
/// The ARC's copy of a buffer consists of single pages (`zfs_abd_scatter_enabled`), because a
/// kernel rarely has large contiguous memory; so written data is copied once more. Here large
/// memory is available, and the ARC keeps the buffer itself.
const TUNED: [(&str, u64); 2] = [("zfs_flags", 0), (ABD_SCATTER_ENABLED, 0)];

/// Why a tunable was not set.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ParameterError {
    /// It does not exist in this release, or may not be set.
    #[error("there is no parameter '{0}' in this release of OpenZFS")]
    Unknown(String),
    /// libzpool would ignore it.
    #[error("'{name}' cannot be {value}: {why}")]
    Ignored {
        /// Its name.
        name: String,
        /// The requested value.
        value: u64,
        /// The requirement.
        why: &'static str,
    },
    /// The value does not fit.
    #[error("{value} is more than '{name}' can hold")]
    TooLarge {
        /// Its name.
        name: String,
        /// The requested value.
        value: u64,
    },
}

/// The started libzpool. One per process, until the process exits.
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
    /// Starts the library with these tunables. It reads and writes no cache file.
    ///
    /// # Errors
    /// A symbol of its release is missing, or a parameter cannot be set.
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
        // SAFETY: called once in this process, before anything else.
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

    /// This host's ID in labels; 0 without a host ID.
    pub(crate) fn host_id(&self) -> u64 {
        // SAFETY: the argument is ignored.
        u64::from(unsafe { (self.kernel.zone_get_hostid)(ptr::null_mut()) })
    }

    /// Sets a tunable at run time; those of the ARC take effect at once.
    ///
    /// # Errors
    /// It does not exist, or cannot have the value.
    pub(crate) fn set_parameter(&self, name: &str, value: u64) -> Result<(), ParameterError> {
        // SAFETY: the function has no arguments.
        if name == ARC_MAX && value >= unsafe { (self.kernel.arc_all_memory)() } {
            let why = "it must be less than half of the memory";
            return Err(ParameterError::Ignored { name: name.to_owned(), value, why });
        }
        set(self.library, name, value)?;
        if name.starts_with("zfs_arc_") {
            // SAFETY: the ARC exists since the start.
            unsafe { (self.kernel.arc_tuning_update)(0) };
        }
        Ok(())
    }
}

/// Why libzpool could not be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    /// The library does not match its release.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A parameter cannot be set.
    #[error(transparent)]
    Parameter(#[from] ParameterError),
}

/// The ARC's maximum size.
const ARC_MAX: &str = "zfs_arc_max";
/// Whether the ARC's buffers consist of single pages.
const ABD_SCATTER_ENABLED: &str = "zfs_abd_scatter_enabled";
/// Whether compressed blocks stay compressed in memory.
const COMPRESSED_ARC_ENABLED: &str = "zfs_compressed_arc_enabled";
/// The ARC's minimum size.
const ARC_MIN: &str = "zfs_arc_min";
/// The minimum of each (`MIN_ARC_MAX` of sys/arc_impl.h, and two of the largest blocks).
const LEAST_ARC_MAX_BYTES: u64 = 64 << 20;
const LEAST_ARC_MIN_BYTES: u64 = 32 << 20;

fn set(library: &Library, name: &str, value: u64) -> Result<(), ParameterError> {
    if name == ARC_MAX && value != 0 {
        if value < LEAST_ARC_MAX_BYTES {
            let why = "it must be 64M or more";
            return Err(ParameterError::Ignored { name: name.to_owned(), value, why });
        }
        // A maximum below the minimum, which defaults to a share of the memory, would be ignored.
        store(library, ARC_MIN, LEAST_ARC_MIN_BYTES)?;
    }
    store(library, name, value)?;
    match name {
        ARC_MAX => slabs::follow_arc_max(value),
        ABD_SCATTER_ENABLED => slabs::set_scattered(value != 0),
        // OpenZFS issue 15764: without both, cache devices trigger an assertion.
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
    /// It does not exist.
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
        // SAFETY: the function writes to the addresses it gets.
        let found =
            unsafe { dladdr1(address, &raw mut info, (&raw mut symbol).cast(), RTLD_DL_SYMENT) };
        if found == 0 || symbol.is_null() {
            return Err(LoadError::Unknown {
                path: self.path().to_string_lossy().into_owned(),
                why: format!("{name} has no symbol"),
            });
        }
        // SAFETY: the symbol is in the library's table, which stays loaded.
        let size = unsafe { (*symbol).st_size };
        Ok((address, usize::try_from(size).unwrap_or(usize::MAX)))
    }
}

/// dlfcn.h: asks for the symbol table entry.
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

/// The tag of all holds.
pub(super) const TAG: *const c_void = c"ashlar".as_ptr().cast();

/// Calls a function with the address of a pointer to write, which is null before.
///
/// # Errors
/// The function's error.
pub(super) fn written<T>(call: impl FnOnce(*mut *mut T) -> c_int) -> Result<*mut T, Errno> {
    let mut result = ptr::null_mut();
    check(call(&raw mut result))?;
    Ok(result)
}
