//! From the events of a bio to its durations, as btt has them: Q2C, Q2D and D2C.
//!
//! Bios are identified by their sectors. A request that completes ends the bios in its range, a
//! part of a bio that was split ends that part. Flushes have no sectors and are not measured.

use std::collections::BTreeMap;

/// The most bios that wait for their completion: beyond that the oldest are dropped.
const PENDING_MAX: usize = 1 << 16;

/// Reads, writes and discards are matched apart.
pub(crate) const KINDS: usize = 3;

/// A bio that has not ended.
#[derive(Clone, Copy, Debug)]
struct Pending {
    end: u64,
    /// Sectors that have not ended.
    left: u64,
    queued_ns: u64,
    issued_ns: Option<u64>,
}

/// The durations of a bio.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Durations {
    /// From its arrival to its end.
    pub(crate) q2c_ns: u64,
    /// From its arrival to its last issue to the driver, and from there to its end. A layer has no
    /// driver.
    pub(crate) parts: Option<(u64, u64)>,
}

/// The bios of a device that have not ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct Matching {
    /// By first sector, and a number that distinguishes bios with the same one.
    pending: [BTreeMap<(u64, u64), Pending>; KINDS],
    /// The length of the longest, which says how far back one may begin that reaches a sector.
    longest: [u64; KINDS],
    next: u64,
}

impl Matching {
    /// A bio arrived.
    pub(crate) fn queue(&mut self, kind: usize, sector: u64, sectors: u64, now_ns: u64) {
        if self.pending.iter().map(BTreeMap::len).sum::<usize>() >= PENDING_MAX {
            self.forget();
        }
        let end = sector.saturating_add(sectors);
        let bio = Pending { end, left: end - sector, queued_ns: now_ns, issued_ns: None };
        self.pending[kind].insert((sector, self.next), bio);
        self.longest[kind] = self.longest[kind].max(sectors);
        self.next += 1;
    }

    /// A request went to the driver.
    pub(crate) fn issue(&mut self, kind: usize, sector: u64, sectors: u64, now_ns: u64) {
        for key in self.within(kind, sector, sectors) {
            if let Some(bio) = self.pending[kind].get_mut(&key) {
                bio.issued_ns = Some(now_ns);
            }
        }
    }

    /// A request, or a layer's bio, ended. Returns the durations of the bios that ended with it.
    pub(crate) fn complete(
        &mut self,
        kind: usize,
        sector: u64,
        sectors: u64,
        now_ns: u64,
    ) -> Vec<Durations> {
        let end = sector.saturating_add(sectors);
        let mut ended = Vec::new();
        for key in self.within(kind, sector, sectors) {
            let Some(bio) = self.pending[kind].get_mut(&key) else { continue };
            let overlap = bio.end.min(end) - key.0.max(sector);
            bio.left = bio.left.saturating_sub(overlap);
            if bio.left > 0 {
                continue;
            }
            let parts = bio.issued_ns.map(|issued_ns| {
                (issued_ns.saturating_sub(bio.queued_ns), now_ns.saturating_sub(issued_ns))
            });
            ended.push(Durations { q2c_ns: now_ns.saturating_sub(bio.queued_ns), parts });
            self.pending[kind].remove(&key);
        }
        if self.pending[kind].is_empty() {
            self.longest[kind] = 0;
        }
        ended
    }

    /// Drops all bios: the ends of some may be among lost events.
    pub(crate) fn forget(&mut self) {
        self.pending = Default::default();
        self.longest = Default::default();
    }

    /// The bios that overlap a range.
    fn within(&self, kind: usize, sector: u64, sectors: u64) -> Vec<(u64, u64)> {
        let from = sector.saturating_sub(self.longest[kind]);
        let end = sector.saturating_add(sectors);
        let near = self.pending[kind].range((from, 0)..(end, 0));
        near.filter(|(_, bio)| bio.end > sector).map(|(key, _)| *key).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: usize = 0;

    #[test]
    fn a_request_ends_the_bios_that_were_merged_into_it() {
        let mut all = Matching::default();
        all.queue(READ, 0, 8, 10);
        all.queue(READ, 8, 8, 12);
        all.queue(READ, 100, 8, 13);
        all.queue(1, 8, 8, 14);
        all.issue(READ, 0, 16, 20);
        let ended = all.complete(READ, 0, 16, 50);
        let of = |q2c_ns, parts| Durations { q2c_ns, parts: Some(parts) };
        assert_eq!(ended, [of(40, (10, 30)), of(38, (8, 30))]);
        let layer = all.complete(READ, 100, 8, 53);
        assert_eq!(layer, [Durations { q2c_ns: 40, parts: None }]);
        assert_eq!(all.complete(READ, 0, 200, 60), []);
    }

    #[test]
    fn a_bio_that_was_split_ends_with_its_last_part() {
        let mut all = Matching::default();
        all.queue(READ, 0, 2048, 10);
        all.queue(READ, 1024, 8, 11);
        all.issue(READ, 0, 1024, 20);
        all.issue(READ, 1024, 1024, 22);
        let of = |q2c_ns, parts| Durations { q2c_ns, parts: Some(parts) };
        assert_eq!(all.complete(READ, 1024, 1024, 30), [of(19, (11, 8))]);
        assert_eq!(all.complete(READ, 0, 1024, 40), [of(30, (12, 18))]);
    }

    #[test]
    fn bios_without_an_end_do_not_fill_the_memory() {
        let mut all = Matching::default();
        for n in 0..3 * PENDING_MAX as u64 {
            all.queue(READ, 8 * n, 8, n);
        }
        assert!(all.pending[READ].len() <= PENDING_MAX);
    }
}
