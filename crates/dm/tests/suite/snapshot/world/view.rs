//! The expected contents of a device: its contents at some moment, plus the writes since.

use std::cell::{Ref, RefCell};
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

use ashlar_block::{Bio, Flags, Gateway, Sector, Sectors, Status};
use ashlar_sim::oracle::stamp;
use ashlar_sim::{Media, Oracle, Value};

/// Sectors checked together.
const PART: u64 = 64;

struct Inner {
    seed: u64,
    /// The contents at that moment.
    frozen: Vec<u8>,
    /// The writes since.
    oracle: Oracle,
    /// The sectors given to [`View::loses`].
    discarded: BTreeSet<u64>,
    /// A flush of a disk may fail and drop the disk's cache, at any time, so it is unknown which of
    /// the writes since the moment are there. Each sector has its contents from that moment, or one
    /// of the writes.
    shaky: bool,
}

/// See the module text; clones share the state.
#[derive(Clone)]
pub(crate) struct View {
    inner: Rc<RefCell<Inner>>,
}

impl View {
    /// The view of a device that shows the current contents of a medium.
    pub(crate) fn of(media: &Media, size: u64, seed: u64) -> Self {
        let frozen = media.peek_range(Sector::ZERO, Sectors(size));
        let (oracle, discarded) = (Oracle::new(seed, Value::Anything), BTreeSet::new());
        let inner = Inner { seed, frozen, oracle, discarded, shaky: false };
        Self { inner: Rc::new(RefCell::new(inner)) }
    }

    fn inner(&self) -> Ref<'_, Inner> {
        self.inner.borrow()
    }

    /// The oracle of the writes.
    pub(crate) fn oracle(&self) -> Oracle {
        self.inner().oracle.clone()
    }

    /// Whether the writes do not determine the results of reads.
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

    /// Makes the current contents durable, and the start for later writes. Nothing else may change
    /// the device meanwhile.
    ///
    /// # Errors
    /// The device cannot be flushed or read; the view is unchanged then.
    pub(crate) async fn rebase(&self, gateway: &Gateway, shaky: bool) -> Result<(), Status> {
        gateway.flush().await?;
        let size = self.inner().frozen.len() as u64 / 512;
        self.check(gateway, 0..size).await?;
        let mut frozen = Vec::new();
        for start in (0..size).step_by(PART as usize) {
            frozen.extend(read(gateway, start..size.min(start + PART)).await?);
        }
        let mut inner = self.inner.borrow_mut();
        // Another seed, to distinguish earlier writes from later ones.
        let seed = inner.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
        let oracle = Oracle::new(seed, Value::Anything);
        // The effects of a discard in the origin are not made durable here, and may still be undone.
        let discarded = std::mem::take(&mut inner.discarded);
        *inner = Inner { seed, frozen, oracle, discarded, shaky };
        Ok(())
    }

    /// The contents of `range` become unknown: a part of a chunk is discarded, or the origin is.
    /// But stamps were written since the moment, so they have copies, which the origin does not
    /// affect. Zeroes seen after a crash may be the origin's.
    pub(crate) fn loses(&self, range: Range<u64>) {
        let oracle = self.oracle();
        for sector in range.clone() {
            let written = |value: &Value| matches!(value, Value::Stamp(_));
            if !oracle.allowed(sector).iter().all(written) {
                // Like a failed discard, it stays possible until the sector is written again.
                let ticket = oracle.begin_discard(sector..sector + 1, Flags::empty());
                oracle.end(ticket, Err(Status::Io));
            }
        }
        self.inner.borrow_mut().discarded.extend(range);
    }

    /// Writes to the first sectors of a chunk, so that it has a copy, and discards the chunk: it
    /// reads zeroes from then on.
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
    /// Whether these contents are possible for a sector.
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
