//! Connections to clusters, and pools.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use rustix::io::Errno;

use super::declarations::{IoContextHandle, RadosHandle};
use super::{CallError, Libraries, check, text};

/// The longest value of an option that is looked at.
const MAX_VALUE: usize = 256;

/// A handle of librados, at first unconnected. Dropping it ends the connection, which blocks.
pub(crate) struct Connection {
    libraries: &'static Libraries,
    handle: RadosHandle,
    is_fenced: AtomicBool,
}

// SAFETY: the functions of librados may be called on any thread, several at a time (librados.h).
unsafe impl Send for Connection {}
// SAFETY: as above; what changes the configuration takes `&mut self`.
unsafe impl Sync for Connection {}

impl Connection {
    /// A handle for a user (`admin`), with the configuration of this file, or that which Ceph finds by itself, and what
    /// the environment variable `CEPH_ARGS` changes.
    ///
    /// # Errors
    /// The file cannot be read, or is not a configuration.
    pub(crate) fn new(
        libraries: &'static Libraries,
        user: &str,
        conf: Option<&Path>,
    ) -> Result<Self, CallError> {
        let rados = &libraries.rados;
        let name = text(&format!("client.{user}"))?;
        let mut handle = ptr::null_mut();
        // SAFETY: the place for the handle and the strings live through the call.
        let created =
            unsafe { (rados.rados_create2)(&raw mut handle, c"ceph".as_ptr(), name.as_ptr(), 0) };
        check("rados_create2", created)?;
        let this = Self { libraries, handle, is_fenced: AtomicBool::new(false) };
        let conf = conf.map(|conf| CString::new(conf.as_os_str().as_bytes())).transpose();
        let conf = conf.map_err(|_| CallError { call: "the file's name", errno: Errno::INVAL })?;
        let path = conf.as_ref().map_or(ptr::null(), |conf| conf.as_ptr());
        // SAFETY: the handle is valid; the path is a string that lives through the call, or null for Ceph's own search.
        check("rados_conf_read_file", unsafe { (rados.rados_conf_read_file)(handle, path) })?;
        // SAFETY: the handle is valid; null stands for CEPH_ARGS.
        check("rados_conf_parse_env", unsafe {
            (rados.rados_conf_parse_env)(handle, ptr::null())
        })?;
        Ok(this)
    }

    /// Sets an option, before the connection is made.
    ///
    /// # Errors
    /// The library does not know it, or the value is invalid.
    pub(crate) fn set(&mut self, option: &'static str, value: &str) -> Result<(), CallError> {
        let (name, value) = (text(option)?, text(value)?);
        // SAFETY: the handle and the strings are valid.
        let set = unsafe {
            (self.libraries.rados.rados_conf_set)(self.handle, name.as_ptr(), value.as_ptr())
        };
        check(option, set)
    }

    /// The number that an option has; `None` if it is unknown or no number.
    pub(crate) fn number(&self, option: &str) -> Option<u64> {
        let name = text(option).ok()?;
        let mut value = [0_u8; MAX_VALUE];
        // SAFETY: the handle and the name are valid, and the buffer has the length that is passed.
        let got = unsafe {
            let place = value.as_mut_ptr().cast();
            (self.libraries.rados.rados_conf_get)(self.handle, name.as_ptr(), place, MAX_VALUE)
        };
        check("rados_conf_get", got).ok()?;
        let value = std::ffi::CStr::from_bytes_until_nul(&value).ok()?.to_str().ok()?;
        // Times are shown as decimal fractions.
        value.split('.').next()?.parse().ok()
    }

    /// Connects. Blocks for as long as the option `client_mount_timeout` allows.
    ///
    /// # Errors
    /// ETIMEDOUT: no monitor answers; ENOENT: there is no key; EACCES, EPERM: the cluster refuses the user or the key.
    pub(crate) fn connect(&mut self) -> Result<(), CallError> {
        // SAFETY: the handle is valid, and nothing else uses it.
        check("rados_connect", unsafe { (self.libraries.rados.rados_connect)(self.handle) })
    }

    /// Notes that the cluster refuses this client for good; returns whether that is news.
    pub(crate) fn set_fenced(&self) -> bool {
        !self.is_fenced.swap(true, SeqCst)
    }

    /// Whether the cluster refuses this client: another connection would be another client.
    pub(crate) fn is_fenced(&self) -> bool {
        self.is_fenced.load(SeqCst)
    }

    pub(super) fn libraries(&self) -> &'static Libraries {
        self.libraries
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: the handle is valid, connected or not, and its contexts, which hold this, are gone.
        unsafe { (self.libraries.rados.rados_shutdown)(self.handle) };
    }
}

/// A namespace of a pool. Dropping it blocks if it drops the connection.
pub(crate) struct IoContext {
    handle: IoContextHandle,
    connection: Arc<Connection>,
}

// SAFETY: the functions of librados may be called on any thread, several at a time (librados.h).
unsafe impl Send for IoContext {}
// SAFETY: as above; nothing changes the context once it is made.
unsafe impl Sync for IoContext {}

impl IoContext {
    /// A namespace, empty for the default one, of a pool.
    ///
    /// # Errors
    /// ENOENT: there is no such pool. (Whether the namespace exists is not checked.)
    pub(crate) fn new(
        connection: Arc<Connection>,
        pool: &str,
        namespace: &str,
    ) -> Result<Self, CallError> {
        let (pool, namespace) = (text(pool)?, text(namespace)?);
        let (rados, cluster) = (&connection.libraries.rados, connection.handle);
        let mut handle = ptr::null_mut();
        // SAFETY: the connection is valid; the name and the place for the handle live through the call.
        let created =
            unsafe { (rados.rados_ioctx_create)(cluster, pool.as_ptr(), &raw mut handle) };
        check("rados_ioctx_create", created)?;
        // SAFETY: the handle is valid, and used by nothing else yet; the string lives through the call.
        unsafe { (rados.rados_ioctx_set_namespace)(handle, namespace.as_ptr()) };
        Ok(Self { handle, connection })
    }

    pub(super) fn handle(&self) -> IoContextHandle {
        self.handle
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }
}

impl Drop for IoContext {
    fn drop(&mut self) {
        // SAFETY: the handle is valid, and the image that was opened with it, which held this, is closed.
        unsafe { (self.connection.libraries.rados.rados_ioctx_destroy)(self.handle) };
    }
}
