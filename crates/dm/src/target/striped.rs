//! `striped STRIPES CHUNK [DEVICE OFFSET]...`: chunks are distributed over the devices (RAID 0).
//!
//! Chunk `n` of the piece is chunk `n / STRIPES` of stripe `n % STRIPES`. So the part of a range
//! that is on one stripe is a contiguous range there: a discard or write-zeroes of any length
//! becomes one per stripe.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use ashlar_block::zeroes::all_or_none;
use ashlar_block::{
    Bio, BioResult, Disk, Extents, Gateway, IoFuture, Limits, LocalFuture, Op, Place, Sector,
    Sectors, Status, extent,
};
use futures_util::future::join_all;

use super::{Lower, TableTarget, Target, TargetError, TargetParameters};
use crate::text::QuotedArgument;

struct Stripe {
    lower: Lower,
    errors: AtomicU32,
}

/// See the module text.
pub struct Striped {
    stripes: Box<[Stripe]>,
    chunk: Sectors,
}

/// The location of sectors: pure geometry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Number of stripes; not zero.
    pub stripes: u64,
    /// Length of a chunk; not zero.
    pub chunk: Sectors,
}

impl Geometry {
    /// The stripe with `sector` of the piece, and the sector there.
    #[inline]
    pub fn place(&self, sector: Sector) -> (usize, Sector) {
        let (chunk, within) = (sector.0 / self.chunk.0, sector.0 % self.chunk.0);
        let stripe = (chunk % self.stripes) as usize;
        (stripe, Sector(chunk / self.stripes * self.chunk.0 + within))
    }

    /// The number of sectors of `[0, sector)` of the piece that are on `stripe`.
    fn before(&self, stripe: usize, sector: Sector) -> Sector {
        let (at, place) = self.place(sector);
        match stripe.cmp(&at) {
            // The stripe's chunk in this row is before the sector, or after it.
            std::cmp::Ordering::Less => place.round_down(self.chunk) + self.chunk,
            std::cmp::Ordering::Equal => place,
            std::cmp::Ordering::Greater => place.round_down(self.chunk),
        }
    }

    /// The part of `[start, end)` of the piece that is on `stripe`, as a range there.
    pub fn part(&self, stripe: usize, start: Sector, end: Sector) -> (Sector, Sectors) {
        let first = self.before(stripe, start);
        (first, self.before(stripe, end) - first)
    }
}

impl Striped {
    fn geometry(&self) -> Geometry {
        Geometry { stripes: self.stripes.len() as u64, chunk: self.chunk }
    }

    /// The parts of a discard or write-zeroes on each affected stripe.
    fn parts(&self, bio: &Bio) -> impl Iterator<Item = (&Stripe, Bio)> {
        let geometry = self.geometry();
        self.stripes.iter().enumerate().filter_map(move |(index, stripe)| {
            let (sector, len) = geometry.part(index, bio.sector, bio.end());
            (!len.is_zero()).then(|| (stripe, Bio { sector, len, ..bio.clone() }))
        })
    }

    async fn submit_range(&self, bio: Bio) -> BioResult {
        let disks = self.stripes.iter().map(|stripe| stripe.lower.gateway().disk());
        let send = async |bio: Bio| {
            join_all(self.parts(&bio).map(|(stripe, part)| stripe.submit(part))).await
        };
        all_or_none(disks, bio, send).await.into_iter().collect()
    }

    async fn flush(&self, bio: Bio) -> BioResult {
        let flushes = self.stripes.iter().map(|stripe| stripe.lower.submit(bio.clone()));
        join_all(flushes).await.into_iter().collect()
    }
}

impl Stripe {
    async fn submit(&self, bio: Bio) -> BioResult {
        let result = self.lower.submit(bio).await;
        if let Err(status) = result {
            self.count(status);
        }
        result
    }

    fn count(&self, status: Status) {
        if status != Status::NotSupported {
            self.errors.fetch_add(1, Relaxed);
        }
    }
}

impl TableTarget for Striped {
    const NAME: &'static str = "striped";

    async fn construct(mut parameters: TargetParameters<'_>) -> Result<Self, TargetError> {
        let args = &mut parameters.args;
        let count: u32 = args.number("the number of stripes")?;
        let chunk = Sectors(u64::from(args.number::<u32>("the chunk size")?));
        if count == 0 || chunk.is_zero() {
            return Err(TargetError::Invalid("stripes and chunk size must not be 0".to_owned()));
        }
        // Checked before anything is allocated for the stripes.
        if args.left() as u64 / 2 < u64::from(count) {
            return Err(TargetError::Missing("the device and offset of a stripe"));
        }
        let len = Sectors(parameters.len.0 / u64::from(count));
        if len.0 * u64::from(count) != parameters.len.0 || !len.0.is_multiple_of(chunk.0) {
            let text = format!(
                "the length {} is not a multiple of a row, {count} chunks of {chunk} sectors",
                parameters.len
            );
            return Err(TargetError::Invalid(text));
        }
        let mut stripes = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let lower = Lower::take(args, parameters.context, len)?;
            lower.check_aligned("the chunk size", chunk.0)?;
            stripes.push(Stripe { lower, errors: AtomicU32::new(0) });
        }
        parameters.args.end()?;
        Ok(Self { stripes: stripes.into(), chunk })
    }
}

impl Target for Striped {
    fn type_name(&self) -> &'static str {
        Self::NAME
    }

    fn arguments(&self) -> String {
        let stripes = self.stripes.iter().map(|stripe| format!(" {}", stripe.lower));
        format!("{} {}{}", self.stripes.len(), self.chunk, stripes.collect::<String>())
    }

    /// The names, and for each stripe whether it is alive, or had errors ("dead").
    fn status(&self) -> String {
        let state = |stripe: &Stripe| if stripe.errors.load(Relaxed) == 0 { 'A' } else { 'D' };
        let names = self.stripes.iter().map(|s| format!("{} ", QuotedArgument(s.lower.name())));
        let states: String = self.stripes.iter().map(state).collect();
        format!("{} {}1 {states}", self.stripes.len(), names.collect::<String>())
    }

    fn max_io_len(&self) -> Sectors {
        self.chunk
    }

    fn max_range_len(&self) -> Sectors {
        Sectors::ZERO
    }

    fn iterate_devices(&self, seen: &mut dyn FnMut(&Gateway)) {
        self.stripes.iter().for_each(|stripe| seen(stripe.lower.gateway()));
    }

    fn stack_limits(&self, limits: &mut Limits) {
        Lower::stack_all(self.stripes.iter().map(|stripe| &stripe.lower), limits);
        let bytes = |sectors: Sectors| u32::try_from(sectors.bytes()).unwrap_or(0);
        let row = Sectors(self.chunk.0.saturating_mul(self.stripes.len() as u64));
        limits.io_min_bytes = limits.io_min_bytes.max(bytes(self.chunk));
        limits.io_opt_bytes = bytes(row);
    }

    /// The most that a stripe of the range has. Reads are split at chunks, so each is of one stripe.
    fn copies(&self, at: Sector, len: Sectors) -> u16 {
        let parts = self.stripes.iter().enumerate().filter_map(|(index, stripe)| {
            let (first, len) = self.geometry().part(index, at, at + len);
            (!len.is_zero()).then(|| stripe.lower.copies(first, len))
        });
        parts.max().unwrap_or(1)
    }

    fn extents(&self, at: Sector, len: Sectors) -> LocalFuture<'_, Result<Extents, Status>> {
        let geometry = self.geometry();
        let place = move |at: Sector| {
            let left = Sectors(self.chunk.0 - at.0 % self.chunk.0);
            Place { on: Some(geometry.place(at)), left }
        };
        let ask = async |stripe: usize, at, len| self.stripes[stripe].lower.extents(at, len).await;
        Box::pin(async move { Ok(extent::gather(at, len, self.stripes.len(), place, ask).await) })
    }

    fn submit(&self, mut bio: Bio) -> IoFuture<'_> {
        match bio.op {
            Op::Read | Op::Write => {
                let (stripe, sector) = self.geometry().place(bio.sector);
                bio.sector = sector;
                self.stripes[stripe].lower.submit(bio)
            }
            Op::Discard | Op::WriteZeroes => IoFuture::boxed(self.submit_range(bio)),
            Op::Flush => IoFuture::boxed(self.flush(bio)),
        }
    }

    fn remaps(&self, bio: &Bio, seen: &mut dyn FnMut(&Disk, &Bio)) {
        match bio.op {
            Op::Read | Op::Write => {
                let (stripe, sector) = self.geometry().place(bio.sector);
                self.stripes[stripe].lower.remaps(&bio.remapped(sector), seen);
            }
            Op::Discard | Op::WriteZeroes => {
                self.parts(bio).for_each(|(stripe, part)| stripe.lower.remaps(&part, seen));
            }
            Op::Flush => self.stripes.iter().for_each(|stripe| stripe.lower.remaps(bio, seen)),
        }
    }

    fn failed(&self, _op: Op, sector: Sector, status: Status) {
        let (stripe, _) = self.geometry().place(sector);
        self.stripes[stripe].count(status);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_those_of_chunks_dealt_out_one_by_one() {
        for stripes in 1..=4 {
            for chunk in 1..=5 {
                let geometry = Geometry { stripes, chunk: Sectors(chunk) };
                let mut filled = vec![0; stripes as usize];
                let mut at = 0;
                for row_chunk in 0..3 * stripes {
                    let stripe = (row_chunk % stripes) as usize;
                    for _ in 0..chunk {
                        let want = (stripe, Sector(filled[stripe]));
                        assert_eq!(geometry.place(Sector(at)), want, "{geometry:?} {at}");
                        filled[stripe] += 1;
                        at += 1;
                    }
                }
            }
        }
    }

    #[test]
    fn the_part_of_a_range_on_a_stripe_is_what_its_sectors_come_to() {
        for stripes in 1..=4 {
            for chunk in 1..=4 {
                let geometry = Geometry { stripes, chunk: Sectors(chunk) };
                let len = 3 * stripes * chunk;
                for start in 0..len {
                    for end in start..=len {
                        for stripe in 0..stripes as usize {
                            let mut on_it = (start..end)
                                .map(|at| geometry.place(Sector(at)))
                                .filter(|(at, _)| *at == stripe)
                                .map(|(_, sector)| sector);
                            let (first, count) = geometry.part(stripe, Sector(start), Sector(end));
                            for i in 0..count.0 {
                                assert_eq!(on_it.next(), Some(first + Sectors(i)));
                            }
                            assert_eq!(on_it.next(), None, "{geometry:?} {start}..{end}");
                        }
                    }
                }
            }
        }
    }
}
