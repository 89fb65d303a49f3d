//! Scrub of one device: groups are planned, read, verified and repaired in a pipeline.
//!
//! Up to [`Options::depth`](super::Options::depth) groups are in flight at the same time; while
//! some are verified, the device serves the reads of others. Counters are updated group by group in
//! device order, together with the position, so that a scrub resumed at the position counts nothing
//! twice.

use std::sync::Arc;

use ashlar_block::Status;
use futures_util::StreamExt;
use futures_util::future::{join, join_all};
use futures_util::stream::unfold;

use super::counters::{Counters, State, Tally};
use super::plan::{Group, Job, Mark, Planner};
use super::problem::{Problem, ProblemKind, Repair, Sink, TreeBlock};
use super::repair::{self, Source};
use super::stripe::{Stripe, UnitKind};
use super::verify::{self, BadUnit, Image, Reader, VerifiedStripe};
use super::{Scrub, ScrubError, legs, supers};
use crate::extent_walk::Sum;
use crate::ondisk::key::objectid;
use crate::units::Physical;
use crate::volume::Device;

/// Result of a group.
struct GroupResult {
    mark: Mark,
    counters: Counters,
    bytes_read: u64,
}

impl Scrub {
    /// Scrubs the device of `tally`.
    pub(super) async fn device(&self, tally: &Tally, sink: &dyn Sink) -> Result<(), ScrubError> {
        let result = self.scrub_device(tally, sink).await;
        let mut progress = tally.lock();
        progress.state = match result {
            Ok(true) => State::Finished,
            Ok(false) => State::Cancelled,
            Err(_) => State::Failed,
        };
        result.map(|_| ())
    }

    /// Returns whether the end of the device was reached.
    async fn scrub_device(&self, tally: &Tally, sink: &dyn Sink) -> Result<bool, ScrubError> {
        let devid = tally.lock().devid;
        let device = self.fs.device(devid).ok_or(ScrubError::NoDevice(devid))?;
        let extents = self.fs.chunks().on_device(devid)?;
        let total = extents.iter().map(|extent| extent.length).sum();
        let from = self.options.resume_at.get(&devid).copied().unwrap_or(Physical(0));
        {
            let mut progress = tally.lock();
            progress.state = State::Running;
            progress.bytes_total = total;
            progress.counters.last_physical = from.0;
        }
        if from.0 == 0 {
            supers::scrub(&self.fs, device, self.options.read_only, tally, sink).await;
        }
        let planner = Planner::new(self, device, extents, from, sink).await?;
        let mut scanned = planner.scanned();
        tally.lock().bytes_scanned = scanned;
        let groups = unfold(planner, async |mut planner| {
            let group = planner.group().await?;
            Some((group, planner))
        });
        let depth = self.options.depth.max(1);
        let done = groups.map(|group| self.group(device, group, sink)).buffered(depth);
        let mut done = std::pin::pin!(done);
        while let Some(GroupResult { mark, counters, bytes_read }) = done.next().await {
            scanned = mark.scanned;
            let mut progress = tally.lock();
            progress.counters = progress.counters.plus(&counters);
            progress.counters.last_physical = mark.physical.0;
            progress.bytes_scanned = scanned;
            progress.bytes_read += bytes_read;
        }
        Ok(scanned == total)
    }

    async fn group(&self, device: &Device, group: Group, sink: &dyn Sink) -> GroupResult {
        let bytes_read = group.jobs.iter().map(|job| job.bytes(&device.gateway)).sum();
        let (mut stripes, mut rows) = (Vec::new(), Vec::new());
        for job in group.jobs {
            match job {
                Job::Stripe(stripe) => stripes.push(stripe),
                Job::Parity(row) => rows.push(row),
            }
        }
        let rows = join_all(rows.iter().map(|row| self.parity(device, row, sink)));
        let (of_stripes, of_rows) = join(self.stripes(device, stripes, sink), rows).await;
        let counted = of_stripes.iter().chain(&of_rows);
        let counters = counted.fold(group.counters, |sum, of_job| sum.plus(of_job));
        GroupResult { mark: group.mark, counters, bytes_read }
    }

    /// Scrubs stripes; returns the counters.
    async fn stripes(
        &self,
        device: &Device,
        stripes: Vec<Arc<Stripe>>,
        sink: &dyn Sink,
    ) -> Vec<Counters> {
        let reads = stripes.into_iter().map(async |stripe| {
            let (gateway, sectorsize) = (&device.gateway, stripe.sectorsize);
            let copy = stripe.first_copy(stripe.copies(gateway));
            let reader = Reader { gateway, sectorsize, copy };
            let image = reader.read(&stripe.places, stripe.len, stripe.used()).await;
            (stripe, image)
        });
        let verified = verify::verify_all(&self.fs, join_all(reads).await).await;
        let legs = verified.into_iter().map(|stripe| legs::verify(&self.fs, device, stripe));
        let verified = join_all(legs).await;
        join_all(verified.into_iter().map(|stripe| self.settle(device, stripe, sink))).await
    }

    /// Repairs the bad units of a stripe; returns the counters.
    async fn settle(&self, device: &Device, verified: VerifiedStripe, sink: &dyn Sink) -> Counters {
        let VerifiedStripe { stripe, mut image, bad } = verified;
        let stripe = &*stripe;
        let mut counters = contents(stripe);
        if self.keeps_tree_blocks() {
            self.keep_tree_blocks(stripe, &image, &bad);
        }
        if bad.is_empty() {
            return counters;
        }
        for bad in &bad {
            let unit = &stripe.units[bad.unit];
            match &bad.kind {
                ProblemKind::Read(_) => counters.read_errors += bad.unreadable,
                ProblemKind::Place(_) => counters.read_errors += unit.sectors.len() as u64,
                ProblemKind::Checksum => counters.csum_errors += 1,
                ProblemKind::Verify(_) => counters.verify_errors += unit.sectors.len() as u64,
                ProblemKind::Crossing
                | ProblemKind::Super(_)
                | ProblemKind::Parity
                | ProblemKind::ParityUnverified
                | ProblemKind::Tree(_) => {}
            }
        }
        let sources = repair::recover(&self.fs, stripe, &mut image, &bad).await;
        let repairs = self.repair(device, stripe, &mut image, &bad, &sources).await;
        for (bad, repair) in bad.into_iter().zip(repairs) {
            let unit = &stripe.units[bad.unit];
            if bad.kind != ProblemKind::Crossing {
                counters.count_repair(repair, unit.sectors.len() as u64);
            }
            sink.problem(&Problem {
                devid: device.devid,
                physical: stripe.physical_of(unit.sectors.start),
                len: stripe.bytes_of(&unit.sectors).len() as u32,
                logical: Some(stripe.logical_of(unit.sectors.start)),
                mirror: Some(stripe.mirror),
                copy: bad.copy,
                kind: bad.kind,
                repair,
                tree: tree_of(&unit.kind),
            });
        }
        counters
    }

    /// Caches blocks of the extent and checksum trees in the stripe, for the walks over these trees.
    fn keep_tree_blocks(&self, stripe: &Stripe, image: &Image, bad: &[BadUnit]) {
        for (index, unit) in stripe.units.iter().enumerate() {
            let of_walks = [Some(objectid::EXTENT_TREE), Some(objectid::CSUM_TREE)];
            let is_of_walks = match unit.kind {
                UnitKind::Tree(TreeBlock { owner, .. }) => of_walks.contains(&owner),
                UnitKind::Data(_) | UnitKind::Crossing(_) => false,
            };
            if is_of_walks && bad.iter().all(|bad| bad.unit != index) {
                let bytes = &image.bytes.as_slice()[stripe.bytes_of(&unit.sectors)];
                self.fs.offer_node(stripe.logical_of(unit.sectors.start), bytes);
            }
        }
    }

    /// Writes back the good copies that were found.
    async fn repair(
        &self,
        device: &Device,
        stripe: &Stripe,
        image: &mut Image,
        bad: &[BadUnit],
        sources: &[Source],
    ) -> Vec<Repair> {
        let mut repairs: Vec<Repair> = sources
            .iter()
            .map(|source| match source {
                Source::Lost => Repair::Impossible,
                Source::Other => Repair::NotTried,
                Source::Again => Repair::Done,
            })
            .collect();
        if self.options.read_only {
            return repairs;
        }
        let sectors = |index: usize| &stripe.units[bad[index].unit].sectors;
        let found = (0..bad.len()).filter(|index| sources[*index] == Source::Other);
        let (found, elsewhere): (Vec<usize>, Vec<usize>) =
            found.partition(|index| stripe.is_in_chunk_order(sectors(*index)));
        for index in elsewhere {
            repairs[index] = Repair::Failed(Status::NotSupported);
        }
        // A unit that is bad on several copies is written once.
        let of_unit = |a: &usize, b: &usize| bad[*a].unit == bad[*b].unit;
        let found: Vec<&[usize]> = found.chunk_by(of_unit).collect();
        let ranges: Vec<_> = found.iter().map(|same| sectors(same[0]).clone()).collect();
        let (physical, sectorsize) = (stripe.physical, stripe.sectorsize);
        let bytes = &mut image.bytes;
        let written = repair::write(&device.gateway, physical, sectorsize, bytes, &ranges).await;
        for (same, written) in found.into_iter().zip(written) {
            same.iter().for_each(|index| repairs[*index] = Repair::of_write(written));
        }
        repairs
    }
}

/// Counts the contents of a stripe, good or bad.
fn contents(stripe: &Stripe) -> Counters {
    let mut counters = Counters {
        data_extents_scrubbed: stripe.data_extents,
        tree_extents_scrubbed: stripe.tree_extents,
        ..Counters::default()
    };
    for unit in &stripe.units {
        let bytes = stripe.bytes_of(&unit.sectors).len() as u64;
        match unit.kind {
            UnitKind::Data(sum) => {
                counters.data_bytes_scrubbed += bytes;
                match sum {
                    Sum::Known(_) => {}
                    Sum::None => counters.no_csum += 1,
                    Sum::Unknown => counters.unverified_errors += 1,
                }
            }
            UnitKind::Tree(_) | UnitKind::Crossing(_) => counters.tree_bytes_scrubbed += bytes,
        }
    }
    counters
}

fn tree_of(kind: &UnitKind) -> Option<TreeBlock> {
    match kind {
        UnitKind::Data(_) => None,
        UnitKind::Tree(tree) | UnitKind::Crossing(tree) => Some(*tree),
    }
}
