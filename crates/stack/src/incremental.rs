//! Arrays whose members arrive one at a time, as with `mdadm --incremental`.
//!
//! A [`Collector`] keeps the arrived members of arrays that do not run. An array starts once all members that
//! its freshest superblock calls active are present, or by [`Collector::start_waiting`] with as many as
//! hold all data. Nothing is written to a waiting member. A started array is probed like those of
//! the initial start ([`crate::builder`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use ashlar_block::Runtime;
use ashlar_md::ondisk::Superblock;
use ashlar_md::{AssembleError, Candidate, probe};
use uuid::Uuid;

use crate::arrays::{Volume, WaitingArray};
use crate::assemble::{Failure, Note, Options, Refused, Stack};
use crate::builder::Builder;
use crate::devices::Claim;
use crate::names::{ArrayName, wanted_name};
use crate::turn::{self, Settles};
use crate::view::ArrayView;

/// The result of adding a member.
pub enum AttachOutcome {
    /// Too few members to start the array: the number in sync.
    NotEnough(ArrayName, usize),
    /// The array could start, but more members worked last time.
    NotSafe(ArrayName),
    /// The array was started.
    Started(Volume),
}

/// An array that could not be started.
pub struct StartFailure {
    /// What it is called.
    pub name: ArrayName,
    /// The reason.
    pub error: AssembleError,
}

/// See the module text. One per stack.
pub struct Collector {
    pub(crate) builder: Builder,
    waiting: BTreeMap<Uuid, (ArrayName, Vec<Candidate>)>,
}

/// The turns of a stack: of its collector.
pub type Turns = turn::Turns<Collector>;

/// The right to change the stack.
pub type Turn = turn::Turn<Collector>;

/// Whether more members may help: `Some(Some(n))` if the `n` in-sync members are too few.
fn lacks_members(error: &AssembleError) -> Option<Option<usize>> {
    match error {
        AssembleError::NotEnough { present, .. } => Some(Some(*present)),
        AssembleError::NeedsRun { .. } | AssembleError::DirtyDegraded { .. } => Some(None),
        AssembleError::NoMembers
        | AssembleError::OtherArray { .. }
        | AssembleError::Unsupported(_)
        | AssembleError::OnlyRead(_)
        | AssembleError::Reshape(_)
        | AssembleError::CriticalSection { .. }
        | AssembleError::Disagree { .. }
        | AssembleError::SameMember { .. }
        | AssembleError::SameSlot { .. }
        | AssembleError::SplitBrain { .. }
        | AssembleError::Misaligned { .. }
        | AssembleError::BadBlocks { .. }
        | AssembleError::ReadOnlyMember(_)
        | AssembleError::UsedElsewhere(_)
        | AssembleError::Personality(_)
        | AssembleError::Read { .. } => None,
    }
}

/// Whether more members may help an array that did not start, so that a [`Collector`] keeps it.
pub fn may_wait(error: &AssembleError) -> bool {
    lacks_members(error).is_some()
}

impl Turns {
    /// The turns of the stack whose later members `collector` collects. `after` is called at the end of each. No change begins once
    /// `is_over` returns true.
    pub fn new(
        collector: Collector,
        after: impl Fn() + Send + Sync + 'static,
        is_over: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Self {
        let runtime = Arc::clone(&collector.builder.runtime);
        Self::of(collector, after, is_over, runtime)
    }
}

impl Settles for Collector {
    /// Records in the registry which array has each disk. A member that an array dropped meanwhile has no owner then.
    fn settle(&self) {
        self.builder.settle();
    }
}

impl Collector {
    /// A collector for later members of `stack`. Arrays that only lacked members are no longer
    /// failures: they wait. `options` apply to arrays that start later.
    pub fn new(stack: &mut Stack, options: Options, runtime: Arc<dyn Runtime>) -> Self {
        let (devices, arrays) = (Arc::clone(&stack.devices), Arc::clone(&stack.arrays));
        let pools = Arc::clone(&stack.pools);
        let mut builder = Builder::new(devices, arrays, pools, options, runtime);
        builder.names = std::mem::take(&mut stack.names);
        builder.groups = std::mem::take(&mut stack.groups);
        // A disk with an array's name blocks that name.
        for device in builder.devices.volumes() {
            if device.kind.is_disk() {
                builder.names.reserve(&device.name);
            }
        }
        let mut this = Self { builder, waiting: BTreeMap::new() };
        let all = std::mem::take(&mut stack.failures);
        let (waiting, failures): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|failure| lacks_members(&failure.error).is_some());
        stack.failures = failures;
        for Failure { name, uuid, candidates, .. } in waiting {
            this.keep(uuid, name, candidates);
        }
        this.settle();
        this
    }

    /// Forgets a waiting or stopped array and its name. Its disks are closed at the end of the turn.
    pub fn release(&mut self, name: &ArrayName) {
        self.builder.names.take_back(name);
        let found = self.waiting.iter().find(|(_, (other, _))| other == name);
        if let Some(uuid) = found.map(|(uuid, _)| *uuid) {
            self.builder.arrays.forget(uuid);
            self.waiting.remove(&uuid);
        }
    }

    /// Makes a stopped array, which was removed from the stack, a waiting one, with the members that can be read. False
    /// if no member can be read.
    pub async fn keep_stopped(&mut self, name: &ArrayName, array: &ArrayView) -> bool {
        let uuid = array.status().uuid;
        let mut members = Vec::new();
        for (_, rdev) in array.members().iter() {
            match probe(rdev.gateway()).await {
                Ok(Some(sb)) if sb.set_uuid == uuid => {
                    let (gateway, path) = (rdev.gateway().clone(), rdev.path().to_owned());
                    members.push(Candidate { gateway, path, sb });
                }
                Ok(_) | Err(_) => {
                    let device = self.builder.devices.name(rdev.path());
                    let device = device.unwrap_or_else(|| rdev.path().to_owned());
                    let text = format!("left out of {}: no superblock can be read", name.path());
                    self.builder.notes.push(Note::new(&self.builder.devices, device, text));
                }
            }
        }
        if members.is_empty() {
            self.release(name);
            return false;
        }
        self.keep(uuid, name.clone(), members);
        true
    }

    /// The messages about new arrays since the last call.
    pub fn take_notes(&mut self) -> Vec<Note> {
        let refusals = std::mem::take(&mut self.builder.refusals);
        for refused in refusals.iter().filter(|refusal| refusal.what == Refused::Group) {
            let text = format!("volume group {} is not used: {}", refused.name, refused.why);
            refused.below.iter().for_each(|device| self.builder.note(device, text.clone()));
        }
        for refused in std::mem::take(&mut self.builder.refused_outsiders) {
            self.builder.note(&refused.device, refused.to_string());
        }
        std::mem::take(&mut self.builder.notes)
    }

    /// Adds a member of an array that does not run. With `run`, the array starts as soon as all data is present.
    ///
    /// # Errors
    /// The member does not belong to the array of the waiting members, or the array can never
    /// start. The claim is not kept then.
    pub async fn attach(
        &mut self,
        claim: &mut Claim,
        sb: Box<Superblock>,
        run: bool,
    ) -> Result<AttachOutcome, AssembleError> {
        let uuid = sb.set_uuid;
        let new = Candidate { gateway: claim.gateway().clone(), path: claim.path().to_owned(), sb };
        let mut members = Vec::new();
        if let Some((_, waiting)) = self.waiting.get(&uuid) {
            members.extend(waiting.iter().cloned());
        }
        let wanted = wanted_name(&new.sb);
        members.push(new);
        let error = match self.try_start(uuid, &wanted, members, run).await {
            Ok(volume) => {
                claim.keep();
                self.look_into(volume.name.device()).await;
                return Ok(AttachOutcome::Started(volume));
            }
            Err(error) => error,
        };
        let outcome = match (self.waiting.get(&uuid), lacks_members(&error)) {
            (Some((name, _)), Some(Some(count))) => AttachOutcome::NotEnough(name.clone(), count),
            (Some((name, _)), Some(None)) => AttachOutcome::NotSafe(name.clone()),
            (Some(_) | None, None) | (None, Some(_)) => return Err(error),
        };
        claim.keep();
        Ok(outcome)
    }

    /// Starts all waiting arrays with enough members to hold all data (`mdadm --incremental --run
    /// --scan`). The others keep waiting.
    pub async fn start_waiting(&mut self) -> Vec<Result<Volume, StartFailure>> {
        let mut results = Vec::new();
        for WaitingArray { name, uuid, .. } in self.builder.arrays.waiting() {
            let Some((_, members)) = self.waiting.get(&uuid) else { continue };
            let members = members.clone();
            // The array already has a name.
            let started = self.try_start(uuid, "", members, true).await;
            if let Ok(volume) = &started {
                self.look_into(volume.name.device()).await;
            }
            results.push(started.map_err(|error| StartFailure { name, error }));
        }
        results
    }

    /// Removes the member at `path` from a waiting array; returns the name of that array.
    pub fn detach(&mut self, path: &str) -> Option<ArrayName> {
        let has = |members: &Vec<Candidate>| members.iter().any(|member| member.path == path);
        let found = self.waiting.iter().find(|(_, (_, members))| has(members));
        let uuid = *found?.0;
        let (name, mut members) = self.waiting.remove(&uuid)?;
        members.retain(|member| member.path != path);
        if members.is_empty() {
            self.builder.names.take_back(&name);
            self.builder.arrays.forget(uuid);
        } else {
            self.keep(uuid, name.clone(), members);
        }
        Some(name)
    }

    /// Starts an array if possible. If it only lacks members, they are kept.
    async fn try_start(
        &mut self,
        uuid: Uuid,
        wanted: &str,
        members: Vec<Candidate>,
        run: bool,
    ) -> Result<Volume, AssembleError> {
        let kept = members.clone();
        let options = self.builder.options.md;
        let options = ashlar_md::Options { run: run || options.run, ..options };
        let plan = match self.builder.plan(members, &options).await {
            Err(error) if lacks_members(&error).is_none() => return Err(error),
            plan => plan,
        };
        let name = match self.waiting.get(&uuid) {
            Some((name, _)) => name.clone(),
            None => self.builder.names.of(uuid, wanted),
        };
        match plan {
            Ok(plan) => {
                let paths: Vec<String> = kept.into_iter().map(|member| member.path).collect();
                self.waiting.remove(&uuid);
                Ok(self.builder.start(uuid, plan, name, &paths).await)
            }
            Err(error) => {
                self.keep(uuid, name, kept);
                Err(error)
            }
        }
    }

    /// Makes all devices that can be made of a new one. Members found on them join the waiting
    /// ones; an array completed by them is probed in turn.
    pub(crate) async fn look_into(&mut self, device: String) {
        let mut new = vec![device];
        while let Some(device) = new.pop() {
            self.builder.add_above(device);
            self.builder.run().await;
            for Failure { uuid, candidates, error, .. } in
                std::mem::take(&mut self.builder.failures)
            {
                let mut members = candidates.clone();
                if let Some((_, waiting)) = self.waiting.get(&uuid) {
                    members.extend(waiting.iter().cloned());
                } else if lacks_members(&error).is_none() {
                    self.not_started(&candidates, &error);
                    continue;
                }
                match self.try_start(uuid, "", members, false).await {
                    Ok(volume) => new.push(volume.name.device()),
                    Err(error) if lacks_members(&error).is_some() => {}
                    Err(error) => self.not_started(&candidates, &error),
                }
            }
        }
    }

    /// Notes on each of these new members why its array did not start.
    fn not_started(&mut self, members: &[Candidate], error: &AssembleError) {
        for member in members {
            let device = self.builder.devices.name(&member.path);
            let device = device.unwrap_or_else(|| member.path.clone());
            let text = format!("not assembled: {error}");
            self.builder.notes.push(Note::new(&self.builder.devices, device, text));
        }
    }

    /// Keeps the members of a waiting array.
    fn keep(&mut self, uuid: Uuid, name: ArrayName, members: Vec<Candidate>) {
        if let Some(waiting) = WaitingArray::new(name.clone(), &members) {
            self.builder.arrays.wait(waiting);
            self.waiting.insert(uuid, (name, members));
        }
    }
}
