//! Members that are added one by one, as udev does with `mdadm --incremental`.
//!
//! The messages are mdadm's, and so are the exit codes of refusals: 1 for a disk that is not a member or an array that
//! cannot start, 2 for a member that an array does not accept.

use std::path::Path;

use ashlar_client::interface::{
    Attach, DiskReference, DoneReply, StartedReply, refused, refused_with, reply,
};
use ashlar_client::passed_files::PassedFiles;
use ashlar_control::varlink::Reply;
use ashlar_disks::Access;
use ashlar_md::ondisk::{Role, Superblock};
use ashlar_md::{AddOptions, ManageError};
use ashlar_stack::arrays::Volume;
use ashlar_stack::assemble::Note;
use ashlar_stack::incremental::{AttachOutcome, Turn};
use ashlar_stack::probe::Md;
use ashlar_view::attributes::AttributeError;
use serde_json::Value;
use uuid::Uuid;

use crate::manage::{NewDisk, index_of, not_done};
use crate::service::Service;

/// The exit code for a member that an array does not accept.
const NOT_TAKEN: Option<u8> = Some(2);

impl Service {
    /// Adds a member.
    pub(crate) async fn attach(&self, at: &Attach, passed: &PassedFiles) -> Result<Value, Reply> {
        let mut turn = self.turn().await?;
        let new = self.open(&turn, None, &at.disk, passed).await?;
        let contents = new.contents().await?;
        if self.opener.access == Access::Write {
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
            Some(volume) => vec![self.join(&turn, &volume, new, sb).await?],
            None => self.collect(&mut turn, new, sb, at.run == Some(true)).await?,
        };
        drop(turn);
        self.set_deferred().await;
        done.iter().for_each(|line| tracing::info!("{line}"));
        reply(DoneReply { done })
    }

    /// Releases a member, wherever it is in use.
    pub(crate) async fn detach(
        &self,
        DiskReference { disk }: &DiskReference,
    ) -> Result<Value, Reply> {
        let mut turn = self.turn().await?;
        let wanted = self.seen(Path::new(disk)).await;
        let is_meant = |path: &str| self.is_called(path, disk, wanted.as_ref());
        let waiting = self.stack.arrays.waiting();
        let mut paths = waiting.iter().flat_map(|array| &array.members).map(|member| &member.path);
        if let Some(path) = paths.find(|path| is_meant(path))
            && let Some(name) = turn.detach(path)
        {
            return reply(DoneReply { done: vec![format!("removed {path} from {}", name.path())] });
        }
        for volume in self.stack.arrays.running() {
            let members = volume.view.status().members;
            let mut paths =
                members.iter().filter_map(|member| Some((member, member.path.clone()?)));
            let Some((member, path)) = paths.find(|(_, path)| is_meant(path)) else { continue };
            let index = index_of(member);
            let mut done = Vec::new();
            if !member.faulty {
                volume.view.fail(&turn, index).await.map_err(|error| not_done(&error))?;
                done.push(format!("set {path} faulty in {}", volume.name.path()));
            }
            volume.view.remove(&turn, index).await.map_err(|error| not_done(&error))?;
            done.push(format!("hot removed {path} from {}", volume.name.path()));
            return reply(DoneReply { done });
        }
        Err(refused(format!("{disk} does not appear to be a component of any array"), None))
    }

    /// Starts waiting arrays, if possible.
    pub(crate) async fn start_waiting(&self) -> Result<Value, Reply> {
        let mut turn = self.turn().await?;
        let (mut done, mut failed) = (Vec::new(), Vec::new());
        for started in turn.start_waiting().await {
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
        self.serve_new(&mut turn);
        drop(turn);
        self.set_deferred().await;
        reply(StartedReply { done, failed })
    }

    /// Adds a member of an array that is not running.
    async fn collect(
        &self,
        turn: &mut Turn,
        new: NewDisk,
        sb: Box<Superblock>,
        run: bool,
    ) -> Result<Vec<String>, Reply> {
        let waiting = self.stack.arrays.waiting();
        let existing = waiting.iter().find(|array| array.uuid == sb.set_uuid);
        // The device must have a name when the array starts.
        let (path, mut claim) = (new.path.clone(), self.claim(turn, new, sb.set_uuid)?);
        let volume = match turn.attach(&mut claim, sb, run).await {
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
        self.serve_new(turn);
        let started = format!("{path} attached to {}, which has been started.", volume.name.path());
        Ok(std::iter::once(started).chain(volume.view.status().notes).collect())
    }

    /// Adds a member of a running array. A spare becomes a spare; a former member is only re-added, since making it a
    /// spare would overwrite it.
    async fn join(
        &self,
        turn: &Turn,
        volume: &Volume,
        new: NewDisk,
        sb: Box<Superblock>,
    ) -> Result<String, Reply> {
        let path = new.path.clone();
        let options = AddOptions {
            device_uuid: Uuid::new_v4(),
            write_mostly: None,
            failfast: None,
            spare_only: sb.role() == Role::Spare,
        };
        let name = volume.name.path();
        let added = if options.spare_only {
            let mut claim = self.claim(turn, new, sb.set_uuid)?;
            volume.view.add(turn, &mut claim, options).await.map(|_| ())
        } else {
            let mut claim = self.claim(turn, new, sb.set_uuid)?;
            volume.view.re_add(turn, &mut claim, sb, options, None).await.map(|_| ())
        };
        added.map_err(|error| not_taken(&path, &name, &error))?;
        Ok(format!("{path} attached to {name} which is already active."))
    }

    /// Serves new devices.
    fn serve_new(&self, turn: &mut Turn) {
        log_notes(&turn.take_notes());
        self.clients.front_ends.follow();
    }

    /// Sets attributes that were requested at the start and exist now. The caller holds no turn: some of them need one.
    async fn set_deferred(&self) {
        for (path, value) in self.deferred.take() {
            match self.attributes.write(&path, &value).await {
                Ok(()) => {}
                Err(AttributeError::NotFound) => self.deferred.borrow_mut().push((path, value)),
                Err(error) => tracing::error!(path, %error, "not set"),
            }
        }
    }
}

/// Logs notes about devices.
pub(crate) fn log_notes(notes: &[Note]) {
    for note in notes {
        tracing::warn!(device = note.shown, "{}", note.text);
    }
}

fn not_taken(path: &str, name: &str, error: &ManageError) -> Reply {
    if let ManageError::ReAdd { why, .. } = error {
        let reason =
            format!("can only add {path} to {name} as a spare, and force-spare is not set.");
        let hint = format!("{why}; ashlar md add makes it a spare and overwrites its data");
        return refused_with(reason, Some(&hint), NOT_TAKEN);
    }
    let reason = format!("failed to add {path} to existing array {name}: {error}.");
    refused_with(reason, None, NOT_TAKEN)
}
