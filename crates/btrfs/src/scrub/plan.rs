//! Plans what to scrub on a device, in device order, in groups of stripes.

use std::collections::VecDeque;
use std::sync::Arc;

use ashlar_block::{CopyNumber, Gateway};

use super::counters::Counters;
use super::parity::Row;
use super::places::Places;
use super::problem::{Problem, ProblemKind, Repair, Sink};
use super::stripe::{SECTORS_MAX, Stripe, Unit, UnitKind};
use super::throttle::Throttle;
use super::{Options, Scrub};
use crate::chunk_map::{Content, DeviceExtent};
use crate::error::{ReadError, TreeError};
use crate::extent_walk::{CsumWalk, ExtentWalk, SearchResult, Sum};
use crate::ondisk::chunk::{BlockGroupFlags, Chunk, Profile, STRIPE_LEN};
use crate::raid_stripe::StripeWalk;
use crate::readahead::Reada;
use crate::sweep::Sweep;
use crate::units::{DevId, Logical, MirrorNum, Physical};
use crate::volume::{Device, FileSystem};

/// Number of stripe-sized buffers at which a group is full.
pub(super) const GROUP: usize = 8;

/// A unit of reading and verifying.
pub(super) enum Job {
    Stripe(Arc<Stripe>),
    Parity(Row),
}

impl Job {
    /// Number of stripe-sized buffers it needs.
    fn weight(&self) -> usize {
        match self {
            Self::Stripe(_) => 1,
            Self::Parity(row) => row.columns.len() + 2,
        }
    }

    /// Bytes it reads from this device, which `gateway` leads to.
    pub(super) fn bytes(&self, gateway: &Gateway) -> u64 {
        match self {
            Self::Stripe(stripe) => {
                let copies = stripe.copies(gateway);
                let is_again = copies > 1 && stripe.first_copy(copies) == CopyNumber::ANY;
                let reads = u64::from(copies) + u64::from(is_again);
                stripe.stored().count() * stripe.sectorsize * reads
            }
            Self::Parity(row) => row.verticals().count() * row.sectorsize(),
        }
    }
}

/// Scrub position on a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Mark {
    pub(super) physical: Physical,
    /// Bytes of device extents up to there.
    pub(super) scanned: u64,
}

/// Jobs, and the device's position once they have ended.
pub(super) struct Group {
    pub(super) jobs: Vec<Job>,
    pub(super) mark: Mark,
    /// Counters from planning.
    pub(super) counters: Counters,
}

/// Stripes that the kernel scrubs at a time (`SCRUB_TOTAL_STRIPES`, fs/btrfs/scrub.c).
const KERNEL_BATCH: u64 = 128;

/// The device extent being planned.
struct CurrentExtent {
    extent: DeviceExtent,
    /// Offset of the next strip from the extent's start.
    offset: u64,
    /// End of the last stripe with contents.
    used_end: Option<Physical>,
    /// Number of stripes with contents.
    used: u64,
}

impl CurrentExtent {
    fn new(extent: DeviceExtent) -> Self {
        Self { extent, offset: 0, used_end: None, used: 0 }
    }

    /// Counts a stripe with contents that ends at `end`.
    fn use_stripe(&mut self, end: Physical) {
        self.used_end = Some(end);
        self.used += 1;
    }

    /// The kernel's last position if this was the device's last extent: the end of the last stripe
    /// it waited for in the final `flush_scrub_stripes`. If the stripes filled whole batches there
    /// was none to wait for, and it is the extent's end.
    fn last_position(&self) -> Physical {
        let end = Physical(self.extent.start.0 + self.extent.length);
        self.used_end.filter(|_| !self.used.is_multiple_of(KERNEL_BATCH)).unwrap_or(end)
    }
}

/// Plans the scrub of a device.
pub(super) struct Planner<'a> {
    scrub: &'a Scrub,
    fs: &'a Arc<FileSystem>,
    sink: &'a dyn Sink,
    devid: DevId,
    gateway: &'a Gateway,
    extents: VecDeque<DeviceExtent>,
    current: Option<CurrentExtent>,
    walk: ExtentWalk<'a>,
    sums: CsumWalk<'a>,
    places: StripeWalk<'a>,
    sweep: Option<Arc<Sweep<'a>>>,
    throttle: Throttle,
    mark: Mark,
    /// Bytes of the device extents passed completely.
    passed: u64,
}

impl<'a> Planner<'a> {
    /// A plan for `extents`, which have been scrubbed up to `from`.
    pub(super) async fn new(
        scrub: &'a Scrub,
        device: &'a Device,
        extents: Vec<DeviceExtent>,
        from: Physical,
        sink: &'a dyn Sink,
    ) -> Result<Self, TreeError> {
        let (fs, options): (_, &Options) = (&scrub.fs, &scrub.options);
        let devid = device.devid;
        let sweep = scrub.sweep(devid).await?.map(Arc::new);
        let walk = ExtentWalk::new(fs, options.extent_reada).await?;
        let sums = CsumWalk::new(fs, options.csum_reada).await;
        let of_extents = sweep.clone().filter(|_| options.extent_reada == Reada::Scan);
        let of_sums = sweep.clone().filter(|_| options.csum_reada == Reada::Scan);
        let mut planner = Self {
            scrub,
            fs,
            sink,
            devid,
            gateway: &device.gateway,
            extents: extents.into(),
            current: None,
            walk: walk.with_sweep(of_extents),
            sums: sums.with_sweep(of_sums),
            places: StripeWalk::new(fs),
            sweep,
            throttle: Throttle::new(options.limits.get(&devid).cloned()),
            mark: Mark { physical: from, scanned: 0 },
            passed: 0,
        };
        planner.skip_to(from);
        if planner.extents.is_empty()
            && let Some(current) = planner.current.take()
        {
            planner.current = Some(planner.recount(current).await);
        }
        Ok(planner)
    }

    /// Bytes of the device extents passed so far.
    pub(super) const fn scanned(&self) -> u64 {
        self.mark.scanned
    }

    /// Skips everything before `from`.
    fn skip_to(&mut self, from: Physical) {
        while let Some(extent) = self.extents.front() {
            if extent.start.0 + extent.length > from.0 {
                let done = from.0.saturating_sub(extent.start.0) / STRIPE_LEN * STRIPE_LEN;
                if done > 0 {
                    let extent = self.extents.pop_front();
                    self.current = extent
                        .map(|extent| CurrentExtent { offset: done, ..CurrentExtent::new(extent) });
                }
                self.mark.scanned = self.passed + done;
                return;
            }
            self.passed += extent.length;
            self.extents.pop_front();
        }
        self.mark.scanned = self.passed;
    }

    /// Counts the stripes of the device's last extent before the resume position: the last position
    /// depends on their number. Unreadable tree blocks there were reported by the previous scrub.
    async fn recount(&mut self, mut current: CurrentExtent) -> CurrentExtent {
        let DeviceExtent { start, length, chunk, stripe } = current.extent.clone();
        let mut offset = 0;
        while offset < current.offset {
            let mut passed = STRIPE_LEN;
            if let Content::Data { start: logical, .. } = chunk.content(stripe, offset) {
                let (empty, _) = self.empty(&chunk, logical).await;
                if empty > 0 {
                    passed = empty;
                } else {
                    current.use_stripe(Physical(start.0 + length.min(offset + STRIPE_LEN)));
                }
            }
            offset = offset.saturating_add(passed);
        }
        current
    }

    /// The next group; `None` at the end of the device, or if the scrub was cancelled. A group ends
    /// at the end of a device extent, or as soon as it needs [`GROUP`] buffers.
    pub(super) async fn group(&mut self) -> Option<Group> {
        let mut group = Group { jobs: Vec::new(), mark: self.mark, counters: Counters::default() };
        let mut current = match self.current.take() {
            Some(current) => current,
            None => CurrentExtent::new(self.extents.pop_front()?),
        };
        let (mut weight, mut bytes) = (0, 0);
        while weight < GROUP && current.offset < current.extent.length {
            if self.scrub.is_cancelled() {
                return None;
            }
            if let Some(job) = self.job(&mut current, &mut group.counters).await {
                weight += job.weight();
                bytes += job.bytes(self.gateway);
                group.jobs.push(job);
            }
        }
        let (start, length) = (current.extent.start, current.extent.length);
        let done = current.offset.min(length);
        self.mark = Mark { physical: Physical(start.0 + done), scanned: self.passed + done };
        if done < length {
            self.current = Some(current);
        } else {
            self.passed += length;
            if self.extents.is_empty() {
                self.mark.physical = current.last_position();
            }
        }
        group.mark = self.mark;
        self.throttle.wait(bytes, self.fs.runtime(), &self.scrub.cancelled).await;
        Some(group)
    }

    /// Plans one strip of the device, after skipping any without contents.
    async fn job(&mut self, current: &mut CurrentExtent, counters: &mut Counters) -> Option<Job> {
        let DeviceExtent { start, length, ref chunk, stripe } = current.extent;
        let physical = |offset: u64| Physical(start.0 + offset);
        if let Some(sweep) = &self.sweep {
            sweep.pass(physical(current.offset));
        }
        match chunk.content(stripe, current.offset) {
            Content::Nothing => {
                current.offset += STRIPE_LEN;
                None
            }
            Content::Data { start: logical, mirror } => {
                let at = physical(current.offset);
                let (empty, error) = self.empty(chunk, logical).await;
                self.tell(error, logical, at, counters);
                if empty > 0 {
                    current.offset = current.offset.saturating_add(empty);
                    return None;
                }
                let stripe = self.stripe(chunk, at, logical, mirror, counters).await;
                current.offset += STRIPE_LEN;
                if stripe.is_empty() {
                    return None;
                }
                current.use_stripe(Physical(at.0 + stripe.len));
                Some(Job::Stripe(Arc::new(stripe)))
            }
            Content::Parity { which, row } => {
                let at = physical(current.offset);
                let whole = current.offset + STRIPE_LEN <= length;
                current.offset += STRIPE_LEN;
                let first = chunk.row_start(row).filter(|_| whole)?;
                let mut columns = Vec::new();
                for (column, on) in chunk.row(row).into_iter().enumerate() {
                    if column as u64 >= chunk.data_stripes() {
                        break;
                    }
                    let logical = Logical(first.0 + column as u64 * STRIPE_LEN);
                    // All stripes of a chunk are as long as the one with the parity.
                    let there = Physical(chunk.stripes[on].offset.0 + row * STRIPE_LEN);
                    let stripe = self.stripe(chunk, there, logical, MirrorNum(1), counters).await;
                    columns.push(Arc::new(stripe));
                }
                let row =
                    Row { chunk: Arc::clone(chunk), which, number: row, physical: at, columns };
                (!row.verticals().is_empty()).then_some(Job::Parity(row))
            }
        }
    }

    /// Bytes from `logical` on, in whole strips of the same device, with nothing to scrub; and the
    /// error if a part of the extent tree cannot be read there.
    async fn empty(&mut self, chunk: &Arc<Chunk>, logical: Logical) -> (u64, Option<TreeError>) {
        let is_striped = match chunk.profile {
            Profile::Raid0 | Profile::Raid10 | Profile::Raid5 | Profile::Raid6 => true,
            Profile::Single
            | Profile::Dup
            | Profile::Raid1
            | Profile::Raid1c3
            | Profile::Raid1c4 => false,
        };
        let strip_end = Logical(chunk.end().0.min(logical.0.saturating_add(STRIPE_LEN)));
        let to = if is_striped { strip_end } else { chunk.end() };
        let (next, error) = match self.walk.find(logical..to, chunk.start).await {
            SearchResult::Nothing => {
                return (if is_striped { STRIPE_LEN } else { to.0 - logical.0 }, None);
            }
            SearchResult::Extent(extent) => (extent.start, None),
            SearchResult::Unknown { end, error } => (end, error),
        };
        (next.0.saturating_sub(logical.0) / STRIPE_LEN * STRIPE_LEN, error)
    }

    /// A stripe and all its contents.
    async fn stripe(
        &mut self,
        chunk: &Arc<Chunk>,
        physical: Physical,
        logical: Logical,
        mirror: MirrorNum,
        counters: &mut Counters,
    ) -> Stripe {
        let mut stripe = Stripe::new(chunk, physical, logical, mirror, self.fs.sectorsize());
        let mut from = logical;
        loop {
            match self.walk.find(from..stripe.end(), chunk.start).await {
                SearchResult::Nothing => break,
                SearchResult::Extent(extent) => {
                    stripe.add(&extent, from);
                    from = extent.end();
                }
                SearchResult::Unknown { end, error } => {
                    self.tell(error, logical, physical, counters);
                    from = end;
                }
            }
        }
        let is_data = |unit: &Unit| matches!(unit.kind, UnitKind::Data(_));
        let has_sums = chunk.flags.contains(BlockGroupFlags::DATA);
        if has_sums && stripe.units.iter().any(is_data) {
            let count = (stripe.len / stripe.sectorsize) as usize;
            let mut sums = [Sum::None; SECTORS_MAX];
            let sums = &mut sums[..count.min(SECTORS_MAX)];
            let mut errors = Vec::new();
            self.sums.sums(logical, sums, |error| errors.push(error)).await;
            for error in errors {
                self.tell(Some(error), logical, physical, counters);
            }
            stripe.set_sums(sums);
        }
        if self.fs.has_stripes_of(chunk) {
            self.place(&mut stripe).await;
        }
        stripe
    }

    /// Finds the locations of a stripe's sectors that the RAID stripe tree places. A sector without
    /// an item there and without a checksum is not damaged: it was allocated but never written.
    async fn place(&mut self, stripe: &mut Stripe) {
        let mut places = Places::nowhere(stripe.sectorsize);
        for unit in &stripe.units {
            for sector in unit.sectors.clone() {
                let at = stripe.logical_of(sector);
                match (self.places.locate(&stripe.chunk, at, stripe.mirror).await, &unit.kind) {
                    (Ok(place), _) => places.push(sector, place.at),
                    (Err(ReadError::NoStripe(_)), UnitKind::Data(Sum::None | Sum::Unknown)) => {}
                    (Err(why), _) => places.push_lost(sector, why),
                }
            }
        }
        stripe.places = places;
    }

    /// Reports a part of a tree that cannot be read.
    fn tell(
        &self,
        error: Option<TreeError>,
        logical: Logical,
        physical: Physical,
        counters: &mut Counters,
    ) {
        let Some(error) = error else { return };
        counters.unverified_errors += 1;
        self.sink.problem(&Problem {
            devid: self.devid,
            physical,
            len: 0,
            logical: Some(logical),
            mirror: None,
            copy: CopyNumber::ANY,
            kind: ProblemKind::Tree(error),
            repair: Repair::Impossible,
            tree: None,
        });
    }
}
