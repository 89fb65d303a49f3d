//! Members that are added one by one, as udev does with `mdadm --incremental`.
//!
//! The messages are mdadm's, and so are the exit codes of refusals: 1 for a disk that is not a member or an array that
//! cannot start, 2 for a member that an array does not accept.

use ashlar_md::ondisk::{Role, Superblock};
use ashlar_md::{AddOptions, Candidate, ManageError};
use ashlar_stack::arrays::Volume;
use ashlar_stack::assemble::Note;
use ashlar_stack::attributes::AttributeError;
use ashlar_stack::incremental::{AttachOutcome, Collector};
use ashlar_stack::probe::Md;
use futures_util::lock::MutexGuard;
use serde_json::Value;
use uuid::Uuid;

use crate::disks::{self, Access};
use crate::interface::{
    Attach, DiskReference, DoneReply, StartedReply, refused, refused_with, reply,
};
use crate::lending::Lent;
use crate::manage::{NewDisk, index_of, not_done};
use crate::service::Service;
use crate::varlink::Reply;

/// The exit code for a member that an array does not accept.
const NOT_TAKEN: Option<u8> = Some(2);

impl Service {
    /// Adds a member.
    pub(crate) async fn attach(&self, at: &Attach, lent: &Lent) -> Result<Value, Reply> {
        let mut collector = self.collector().await?;
        let new = self.open(None, &at.disk, lent).await?;
        let contents = new.contents().await?;
        if self.access == Access::Write {
            new.refuse_rivals(&contents).await?;
        }
        let sb = match contents.md {
            Md::Member(sb) => sb,
            Md::Damaged(error) => return Err(refused(format!("{}: {error}", new.path), None)),
            Md::None => {
                return Err(refused(format!("no recognisable superblock on {}.", new.path), None));
            }
        };
        let done = match self.stack.arrays.of(sb.set_uuid) {
            Some(volume) => vec![self.join(&volume, new, sb).await?],
            None => self.collect(&mut collector, new, sb, at.run == Some(true)).await?,
        };
        done.iter().for_each(|line| tracing::info!("{line}"));
        reply(DoneReply { done })
    }

    /// Releases a member, wherever it is in use.
    pub(crate) async fn detach(
        &self,
        DiskReference { disk }: &DiskReference,
    ) -> Result<Value, Reply> {
        let mut collector = self.collector().await?;
        let waiting = self.stack.arrays.waiting();
        let mut paths = waiting.iter().flat_map(|array| &array.members).map(|member| &member.path);
        if let Some(path) = paths.find(|path| self.is_meant(path, disk))
            && let Some(name) = collector.detach(path)
        {
            self.forget(path);
            return reply(DoneReply { done: vec![format!("removed {path} from {}", name.path())] });
        }
        for volume in self.stack.arrays.running() {
            let array = volume.view.array();
            let members = array.status().await.members;
            let Ok(member) = self.member(&volume, &members, disk) else { continue };
            let (index, path) = (index_of(member), member.path.clone().unwrap_or_default());
            let mut done = Vec::new();
            if !member.faulty {
                array.fail(index).await.map_err(|error| not_done(&error))?;
                done.push(format!("set {path} faulty in {}", volume.name.path()));
            }
            array.remove(index).await.map_err(|error| not_done(&error))?;
            done.push(format!("hot removed {path} from {}", volume.name.path()));
            return reply(DoneReply { done });
        }
        Err(refused(format!("{disk} does not appear to be a component of any array"), None))
    }

    /// Starts waiting arrays, if possible.
    pub(crate) async fn start_waiting(&self) -> Result<Value, Reply> {
        let mut collector = self.collector().await?;
        let (mut done, mut failed) = (Vec::new(), Vec::new());
        for started in collector.start_waiting().await {
            match started {
                Ok(volume) => {
                    done.push(format!("started array {}", volume.name.path()));
                }
                Err(why) => {
                    let name = why.name.path();
                    failed.push(format!("failed to start array {name}: {}", why.error));
                }
            }
        }
        self.serve_new(&mut collector).await;
        reply(StartedReply { done, failed })
    }

    /// The collector, locked for one change. Once the daemon is about to end no change may begin, so that no array is
    /// left running.
    pub(crate) async fn collector(&self) -> Result<MutexGuard<'_, Collector>, Reply> {
        let collector = self.collector.lock().await;
        if self.ending.draining().is_stopped() {
            return Err(refused("the daemon is about to end", None));
        }
        Ok(collector)
    }

    /// Whether the disk at `path` is the one that the user named.
    fn is_meant(&self, path: &str, disk: &str) -> bool {
        let wanted = disks::identity(disk.as_ref());
        path == disk
            || self.stack.devices.name(path).as_deref() == Some(disk)
            || self.is_opened_by(path, wanted.as_ref())
    }

    /// Adds a member of an array that is not running.
    async fn collect(
        &self,
        collector: &mut Collector,
        new: NewDisk,
        sb: Box<Superblock>,
        run: bool,
    ) -> Result<Vec<String>, Reply> {
        let waiting = self.stack.arrays.waiting();
        let existing = waiting.iter().find(|array| array.uuid == sb.set_uuid);
        let candidate = Candidate { gateway: new.gateway.clone(), path: new.path.clone(), sb };
        // The device must have a name when the array starts.
        let was_held = new.is_held;
        let path = self.keep(new);
        let volume = match collector.attach(candidate, run).await {
            Ok(AttachOutcome::Started(volume)) => volume,
            Ok(AttachOutcome::NotEnough(name, count)) => {
                let name = name.path();
                return Ok(vec![format!(
                    "{path} attached to {name}, not enough to start ({count})."
                )]);
            }
            Ok(AttachOutcome::NotSafe(name)) => {
                let name = name.path();
                return Ok(vec![format!("{path} attached to {name}, not enough to start safely.")]);
            }
            Err(error) => {
                if !was_held {
                    self.forget(&path);
                }
                return Err(match existing {
                    Some(array) => {
                        let name = array.name.path();
                        let why =
                            format!("failed to add {path} to existing array {name}: {error}.");
                        refused_with(why, None, NOT_TAKEN)
                    }
                    None => refused(format!("{path}: {error}"), None),
                });
            }
        };
        self.serve_new(collector).await;
        let started = format!("{path} attached to {}, which has been started.", volume.name.path());
        Ok(std::iter::once(started).chain(volume.view.status().notes).collect())
    }

    /// Adds a member of a running array. A spare becomes a spare; a former member is only re-added, since making it a
    /// spare would overwrite it.
    async fn join(
        &self,
        volume: &Volume,
        new: NewDisk,
        sb: Box<Superblock>,
    ) -> Result<String, Reply> {
        let array = volume.view.array();
        let path = new.path.clone();
        let options = AddOptions {
            device_uuid: Uuid::new_v4(),
            write_mostly: None,
            failfast: None,
            spare_only: sb.role() == Role::Spare,
        };
        let name = volume.name.path();
        let added = if options.spare_only {
            let added = array.add(new.gateway.clone(), &path, options).await;
            added.map(|_| self.keep(new))
        } else {
            self.return_member(array, new, sb, options).await
        };
        let path = added.map_err(|error| not_taken(&path, &name, &error))?;
        Ok(format!("{path} attached to {name} which is already active."))
    }

    /// Serves new devices, and sets their deferred attributes.
    async fn serve_new(&self, collector: &mut Collector) {
        log_notes(&collector.take_notes());
        self.clients.front_ends.follow();
        for (path, value) in self.deferred.take() {
            match self.attributes.write(&path, &value).await {
                Ok(()) => {}
                Err(AttributeError::NotFound) => self.deferred.borrow_mut().push((path, value)),
                Err(error) => tracing::error!(path, %error, "not set"),
            }
        }
    }

    /// Forgets an unused disk.
    fn forget(&self, path: &str) {
        self.stack.devices.remove(path);
        self.identities.borrow_mut().remove(path);
    }
}

/// Logs notes about devices.
pub(crate) fn log_notes(notes: &[Note]) {
    for note in notes {
        tracing::warn!(device = note.device, "{}", note.text);
    }
}

fn not_taken(path: &str, name: &str, error: &ManageError) -> Reply {
    if let ManageError::ReAdd { why, .. } = error {
        let reason =
            format!("can only add {path} to {name} as a spare, and force-spare is not set.");
        let hint = format!("{why}; ashlar md add makes it a spare, overwriting what it has");
        return refused_with(reason, Some(&hint), NOT_TAKEN);
    }
    let reason = format!("failed to add {path} to existing array {name}: {error}.");
    refused_with(reason, None, NOT_TAKEN)
}
