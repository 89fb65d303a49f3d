//! Queue limits and how they stack (the kernel's `struct queue_limits`, `blk_stack_limits`).

use bitflags::bitflags;

use crate::bio::Flags;
use crate::units::{SECTOR_SIZE, Sector, Sectors};

bitflags! {
    /// Properties and capabilities of a device.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Features: u16 {
        /// It has a volatile write cache: acknowledged writes need a flush to be durable.
        const WRITE_CACHE = 1;
        /// It supports FUA writes. If it has a cache but not this, the gateway writes and flushes.
        const FUA = 1 << 1;
        /// Seeks take time.
        const ROTATIONAL = 1 << 2;
        /// A discarded range reads as zeroes. True for punched holes of files; disks do
        /// not promise it.
        const DISCARD_ZEROES = 1 << 3;
        /// It zeroes ranges much faster than it writes them, because it frees them or has fast media. Of disks few say so:
        /// that a device has a command for zeroes ([`Limits::max_write_zeroes`]) does not mean that it is fast.
        const FAST_ZERO = 1 << 4;
    }
}

/// The hard limits of a device. Sizes named `_bytes` are bytes, the others their unit type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Smallest unit of I/O.
    pub logical_block_bytes: u32,
    /// Smallest unit written without read-modify-write.
    pub physical_block_bytes: u32,
    /// Preferred smallest I/O (a chunk).
    pub io_min_bytes: u32,
    /// Preferred I/O (a stripe); 0 for none.
    pub io_opt_bytes: u32,
    /// Most sectors in one read or write.
    pub max_hw_sectors: Sectors,
    /// Most segments in one request.
    pub max_segments: u32,
    /// No read or write crosses a multiple of this; zero for no limit.
    pub chunk_sectors: Sectors,
    /// Alignment in memory that the driver requires of data.
    pub dma_alignment_bytes: u32,
    /// Most sectors in one discard; zero: discards are not supported.
    pub max_hw_discard: Sectors,
    /// Unit in which space is really freed.
    pub discard_granularity_bytes: u32,
    /// Where the first of these units begins on this device.
    pub discard_alignment_bytes: u32,
    /// Most ranges in one discard request.
    pub max_discard_segments: u16,
    /// Most sectors in one write-zeroes; zero: the gateway writes zeroes itself.
    pub max_write_zeroes: Sectors,
    /// Properties and capabilities.
    pub features: Features,
}

impl Default for Limits {
    /// A device without special requirements, but also without discard and write-zeroes.
    fn default() -> Self {
        Self {
            logical_block_bytes: 512,
            physical_block_bytes: 512,
            io_min_bytes: 512,
            io_opt_bytes: 0,
            max_hw_sectors: Sectors(2560),
            max_segments: 128,
            chunk_sectors: Sectors::ZERO,
            dma_alignment_bytes: 512,
            max_hw_discard: Sectors::ZERO,
            discard_granularity_bytes: 0,
            discard_alignment_bytes: 0,
            max_discard_segments: 1,
            max_write_zeroes: Sectors::ZERO,
            features: Features::empty(),
        }
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Least common multiple where 0 means "no preference", as the kernel's `lcm_not_zero`. If it
/// overflows, the larger value.
fn lcm_not_zero(a: u32, b: u32) -> u32 {
    match (a, b) {
        (0, n) | (n, 0) => n,
        (a, b) => {
            let lcm = u64::from(a) / gcd(a.into(), b.into()) * u64::from(b);
            u32::try_from(lcm).unwrap_or(a.max(b))
        }
    }
}

fn min_not_zero(a: Sectors, b: Sectors) -> Sectors {
    match (a.0, b.0) {
        (0, n) | (n, 0) => Sectors(n),
        (a, b) => Sectors(a.min(b)),
    }
}

impl Limits {
    /// The initial limits of a stacking device: no limits, to be narrowed by each lower device (the
    /// kernel's `blk_set_stacking_limits`).
    pub fn stacking() -> Self {
        Self {
            max_hw_sectors: Sectors::MAX,
            max_segments: u32::MAX,
            dma_alignment_bytes: 1,
            max_hw_discard: Sectors::MAX,
            max_discard_segments: 1,
            max_write_zeroes: Sectors::MAX,
            features: Features::FUA | Features::DISCARD_ZEROES | Features::FAST_ZERO,
            ..Self::default()
        }
    }

    /// Sectors in a logical block.
    pub const fn logical_block(&self) -> Sectors {
        Sectors(self.logical_block_bytes as u64 / SECTOR_SIZE)
    }

    /// Whether a range begins and ends at logical blocks.
    #[inline]
    pub const fn has_whole_blocks(&self, at: Sector, len: Sectors) -> bool {
        (at.0 | len.0) & (self.logical_block().0 - 1) == 0
    }

    /// Whether a device with these limits has a command for a write-zeroes with `flags`, that is fast if they have [`Flags::FAST`].
    pub fn takes_zeroes(&self, flags: Flags) -> bool {
        let is_fast = self.features.contains(Features::FAST_ZERO);
        !self.max_write_zeroes.is_zero() && (is_fast || !flags.contains(Flags::FAST))
    }

    /// Narrows these limits by those of a lower device whose data begins at `start` there.
    ///
    /// Differences from the kernel, because of the gateway: discard and write-zeroes are missing from
    /// the result only if *no* lower device has them (a member that cannot discard is skipped, as in
    /// md); FUA is kept, because the gateway emulates it.
    pub fn stack(&mut self, lower: &Self, start: Sector) {
        self.logical_block_bytes = self.logical_block_bytes.max(lower.logical_block_bytes);
        self.physical_block_bytes = self.physical_block_bytes.max(lower.physical_block_bytes);
        self.io_min_bytes = self.io_min_bytes.max(lower.io_min_bytes);
        self.io_opt_bytes = lcm_not_zero(self.io_opt_bytes, lower.io_opt_bytes);
        self.max_hw_sectors = self.max_hw_sectors.min(lower.max_hw_sectors);
        self.max_segments = self.max_segments.min(lower.max_segments);
        // The boundaries of each lower device are boundaries of the upper; 0 is the identity.
        self.chunk_sectors = Sectors(gcd(self.chunk_sectors.0, lower.chunk_sectors.0));
        self.dma_alignment_bytes = self.dma_alignment_bytes.max(lower.dma_alignment_bytes);
        self.max_hw_discard = min_not_zero(self.max_hw_discard, lower.max_hw_discard);
        self.max_write_zeroes = min_not_zero(self.max_write_zeroes, lower.max_write_zeroes);
        if !lower.max_hw_discard.is_zero() {
            self.stack_discard_alignment(lower, start);
        }
        self.features |= lower.features & (Features::WRITE_CACHE | Features::ROTATIONAL);
        if !lower.features.contains(Features::DISCARD_ZEROES) {
            self.features -= Features::DISCARD_ZEROES;
        }
        // Unlike the command itself: it is as slow as the slowest lower device.
        if !lower.takes_zeroes(Flags::FAST) {
            self.features -= Features::FAST_ZERO;
        }
    }

    fn stack_discard_alignment(&mut self, lower: &Self, start: Sector) {
        let granularity = lower.discard_granularity_bytes.max(lower.logical_block_bytes);
        // Offset of the first granule on the upper device: the first granule of the lower one at or
        // after `start`, relative to `start`.
        let into = (start.bytes() % u64::from(granularity)) as u32;
        let first = lower.discard_alignment_bytes % granularity;
        let alignment = (granularity + first - into) % granularity;
        if granularity >= self.discard_granularity_bytes {
            self.discard_granularity_bytes = granularity;
            self.discard_alignment_bytes = alignment;
        }
    }

    /// These limits without discards, if discards do not read as zeroes and a device with the limits `old` promised that.
    #[must_use]
    pub fn keep_promises(mut self, old: &Self) -> Self {
        let promised = old.features & Features::DISCARD_ZEROES;
        if !self.features.contains(promised) {
            self.features |= promised;
            self.max_hw_discard = Sectors::ZERO;
        }
        self
    }

    /// Ends stacking: limits that no lower device has set become "not supported".
    #[must_use]
    pub fn finish_stacking(mut self) -> Self {
        if self.max_hw_discard == Sectors::MAX {
            self.max_hw_discard = Sectors::ZERO;
            self.features -= Features::DISCARD_ZEROES;
        }
        if self.max_write_zeroes == Sectors::MAX {
            self.max_write_zeroes = Sectors::ZERO;
        }
        if self.max_write_zeroes.is_zero() {
            self.features -= Features::FAST_ZERO;
        }
        // Boundaries within blocks cannot be respected; the lower gateways split where needed.
        if !self.chunk_sectors.0.is_multiple_of(self.logical_block().0) {
            self.chunk_sectors = Sectors::ZERO;
        }
        if !self.features.contains(Features::WRITE_CACHE) {
            self.features.remove(Features::FUA);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(discard: u64, granularity: u32) -> Limits {
        Limits {
            max_hw_discard: Sectors(discard),
            discard_granularity_bytes: granularity,
            ..Limits::default()
        }
    }

    #[test]
    fn the_smallest_discard_limit_wins_and_a_disk_without_is_skipped() {
        let mut sum = Limits::stacking();
        for lower in [disk(1000, 4096), disk(0, 0), disk(800, 512)] {
            sum.stack(&lower, Sector::ZERO);
        }
        let sum = sum.finish_stacking();
        assert_eq!(sum.max_hw_discard, Sectors(800));
        assert_eq!(sum.discard_granularity_bytes, 4096);
        let mut none = Limits::stacking();
        none.stack(&disk(0, 0), Sector::ZERO);
        assert_eq!(none.finish_stacking().max_hw_discard, Sectors::ZERO);
    }

    #[test]
    fn discard_alignment_follows_the_data_offset() {
        let mut sum = Limits::stacking();
        sum.stack(&disk(1000, 4096), Sector(3));
        // Sector 3 of the member is sector 0 above: its next granule begins at sector 8, which is 5
        // above.
        assert_eq!(sum.discard_alignment_bytes, 5 * 512);
        let mut aligned = Limits::stacking();
        aligned.stack(&disk(1000, 4096), Sector(2048));
        assert_eq!(aligned.discard_alignment_bytes, 0);
    }

    #[test]
    fn a_write_cache_below_is_a_write_cache_above() {
        let cached = Limits { features: Features::WRITE_CACHE, ..Limits::default() };
        let mut sum = Limits::stacking();
        sum.stack(&Limits::default(), Sector::ZERO);
        sum.stack(&cached, Sector::ZERO);
        assert_eq!(sum.finish_stacking().features, Features::WRITE_CACHE | Features::FUA);
        let mut through = Limits::stacking();
        through.stack(&Limits::default(), Sector::ZERO);
        assert_eq!(through.finish_stacking().features, Features::empty());
    }

    #[test]
    fn discards_zero_only_if_they_do_on_every_lower_device() {
        let zeroing = Limits { features: Features::DISCARD_ZEROES, ..disk(1000, 4096) };
        let mut all = Limits::stacking();
        all.stack(&zeroing, Sector::ZERO);
        all.stack(&zeroing, Sector::ZERO);
        assert!(all.finish_stacking().features.contains(Features::DISCARD_ZEROES));
        all.stack(&disk(1000, 4096), Sector::ZERO);
        assert!(!all.finish_stacking().features.contains(Features::DISCARD_ZEROES));
    }

    #[test]
    fn zeroes_are_fast_only_if_they_are_on_every_lower_device() {
        let fast = Limits {
            max_write_zeroes: Sectors(1000),
            features: Features::FAST_ZERO,
            ..Limits::default()
        };
        let slow = Limits { features: Features::empty(), ..fast };
        let none = Limits { max_write_zeroes: Sectors::ZERO, ..fast };
        let table = [
            (vec![fast, fast], [true, true]),
            (vec![fast, slow], [true, false]),
            (vec![slow, fast], [true, false]),
            // The gateway of the second one writes them.
            (vec![fast, none], [true, false]),
            (vec![none, none], [false, false]),
            (vec![], [false, false]),
        ];
        for (lowers, expected) in table {
            let mut sum = Limits::stacking();
            lowers.iter().for_each(|lower| sum.stack(lower, Sector::ZERO));
            let sum = sum.finish_stacking();
            let takes = [Flags::NOFALLBACK, Flags::FAST].map(|flags| sum.takes_zeroes(flags));
            assert_eq!(takes, expected, "{lowers:?}");
            assert_eq!(sum.features.contains(Features::FAST_ZERO), expected[1]);
        }
    }

    #[test]
    fn optimal_sizes_stack_to_their_common_multiple() {
        assert_eq!(lcm_not_zero(0, 12), 12);
        assert_eq!(lcm_not_zero(8, 12), 24);
        assert_eq!(lcm_not_zero(u32::MAX, u32::MAX - 1), u32::MAX);
    }
}
