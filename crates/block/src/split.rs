//! The part of a bio that a device accepts at once.

use crate::bio::{Bio, Op};
use crate::disk::Disk;
use crate::units::{Sector, Sectors};

/// The number of sectors at the front of `bio` that fit the limits of `disk`: all, or up to where it
/// must be split. Never zero for a non-empty bio if the device supports the operation; always whole
/// logical blocks, even if a limit is smaller.
pub fn fitting_len(disk: &Disk, bio: &Bio) -> Sectors {
    let limits = disk.limits();
    let max = match bio.op {
        Op::Read | Op::Write => {
            let mut max = disk.max_sectors();
            if !limits.chunk_sectors.is_zero() {
                max = max.min(left_in_chunk(bio.sector, limits.chunk_sectors));
            }
            if bio.segments.len() > limits.max_segments as usize {
                max = max.min(len_of_segments(bio, limits.max_segments as usize));
            }
            max
        }
        Op::Discard => discard_len(disk, bio),
        Op::WriteZeroes => limits.max_write_zeroes,
        Op::Flush => bio.len,
    };
    if bio.len <= max {
        return bio.len;
    }
    let block = limits.logical_block();
    let blocks = max.round_down(block);
    if blocks.is_zero() { block.min(bio.len) } else { blocks }
}

fn left_in_chunk(sector: Sector, chunk: Sectors) -> Sectors {
    Sectors(chunk.0 - sector.0 % chunk.0)
}

/// Whole sectors in the first `n` segments.
fn len_of_segments(bio: &Bio, n: usize) -> Sectors {
    let bytes: u64 = bio.segments.iter().take(n).map(|s| s.len() as u64).sum();
    Sectors::from_bytes_floor(bytes)
}

/// The kernel's `bio_split_discard`: the next piece begins on a granule, so that no granule is split
/// and then freed by neither piece.
fn discard_len(disk: &Disk, bio: &Bio) -> Sectors {
    let limits = disk.limits();
    // Zero if discards were turned off after this one was accepted: it completes with the
    // hardware's limit.
    let soft = disk.max_discard();
    let max = if soft.is_zero() { limits.max_hw_discard } else { soft };
    if bio.len <= max {
        return bio.len;
    }
    let granule = u64::from(limits.discard_granularity_bytes.max(limits.logical_block_bytes)) / 512;
    let first = u64::from(limits.discard_alignment_bytes) / 512 % granule;
    let end = bio.sector.0 + max.0;
    // Distance of `end` from the granule boundary before it.
    let over = (end + granule - first) % granule;
    if over < max.0 { Sectors(max.0 - over) } else { max }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Buffer;
    use crate::limits::Limits;

    fn pieces(disk: &Disk, mut bio: Bio) -> Vec<(u64, u64)> {
        let mut out = Vec::new();
        loop {
            let n = fitting_len(disk, &bio);
            out.push((bio.sector.0, n.0));
            if n == bio.len {
                return out;
            }
            drop(bio.split_front(n));
        }
    }

    #[test]
    fn every_small_split_covers_the_bio_and_keeps_to_the_limits() {
        for chunk in [0, 8, 12] {
            for max in [8, 16, 20] {
                for block in [512, 4096] {
                    let limits = Limits {
                        chunk_sectors: Sectors(if block == 4096 && chunk == 12 {
                            24
                        } else {
                            chunk
                        }),
                        max_hw_sectors: Sectors(max),
                        logical_block_bytes: block,
                        ..Limits::default()
                    };
                    let disk = Disk::new("d", Sectors(1000), limits);
                    let step = u64::from(block) / 512;
                    for start in (0..32).step_by(step as usize) {
                        for len in (step..64).step_by(step as usize) {
                            let mut b = Buffer::zeroed(len as usize * 512);
                            let got = pieces(&disk, Bio::write_from(Sector(start), &mut b));
                            let mut at = start;
                            for &(s, n) in &got {
                                assert!(s == at && n > 0 && n <= max && n % step == 0);
                                let c = limits.chunk_sectors.0;
                                assert!(c == 0 || s / c == (s + n - 1) / c);
                                at += n;
                            }
                            assert_eq!(at, start + len);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn discards_split_on_granules() {
        let limits = Limits {
            max_hw_discard: Sectors(20),
            discard_granularity_bytes: 4096,
            discard_alignment_bytes: 512,
            ..Limits::default()
        };
        let disk = Disk::new("d", Sectors(1000), limits);
        let got = pieces(&disk, Bio::discard(Sector(3), Sectors(60)));
        assert_eq!(got, [(3, 14), (17, 16), (33, 16), (49, 14)]);
    }

    #[test]
    fn many_segments_split_at_the_segment_limit() {
        let limits = Limits { max_segments: 2, ..Limits::default() };
        let disk = Disk::new("d", Sectors(1000), limits);
        let mut parts: Vec<_> = (0..5).map(|_| Buffer::zeroed(1024)).collect();
        let bio = Bio::read(
            Sector(0),
            parts.iter_mut().map(Buffer::whole).collect::<crate::bio::Segments>(),
        );
        assert_eq!(pieces(&disk, bio), [(0, 4), (4, 4), (8, 2)]);
    }
}
