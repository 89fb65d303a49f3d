//! Volumes that are written while something else happens to their group, and verified.

use ashlar_block::Gateway;
use ashlar_sim::scheduler::{JoinHandle, start};
use ashlar_sim::{Oracle, Rng, Workload};

use crate::live::LiveStack;
use crate::volume_groups::named;

/// What is written to a volume, and what it must have.
pub(crate) struct Load<'a> {
    pub(crate) work: &'a Workload,
    pub(crate) volume: Gateway,
    pub(crate) oracle: &'a Oracle,
}

impl Load<'_> {
    /// Writes until the workload has ended; returns how many I/Os failed.
    pub(crate) fn start(&self, rng: &mut Rng) -> JoinHandle<u64> {
        let (work, volume) = (self.work.clone(), self.volume.clone());
        let (oracle, mut rng) = (self.oracle.clone(), rng.fork());
        start(async move { work.run(&volume, &oracle, &mut rng).await.unwrap() })
    }

    pub(crate) async fn verify(&self) {
        self.work.verify(&self.volume, self.oracle).await.unwrap();
    }
}

/// A load for each of the volumes `data` and `other`.
pub(crate) fn loads<'a>(
    live: &LiveStack,
    work: &'a Workload,
    oracles: &'a [Oracle; 2],
) -> [Load<'a>; 2] {
    let [first, second] = oracles;
    [("vg/data", first), ("vg/other", second)].map(|(name, oracle)| Load {
        work,
        volume: named(&live.stack, name),
        oracle,
    })
}
