//! Benches, all in one process.
//!
//! Usage: `ashlar-benches [--json FILE] [NAME [--nbd]] [SECONDS [ROUNDS]]`, where NAME is one of
//!
//! | name | comparison |
//! |---|---|
//! | `reads` | the engine vs. fio; also run without a name |
//! | `allocations` | allocations of the layers for each I/O |
//! | `array-reads` | RAID1 and RAID10 vs. the bare file |
//! | `barrier` | begin and end of I/Os at the barrier alone, lock-free vs. locked |
//! | `barrier --nbd` | the same for fio's reads over NBD, with 1 to 40 connections and 1 and 2 threads of the server |
//! | `overhead` | CPU time of I/Os through md that move no data |
//! | `raid1-read` | whole arrays, lock-free vs. locked barrier |
//! | `raid1-read --nbd` | the same for fio's reads over NBD |
//! | `beside-resync` | regular I/O during a resync in other buckets, md's barrier vs. a global one |
//! | `two-members` | reads of a RAID1 vs. reads of one member |
//! | `bitmap` | writes with vs. without bitmaps |
//! | `resync` | the speed of a resync vs. its members' |
//! | `linear-cost` | reads of linear and striped devices vs. the bare file |
//! | `snapshot-cost` | reads of snapshots, writes to their origins, vs. plain volumes |
//! | `snapshot-merge` | the rate of a merge, of consecutive and of scattered exceptions |
//! | `nomerges` | sequential and random reads with each value of nomerges, on a null device, a file and a zvol |
//! | `parity` | RAID5 and RAID6 vs. RAID0 and RAID1, on RAM disks |
//! | `parity-degraded` | RAID5 and RAID6 without members: the cost of small reads; recovery vs. its slowest member |
//! | `checksums` | btrfs's checksums vs. the crates alone |
//! | `remote` | the clients of NBD and of Ceph vs. fio's engines |
//! | `trace-cost` | reads with and without a trace reader; compare with a build without trace points |
//!
//! Each configuration runs for SECONDS in each of ROUNDS (3 and 3 by default); tables give medians. Files of 1 GiB are
//! written to the temporary directory and removed at the end. Run it on a quiet machine. A rate below its target is
//! printed, but is not a failure. With `--json`, the tables are also
//! appended to FILE, for `scripts/figures --import`.

#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod allocations;
mod arrays;
mod barrier;
mod behind_nbd;
mod beside_resync;
mod bitmap;
mod checksums;
mod common;
mod degraded;
mod devices;
mod fio;
mod linear_cost;
mod load;
mod locked_barrier;
mod mapped;
mod nomerges;
mod overhead;
mod raid1_read;
mod reads;
mod remote;
mod report;
mod resync;
mod rows;
mod snapshot_cost;
mod snapshot_merge;
mod trace_cost;
mod two_members;

use std::time::Duration;

use ashlar_engine::arenas::Arenas;
use common::{Outcome, Settings};

type Bench = fn(Settings) -> Outcome;

const BENCHES: [(&str, Bench); 21] = [
    ("reads", reads::run),
    ("allocations", allocations::run),
    ("array-reads", reads::run_arrays),
    ("barrier", barrier::run),
    ("barrier --nbd", barrier::run_behind_nbd),
    ("overhead", overhead::run),
    ("raid1-read", raid1_read::run),
    ("raid1-read --nbd", raid1_read::run_behind_nbd),
    ("beside-resync", beside_resync::run),
    ("two-members", two_members::run),
    ("bitmap", bitmap::run),
    ("resync", resync::run),
    ("linear-cost", linear_cost::run),
    ("snapshot-cost", snapshot_cost::run),
    ("snapshot-merge", snapshot_merge::run),
    ("nomerges", nomerges::run),
    ("checksums", checksums::run),
    ("parity", rows::run),
    ("parity-degraded", degraded::run),
    ("remote", remote::run),
    ("trace-cost", trace_cost::run),
];

fn usage() -> String {
    let names = BENCHES.map(|(name, _)| name).join("|");
    format!("usage: ashlar-benches [--json FILE] [{names}] [SECONDS [ROUNDS]]")
}

fn main() -> Outcome {
    let mut args = std::env::args().skip(1).peekable();
    // The process of a pool, which this one has started.
    if args.next_if(|arg| arg == "zfs-worker").is_some() {
        ashlar_zfs::worker::main(None);
    }
    if args.next_if(|arg| arg == "--json").is_some() {
        report::write_json(args.next().ok_or_else(usage)?.into());
    }
    let mut name = args.next_if(|arg| arg.parse::<f64>().is_err()).unwrap_or("reads".into());
    if let Some(mode) = args.next_if(|arg| arg == "--nbd") {
        name = format!("{name} {mode}");
    }
    let (_, bench) = BENCHES.iter().find(|(known, _)| *known == name).ok_or_else(usage)?;
    let seconds = args.next().map_or(Ok(3.0), |arg| arg.parse()).map_err(|_| usage())?;
    let rounds = args.next().map_or(Ok(3), |arg| arg.parse()).map_err(|_| usage())?;
    let run = Duration::try_from_secs_f64(seconds).map_err(|_| usage())?;
    if args.next().is_some() || run.is_zero() || rounds == 0 {
        return Err(usage().into());
    }
    // As the daemon does.
    Arenas::serve_buffers();
    bench(Settings { run, rounds })
}
