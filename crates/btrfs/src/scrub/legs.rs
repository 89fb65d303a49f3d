//! Verifies every copy of a stripe, where its device has several below the file system.
//!
//! A plain read of such a device (a RAID1 of md) shows one copy, and which one may change from read to
//! read. So each copy of what a checksum proves is read and verified. A unit that is good on some
//! copies is a problem of each of the others, and is repaired by writing the good bytes in place: a write
//! goes to all copies. A unit without a good copy is a problem of the mirror, as on any other device.
//!
//! Contents without checksums are read plainly alone: nothing shows which copy is right.
//!
//! Memory: one more image of the stripe at a time, however many copies there are.

use ashlar_block::CopyNumber;

use super::problem::ProblemKind;
use super::sectors::Sectors;
use super::stripe::Unit;
use super::verify::{BadUnit, Image, Reader, VerifiedStripe};
use crate::volume::{Device, FileSystem};

/// What is known of a unit's copies.
#[derive(Default)]
struct UnitKnowledge {
    /// Some copy is good, and the image has its bytes.
    is_good: bool,
    /// The plain read was bad.
    plain: Option<BadUnit>,
    /// The bad copies.
    copies: Vec<BadUnit>,
}

impl UnitKnowledge {
    /// What the first read showed.
    fn of(first: CopyNumber, bad: Option<BadUnit>) -> Self {
        let is_good = bad.is_none();
        let (plain, copies) = match bad {
            Some(bad) if first != CopyNumber::ANY => (None, vec![BadUnit { copy: first, ..bad }]),
            bad => (bad, Vec::new()),
        };
        Self { is_good, plain, copies }
    }

    /// The problems: of each bad copy, or else of the mirror.
    fn problems(self) -> Vec<BadUnit> {
        let Self { is_good, plain, copies } = self;
        if is_good && !copies.is_empty() {
            return copies;
        }
        let first = plain.or_else(|| copies.into_iter().next());
        first.map(|bad| BadUnit { copy: CopyNumber::ANY, ..bad }).into_iter().collect()
    }
}

/// Verifies the copies of a stripe that its first read left out. Good bytes replace bad ones in the image.
pub(super) async fn verify(
    fs: &FileSystem,
    device: &Device,
    verified: VerifiedStripe,
) -> VerifiedStripe {
    let copies = verified.stripe.copies(&device.gateway);
    if copies == 1 {
        return verified;
    }
    let VerifiedStripe { stripe, mut image, bad } = verified;
    let (first, mut bad) = (image.copy, bad.into_iter().peekable());
    let mut known: Vec<UnitKnowledge> = Vec::with_capacity(stripe.units.len());
    for index in 0..stripe.units.len() {
        known.push(UnitKnowledge::of(first, bad.next_if(|bad| bad.unit == index)));
    }
    let is_checked =
        |unit: &Unit| unit.is_proven() && stripe.places.why_lost(&unit.sectors).is_none();
    let checked = || stripe.units.iter().enumerate().filter(|(_, unit)| is_checked(unit));
    let mut wanted = Sectors::default();
    checked().for_each(|(_, unit)| wanted.insert(unit.sectors.clone()));
    for copy in (1..=copies).map(CopyNumber).filter(|copy| *copy != first) {
        let reader = Reader { gateway: &device.gateway, sectorsize: stripe.sectorsize, copy };
        let leg: Image = reader.read(&stripe.places, stripe.len, wanted).await;
        for (index, unit) in checked() {
            let known = &mut known[index];
            let range = stripe.bytes_of(&unit.sectors);
            let bytes = &leg.bytes.as_slice()[range.clone()];
            let unreadable = leg.lost_of(unit);
            let kind = if leg.absent.intersects(unit.sectors.clone()) {
                continue;
            } else if unreadable > 0 {
                Some(ProblemKind::Read(leg.status))
            } else if known.is_good && *bytes == image.bytes.as_slice()[range.clone()] {
                None
            } else {
                stripe.check(fs, unit, bytes)
            };
            match kind {
                Some(kind) => known.copies.push(BadUnit { unit: index, copy, kind, unreadable }),
                None if known.is_good => {}
                None => {
                    image.bytes.as_mut_slice()[range].copy_from_slice(bytes);
                    known.is_good = true;
                }
            }
        }
    }
    let bad = known.into_iter().flat_map(UnitKnowledge::problems).collect();
    VerifiedStripe { stripe, image, bad }
}
