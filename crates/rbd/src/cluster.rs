//! The connections of the process: one for each cluster and user.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use ashlar_block::sync::lock;
use rustix::io::Errno;

use crate::error::OpenError;
use crate::ffi::{Connection, Libraries};
use crate::uri::Access;

/// How long connecting may take, in seconds. Ceph's own default is five minutes.
const MOUNT_TIMEOUT: &str = "30";
const CEPHS_MOUNT_TIMEOUT: u64 = 300;
/// How long an operation of the cluster may take, in seconds, before it fails and gives its memory back; Ceph's own default is for
/// ever. (Longer than the deadline of requests: that ends the request for its submitter.)
const OPERATION_TIMEOUT: &str = "120";

/// The connection of a cluster and user; the lock is held while it is made.
type Place = Arc<Mutex<Weak<Connection>>>;

/// The connection for `access`: the one that is there, unless the cluster refuses it. Blocks while it is made.
///
/// # Errors
/// [`OpenError::Load`], [`OpenError::Configuration`], [`OpenError::Connect`].
pub(crate) fn connection(access: &Access) -> Result<Arc<Connection>, OpenError> {
    static PLACES: Mutex<Option<HashMap<Access, Place>>> = Mutex::new(None);
    let place = {
        let mut places = lock(&PLACES);
        Arc::clone(places.get_or_insert_default().entry(access.clone()).or_default())
    };
    let mut place = lock(&place);
    if let Some(connection) = place.upgrade().filter(|connection| !connection.is_fenced()) {
        return Ok(connection);
    }
    let connection = Arc::new(connect(access)?);
    *place = Arc::downgrade(&connection);
    Ok(connection)
}

fn connect(access: &Access) -> Result<Connection, OpenError> {
    let libraries = Libraries::get()?;
    let configuration =
        |why| OpenError::Configuration { access: access.clone(), source: Errno::from(why) };
    let mut connection =
        Connection::new(libraries, &access.user, access.conf.as_deref()).map_err(configuration)?;
    // With the cache a write is acknowledged before an OSD has it, and the next flush reports its failure: to a
    // RAID member's array too late.
    connection.set("rbd_cache", "false").map_err(configuration)?;
    // What the configuration says is respected.
    if connection.number("client_mount_timeout") == Some(CEPHS_MOUNT_TIMEOUT) {
        connection.set("client_mount_timeout", MOUNT_TIMEOUT).map_err(configuration)?;
    }
    if connection.number("rados_osd_op_timeout") == Some(0) {
        connection.set("rados_osd_op_timeout", OPERATION_TIMEOUT).map_err(configuration)?;
    }
    let refused = |why| OpenError::Connect { access: access.clone(), source: Errno::from(why) };
    connection.connect().map_err(refused)?;
    Ok(connection)
}
