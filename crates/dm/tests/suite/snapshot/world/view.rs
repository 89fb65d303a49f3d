//! What a device must show: what it showed at some moment, and what was written to it since.

use std::cell::{Ref, RefCell};
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

use ashlar_block::{Bio, Flags, Gateway, Sector, Sectors, Status};
use ashlar_sim::oracle::stamp;
use ashlar_sim::{Media, Oracle, Value};

/// Sectors that are looked at together.
const PART: u64 = 64;

struct Inner {
    seed: u64,
    /// The contents at the moment.
    frozen: Vec<u8>,
    /// The writes since.
    oracle: Oracle,
    /// Sectors that [`View::loses`] named.
    discarded: BTreeSet<u64>,
    /// A flush of a disk may fail and take along what is in its cache, at any time, so nobody knows which
    /// of the writes since the moment are there. Each sector is what it was then, or one of them.
    shaky: bool,
}

/// See the module text; clones are the same one.
#[derive(Clone)]
pub(crate) struct View {
    inner: Rc<RefCell<Inner>>,
}

impl View {
    /// That of a device which shows what is stored on a medium now.
    pub(crate) fn of(media: &Media, size: u64, seed: u64) -> Self {
        let frozen = media.peek_range(Sector::ZERO, Sectors(size));
        let (oracle, discarded) = (Oracle::new(seed, Value::Anything), BTreeSet::new());
        let inner = Inner { seed, frozen, oracle, discarded, shaky: false };
        Self { inner: Rc::new(RefCell::new(inner)) }
    }

    fn inner(&self) -> Ref<'_, Inner> {
        self.inner.borrow()
    }

    /// Who knows the writes.
    pub(crate) fn oracle(&self) -> Oracle {
        self.inner().oracle.clone()
    }

    /// Whether what a read returns cannot be told by the writes.
    pub(crate) fn is_shaky(&self) -> bool {
        self.inner().shaky
    }

    /// Reads a range and checks it.
    pub(crate) async fn check(&self, gateway: &Gateway, range: Range<u64>) -> Result<(), Status> {
        for start in range.clone().step_by(PART as usize) {
            let part = start..range.end.min(start + PART);
            let ticket = self.oracle().begin_read(part.clone());
            let data = match read(gateway, part.clone()).await {
                Ok(data) => data,
                Err(status) => {
                    self.oracle().end(ticket, Err(status));
                    return Err(status);
                }
            };
            let name = gateway.disk().name();
            let inner = self.inner();
            if inner.shaky {
                inner.oracle.end(ticket, Ok(()));
            } else if let Err(violation) = inner.oracle.check_read(ticket, &data) {
                panic!("{name}: {violation}");
            }
            for (sector, data) in part.zip(data.chunks(512)) {
                assert!(
                    inner.knows(sector, data),
                    "{name}: sector {sector} holds what was never there"
                );
            }
        }
        Ok(())
    }

    /// Makes what the device shows now, durably, the moment from which on writes count. Nobody else may
    /// change it meanwhile.
    ///
    /// # Errors
    /// It cannot be flushed or read; then the view is as it was.
    pub(crate) async fn rebase(&self, gateway: &Gateway, shaky: bool) -> Result<(), Status> {
        gateway.flush().await?;
        let size = self.inner().frozen.len() as u64 / 512;
        self.check(gateway, 0..size).await?;
        let mut frozen = Vec::new();
        for start in (0..size).step_by(PART as usize) {
            frozen.extend(read(gateway, start..size.min(start + PART)).await?);
        }
        let mut inner = self.inner.borrow_mut();
        // Another seed: what was written before is told from what will be.
        let seed = inner.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
        let oracle = Oracle::new(seed, Value::Anything);
        // What a discard left in the origin is not made durable here, and may still come to nothing.
        let discarded = std::mem::take(&mut inner.discarded);
        *inner = Inner { seed, frozen, oracle, discarded, shaky };
        Ok(())
    }

    /// Of `range` nobody knows any more what is there: a part of a chunk is discarded, or the origin is.
    /// But stamps were written since the moment, so they have copies, and the origin's fate is not theirs.
    /// Zeroes that were seen after a crash may be the origin's.
    pub(crate) fn loses(&self, range: Range<u64>) {
        let oracle = self.oracle();
        for sector in range.clone() {
            let written = |value: &Value| matches!(value, Value::Stamp(_));
            if !oracle.allowed(sector).iter().all(written) {
                // As one that failed it stays possible until the sector is written again.
                let ticket = oracle.begin_discard(sector..sector + 1, Flags::empty());
                oracle.end(ticket, Err(Status::Io));
            }
        }
        self.inner.borrow_mut().discarded.extend(range);
    }

    /// Writes to the first sectors of a chunk, so that it has a copy, and discards the chunk: from then on
    /// it reads zeroes.
    pub(crate) async fn write_and_discard(
        &self,
        gateway: &Gateway,
        chunk: Range<u64>,
        block: u64,
    ) -> Result<(), Status> {
        let oracle = self.oracle();
        let first = chunk.start..chunk.start + block;
        let (ticket, data) = oracle.begin_write(first.clone(), Flags::empty());
        let mut data = ashlar_block::Buffer::from_slice(&data);
        let written = gateway.submit(Bio::write_from(Sector(first.start), &mut data)).await;
        oracle.end(ticket, written);
        written?;
        let ticket = oracle.begin_write_zeroes(chunk.clone(), Flags::empty());
        let result = gateway.submit(discard(&chunk)).await;
        oracle.end(ticket, result);
        result
    }

    pub(crate) fn power_cut(&self) {
        self.oracle().power_cut();
    }

    pub(crate) fn kill(&self) {
        self.oracle().kill();
    }
}

impl Inner {
    /// Whether a sector may ever hold this.
    fn knows(&self, sector: u64, data: &[u8]) -> bool {
        let at = sector as usize * 512;
        let generation = u64::from_le_bytes(data[8..16].try_into().unwrap());
        data == &self.frozen[at..at + 512]
            || data == stamp(self.seed, sector, generation)
            || data.iter().all(|byte| *byte == 0)
            || self.discarded.contains(&sector)
    }
}

/// A discard of a range.
pub(crate) fn discard(range: &Range<u64>) -> Bio {
    Bio::discard(Sector(range.start), Sectors(range.end - range.start))
}

async fn read(gateway: &Gateway, part: Range<u64>) -> Result<Vec<u8>, Status> {
    let data = gateway.read(Sector(part.start), Sectors(part.end - part.start)).await?;
    Ok(data.as_slice().to_vec())
}
