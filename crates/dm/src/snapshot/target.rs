//! `snapshot ORIGIN COW P|PO|N CHUNK [FEATURES...]`: the origin as it was, plus the snapshot's own writes.
//!
//! Chunks with a copy are read and written there. Other chunks are read from the origin, tracked,
//! so that they do not change meanwhile; a write to them makes a copy first, unless it fills the
//! chunk.
//!
//! A merging snapshot must no longer be used: its I/O fails, as in the kernel, where the source
//! of a handover is invalid. A write would be lost when its run is removed.

use std::sync::Arc;

use ashlar_block::sync::gate::Pass;
use ashlar_block::sync::lock;
use ashlar_block::{
    Bio, BioResult, Extents, Features, Flags, Gateway, IoFuture, Limits, LocalFuture, Op, Sector,
    Sectors, Status,
};
use tracing::error;

use super::canary::{Rule, broken};
use super::changes::Changes;
use super::load::StoreError;
use super::ondisk::ChunkSizeError;
use super::origin::Origin;
use super::state::{LoadedState, Persistence, Snapshot, Start, remap};
use super::status::{Status as SnapshotStatus, Usage};
use crate::target::{Arguments, TableTarget, Target, TargetError, TargetParameters};
use crate::text::QuotedArgument;

/// The arguments of a snapshot or merge in a table, and its use of the snapshot.
pub(super) struct Member {
    names: (String, String),
    pub(super) persistence: Persistence,
    /// Sectors per chunk in the table; zero for the default.
    chunk: Sectors,
    pub(super) discard_zeroes_cow: bool,
    pub(super) discard_passdown_origin: bool,
    pub(super) len: Sectors,
    pub(super) origin: Arc<Origin>,
    pub(super) snapshot: Arc<Snapshot>,
}

impl Drop for Member {
    fn drop(&mut self) {
        self.origin.leave(&self.snapshot);
    }
}

fn persistence(word: &str) -> Result<Persistence, TargetError> {
    match word.to_ascii_uppercase().as_str() {
        "P" => Ok(Persistence::Persistent { overflow: false }),
        "PO" => Ok(Persistence::Persistent { overflow: true }),
        "N" => Ok(Persistence::Transient),
        _ => Err(TargetError::Invalid(format!(
            "unknown kind of exception store '{word}': use P, PO or N"
        ))),
    }
}

/// The optional features: `discard_zeroes_cow`, `discard_passdown_origin`.
fn features(args: &mut Arguments<'_>) -> Result<(bool, bool), TargetError> {
    let (mut zeroes, mut passdown) = (false, false);
    if args.left() > 0 {
        for _ in 0..args.number::<u8>("the number of features")? {
            match args.word("a feature")?.to_ascii_lowercase().as_str() {
                "discard_zeroes_cow" => zeroes = true,
                "discard_passdown_origin" => passdown = true,
                other => {
                    let text = format!(
                        "there is no feature '{other}': discard_zeroes_cow and \
                         discard_passdown_origin are"
                    );
                    return Err(TargetError::Invalid(text));
                }
            }
        }
    }
    if passdown && !zeroes {
        let text = "discard_passdown_origin needs discard_zeroes_cow".to_owned();
        return Err(TargetError::Invalid(text));
    }
    Ok((zeroes, passdown))
}

fn invalid(error: &StoreError) -> TargetError {
    TargetError::Invalid(error.to_string())
}

impl Member {
    /// Parses the arguments of `snapshot` or `snapshot-merge`, and reads the metadata if no other
    /// table has read it.
    pub(super) async fn construct(
        mut parameters: TargetParameters<'_>,
        merge: bool,
    ) -> Result<Self, TargetError> {
        let args = &mut parameters.args;
        let names = (args.word("the origin")?.to_owned(), args.word("the COW device")?.to_owned());
        let persistence = persistence(args.word("how exceptions are kept")?)?;
        let chunk = Sectors(args.number::<u32>("the chunk size")?.into());
        let (discard_zeroes_cow, discard_passdown_origin) = features(args)?;
        parameters.args.end()?;
        let find = |name: &String| {
            let found = parameters.context.devices.find(name);
            found.ok_or_else(|| TargetError::NoDevice(name.clone()))
        };
        let (device, cow) = (find(&names.0)?, find(&names.1)?);
        if device.is_same(&cow) {
            let text = "the COW device cannot be the origin".to_owned();
            return Err(TargetError::Invalid(text));
        }
        let (size, start, len) = (device.capacity(), Sector::ZERO, parameters.len);
        if size < len {
            return Err(TargetError::TooSmall { name: names.0, size, start, len });
        }
        match persistence {
            Persistence::Transient if merge => {
                let text = "a transient snapshot cannot be merged".to_owned();
                return Err(TargetError::Invalid(text));
            }
            Persistence::Transient if chunk.is_zero() => {
                return Err(TargetError::Invalid(ChunkSizeError::NotSet.to_string()));
            }
            Persistence::Transient | Persistence::Persistent { .. } => {}
        }
        let origins = &parameters.context.origins;
        if origins.is_cow_of_another(&cow, &device) {
            let text = format!("{} keeps the exceptions of another device's snapshot", names.1);
            return Err(TargetError::Invalid(text));
        }
        let origin = origins.of(&device);
        let runtime = Arc::clone(&parameters.context.runtime);
        let snapshot =
            origin.join(Snapshot::new(device, cow, runtime, persistence, origins.fills()));
        let transient = persistence == Persistence::Transient;
        // From here on, a drop undoes the above.
        let member = Self {
            names,
            persistence,
            chunk,
            discard_zeroes_cow,
            discard_passdown_origin,
            len,
            origin,
            snapshot,
        };
        if member.snapshot.is_persistent() == transient {
            let text = "the snapshot keeps its exceptions in another way already".to_owned();
            return Err(TargetError::Invalid(text));
        }
        member.snapshot.load(member.chunk).await.map_err(|error| invalid(&error))?;
        Ok(member)
    }

    pub(super) fn chunk(&self) -> Sectors {
        self.snapshot.loaded().map_or(self.chunk, |loaded| loaded.geometry.chunk())
    }

    pub(super) fn arguments(&self) -> String {
        let how = match self.persistence {
            Persistence::Persistent { overflow: false } => "P",
            Persistence::Persistent { overflow: true } => "PO",
            Persistence::Transient => "N",
        };
        let (origin, cow) = (QuotedArgument(&self.names.0), QuotedArgument(&self.names.1));
        let features = match (self.discard_zeroes_cow, self.discard_passdown_origin) {
            (false, _) => "",
            (true, false) => " 1 discard_zeroes_cow",
            (true, true) => " 2 discard_zeroes_cow discard_passdown_origin",
        };
        format!("{origin} {cow} {how} {}{features}", self.chunk())
    }

    pub(super) fn status(&self) -> SnapshotStatus {
        let snapshot = &self.snapshot;
        let Some(loaded) = snapshot.loaded() else { return SnapshotStatus::Unknown };
        if !snapshot.is_valid() {
            SnapshotStatus::Invalid
        } else if snapshot.merge.has_failed() {
            SnapshotStatus::MergeFailed
        } else if snapshot.is_overflowed() && !snapshot.merge.is_merging() {
            // A merge needs no room: its progress must be visible.
            SnapshotStatus::Overflow
        } else {
            let (allocated, metadata) = lock(&loaded.store).usage();
            SnapshotStatus::Valid(Usage { allocated, total: snapshot.cow.capacity(), metadata })
        }
    }

    pub(super) fn stack_limits(&self, limits: &mut Limits) {
        limits.stack(self.snapshot.origin.disk().limits(), Sector::ZERO);
        limits.stack(self.snapshot.cow.disk().limits(), Sector::ZERO);
        limits.max_write_zeroes = Sectors::ZERO;
        limits.features -= Features::DISCARD_ZEROES;
        limits.max_hw_discard = Sectors::ZERO;
        if self.discard_zeroes_cow {
            limits.max_hw_discard = self.chunk();
            limits.discard_granularity_bytes = self.chunk().bytes() as u32;
            limits.discard_alignment_bytes = 0;
        }
    }
}

/// See the module text.
pub(crate) struct SnapshotTarget(Member);

/// Keeps the origin's chunk unchanged during a read, or a copy in its place during a write.
pub(super) struct TrackedChunk<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) chunk: u64,
}

impl Drop for TrackedChunk<'_> {
    fn drop(&mut self) {
        self.snapshot.untrack(self.chunk);
    }
}

impl SnapshotTarget {
    fn loaded(&self) -> Result<&LoadedState, Status> {
        self.0.snapshot.loaded().filter(|_| self.0.snapshot.is_valid()).ok_or(Status::Io)
    }

    fn read<'a>(&'a self, loaded: &LoadedState, bio: Bio, pass: Pass<'a>) -> IoFuture<'a> {
        let snapshot = &*self.0.snapshot;
        let chunk = loaded.geometry.chunk_of(bio.sector);
        let mut shard = snapshot.exceptions.shard(chunk);
        if let Some(new) = shard.complete.get(chunk) {
            drop(shard);
            // The pass is not needed: a merge does not move copies.
            return snapshot.cow.submit(remap(loaded.geometry, &bio, new));
        }
        if broken(Rule::ReadsAreTracked) {
            return snapshot.origin.submit(bio);
        }
        shard.track(chunk);
        drop(shard);
        let tracked = TrackedChunk { snapshot, chunk };
        IoFuture::boxed(async move {
            let _pass = pass;
            snapshot.origin.submit(bio).await?;
            drop(tracked);
            // The origin does not wait for reads of an invalid snapshot.
            if snapshot.is_valid() { Ok(()) } else { Err(Status::Io) }
        })
    }

    fn write<'a>(&'a self, loaded: &LoadedState, bio: Bio, pass: Pass<'a>) -> IoFuture<'a> {
        let snapshot = &*self.0.snapshot;
        if snapshot.is_overflowed() {
            return IoFuture::failed(Status::Io);
        }
        let chunk = loaded.geometry.chunk_of(bio.sector);
        let copy = snapshot.exceptions.shard(chunk).complete.get(chunk);
        match copy {
            Some(new) => {
                let lower = remap(loaded.geometry, &bio, new);
                IoFuture::boxed(async move {
                    let _pass = pass;
                    snapshot.submit_to_cow(lower).await
                })
            }
            None if bio.flags.contains(Flags::NOWAIT) => IoFuture::failed(Status::Again),
            None => IoFuture::boxed(self.write_shared(chunk, bio, pass)),
        }
    }

    /// Writes to a chunk without a copy.
    async fn write_shared(&self, chunk: u64, bio: Bio, _pass: Pass<'_>) -> BioResult {
        let snapshot = &self.0.snapshot;
        loop {
            let loaded = self.loaded()?;
            if snapshot.is_overflowed() {
                return Err(Status::Io);
            }
            let copy = snapshot.exceptions.shard(chunk).complete.get(chunk);
            if let Some(new) = copy {
                return snapshot.submit_to_cow(remap(loaded.geometry, &bio, new)).await;
            }
            let fills = bio.len == loaded.geometry.chunk() || broken(Rule::FullChunksOnly);
            match snapshot.start(chunk, fills.then_some(&bio)) {
                Start::Complete => {}
                Start::Begun(pending) if fills => {
                    return if pending.made().await { Ok(()) } else { Err(Status::Io) };
                }
                Start::Begun(pending) | Start::Pending(pending) => {
                    pending.made().await;
                }
                Start::Busy => snapshot.has_room().await,
                Start::Full => {
                    snapshot.overflow();
                    snapshot.invalid().await;
                    return Err(Status::Io);
                }
            }
        }
    }

    /// Discards the copy of a chunk, and the origin's data if requested.
    async fn discard(&self, bio: Bio, _pass: Pass<'_>) -> BioResult {
        let Member { snapshot, origin, .. } = &self.0;
        let loaded = self.loaded()?;
        if snapshot.is_overflowed() {
            return Err(Status::Io);
        }
        let geometry = loaded.geometry;
        let chunk = geometry.chunk_of(bio.sector);
        let copy = snapshot.exceptions.shard(chunk).complete.get(chunk);
        if let Some(new) = copy {
            let mut lower = remap(geometry, &bio, new);
            if bio.len == geometry.chunk() && !broken(Rule::DiscardsZero) {
                lower.op = Op::WriteZeroes;
            }
            match snapshot.submit_to_cow(lower).await {
                Ok(()) | Err(Status::NotSupported) => {}
                Err(status) => return Err(status),
            }
        }
        if !self.0.discard_passdown_origin {
            return Ok(());
        }
        snapshot.exceptions.shard(chunk).track(chunk);
        let _tracked = TrackedChunk { snapshot, chunk };
        // Without exceptions, in this snapshot and all others: its purpose is to free space.
        match origin.device.submit(bio).await {
            Err(Status::NotSupported) => Ok(()),
            result => result,
        }
    }
}

impl TableTarget for SnapshotTarget {
    const NAME: &'static str = "snapshot";

    async fn construct(parameters: TargetParameters<'_>) -> Result<Self, TargetError> {
        Ok(Self(Member::construct(parameters, false).await?))
    }
}

impl Target for SnapshotTarget {
    fn type_name(&self) -> &'static str {
        Self::NAME
    }

    fn arguments(&self) -> String {
        self.0.arguments()
    }

    fn status(&self) -> String {
        if self.0.snapshot.merge.is_merging() {
            return SnapshotStatus::Invalid.to_string();
        }
        self.0.status().to_string()
    }

    fn max_io_len(&self) -> Sectors {
        self.0.chunk()
    }

    fn iterate_devices(&self, seen: &mut dyn FnMut(&Gateway)) {
        seen(&self.0.snapshot.origin);
        seen(&self.0.snapshot.cow);
    }

    fn stack_limits(&self, limits: &mut Limits) {
        self.0.stack_limits(limits);
    }

    /// Those of the device, origin or COW, that has each chunk now.
    fn copies(&self, at: Sector, len: Sectors) -> u16 {
        let Ok(loaded) = self.loaded() else { return 1 };
        let (snapshot, geometry) = (&self.0.snapshot, loaded.geometry);
        let chunks = geometry.chunk_of(at)..=geometry.chunk_of(at + len - Sectors(1));
        let of_chunk = |chunk| {
            let start = at.max(geometry.sector(chunk));
            let len = (geometry.sector(chunk) + geometry.chunk()).min(at + len) - start;
            match snapshot.exceptions.shard(chunk).complete.get(chunk) {
                Some(new) => {
                    let start = geometry.sector(new) + geometry.offset(start);
                    snapshot.cow.copies(start, len)
                }
                None => snapshot.origin.copies(start, len),
            }
        };
        chunks.map(of_chunk).max().unwrap_or(1)
    }

    fn extents(&self, at: Sector, len: Sectors) -> LocalFuture<'_, Result<Extents, Status>> {
        Box::pin(async move {
            let geometry = self.loaded()?.geometry;
            let extents = self.0.snapshot.extents(geometry, at, len).await?;
            // The origin does not wait for an invalid snapshot.
            self.loaded()?;
            Ok(extents)
        })
    }

    fn changes(&self) -> Option<Changes> {
        Some(Changes::of(&self.0.snapshot))
    }

    fn submit(&self, bio: Bio) -> IoFuture<'_> {
        let loaded = match self.loaded() {
            Ok(loaded) => loaded,
            // As in the kernel; if a written snapshot is invalid only in memory, its header may
            // still become valid.
            Err(_) if bio.op == Op::Flush => {
                return IoFuture::boxed(self.0.snapshot.submit_to_cow(bio));
            }
            Err(status) => return IoFuture::failed(status),
        };
        match (bio.op, self.0.snapshot.users.try_enter()) {
            // Durability of the origin's data is not this device's task. Data written here before a
            // merge began must still be flushed here.
            (Op::Flush, _) => IoFuture::boxed(self.0.snapshot.submit_to_cow(bio)),
            (Op::Discard, _) if !self.0.discard_zeroes_cow => {
                IoFuture::failed(Status::NotSupported)
            }
            (Op::Read, Some(pass)) => self.read(loaded, bio, pass),
            (Op::Write | Op::WriteZeroes, Some(pass)) => self.write(loaded, bio, pass),
            (Op::Discard, Some(pass)) => IoFuture::boxed(self.discard(bio, pass)),
            (Op::Read | Op::Write | Op::WriteZeroes | Op::Discard, None) => {
                IoFuture::failed(Status::Io)
            }
        }
    }

    fn is_lost(&self) -> bool {
        !self.0.snapshot.is_valid() && !self.0.snapshot.merge.is_merging()
    }

    fn suspended(&self) -> LocalFuture<'_, BioResult> {
        Box::pin(async {
            self.0.snapshot.settle().await;
            Ok(())
        })
    }

    fn resuming(&self) -> LocalFuture<'_, BioResult> {
        Box::pin(async {
            let Member { snapshot, origin, len, persistence, .. } = &self.0;
            if snapshot.merge.is_merging() {
                error!("a snapshot that is being merged cannot be used as one again");
                return Err(Status::Invalid);
            }
            origin.activate(snapshot, *len, *persistence).await;
            Ok(())
        })
    }
}
