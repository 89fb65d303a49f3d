//! What a device must show: what it showed at some moment, and what was written to it since.

use std::ops::Range;
use std::rc::Rc;

use ashlar_block::{Gateway, Sector, Sectors, Status};
use ashlar_sim::oracle::stamp;
use ashlar_sim::{Media, Oracle, Value};

/// See the module text; clones are the same one.
#[derive(Clone)]
pub(crate) struct View {
    seed: u64,
    /// The contents at the moment.
    frozen: Rc<Vec<u8>>,
    /// The writes since.
    pub(crate) oracle: Oracle,
}

impl View {
    /// That of a device which shows what is stored on a medium now.
    pub(crate) fn of(media: &Media, size: u64, seed: u64) -> Self {
        let frozen = Rc::new(media.peek_range(Sector::ZERO, Sectors(size)));
        Self { seed, frozen, oracle: Oracle::new(seed, Value::Anything) }
    }

    /// Reads a range and checks it.
    pub(crate) async fn check(&self, gateway: &Gateway, range: Range<u64>) -> Result<(), Status> {
        for start in range.clone().step_by(64) {
            let part = start..range.end.min(start + 64);
            let ticket = self.oracle.begin_read(part.clone());
            let len = Sectors(part.end - part.start);
            let data = match gateway.read(Sector(part.start), len).await {
                Ok(data) => data,
                Err(status) => {
                    self.oracle.end(ticket, Err(status));
                    return Err(status);
                }
            };
            let name = gateway.disk().name();
            if let Err(violation) = self.oracle.check_read(ticket, data.as_slice()) {
                panic!("{name}: {violation}");
            }
            for (sector, data) in part.zip(data.as_slice().chunks(512)) {
                let at = sector as usize * 512;
                let generation = u64::from_le_bytes(data[8..16].try_into().unwrap());
                let known = data == &self.frozen[at..at + 512]
                    || data == stamp(self.seed, sector, generation)
                    || data.iter().all(|byte| *byte == 0);
                assert!(known, "{name}: sector {sector} holds what was never there");
            }
        }
        Ok(())
    }

    pub(crate) fn power_cut(&self) {
        self.oracle.power_cut();
    }

    pub(crate) fn kill(&self) {
        self.oracle.kill();
    }
}
