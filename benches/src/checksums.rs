//! Checksums of a btrfs sector, compared with the crates that compute them, called as in their own benchmarks: on one
//! thread, with the same bytes each time.

use std::hint::black_box;
use std::time::Instant;

use ashlar_btrfs::csum::ChecksumKind;

use crate::common::{Outcome, Settings, cpu_time};
use crate::load::Score;
use crate::report::{Grid, Unit};

const BYTES: usize = 4096;
/// Checksums between two reads of the clock.
const BATCH: u64 = 1000;

fn alone(kind: ChecksumKind, bytes: &[u8]) {
    use sha2::Digest as _;
    match kind {
        ChecksumKind::Crc32c => {
            black_box(crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes));
        }
        ChecksumKind::Xxhash64 => {
            black_box(xxhash_rust::xxh64::xxh64(bytes, 0));
        }
        ChecksumKind::Sha256 => {
            black_box(sha2::Sha256::digest(bytes));
        }
        ChecksumKind::Blake2b => {
            black_box(blake2b_simd::Params::new().hash_length(32).hash(bytes));
        }
    }
}

/// Prints the table.
///
/// # Errors
/// None: the return type is that of all benches.
pub(crate) fn run(settings: Settings) -> Outcome {
    let bytes: Vec<u8> = (0..BYTES).map(|at| at as u8).collect();
    let columns = ChecksumKind::ALL.map(ChecksumKind::name);
    let rows = ["ashlar", "the crate alone"];
    let grid =
        Grid::measure(&columns, &rows, Unit::Megabytes, settings.rounds, |_, row, column| {
            let kind = ChecksumKind::ALL[column];
            let (begin, cpu) = (Instant::now(), cpu_time());
            let mut done = 0;
            while begin.elapsed() < settings.run {
                for _ in 0..BATCH {
                    let bytes = black_box(&bytes);
                    match row {
                        0 => {
                            black_box(kind.compute(bytes));
                        }
                        _ => alone(kind, bytes),
                    }
                }
                done += BATCH;
            }
            Ok(Score::new(done, BYTES as u64, begin.elapsed(), cpu_time() - cpu))
        })?;
    grid.print("Checksums of 4 KiB, one thread")?;
    grid.print_ratio(0, 1, Some(0.95));
    Ok(())
}
