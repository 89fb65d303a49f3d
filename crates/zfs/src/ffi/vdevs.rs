//! Vdevs: the functions of libzpool that add, attach, detach and switch them.

use std::ffi::c_int;
use std::ptr;

use rustix::io::Errno;

use super::check;
use super::kernel::Zfs;
use super::nvlist::Nvlist;
use crate::protocol::NvMap;

/// VDEV_STATE_DEGRADED of sys/fs/zfs.h: the worst state in which a vdev is used.
const DEGRADED: c_int = 6;
/// ZFS_ONLINE_EXPAND of sys/fs/zfs.h.
const EXPAND: u64 = 8;
/// SCL_NONE of sys/spa.h.
const NO_LOCKS: c_int = 0;

impl Zfs {
    /// Adds the top-level vdevs that `root` describes. With `any_ashift`, also vdevs of another block size than the
    /// pool's.
    ///
    /// # Errors
    /// Those of `spa_vdev_add`.
    pub(crate) fn add_vdevs(
        &self,
        pool: &str,
        root: &NvMap,
        any_ashift: bool,
    ) -> Result<(), Errno> {
        let pool = self.open_pool(pool)?;
        let root = Nvlist::of(self.nv, root)?;
        // SAFETY: pool and list are valid; the function does not keep the list.
        check(unsafe { (self.spa.spa_vdev_add)(pool.spa, root.as_ptr(), (!any_ashift).into()) })
    }

    /// Attaches the one vdev in `root` to the leaf `guid`, as its mirror or as its replacement.
    ///
    /// # Errors
    /// Those of `spa_vdev_attach`.
    pub(crate) fn attach_vdev(
        &self,
        pool: &str,
        guid: u64,
        root: &NvMap,
        replace: bool,
    ) -> Result<(), Errno> {
        let pool = self.open_pool(pool)?;
        let root = Nvlist::of(self.nv, root)?;
        // SAFETY: as above. The last argument would ask for a sequential rebuild, which verifies no checksums.
        check(unsafe {
            (self.spa.spa_vdev_attach)(pool.spa, guid, root.as_ptr(), replace.into(), 0)
        })
    }

    /// Detaches a leaf from its mirror.
    ///
    /// # Errors
    /// Those of `spa_vdev_detach`.
    pub(crate) fn detach_vdev(&self, pool: &str, guid: u64) -> Result<(), Errno> {
        let pool = self.open_pool(pool)?;
        // SAFETY: the pool is valid. Any parent will do, and this is not the end of a replacement.
        check(unsafe { (self.spa.spa_vdev_detach)(pool.spa, guid, 0, 0) })
    }

    /// Stops the use of a leaf, also after the next import.
    ///
    /// # Errors
    /// Those of `vdev_offline`.
    pub(crate) fn offline_vdev(&self, pool: &str, guid: u64) -> Result<(), Errno> {
        let pool = self.open_pool(pool)?;
        // SAFETY: the pool is valid.
        check(unsafe { (self.spa.vdev_offline)(pool.spa, guid, 0) })
    }

    /// Uses a leaf again; returns whether it works.
    ///
    /// # Errors
    /// Those of `vdev_online`.
    pub(crate) fn online_vdev(&self, pool: &str, guid: u64, expand: bool) -> Result<bool, Errno> {
        let pool = self.open_pool(pool)?;
        let flags = if expand { EXPAND } else { 0 };
        let mut state = 0;
        // SAFETY: the pool is valid, and the function writes the state.
        check(unsafe { (self.spa.vdev_online)(pool.spa, guid, flags, &raw mut state) })?;
        Ok(state >= DEGRADED)
    }

    /// Sets the error counters of a vdev to 0, or those of all, and opens failed ones again.
    ///
    /// # Errors
    /// ENODEV: there is no such vdev.
    pub(crate) fn clear_vdev(&self, pool: &str, guid: Option<u64>) -> Result<(), Errno> {
        let pool = self.open_pool(pool)?;
        // SAFETY: the pool is valid. The vdev is looked up and used between enter and exit, which keep others from
        // changing the tree; no vdev stands for all of them.
        check(unsafe {
            (self.spa.spa_vdev_state_enter)(pool.spa, NO_LOCKS);
            let vdev = match guid {
                Some(guid) => (self.spa.spa_lookup_by_guid)(pool.spa, guid, 0),
                None => ptr::null_mut(),
            };
            let error = if guid.is_some() && vdev.is_null() {
                Errno::NODEV.raw_os_error()
            } else {
                (self.spa.vdev_clear)(pool.spa, vdev);
                0
            };
            (self.spa.spa_vdev_state_exit)(pool.spa, ptr::null_mut(), error)
        })
    }
}
