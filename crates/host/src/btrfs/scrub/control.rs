//! Control of a running scrub: varlink on a socket beside its status file.
//!
//! The interface is `io.ashlar.Scrub`: `Status` returns the current record, `Cancel` ends the scrub, `Limit` changes
//! the bytes per second of each device.

use std::io::{ErrorKind, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use ashlar_btrfs::scrub::Scrub;
use ashlar_engine::socket_file::{self, SocketFile};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::records::ScrubRecord;
use super::run::Origin;
use crate::client::receive;
use crate::error::{Error, Result};
use crate::varlink::{Call, Frames, MAX_CALL, MAX_REPLY, Reply, encode};

/// The time limit for the other side.
const PATIENCE: Duration = Duration::from_secs(10);
/// Only the user of the scrub may end it.
const MODE: u32 = 0o600;

/// The state of a scrub that runs: the reply to `Status`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ScrubStatus {
    /// The scrub's current record.
    pub record: ScrubRecord,
    /// Bytes per second of each device; zero means no limit.
    pub limit: u64,
}

/// The parts of a running scrub that the listener uses. The listening thread outlives the scrub, and must not keep its
/// devices open: hence `Weak`.
pub(super) struct Controls {
    pub(super) scrub: Weak<Scrub>,
    pub(super) limit: Arc<AtomicU64>,
    pub(super) origin: Arc<Origin>,
}

/// Listens in a separate thread until the program ends.
///
/// # Errors
/// The socket cannot be made.
pub(super) fn listen(path: &Path, controls: Controls) -> Result<SocketFile> {
    let failed = |error: std::io::Error| Error::new("cannot listen", path.display(), error);
    let (listener, file) = socket_file::listen(path, MODE, None).map_err(failed)?;
    let listener = UnixListener::from(listener);
    let serve = move || {
        for stream in listener.incoming() {
            let served = stream.and_then(|stream| answer(stream, &controls));
            match served {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => tracing::debug!(%error, "a client of the scrub went away"),
            }
        }
    };
    std::thread::Builder::new().name("scrub-control".to_owned()).spawn(serve).map_err(failed)?;
    Ok(file)
}

/// Answers one call of one client; false once the scrub has ended.
fn answer(mut stream: UnixStream, controls: &Controls) -> std::io::Result<bool> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let Some(call) = receive::<Call>(&mut stream, &mut Frames::new(MAX_CALL))? else {
        return Ok(true);
    };
    let Some(scrub) = controls.scrub.upgrade() else { return Ok(false) };
    let reply = reply(&call, &scrub, controls);
    drop(scrub);
    stream.write_all(&encode(&reply)).map(|()| true)
}

fn reply(call: &Call, scrub: &Scrub, controls: &Controls) -> Reply {
    let Some(method) = call.method.strip_prefix("io.ashlar.Scrub.") else {
        return Reply::interface_not_found(&call.method);
    };
    match method {
        "Status" => {
            let record = controls.origin.record(scrub);
            let limit = controls.limit.load(Ordering::Relaxed);
            Reply::ok(json!(ScrubStatus { record, limit }))
        }
        "Cancel" => {
            scrub.cancel();
            Reply::ok(json!({}))
        }
        "Limit" => match call.parameters.get("bytes").and_then(Value::as_u64) {
            Some(bytes) => {
                controls.limit.store(bytes, Ordering::Relaxed);
                Reply::ok(json!({}))
            }
            None => Reply::invalid_parameter("bytes"),
        },
        other => Reply::method_not_found(other),
    }
}

/// Asks the process that runs the scrub; `None` if there is none.
///
/// # Errors
/// It does not answer, or refuses.
pub(super) fn ask(path: &Path, method: &str, parameters: Value) -> Result<Option<Value>> {
    let failed = |why: &dyn std::fmt::Display| {
        Error::new("the scrub that runs does not answer", path.display(), why)
    };
    let mut stream = match UnixStream::connect(path) {
        Ok(stream) => stream,
        // There is no socket, no process listens on it, or its name is too long for one.
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::NotFound | ErrorKind::ConnectionRefused | ErrorKind::InvalidInput
            ) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(failed(&error)),
    };
    let limits = stream
        .set_read_timeout(Some(PATIENCE))
        .and_then(|()| stream.set_write_timeout(Some(PATIENCE)));
    limits.map_err(|error| failed(&error))?;
    let call = Call {
        method: format!("io.ashlar.Scrub.{method}"),
        parameters: parameters.as_object().cloned().unwrap_or_default(),
        oneway: false,
        more: false,
        upgrade: false,
    };
    stream.write_all(&encode(&call)).map_err(|error| failed(&error))?;
    match receive::<Reply>(&mut stream, &mut Frames::new(MAX_REPLY)) {
        Ok(Some(Reply { error: None, parameters, .. })) => Ok(Some(parameters)),
        Ok(Some(Reply { error: Some(error), .. })) => Err(failed(&error)),
        // It ended during the call.
        Ok(None) => Ok(None),
        Err(error) => Err(failed(&error)),
    }
}
