//! Stacking limits: an upper device never promises more than each lower one can do.

use ashlar_block::{Features, Limits, Sector, Sectors};
use ashlar_sim::{Rng, seeds};

fn random(rng: &mut Rng) -> Limits {
    let sectors = |rng: &mut Rng, list: [u64; 4]| Sectors(list[rng.index(4)]);
    Limits {
        logical_block_bytes: [512, 4096][rng.index(2)],
        physical_block_bytes: [512, 4096, 16384][rng.index(3)],
        io_min_bytes: [512, 4096, 65536][rng.index(3)],
        io_opt_bytes: [0, 65536, 98304, 1 << 20][rng.index(4)],
        max_hw_sectors: sectors(rng, [8, 255, 2560, 1 << 20]),
        max_segments: [1, 64, 128, 1024][rng.index(4)],
        chunk_sectors: sectors(rng, [0, 8, 12, 128]),
        dma_alignment_bytes: [1, 4, 512, 4096][rng.index(4)],
        max_hw_discard: sectors(rng, [0, 8, 4096, 1 << 32]),
        discard_granularity_bytes: [0, 512, 4096, 65536][rng.index(4)],
        discard_alignment_bytes: 0,
        max_discard_segments: [1, 256][rng.index(2)],
        max_write_zeroes: sectors(rng, [0, 8, 4096, 1 << 32]),
        features: Features::from_bits_truncate(rng.next_u64() as u16),
    }
}

fn stack(lowers: &[Limits]) -> Limits {
    let mut sum = Limits::stacking();
    for lower in lowers {
        sum.stack(lower, Sector::ZERO);
    }
    sum.finish_stacking()
}

#[test]
fn the_order_of_the_lower_devices_does_not_matter() {
    for seed in seeds(500) {
        let mut rng = Rng::new(seed);
        let lowers: Vec<_> = (0..1 + rng.index(4)).map(|_| random(&mut rng)).collect();
        let mut reversed = lowers.clone();
        reversed.reverse();
        assert_eq!(stack(&lowers), stack(&reversed), "{lowers:?}");
        let mut twice = lowers.clone();
        twice.extend(&lowers);
        assert_eq!(stack(&lowers), stack(&twice), "{lowers:?}");
    }
}

#[test]
fn every_lower_device_can_take_what_the_sum_allows() {
    for seed in seeds(500) {
        let mut rng = Rng::new(seed);
        let lowers: Vec<_> = (0..1 + rng.index(4)).map(|_| random(&mut rng)).collect();
        let sum = stack(&lowers);
        for lower in &lowers {
            assert!(sum.logical_block_bytes.is_multiple_of(lower.logical_block_bytes));
            assert!(sum.physical_block_bytes >= lower.physical_block_bytes);
            assert!(sum.max_hw_sectors <= lower.max_hw_sectors);
            assert!(sum.max_segments <= lower.max_segments);
            assert!(sum.dma_alignment_bytes >= lower.dma_alignment_bytes);
            let cached = |l: &Limits| l.features.contains(Features::WRITE_CACHE);
            assert!(cached(&sum) || !cached(lower));
            if !lower.max_hw_discard.is_zero() {
                assert!(sum.max_hw_discard <= lower.max_hw_discard);
                assert!(sum.discard_granularity_bytes >= lower.discard_granularity_bytes);
            }
            // Each boundary of the lower device is also one of the upper, unless boundaries would
            // cut blocks.
            let chunk = lower.chunk_sectors.0;
            let kept = chunk == 0 || !sum.chunk_sectors.is_zero();
            let uneven = lowers.iter().any(|l| !l.chunk_sectors.0.is_multiple_of(8));
            assert!(kept || uneven && sum.logical_block_bytes == 4096, "{lowers:?}");
            if chunk != 0 && !sum.chunk_sectors.is_zero() {
                assert!(chunk.is_multiple_of(sum.chunk_sectors.0), "{lowers:?}");
                assert!(sum.chunk_sectors.0.is_multiple_of(sum.logical_block().0), "{lowers:?}");
            }
        }
        let any = |f: fn(&Limits) -> bool| lowers.iter().any(f);
        assert_eq!(!sum.max_hw_discard.is_zero(), any(|l| !l.max_hw_discard.is_zero()));
        assert_eq!(!sum.max_write_zeroes.is_zero(), any(|l| !l.max_write_zeroes.is_zero()));
        // FUA matters only with a cache; then the gateway emulates it if needed.
        let fua = sum.features.contains(Features::FUA);
        assert_eq!(fua, sum.features.contains(Features::WRITE_CACHE));
    }
}
