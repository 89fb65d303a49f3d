//! A running array: its status, which never waits, its members' names, and its changes.
//!
//! The array itself does not leave the view: whoever reads it needs nothing, and whoever changes it needs the [`Turn`] of the
//! stack, and for a disk that joins the [`Claim`] of that disk.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use ashlar_block::{BioResult, BlockDevice, Sector, Sectors};
use ashlar_md::ondisk::Superblock;
use ashlar_md::ondisk::create::NewBitmap;
use ashlar_md::{
    AddOptions, AddOutcome, Array, ArrayState, ArrayStatus, BarrierTotals, Bitmap, Candidate,
    GrowOptions, Index, ManageError, MemberStatus, Members, ParitySettings, SyncError, SyncRequest,
    SyncSettings, SyncStatus,
};

use crate::canary::{Rule, broken};
use crate::devices::{Claim, Devices};
use crate::turn::{Settles, Turn};

/// A running array, seen from outside.
pub struct ArrayView {
    array: Arc<Array>,
    devices: Arc<Devices>,
    /// The last status that was available without waiting.
    last: Mutex<ArrayStatus>,
}

impl ArrayView {
    /// A view of `array`, whose members are among `devices`.
    pub async fn new(array: Arc<Array>, devices: Arc<Devices>) -> Arc<Self> {
        let last = Mutex::new(array.status().await);
        Arc::new(Self { array, devices, last })
    }

    /// The name under `sys/block` of a member.
    pub fn member_name(&self, member: &MemberStatus) -> Option<String> {
        self.devices.name(member.path.as_deref()?)
    }

    /// The current status. It never waits: while the superblocks are being written, what they alone hold is slightly old.
    pub fn status(&self) -> ArrayStatus {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let mut status = Box::pin(self.array.status());
        match status.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(now) => *last = now,
            Poll::Pending => self.array.refresh(&mut last),
        }
        last.clone()
    }
}

/// What can be read, and the array's own I/O.
impl ArrayView {
    /// Its state.
    pub fn state(&self) -> ArrayState {
        self.array.state()
    }

    /// What happened at its barrier.
    pub fn barrier_totals(&self) -> BarrierTotals {
        self.array.barrier_totals()
    }

    /// Its members.
    pub fn members(&self) -> &Members {
        self.array.members()
    }

    /// How many slots have no member in sync.
    pub fn degraded(&self) -> usize {
        self.array.degraded()
    }

    /// Its bitmap.
    pub fn bitmap(&self) -> Option<&Bitmap> {
        self.array.bitmap()
    }

    /// Whether it takes no writes.
    pub fn is_read_only(&self) -> bool {
        self.array.disk().is_read_only()
    }

    /// Whether a resync is due or runs.
    pub fn is_unsynced(&self) -> bool {
        self.array.is_unsynced()
    }

    /// Up to where it is in sync.
    pub fn in_sync_to(&self) -> Sectors {
        self.array.in_sync_to()
    }

    /// Spreads reads over the members by what was measured since the last call.
    pub fn balance_reads(&self) {
        self.array.balance_reads();
    }

    /// The sync that runs or ran last.
    pub fn sync_status(&self) -> SyncStatus {
        self.array.sync_status()
    }

    /// Whether a sync runs, or is about to.
    pub fn is_sync_busy(&self) -> bool {
        let mut ended = Box::pin(self.array.sync_ended());
        ended.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending()
    }

    /// See [`Array::suspects`].
    pub fn suspects(&self) -> Vec<std::ops::Range<Sector>> {
        self.array.suspects()
    }

    /// The settings of levels with parity.
    pub fn parity_settings(&self) -> Option<&ParitySettings> {
        self.array.parity_settings()
    }

    /// The speeds and bounds of syncs.
    pub fn sync_settings(&self) -> &SyncSettings {
        self.array.sync_settings()
    }

    /// See [`Array::request_sync`].
    ///
    /// # Errors
    /// As there.
    pub fn request_sync(&self, request: SyncRequest) -> Result<(), SyncError> {
        self.array.request_sync(request)
    }

    /// See [`Array::set_sync_bounds`].
    ///
    /// # Errors
    /// As there.
    pub fn set_sync_bounds(&self, min: Sectors, max: Sectors) -> Result<(), SyncError> {
        self.array.set_sync_bounds(min, max)
    }

    /// Marks a range in the bitmap.
    ///
    /// # Errors
    /// See [`Array::mark`].
    pub async fn mark(&self, at: Sector, len: Sectors) -> BioResult {
        self.array.mark(at, len).await
    }

    /// Adds bad blocks to the log of a member, from a line in the kernel's form.
    ///
    /// # Errors
    /// See [`Array::add_bad_blocks`].
    pub async fn add_bad_blocks(&self, at: Index, line: &str) -> Result<(), ManageError> {
        self.array.add_bad_blocks(at, line).await
    }

    /// Stops the array with the stack, when no change begins any more.
    pub(crate) async fn end(&self) -> BioResult {
        self.array.stop().await
    }
}

/// Changes. Each has the errors of the function of [`Array`] with the same name.
#[allow(clippy::missing_errors_doc)]
impl ArrayView {
    /// Adds a disk, as a spare or to its former slot. The claim lasts if it was added.
    pub async fn add(
        &self,
        _: &Turn<impl Settles>,
        claim: &mut Claim,
        options: AddOptions,
    ) -> Result<AddOutcome, ManageError> {
        let (gateway, path) = (claim.gateway().clone(), claim.path().to_owned());
        let added = self.array.add(gateway, &path, options).await?;
        if !broken(Rule::MembersKeepTheirClaim) {
            claim.keep();
        }
        Ok(added)
    }

    /// The same for a disk with foreign signatures in the byte ranges `wiped`.
    pub async fn add_over(
        &self,
        _: &Turn<impl Settles>,
        claim: &mut Claim,
        options: AddOptions,
        wiped: Vec<std::ops::Range<u64>>,
    ) -> Result<AddOutcome, ManageError> {
        let (gateway, path) = (claim.gateway().clone(), claim.path().to_owned());
        let added = self.array.add_over(gateway, &path, options, wiped).await?;
        claim.keep();
        Ok(added)
    }

    /// Puts a former member back into its slot, or the `failed` one that has not been removed. The claim lasts if it is back.
    pub async fn re_add(
        &self,
        _: &Turn<impl Settles>,
        claim: &mut Claim,
        sb: Box<Superblock>,
        options: AddOptions,
        failed: Option<Index>,
    ) -> Result<Index, ManageError> {
        let (gateway, path) = (claim.gateway().clone(), claim.path().to_owned());
        let candidate = Candidate { gateway, path, sb };
        let index = match failed {
            Some(failed) => self.array.re_add_failed(failed, candidate, options).await?,
            None => self.array.re_add(candidate, options).await?,
        };
        claim.keep();
        Ok(index)
    }

    /// Puts a member back that was lost, unless a user has failed or removed it since.
    pub async fn re_add_lost(
        &self,
        _: &Turn<impl Settles>,
        index: Index,
    ) -> Result<Index, ManageError> {
        self.array.re_add_lost(index).await
    }

    /// Fails a member.
    pub async fn fail(&self, _: &Turn<impl Settles>, index: Index) -> Result<(), ManageError> {
        self.array.fail(index).await
    }

    /// Removes a member that has failed, or a spare.
    pub async fn remove(&self, _: &Turn<impl Settles>, index: Index) -> Result<(), ManageError> {
        self.array.remove(index).await
    }

    /// Has a spare replace a member that works.
    pub async fn replace(
        &self,
        _: &Turn<impl Settles>,
        index: Index,
        with: Option<Index>,
    ) -> Result<(), ManageError> {
        self.array.replace(index, with).await
    }

    /// Does what the kernel does when the word is written to the member's `state`.
    pub async fn set_member_state(
        &self,
        _: &Turn<impl Settles>,
        index: Index,
        word: &str,
    ) -> Result<(), ManageError> {
        self.array.set_member_state(index, word).await
    }

    /// Does what the kernel does when the word is written to `array_state`, apart from those that end the array.
    pub async fn set_state(&self, _: &Turn<impl Settles>, word: &str) -> Result<(), ManageError> {
        self.array.set_state(word).await
    }

    /// Adds, replaces or removes the bitmap.
    pub async fn set_bitmap(
        &self,
        _: &Turn<impl Settles>,
        wanted: NewBitmap,
    ) -> Result<(), ManageError> {
        self.array.set_bitmap(wanted).await
    }

    /// Changes the number of slots.
    pub async fn grow_devices(
        &self,
        _: &Turn<impl Settles>,
        wanted: usize,
    ) -> Result<(), ManageError> {
        self.array.grow_devices(wanted).await
    }

    /// Changes what the array uses of each member.
    pub async fn grow_size(
        &self,
        _: &Turn<impl Settles>,
        size: Option<Sectors>,
        options: GrowOptions,
    ) -> Result<Sectors, ManageError> {
        self.array.grow_size(size, options).await
    }

    /// Stops the array.
    pub async fn stop(&self, _: &Turn<impl Settles>) -> BioResult {
        self.array.stop().await
    }
}
