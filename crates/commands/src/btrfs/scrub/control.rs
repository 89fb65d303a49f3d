//! Control of a running scrub: varlink on a socket beside its status file.
//!
//! The interface is `io.ashlar.Scrub`; its description says what its methods do.

use std::io::{ErrorKind, Write};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use ashlar_btrfs::scrub::Scrub;
use ashlar_client::access::Caller;
use ashlar_client::client::receive;
use ashlar_client::passed_files::PassedFiles;
use ashlar_client::stop::Stop;
use ashlar_client::varlink_server::{self, Interface, nothing, parse};
use ashlar_control::varlink::{Call, Frames, MAX_REPLY, Reply, encode};
use ashlar_disks as disks;
use ashlar_engine::net::{BoundSocket, Socket};
use ashlar_engine::socket_file::{self, SocketFile};
use futures_util::future::select;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::origin::Origin;
use super::records::ScrubRecord;
use crate::error::{Error, Result};

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

/// The parts of a running scrub that other threads use. They may outlive the scrub, and must not keep its devices open:
/// hence `Weak`.
#[derive(Clone)]
pub struct Controls {
    pub(super) scrub: Weak<Scrub>,
    pub(super) limit: Arc<AtomicU64>,
    pub(super) origin: Arc<Origin>,
}

impl Controls {
    /// The scrub's current record; `None` once it has ended.
    pub fn record(&self) -> Option<ScrubRecord> {
        Some(self.origin.record(&*self.scrub.upgrade()?))
    }

    /// Ends the scrub soon; it can be resumed.
    pub fn cancel(&self) {
        if let Some(scrub) = self.scrub.upgrade() {
            scrub.cancel();
        }
    }
}

/// The socket of a scrub, which answers until this is dropped.
pub(super) struct ControlSocket {
    _file: SocketFile,
    ended: Stop,
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        self.ended.stop();
    }
}

/// Listens in a separate thread: a terminal that takes no output stops the scrub, but not the answers.
///
/// # Errors
/// The socket cannot be made.
pub(super) fn listen(path: &Path, controls: Controls) -> Result<ControlSocket> {
    let failed = |error: std::io::Error| Error::new("cannot listen", path.display(), error);
    // This process holds the lock of the file system, so a socket there is a killed process's: in the sandbox it cannot be asked.
    if std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
        std::fs::remove_file(path).map_err(failed)?;
    }
    let (fd, file) = socket_file::listen(path, MODE, None).map_err(failed)?;
    let ended = Stop::default();
    let until = ended.clone();
    let serve = move || {
        let served = disks::reactor().and_then(|reactor| {
            let served = async {
                let bound = BoundSocket::listening(fd);
                let bound = bound.map_err(|error| Error::plain("cannot listen", error))?;
                let (limits, controls) = (varlink_server::Limits::default(), Rc::new(controls));
                // The mode of the file lets in this user and root alone.
                let admit = |_: &Socket| Ok(Caller::Owner);
                let serving = pin!(varlink_server::serve(bound.into(), limits, admit, controls));
                select(serving, until).await;
                Ok(())
            };
            reactor.block_on(served)
        });
        if let Err(error) = served {
            let (error, _) = error.into_parts();
            tracing::warn!(error, "status, cancel and limit will not reach this scrub");
        }
    };
    std::thread::Builder::new().name("scrub-control".to_owned()).spawn(serve).map_err(failed)?;
    Ok(ControlSocket { _file: file, ended })
}

impl Interface for Controls {
    const NAME: &'static str = "io.ashlar.Scrub";
    const DESCRIPTION: &'static str = "\
# A scrub of a btrfs file system that is not mounted.
interface io.ashlar.Scrub

# The record of the scrub, as in its status file, and the bytes per second of each device, 0 for no limit.
method Status() -> (record: object, limit: int)

# Ends the scrub; it can be resumed.
method Cancel() -> ()

# Changes the bytes per second of each device.
method Limit(bytes: int) -> ()
";

    async fn answer(&self, method: &str, call: Call, _: &PassedFiles) -> Option<Vec<Reply>> {
        // The scrub has ended, and its process is about to.
        let scrub = self.scrub.upgrade()?;
        let result = match method {
            "Status" => nothing(&call.parameters).map(|()| {
                let record = self.origin.record(&scrub);
                json!(ScrubStatus { record, limit: self.limit.load(Ordering::Relaxed) })
            }),
            "Cancel" => nothing(&call.parameters).map(|()| {
                scrub.cancel();
                json!({})
            }),
            "Limit" => parse(call.parameters).map(|Limit { bytes }| {
                self.limit.store(bytes, Ordering::Relaxed);
                json!({})
            }),
            _ => Err(Reply::method_not_found(&call.method)),
        };
        Some(vec![result.map_or_else(|error| error, Reply::ok)])
    }
}

/// The parameters of `Limit`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Limit {
    bytes: u64,
}

/// Asks the process that runs the scrub; `None` if no process does.
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
        passed: Vec::new(),
        upgrade: false,
    };
    let sent = stream.write_all(&encode(&call));
    match sent.and_then(|()| receive::<Reply>(&mut stream, &mut Frames::new(MAX_REPLY))) {
        Ok(Some(Reply { error: None, parameters, .. })) => Ok(Some(parameters)),
        Ok(Some(Reply { error: Some(error), .. })) => Err(failed(&error)),
        // It ended during the call, before it had read all of it.
        Err(error)
            if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) =>
        {
            Ok(None)
        }
        // It ended during the call.
        Ok(None) => Ok(None),
        Err(error) => Err(failed(&error)),
    }
}
