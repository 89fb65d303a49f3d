//! Reads a stripe and finds its bad units.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use ashlar_block::{Bio, Buffer, Flags, Gateway, Status};
use futures_util::future::join_all;
use smallvec::SmallVec;
use tracing::debug;

use super::places::Places;
use super::problem::ProblemKind;
use super::stripe::{Sectors, Stripe};
use crate::units::Physical;
use crate::volume::FileSystem;

/// Maximum size of a gap without contents that is read to join the reads on both sides.
const GAP_BYTES: u64 = 16 << 10;

/// The bytes of a stripe that could be read.
pub(super) struct Image {
    /// As long as the stripe; unread parts are undefined.
    pub(super) bytes: Buffer,
    /// Sectors that could not be read.
    pub(super) unreadable: Sectors,
    /// The last error.
    pub(super) status: Status,
}

/// A bad unit.
pub(super) struct Bad {
    /// Index in the stripe's units.
    pub(super) unit: usize,
    pub(super) kind: ProblemKind,
}

/// Reads those of the `wanted` sectors of a stripe that have a location, in as few reads as
/// possible; if a read fails, its sectors are read one by one to find out which are lost.
///
/// All reads are submitted before the first is awaited, so that reads of adjacent stripes merge in the plug.
pub(super) async fn read(
    gateway: &Gateway,
    places: &Places,
    len: u64,
    sectorsize: u64,
    wanted: Sectors,
) -> Image {
    let mut bytes = Buffer::alloc(len as usize);
    let runs = places.runs(wanted, (GAP_BYTES / sectorsize) as usize);
    let reads = submit(gateway, sectorsize, &mut bytes, &runs, Flags::empty()).await;
    let mut image = Image { bytes, unreadable: Sectors::default(), status: Status::Io };
    for ((run, physical), read) in runs.iter().zip(reads) {
        let Err(status) = read else { continue };
        debug!(%physical, first = run.start, end = run.end, %status, "read of a stripe");
        image.status = status;
        let mut of_run = Sectors::default();
        of_run.insert(run.clone());
        let lost = places.placed(Sectors(of_run.0 & wanted.0)).iter();
        let alone: SmallVec<[(Range<usize>, Physical); 8]> =
            lost.filter_map(|sector| Some((sector..sector + 1, places.get(sector)?))).collect();
        let again = submit(gateway, sectorsize, &mut image.bytes, &alone, Flags::NOMERGE).await;
        for ((sector, _), read) in alone.into_iter().zip(again) {
            if let Err(status) = read {
                image.status = status;
                image.unreadable.insert(sector);
            }
        }
    }
    image
}

async fn submit(
    gateway: &Gateway,
    sectorsize: u64,
    bytes: &mut Buffer,
    runs: &[(Range<usize>, Physical)],
    flags: Flags,
) -> Vec<Result<(), Status>> {
    let bios = runs.iter().map(|(run, at)| {
        let sector = sectorsize as usize;
        let segment = bytes.segment(run.start * sector..run.end * sector);
        gateway.submit(Bio::read(at.sector(), [segment]).with_flags(flags))
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

/// A stripe that was read, and its bad units.
pub(super) struct Verified {
    pub(super) stripe: Arc<Stripe>,
    pub(super) image: Image,
    pub(super) bad: Vec<Bad>,
}

impl Verified {
    fn new(fs: &FileSystem, stripe: Arc<Stripe>, image: Image) -> Self {
        let bad = verify(fs, &stripe, &image);
        Self { stripe, image, bad }
    }
}

/// Verifies stripes. Slow checksums are computed in the background, on all processors.
pub(super) async fn verify_all(
    fs: &Arc<FileSystem>,
    read: Vec<(Arc<Stripe>, Image)>,
) -> Vec<Verified> {
    let of_all = |fs: &FileSystem, read: Vec<(Arc<Stripe>, Image)>| {
        read.into_iter().map(|(stripe, image)| Verified::new(fs, stripe, image)).collect()
    };
    if read.is_empty() || !fs.identity().csum.is_slow() {
        return of_all(fs, read);
    }
    let result: Arc<Mutex<Option<Vec<Verified>>>> = Arc::default();
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
fn verify(fs: &FileSystem, stripe: &Stripe, image: &Image) -> Vec<Bad> {
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
            Some(Bad { unit: index, kind })
        })
        .collect()
}
