//! Pools in files, for tests of volumes: the few calls of libzpool that create them, without the
//! crate's pool layer.
#![allow(dead_code, unused_imports, reason = "each test uses its part")]

pub(crate) mod feature;
pub(crate) mod io;

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use ashlar_zfs::ffi::Library;

pub(crate) use crate::zdb::assert_clean;

type Nvlist = *mut c_void;

/// libzpool, started in this process.
pub(crate) struct Zpool {
    /// For the crate's functions.
    pub(crate) library: Library,
    raw: libloading::Library,
}

/// libzpool, or `None` with the reason printed. In CI, a missing libzpool is an error.
pub(crate) fn zpool() -> Option<&'static Zpool> {
    static STARTED: OnceLock<Option<Zpool>> = OnceLock::new();
    let started = STARTED.get_or_init(|| match Library::open() {
        Ok(library) => {
            // SAFETY: it is already loaded.
            let raw = unsafe { libloading::Library::new(library.path()) }.unwrap();
            let zpool = Zpool { library, raw };
            // SAFETY: the variable has that type; nothing else uses libzpool yet. SPA_MODE_READ |
            // SPA_MODE_WRITE.
            unsafe {
                let path: *mut *const c_char =
                    *zpool.raw.get::<*mut *const c_char>(b"spa_config_path\0").unwrap();
                *path = c"".as_ptr();
                zpool.get::<unsafe extern "C" fn(c_int)>("kernel_init")(3);
            }
            // As in `Zfs::start`.
            zpool.tune("zfs_flags", 0);
            Some(zpool)
        }
        Err(error) => {
            assert!(std::env::var_os("CI").is_none(), "{error}");
            println!("skipped: {error}");
            None
        }
    });
    started.as_ref()
}

/// The parameters of a new volume.
pub(crate) struct NewVolume<'a> {
    pub(crate) name: &'a str,
    pub(crate) volsize_bytes: u64,
    pub(crate) volblocksize_bytes: u32,
}

struct VolumeRequest {
    zpool: *const Zpool,
    volsize_bytes: u64,
    volblocksize_bytes: u32,
}

impl Zpool {
    /// # Safety
    /// `T` is the type of the function with this name.
    pub(crate) unsafe fn get<T: Copy>(&self, name: &str) -> T {
        // SAFETY: guaranteed by the caller.
        *unsafe { self.raw.get::<T>(name.as_bytes()) }
            .unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    fn nvlist(&self) -> Nvlist {
        // SAFETY: no arguments.
        unsafe { self.get::<unsafe extern "C" fn() -> Nvlist>("fnvlist_alloc")() }
    }

    fn add_string(&self, list: Nvlist, name: &str, value: &str) {
        let (name, value) = (CString::new(name).unwrap(), CString::new(value).unwrap());
        // SAFETY: libnvpair copies both.
        unsafe {
            let add: unsafe extern "C" fn(Nvlist, *const c_char, *const c_char) =
                self.get("fnvlist_add_string");
            add(list, name.as_ptr(), value.as_ptr());
        }
    }

    fn add_u64(&self, list: Nvlist, name: &str, value: u64) {
        let name = CString::new(name).unwrap();
        // SAFETY: libnvpair copies the name.
        unsafe {
            let add: unsafe extern "C" fn(Nvlist, *const c_char, u64) =
                self.get("fnvlist_add_uint64");
            add(list, name.as_ptr(), value);
        }
    }

    /// Sets a tunable of 32 bits.
    pub(crate) fn tune(&self, name: &str, value: u32) {
        // SAFETY: a variable of that size; the library reads it whole, at any time.
        unsafe { *self.get::<*mut u32>(name) = value };
    }

    pub(crate) fn tuned(&self, name: &str) -> u32 {
        // SAFETY: as in `tune`.
        unsafe { *self.get::<*mut u32>(name) }
    }

    /// Waits until all changes of a pool are on disk.
    pub(crate) fn sync(&self, pool: &str) {
        let pool = CString::new(pool).unwrap();
        let mut spa: *mut c_void = null_mut();
        let tag = c"test".as_ptr().cast::<c_void>();
        // SAFETY: the pool is open during the wait.
        unsafe {
            let open: unsafe extern "C" fn(
                *const c_char,
                *mut *mut c_void,
                *const c_void,
            ) -> c_int = self.get("spa_open");
            assert_eq!(open(pool.as_ptr(), &raw mut spa, tag), 0);
            let dsl: unsafe extern "C" fn(*mut c_void) -> *mut c_void = self.get("spa_get_dsl");
            self.get::<unsafe extern "C" fn(*mut c_void, u64)>("txg_wait_synced")(dsl(spa), 0);
            self.get::<unsafe extern "C" fn(*mut c_void, *const c_void)>("spa_close")(spa, tag);
        }
    }

    /// Creates a pool of files; the last file is a log device if `has_slog`.
    pub(crate) fn create_pool(&self, name: &str, files: &[PathBuf], has_slog: bool) {
        let root = self.nvlist();
        self.add_string(root, "type", "root");
        let mut children = Vec::new();
        for (at, file) in files.iter().enumerate() {
            let child = self.nvlist();
            self.add_string(child, "type", "file");
            self.add_string(child, "path", file.to_str().unwrap());
            self.add_u64(child, "ashift", 12);
            let is_log = has_slog && at + 1 == files.len();
            self.add_u64(child, "is_log", u64::from(is_log));
            if is_log {
                self.add_string(child, "alloc_bias", "log");
            }
            children.push(child);
        }
        let props = self.nvlist();
        self.add_string(props, "cachefile", "none");
        for feature in ["feature@extensible_dataset", "feature@large_blocks"] {
            self.add_u64(props, feature, 0);
        }
        let name = CString::new(name).unwrap();
        // SAFETY: lists in libzpool's format.
        let code = unsafe {
            let add: unsafe extern "C" fn(Nvlist, *const c_char, *const Nvlist, u32) =
                self.get("fnvlist_add_nvlist_array");
            add(root, c"children".as_ptr(), children.as_ptr(), children.len() as u32);
            let create: unsafe extern "C" fn(
                *const c_char,
                Nvlist,
                Nvlist,
                Nvlist,
                *mut c_void,
            ) -> c_int = self.get("spa_create");
            create(name.as_ptr(), root, props, null_mut(), null_mut())
        };
        assert_eq!(code, 0, "spa_create");
    }

    /// Creates a volume, and sets numeric properties.
    pub(crate) fn create_volume(&self, volume: &NewVolume<'_>, properties: &[(&str, u64)]) {
        let creating = VolumeRequest {
            zpool: self,
            volsize_bytes: volume.volsize_bytes,
            volblocksize_bytes: volume.volblocksize_bytes,
        };
        let name = CString::new(volume.name).unwrap();
        // SAFETY: the callback is called only during this call, with this argument. DMU_OST_ZVOL is 3.
        let code = unsafe {
            type Callback =
                unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_void, *mut c_void);
            let create: unsafe extern "C" fn(
                *const c_char,
                c_int,
                u64,
                *mut c_void,
                Callback,
                *const c_void,
            ) -> c_int = self.get("dmu_objset_create");
            create(name.as_ptr(), 3, 0, null_mut(), fill_volume, (&raw const creating).cast())
        };
        assert_eq!(code, 0, "dmu_objset_create");
        for (property, value) in properties {
            self.set(volume.name, property, *value);
        }
    }

    /// Sets a numeric property.
    pub(crate) fn set(&self, dataset: &str, property: &str, value: u64) {
        let (dataset, property) = (CString::new(dataset).unwrap(), CString::new(property).unwrap());
        // SAFETY: strings. ZPROP_SRC_LOCAL is 8.
        let code = unsafe {
            let set: unsafe extern "C" fn(*const c_char, *const c_char, c_int, u64) -> c_int =
                self.get("dsl_prop_set_int");
            set(dataset.as_ptr(), property.as_ptr(), 8, value)
        };
        assert_eq!(code, 0, "dsl_prop_set_int");
    }

    /// Takes a snapshot of a dataset.
    pub(crate) fn snapshot(&self, dataset: &str, name: &str) {
        let (dataset, name) = (CString::new(dataset).unwrap(), CString::new(name).unwrap());
        // SAFETY: strings.
        let code = unsafe {
            let take: unsafe extern "C" fn(*const c_char, *const c_char) -> c_int =
                self.get("dmu_objset_snapshot_one");
            take(dataset.as_ptr(), name.as_ptr())
        };
        assert_eq!(code, 0, "dmu_objset_snapshot_one");
    }

    /// The import configuration of a pool that is imported now.
    pub(crate) fn config(&self, pool: &str) -> Vec<u8> {
        let pool = CString::new(pool).unwrap();
        let mut config: Nvlist = null_mut();
        let mut packed: *mut c_char = null_mut();
        let mut len = 0_usize;
        // SAFETY: places for results; the bytes that libnvpair allocates are leaked. NV_ENCODE_XDR is 1.
        unsafe {
            let stats: unsafe extern "C" fn(
                *const c_char,
                *mut Nvlist,
                *mut c_char,
                usize,
            ) -> c_int = self.get("spa_get_stats");
            assert_eq!(stats(pool.as_ptr(), &raw mut config, null_mut(), 0), 0);
            let pack: unsafe extern "C" fn(
                Nvlist,
                *mut *mut c_char,
                *mut usize,
                c_int,
                c_int,
            ) -> c_int = self.get("nvlist_pack");
            assert_eq!(pack(config, &raw mut packed, &raw mut len, 1, 0), 0);
            std::slice::from_raw_parts(packed.cast::<u8>(), len).to_vec()
        }
    }

    /// Imports a pool.
    pub(crate) fn import(&self, pool: &str, config: &[u8], read_only: bool) {
        let pool = CString::new(pool).unwrap();
        let mut config = config.to_vec();
        let mut list: Nvlist = null_mut();
        let props = self.nvlist();
        self.add_string(props, "cachefile", "none");
        if read_only {
            self.add_u64(props, "readonly", 1);
        }
        // SAFETY: bytes of that length, and a place for the result. ZFS_IMPORT_NORMAL is 0.
        let code = unsafe {
            let unpack: unsafe extern "C" fn(*mut c_char, usize, *mut Nvlist, c_int) -> c_int =
                self.get("nvlist_unpack");
            assert_eq!(unpack(config.as_mut_ptr().cast(), config.len(), &raw mut list, 0), 0);
            let import: unsafe extern "C" fn(*const c_char, Nvlist, Nvlist, u64) -> c_int =
                self.get("spa_import");
            import(pool.as_ptr(), list, props, 0)
        };
        assert_eq!(code, 0, "spa_import");
    }

    /// Exports a pool.
    pub(crate) fn export(&self, pool: &str) {
        let pool = CString::new(pool).unwrap();
        let deadline = Instant::now() + Duration::from_secs(5);
        let code = loop {
            // SAFETY: a string; no configuration is requested.
            let code = unsafe {
                let export: unsafe extern "C" fn(
                    *const c_char,
                    *mut Nvlist,
                    c_int,
                    c_int,
                ) -> c_int = self.get("spa_export");
                export(pool.as_ptr(), null_mut(), 0, 0)
            };
            // libzpool evicts objsets in the background, and does not wait for that if the pool is read-only.
            if code != libc::EBUSY || Instant::now() > deadline {
                break code;
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        assert_eq!(code, 0, "spa_export");
    }
}

unsafe extern "C" fn fill_volume(
    os: *mut c_void,
    creating: *mut c_void,
    _cred: *mut c_void,
    tx: *mut c_void,
) {
    // SAFETY: the argument of `create_volume`, in the transaction that makes the objset. DMU_OT_ZVOL and DMU_OT_ZVOL_PROP.
    unsafe {
        let creating = &*creating.cast::<VolumeRequest>();
        let zpool = &*creating.zpool;
        let claim: unsafe extern "C" fn(
            *mut c_void,
            u64,
            c_int,
            c_int,
            c_int,
            c_int,
            *mut c_void,
        ) -> c_int = zpool.get("dmu_object_claim");
        assert_eq!(claim(os, 1, 23, creating.volblocksize_bytes as c_int, 0, 0, tx), 0);
        let zap: unsafe extern "C" fn(*mut c_void, u64, c_int, c_int, c_int, *mut c_void) -> c_int =
            zpool.get("zap_create_claim");
        assert_eq!(zap(os, 2, 24, 0, 0, tx), 0);
        let update: unsafe extern "C" fn(
            *mut c_void,
            u64,
            *const c_char,
            c_int,
            u64,
            *const u64,
            *mut c_void,
        ) -> c_int = zpool.get("zap_update");
        assert_eq!(update(os, 2, c"size".as_ptr(), 8, 1, &raw const creating.volsize_bytes, tx), 0);
    }
}

/// A directory for a pool's files, removed on drop.
pub(crate) struct Directory(pub(crate) PathBuf);

impl Directory {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("ashlar-zfs-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// An empty file of this size.
    pub(crate) fn file(&self, name: &str, size_bytes: u64) -> PathBuf {
        let path = self.0.join(name);
        std::fs::File::create(&path).unwrap().set_len(size_bytes).unwrap();
        path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if std::env::var_os("ASHLAR_TEST_KEEP").is_none() {
            std::fs::remove_dir_all(&self.0).unwrap();
        }
    }
}

/// Memory that is unmapped on drop.
pub(crate) struct VanishingMemory(pub(crate) *mut c_void, usize);

impl VanishingMemory {
    pub(crate) fn new(len: usize) -> Self {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        // SAFETY: a new mapping.
        unsafe {
            let base = mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
            .unwrap();
            std::ptr::write_bytes(base.cast::<u8>(), 0x66, len);
            Self(base, len)
        }
    }
}

impl Drop for VanishingMemory {
    fn drop(&mut self) {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        // Its addresses stay reserved: what another thread maps there would be read as the request's.
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: only the kernel accesses it, for another process.
        unsafe { mmap_anonymous(self.0, self.1, ProtFlags::empty(), flags).unwrap() };
    }
}
