//! Cancellation, resumption, limits, progress, options.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ashlar_btrfs::ondisk::chunk::STRIPE_LEN;
use ashlar_btrfs::readahead::{Reada, TreeReads};
use ashlar_btrfs::scrub::{Counters, Options, Scrub, ScrubError, State};
use ashlar_btrfs::units::{DevId, Physical};
use futures_util::future::join;

use super::common::{Damage, blocks, damage, place, places, read_only, scrub};
use super::trees::several_sum_leaves;
use crate::support::{Rig, names};

/// Wherever a scrub is interrupted, both parts together cover everything, and nothing twice.
#[test]
fn a_scrub_goes_on_where_it_was_cancelled() {
    for name in ["single-4k", "dup-xxhash", "raid0", "raid5", "raid6", "raid10-blake2", "halved"] {
        let rig = Rig::golden(name);
        let fs = rig.open();
        let (whole, _) = scrub(&rig, &fs, read_only());
        let (mut cut_off, mut after_us) = (0, 0);
        loop {
            let first = Scrub::new(Arc::clone(&fs), Options { depth: 1, ..read_only() });
            let runtime = rig.sim.runtime();
            let (ended, ()) = rig.run(join(first.run(&()), async {
                runtime.sleep(Duration::from_micros(after_us)).await;
                first.cancel();
            }));
            let ended = ended.expect("it began");
            let resume_at: BTreeMap<DevId, Physical> = ended
                .iter()
                .map(|report| (report.devid, Physical(report.counters.last_physical)))
                .collect();
            let cancelled = ended.iter().any(|report| report.state == State::Cancelled);
            let (rest, problems) = scrub(&rig, &fs, Options { resume_at, ..read_only() });
            assert_eq!(problems, [], "{name}");
            for ((whole, before), after) in whole.iter().zip(&ended).zip(&rest) {
                let sum = before.counters.plus(&after.counters);
                assert_eq!(sum, whole.counters, "{name}, cancelled after {after_us} us");
                assert_eq!(after.state, State::Finished, "{name}");
                let bytes = before.bytes_read + after.bytes_read;
                assert_eq!(bytes, whole.bytes_read, "{name}, cancelled after {after_us} us");
            }
            if !cancelled {
                break;
            }
            cut_off += 1;
            after_us += 97;
        }
        assert!(cut_off > 2, "{name}: cut off {cut_off} times only");
    }
}

/// The kernel's last position depends on the number of stripes in the last extent, not on where the
/// scrub was resumed.
#[test]
fn the_last_position_is_the_same_wherever_a_scrub_goes_on() {
    for name in ["single-4k", "single-16k", "stripe-raid0", "dup-xxhash", "mixed", "raid6"] {
        let rig = Rig::golden(name);
        let fs = rig.open();
        let (whole, _) = scrub(&rig, &fs, read_only());
        for report in &whole {
            let extents = fs.chunks().on_device(report.devid).expect("device extents");
            let last = extents.last().expect("one");
            for from in (last.start.0..report.counters.last_physical).step_by(STRIPE_LEN as usize) {
                let resume_at = BTreeMap::from([(report.devid, Physical(from))]);
                let devices = vec![report.devid];
                let (rest, problems) =
                    scrub(&rig, &fs, Options { devices, resume_at, ..read_only() });
                assert_eq!(problems, [], "{name}");
                let ends = (rest[0].counters.last_physical, report.counters.last_physical);
                assert_eq!(ends.0, ends.1, "{name}, device {}, from {from}", report.devid);
            }
        }
    }
}

/// A scrub that is cancelled before it starts does nothing.
#[test]
fn cancelled_is_cancelled() {
    let rig = Rig::golden("single-4k");
    let scrub = Scrub::new(rig.open(), Options::default());
    scrub.cancel();
    let reports = rig.run(scrub.run(&())).expect("it ended");
    assert_eq!(reports[0].state, State::Cancelled);
    let counters = Counters { last_physical: 0, ..Counters::default() };
    assert_eq!(reports[0].counters, counters);
}

/// In virtual time: a limit is respected, and a change of it takes effect.
#[test]
fn a_limit_is_kept_and_may_change() {
    let elapsed = |limit: u64, later: u64| {
        let rig = Rig::golden("dup-xxhash");
        let fs = rig.open();
        let limit = Arc::new(AtomicU64::new(limit));
        let limits = BTreeMap::from([(DevId(1), Arc::clone(&limit))]);
        let scrub = Scrub::new(fs, Options { limits, ..read_only() });
        let started = rig.sim.now_ns();
        let runtime = rig.sim.runtime();
        let (ended, ()) = rig.run(join(scrub.run(&()), async {
            runtime.sleep(Duration::from_millis(2500)).await;
            limit.store(later, Ordering::Relaxed);
        }));
        let report = ended.expect("it began")[0];
        assert_eq!(report.state, State::Finished);
        let seconds = (rig.sim.now_ns() - started) as f64 / 1e9;
        (seconds, report.bytes_read as f64)
    };
    let rate = 128 << 10;
    let (slow, bytes) = elapsed(rate, rate);
    let wanted = bytes / rate as f64;
    assert!((wanted - 5.0..wanted + 0.1).contains(&slow), "{slow} s, wanted {wanted} s");
    // There is no limit after the third second.
    let (faster, _) = elapsed(rate, 0);
    assert!((2.5..3.1).contains(&faster), "{faster} s");
    let (fast, _) = elapsed(0, 0);
    assert!((2.5..2.6).contains(&fast), "{fast} s: the test itself waits so long");
}

#[test]
fn progress_goes_up_to_the_whole() {
    for name in names() {
        let rig = Rig::golden(&name);
        let fs = rig.open();
        let scrub = Scrub::new(Arc::clone(&fs), read_only());
        assert!(scrub.progress().iter().all(|device| device.state == State::Waiting));
        let reports = rig.run(scrub.run(&())).expect("it began");
        for (progress, report) in scrub.progress().iter().zip(&reports) {
            let device = fs.device(progress.devid).expect("it is there");
            let used = device.superblock.dev_item.bytes_used.get();
            assert_eq!(progress.bytes_total, used, "{name}");
            assert_eq!(progress.bytes_scanned, progress.bytes_total, "{name}");
            assert_eq!(progress.counters, report.counters, "{name}");
        }
    }
}

#[test]
fn only_the_devices_that_were_chosen_are_scrubbed() {
    let rig = Rig::golden("raid1-sha256");
    let fs = rig.open();
    let all = blocks(&rig, &fs);
    let block = all.iter().find(|block| block.kind == super::common::Kind::Data).expect("data");
    let spoilt: Vec<_> = fs
        .chunks()
        .get(block.start)
        .expect("a chunk")
        .all_mirrors()
        .map(|mirror| place(&fs, block, mirror))
        .collect();
    damage(&rig, &fs, &spoilt, Damage::Bytes);
    for place in spoilt {
        let devices = vec![place.0];
        let (reports, problems) = scrub(&rig, &fs, Options { devices, ..read_only() });
        assert_eq!((reports.len(), reports[0].devid), (1, place.0));
        assert_eq!(places(&problems), [place]);
    }
    let scrub = Scrub::new(Arc::clone(&fs), Options { devices: vec![DevId(7)], ..read_only() });
    assert_eq!(rig.run(scrub.run(&())), Err(ScrubError::NoDevice(DevId(7))));
}

/// Adjacent stripes are read in large requests, and each byte once.
#[test]
fn stripes_are_read_in_large_requests() {
    let rig = Rig::golden("raid1-sha256");
    let fs = rig.open();
    // This scrub caches the tree blocks.
    let (reports, _) = scrub(&rig, &fs, read_only());
    for (media, report) in rig.media.iter().zip(&reports) {
        media.clear_log();
        let (_, problems) =
            scrub(&rig, &fs, Options { devices: vec![report.devid], ..read_only() });
        assert_eq!(problems, []);
        let log = media.log();
        let supers = 2 * 8;
        let sectors: u64 = log.iter().map(ashlar_sim::Command::sectors).sum();
        let gaps = 4 * (16 << 10) / 512 * log.len() as u64;
        let used = report.bytes_read / 512 + supers;
        assert!((used..used + gaps).contains(&sectors), "{used} sectors used, {sectors} read");
        let largest = log.iter().map(ashlar_sim::Command::sectors).max();
        assert!(largest.is_some_and(|sectors| sectors * 512 >= 256 << 10), "{largest:?}");
    }
}

/// Depth and readahead only affect speed.
#[test]
fn depth_and_readahead_do_not_change_what_is_counted() {
    for name in names() {
        let rig = Rig::golden(&name);
        let (whole, _) = scrub(&rig, &rig.open(), read_only());
        for reada in Reada::ALL {
            for depth in [0, 1, 2, 100] {
                let options =
                    Options { depth, extent_reada: reada, csum_reada: reada, ..read_only() };
                let (reports, problems) = scrub(&rig, &rig.open(), options);
                assert_eq!((reports, problems), (whole.clone(), vec![]), "{name}");
            }
        }
    }
}

/// How often walks wait, and what is read ahead, in each mode. The checksum tree has nine adjacent leaves.
#[test]
fn each_mode_reads_ahead_in_its_own_way() {
    const LEAVES: u64 = 9;
    let rig = several_sum_leaves(LEAVES as usize);
    let reads = |reada: Reada| {
        let fs = rig.open();
        let before = fs.tree_reads();
        let options = Options { extent_reada: reada, csum_reada: reada, ..read_only() };
        let (_, problems) = scrub(&rig, &fs, options);
        assert_eq!(problems, []);
        let after = fs.tree_reads();
        TreeReads { waits: after.waits - before.waits, ahead: after.ahead - before.ahead }
    };
    let [none, back, forward, always, scan] = Reada::ALL.map(reads);
    let all = [none, back, forward, always, scan];
    // The walks only go forward: before a leaf there is nothing that they have not passed.
    assert!(none.ahead == 0 && none.waits > LEAVES && back == none, "{all:?}");
    // Each block is either waited for or read ahead. All leaves but the first are near it, and read with it.
    for read in [forward, always] {
        assert_eq!(read.waits + read.ahead, none.waits, "{all:?}");
        assert!(read.ahead >= LEAVES - 1, "{all:?}");
    }
    // On all levels.
    assert!(always.ahead > forward.ahead, "{all:?}");
    assert!(scan.ahead >= LEAVES && scan.waits < none.waits, "{all:?}");
}
