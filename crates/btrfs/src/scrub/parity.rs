//! RAID5 and RAID6 parity: computed from a row's data and compared with what is stored.
//!
//! A parity sector is checked if any data stripe of the row has contents at the same offset. All
//! data sectors at that offset must be good, as read or as recovered from mirrors; parity is never
//! computed from lost data, nor from data whose checksum could not be read. Repair of the data is
//! left to the scrub of its device.

use std::ops::Range;
use std::sync::Arc;

use ashlar_block::CopyNumber;
use futures_util::future::{join, join_all};

use super::Scrub;
use super::counters::Counters;
use super::places::Places;
use super::problem::{Problem, ProblemKind, Repair, Sink};
use super::repair::{self, Source};
use super::sectors::Sectors;
use super::stripe::{Stripe, UnitKind};
use super::verify::{self, Reader, VerifiedStripe};
use crate::extent_walk::Sum;
use crate::ondisk::chunk::{Chunk, STRIPE_LEN};
use crate::units::Physical;
use crate::volume::Device;

/// A parity stripe, and the data of its row.
pub(super) struct Row {
    pub(super) chunk: Arc<Chunk>,
    /// 0 is P, 1 is Q.
    pub(super) which: usize,
    /// Its number in the chunk.
    pub(super) number: u64,
    /// Offset of the parity on the device.
    pub(super) physical: Physical,
    /// The data stripes and their contents.
    pub(super) columns: Vec<Arc<Stripe>>,
}

impl Row {
    /// The sectors at which any data stripe has contents.
    pub(super) fn verticals(&self) -> Sectors {
        Sectors(self.columns.iter().fold(0, |all, column| all | column.used().0))
    }

    pub(super) fn sectorsize(&self) -> u64 {
        self.columns.first().map_or(STRIPE_LEN, |column| column.sectorsize)
    }
}

impl Scrub {
    /// Scrubs a parity stripe; returns the counters.
    pub(super) async fn parity(&self, device: &Device, row: &Row, sink: &dyn Sink) -> Counters {
        let mut counters = Counters::default();
        let verticals = row.verticals();
        let sectorsize = row.sectorsize();
        let first = row.columns.first().map(|column| column.logical);
        let problem = |sectors: Range<usize>, kind: ProblemKind, repair: Repair| Problem {
            devid: device.devid,
            physical: Physical(row.physical.0 + sectors.start as u64 * sectorsize),
            len: (sectors.len() as u64 * sectorsize) as u32,
            logical: first,
            mirror: None,
            copy: CopyNumber::ANY,
            kind,
            repair,
            tree: None,
        };
        let order = row.chunk.row(row.number);
        let devices = order.iter().take(row.columns.len());
        let devices: Option<Vec<&Device>> =
            devices.map(|on| self.fs.device(row.chunk.stripes[*on].devid)).collect();
        // If a device is missing, skip its copy and what depends on it.
        let Some(devices) = devices else { return counters };
        let data = row.chunk.data_stripes();
        let is_whole = row.columns.iter().all(|column| column.len == STRIPE_LEN);
        let mut good = if is_whole && row.columns.len() as u64 == data {
            verticals
        } else {
            Sectors::default()
        };
        let read = async |device: &Device, places: &Places| {
            let reader = Reader { gateway: &device.gateway, sectorsize, copy: CopyNumber::ANY };
            reader.read(places, STRIPE_LEN, good).await
        };
        let reads = row.columns.iter().zip(&devices).map(|(column, on)| read(on, &column.places));
        let count = (STRIPE_LEN / sectorsize) as usize;
        let places = Places::linear(row.physical, count, sectorsize);
        let (images, stored) = join(join_all(reads), read(device, &places)).await;
        let columns = row.columns.iter().cloned().zip(images).collect();
        let mut columns = verify::verify_all(&self.fs, columns).await;
        for column in &mut columns {
            good.0 &= !self.lost(column).await.0;
        }
        let unverified = Sectors(verticals.0 & !good.0);
        if !unverified.is_empty() {
            counters.unverified_errors += unverified.count();
            for run in unverified.runs(0) {
                sink.problem(&problem(run, ProblemKind::ParityUnverified, Repair::Impossible));
            }
        }
        let stripes: Vec<Option<&[u8]>> =
            columns.iter().map(|column| Some(column.image.bytes.as_slice())).collect();
        let mut wanted = vec![0; STRIPE_LEN as usize];
        let (p, q) = match row.which {
            0 => (Some(&mut wanted[..]), None),
            _ => (None, Some(&mut wanted[..])),
        };
        if ashlar_parity::pq(&stripes, p, q).is_err() {
            // Only if the row has more stripes than the field has powers of 2.
            return counters;
        }
        let mut found: Vec<(Range<usize>, ProblemKind)> = Vec::new();
        for sector in good.iter() {
            let range = sector * sectorsize as usize..(sector + 1) * sectorsize as usize;
            if stored.unreadable.has(sector) {
                counters.read_errors += 1;
                found.push((sector..sector + 1, ProblemKind::Read(stored.status)));
            } else if stored.bytes.as_slice()[range.clone()] != wanted[range] {
                counters.verify_errors += 1;
                found.push((sector..sector + 1, ProblemKind::Parity));
            }
        }
        if found.is_empty() {
            return counters;
        }
        let ranges: Vec<Range<usize>> = found.iter().map(|(range, _)| range.clone()).collect();
        let repairs: Vec<Repair> = if self.options.read_only {
            vec![Repair::NotTried; ranges.len()]
        } else {
            let mut bytes = ashlar_block::Buffer::from_slice(&wanted);
            let gateway = &device.gateway;
            let written =
                repair::write(gateway, row.physical, sectorsize, &mut bytes, &ranges).await;
            written.into_iter().map(Repair::of_write).collect()
        };
        for ((sectors, kind), repair) in found.into_iter().zip(repairs) {
            counters.count_repair(repair, 1);
            sink.problem(&problem(sectors, kind, repair));
        }
        counters
    }

    /// The sectors of a data stripe that are bad on all mirrors, or of unknown state. Sectors
    /// recovered from mirrors are put in the image.
    async fn lost(&self, column: &mut VerifiedStripe) -> Sectors {
        let VerifiedStripe { stripe, image, bad } = column;
        let sources = repair::recover(&self.fs, stripe, image, bad).await;
        let mut lost = image.unreadable;
        lost.0 &= !stripe.used().0;
        for (bad, source) in bad.iter().zip(sources) {
            if source == Source::Lost {
                lost.insert(stripe.units[bad.unit].sectors.clone());
            }
        }
        for unit in &stripe.units {
            if matches!(unit.kind, UnitKind::Data(Sum::Unknown)) {
                lost.insert(unit.sectors.clone());
            }
        }
        lost
    }
}
