//! Reads a stripe and finds its bad units.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use ashlar_block::{Bio, Buffer, CopyNumber, Flags, Gateway, Status};
use futures_util::future::join_all;
use smallvec::SmallVec;
use tracing::debug;

use super::places::Places;
use super::problem::ProblemKind;
use super::sectors::Sectors;
use super::stripe::{Stripe, Unit};
use crate::units::Physical;
use crate::volume::FileSystem;

/// Maximum size of a gap without contents that is read to join the reads on both sides.
const GAP_BYTES: u64 = 16 << 10;

/// The bytes of a stripe that could be read.
pub(super) struct Image {
    /// The copy that was read.
    pub(super) copy: CopyNumber,
    /// As long as the stripe; unread parts are undefined.
    pub(super) bytes: Buffer,
    /// Sectors that could not be read.
    pub(super) unreadable: Sectors,
    /// Those of them that the device has no such copy of, or has no more.
    pub(super) absent: Sectors,
    /// The last error.
    pub(super) status: Status,
}

impl Image {
    /// How many sectors of a unit could not be read.
    pub(super) fn lost_of(&self, unit: &Unit) -> u64 {
        unit.sectors.clone().filter(|sector| self.unreadable.has(*sector)).count() as u64
    }
}

/// A bad unit.
pub(super) struct BadUnit {
    /// Index in the stripe's units.
    pub(super) unit: usize,
    /// The only copy on which it is bad; [`CopyNumber::ANY`] if the mirror has no good one.
    pub(super) copy: CopyNumber,
    pub(super) kind: ProblemKind,
    /// How many of its sectors could not be read.
    pub(super) unreadable: u64,
}

/// Reads a device, in sectors of the file system.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    pub(super) gateway: &'a Gateway,
    pub(super) sectorsize: u64,
    /// The copy to read.
    pub(super) copy: CopyNumber,
}

impl Reader<'_> {
    /// Reads those of the `wanted` sectors of a stripe of `len` bytes that have a location, in as few
    /// reads as possible; if a read fails, its sectors are read one by one to find out which are lost.
    ///
    /// All reads are submitted before the first is awaited, so that reads of adjacent stripes merge in the plug.
    pub(super) async fn read(self, places: &Places, len: u64, wanted: Sectors) -> Image {
        let mut bytes = Buffer::alloc(len as usize);
        let runs = places.runs(wanted, (GAP_BYTES / self.sectorsize) as usize);
        let reads = self.submit(&mut bytes, &runs, Flags::empty()).await;
        let (unreadable, absent) = (Sectors::default(), Sectors::default());
        let mut image = Image { copy: self.copy, bytes, unreadable, absent, status: Status::Io };
        for ((run, physical), read) in runs.iter().zip(reads) {
            let Err(status) = read else { continue };
            debug!(%physical, first = run.start, end = run.end, %status, "read of a stripe");
            let mut of_run = Sectors::default();
            of_run.insert(run.clone());
            let lost = places.placed(Sectors(of_run.0 & wanted.0)).iter();
            let alone: SmallVec<[(Range<usize>, Physical); 8]> =
                lost.filter_map(|sector| Some((sector..sector + 1, places.get(sector)?))).collect();
            let again = self.submit(&mut image.bytes, &alone, Flags::NOMERGE).await;
            for ((sector, _), read) in alone.into_iter().zip(again) {
                let Err(status) = read else { continue };
                image.unreadable.insert(sector.clone());
                if status == Status::Invalid && self.copy != CopyNumber::ANY {
                    image.absent.insert(sector);
                } else {
                    image.status = status;
                }
            }
        }
        image
    }

    async fn submit(
        self,
        bytes: &mut Buffer,
        runs: &[(Range<usize>, Physical)],
        flags: Flags,
    ) -> Vec<Result<(), Status>> {
        let bios = runs.iter().map(|(run, at)| {
            let sector = self.sectorsize as usize;
            let segment = bytes.segment(run.start * sector..run.end * sector);
            let bio = Bio::read(at.sector(), [segment]).with_flags(flags).with_copy(self.copy);
            self.gateway.submit(bio)
        });
        let bios: SmallVec<[_; 8]> = bios.collect();
        match bios.len() {
            1 => {
                let mut results = Vec::with_capacity(1);
                for bio in bios {
                    results.push(bio.await);
                }
                results
            }
            _ => join_all(bios).await,
        }
    }
}

/// A stripe that was read, and its bad units.
pub(super) struct VerifiedStripe {
    pub(super) stripe: Arc<Stripe>,
    pub(super) image: Image,
    pub(super) bad: Vec<BadUnit>,
}

impl VerifiedStripe {
    fn new(fs: &FileSystem, stripe: Arc<Stripe>, image: Image) -> Self {
        let bad = verify(fs, &stripe, &image);
        Self { stripe, image, bad }
    }
}

/// Verifies stripes. Slow checksums are computed in the background, on all processors.
pub(super) async fn verify_all(
    fs: &Arc<FileSystem>,
    read: Vec<(Arc<Stripe>, Image)>,
) -> Vec<VerifiedStripe> {
    let of_all = |fs: &FileSystem, read: Vec<(Arc<Stripe>, Image)>| {
        read.into_iter().map(|(stripe, image)| VerifiedStripe::new(fs, stripe, image)).collect()
    };
    if read.is_empty() || !fs.identity().csum.is_slow() {
        return of_all(fs, read);
    }
    let result: Arc<Mutex<Option<Vec<VerifiedStripe>>>> = Arc::default();
    let (there, into) = (Arc::clone(fs), Arc::clone(&result));
    let work = move || {
        let verified = of_all(&there, read);
        *into.lock().unwrap_or_else(PoisonError::into_inner) = Some(verified);
    };
    fs.runtime().compute(Box::new(work)).await;
    let verified = result.lock().unwrap_or_else(PoisonError::into_inner).take();
    verified.expect("verifying does not panic")
}

/// The bad units of a stripe.
fn verify(fs: &FileSystem, stripe: &Stripe, image: &Image) -> Vec<BadUnit> {
    let bytes = image.bytes.as_slice();
    let units = stripe.units.iter().enumerate();
    units
        .filter_map(|(index, unit)| {
            let kind = if let Some(why) = stripe.places.why_lost(&unit.sectors) {
                ProblemKind::Place(why.clone())
            } else if image.unreadable.intersects(unit.sectors.clone()) {
                ProblemKind::Read(image.status)
            } else {
                stripe.check(fs, unit, &bytes[stripe.bytes_of(&unit.sectors)])?
            };
            let unreadable = image.lost_of(unit);
            Some(BadUnit { unit: index, copy: CopyNumber::ANY, kind, unreadable })
        })
        .collect()
}
