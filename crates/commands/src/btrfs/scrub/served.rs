//! A scrub that a daemon runs, of a file system on volumes that it serves.

use std::pin::pin;
use std::time::Duration;

use ashlar_client::client::Client;
use ashlar_client::interface::{FileSystemReply, JobAction, Scrub};
use ashlar_disks as disks;
use ashlar_engine::{signal, sleep};
use futures_util::future::{Either, select};

use super::{ScrubDirectory, ScrubHandle, ScrubObserver, ScrubRecord};
use crate::btrfs::SIGNALS;
use crate::error::{Error, Result};

/// How often the observer gets the progress.
const TICK: Duration = Duration::from_millis(200);
/// How often to ask the daemon whether a scrub that has ended has released its volumes.
const BRIEF: Duration = Duration::from_millis(5);

/// See the module text.
pub struct ServedScrub {
    client: Client,
    handle: ScrubHandle,
}

impl ServedScrub {
    /// The scrub of the file system on these volumes, whether or not there is one.
    ///
    /// # Errors
    /// The daemon does not find it.
    pub fn find(mut client: Client, volumes: Vec<String>) -> Result<Self> {
        let found = client.file_system(volumes)?;
        Self::new(client, found)
    }

    /// Has the daemon begin or resume a scrub.
    ///
    /// # Errors
    /// It refused.
    pub fn start(mut client: Client, options: &Scrub) -> Result<Self> {
        let begun = client.scrub(options)?;
        Self::new(client, begun)
    }

    fn new(client: Client, FileSystemReply { fsid, status_dir }: FileSystemReply) -> Result<Self> {
        let handle = ScrubDirectory::new(Some(&status_dir))?.scrub_of(fsid);
        Ok(Self { client, handle })
    }

    /// The scrub, as that of any process.
    pub fn handle(&self) -> &ScrubHandle {
        &self.handle
    }

    /// The daemon's process.
    ///
    /// # Errors
    /// The connection failed.
    pub fn pid(&mut self) -> Result<u32> {
        Ok(self.client.status()?.pid)
    }

    /// Waits until the scrub has ended, and tells `observer` meanwhile. SIGINT, SIGTERM and SIGHUP, which
    /// [`block_signals`](crate::btrfs::block_signals) has blocked, end the scrub early.
    ///
    /// # Errors
    /// The status file cannot be read, or the observer failed.
    pub fn wait(mut self, observer: &mut dyn ScrubObserver) -> Result<ScrubRecord> {
        disks::reactor()?.block_on(async {
            let mut end = pin!(signal::wait(&SIGNALS));
            let mut is_cancelled = false;
            while let Some(status) = self.handle.status()? {
                observer.progress(&status.record)?;
                if is_cancelled {
                    sleep(TICK).await;
                } else if let Either::Left(_) = select(end.as_mut(), pin!(sleep(TICK))).await {
                    is_cancelled = true;
                    self.client.control_job(&self.handle.fsid().to_string(), JobAction::Cancel)?;
                }
            }
            // Its volumes can be opened once it is no longer a job.
            let name = self.handle.fsid().to_string();
            while self.client.jobs()?.iter().any(|job| job.name == name) {
                sleep(BRIEF).await;
            }
            let record = self.handle.last()?;
            record.ok_or_else(|| {
                Error::new("the scrub left no record", self.handle.fsid(), "see the daemon's log")
            })
        })
    }
}
