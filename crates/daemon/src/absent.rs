//! Disks that are absent when the daemon starts: a file or device that does not exist, a server that does not respond.
//!
//! With `--run` (or `--incremental`) the daemon starts without them, as long as one disk is present. The daemon adds a disk on
//! the network once it can be reached; it may connect to that disk, which is one of its own ([`crate::confinement`]). A client
//! hands in a file (`ashlar md incremental`, `md re-add`), and may have to pass its descriptor.
//!
//! ```text
//! absent --reached, its array may be written--> added, as by `md incremental`
//!    ^ |         \--refused, or not a member--> logged; a user has to decide
//!    \-/ 1 s, then twice as long each time, up to 60 s
//! ```

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use ashlar_block::Presence;
use ashlar_client::interface::Attach;
use ashlar_client::passed_files::PassedFiles;
use ashlar_disks::{self as disks, Access, Opened, Opener};
use ashlar_engine::{sleep, spawn};
use ashlar_md::ArrayState;
use ashlar_stack::assemble::Disk;
use ashlar_stack::probe::{Contents, Md, probe_readable};
use uuid::Uuid;

use crate::config::Config;
use crate::error::{Error, Result};
use crate::service::Service;

/// The first wait, and the longest one.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Opens the disks of a daemon. Returns those that are present, and the paths of the others.
///
/// # Errors
/// One cannot be opened for another reason than that it is absent, or is absent and the daemon may not start without it.
pub(crate) fn open(config: &Config, opener: &Opener) -> Result<(Vec<Disk>, Vec<PathBuf>)> {
    let to_read = "it can be read: use --read-only to read the data without changes";
    let Opened { disks, mut absent } = opener.present(&config.disks, to_read)?;
    let may_lack = config.run || config.incremental;
    if !absent.is_empty() && (disks.is_empty() || !may_lack) {
        let (_, error) = absent.swap_remove(0);
        return Err(match may_lack || error.advice().is_some() || config.disks.len() == 1 {
            true => error,
            false => {
                let run = config.asked().run();
                error.hint(format!("use {run} to start what has all data on the other disks"))
            }
        });
    }
    for (path, error) in &absent {
        let why = Error::to_string(error);
        tracing::warn!(disk = %path.display(), why, "absent: the daemon starts without it");
    }
    Ok((disks, absent.into_iter().map(|(path, _)| path).collect()))
}

/// Adds disks on the network when they can be reached, each in a separate task, which ends with the service's reactor.
pub(crate) fn take_when_there(service: &Rc<Service>, absent: &[PathBuf]) {
    for path in absent.iter().filter(|path| disks::is_on_network(path)) {
        spawn(take(Rc::clone(service), path.clone())).detach();
    }
}

/// Adds a disk when it can be reached.
async fn take(service: Rc<Service>, path: PathBuf) {
    let shown = path.display().to_string();
    let mut wait = FIRST_WAIT;
    loop {
        sleep(wait).await;
        wait = (wait * 2).min(LONGEST_WAIT);
        if service.ending.draining().is_stopped() || service.stack.devices.name(&shown).is_some() {
            return;
        }
        let Some(array) = find_array(&service, &path).await else { continue };
        let Some(array) = array else {
            let what =
                "can be reached, but is not a member of an array: restart the daemon to serve it";
            return tracing::warn!(disk = shown, "{what}");
        };
        let attach = Attach { disk: shown.clone(), run: None };
        let Err(refused) = service.attach(&attach, &PassedFiles::by_daemon()).await else { return };
        let why = refused.parameters["reason"].as_str().unwrap_or("refused").to_owned();
        // It may be unreachable again.
        if find_array(&service, &path).await.is_some() {
            return tracing::warn!(disk = shown, array = %array, why, "is online, but is refused");
        }
    }
}

/// The array that a disk is a member of, if any, once that array may be written to. `None` if the disk cannot be reached.
async fn find_array(service: &Service, path: &Path) -> Option<Option<Uuid>> {
    let looking = Opener { access: Access::Look, ..service.opener.clone() };
    let disk = looking.in_task(path).await.ok()?;
    let contents = probe_readable(&disk.gateway).await.ok()?;
    let Contents { md: Md::Member(sb), .. } = contents else { return Some(None) };
    // Adding it would write to the array.
    while is_read_only(service, sb.set_uuid) {
        sleep(FIRST_WAIT).await;
        if disk.gateway.disk().presence() == Presence::Gone {
            return None;
        }
    }
    Some(Some(sb.set_uuid))
}

/// Whether an array runs that must not be written to, or was not written to since it became so.
fn is_read_only(service: &Service, array: Uuid) -> bool {
    let state = service.stack.arrays.of(array).map(|volume| volume.view.status().state);
    matches!(state, Some(ArrayState::ReadOnly | ArrayState::ReadAuto))
}
