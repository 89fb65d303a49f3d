//! Reading a stripe, and finding out what of it is bad.

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

/// Bytes without contents that are read to join what lies on both sides of them.
const GAP_BYTES: u64 = 16 << 10;

/// A stripe's bytes, as far as they could be read.
pub(super) struct Image {
    /// As long as the stripe; what was not read is anything.
    pub(super) bytes: Buffer,
    /// Sectors that could not be read.
    pub(super) unreadable: Sectors,
    /// The last reason.
    pub(super) status: Status,
}

/// A unit that is bad.
pub(super) struct Bad {
    /// Which of the stripe's.
    pub(super) unit: usize,
    pub(super) kind: ProblemKind,
}

/// Reads those of the `wanted` sectors of a stripe that are somewhere, in as few reads as possible; if one
/// fails, its sectors one by one, so that it is known which of them are lost.
///
/// All reads are submitted before the first is waited for, so that those of neighbouring stripes
/// meet in the plug.
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

/// A stripe that was read, and what of it is bad.
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

/// Verifies stripes. Checksums that take long are computed beside everything else, on all processors.
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

/// The units of a stripe that are bad.
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
