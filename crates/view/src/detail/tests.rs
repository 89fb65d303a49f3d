//! The text of an array's details compared with mdadm's (`Detail.c`).

use std::time::Duration;

use ashlar_block::Sectors;
use ashlar_md::{BitmapKind, SyncAction};

use super::*;
use crate::progress::Run;
use crate::snapshot::BitmapStatus;
use crate::testing::{IDLE, member, snapshot, spare};

fn degraded() -> Snapshot {
    let mut array = snapshot(Level::Raid10, 0x102, 1024, 4);
    array.status.degraded = 2;
    array.status.members[1] = MemberStatus { in_sync: false, faulty: true, ..member(1, 1) };
    array.status.members[2] = MemberStatus::empty(2);
    array
}

#[test]
fn the_text_is_that_of_mdadm() {
    let expected = "\
/dev/md0:
           Version : 1.2
     Creation Time : Sun Sep  9 01:46:40 2001
        Raid Level : raid10
        Array Size : 2093056 (2044.00 MiB 2143.29 MB)
     Used Dev Size : 1046528 (1022.00 MiB 1071.64 MB)
      Raid Devices : 4
     Total Devices : 3
       Persistence : Superblock is persistent

       Update Time : Sun Sep  9 01:46:41 2001
             State : clean, degraded\u{20}
    Active Devices : 2
   Working Devices : 2
    Failed Devices : 1
     Spare Devices : 0

            Layout : near=2
        Chunk Size : 512K

Consistency Policy : resync

              Name : host:0
              UUID : 00112233:44556677:8899aabb:ccddeeff
            Events : 17

    Number   Major   Minor   RaidDevice State
       0       0        0        0      active sync set-A   a
       -       0        0        1      removed
       -       0        0        2      removed
       3       0        0        3      active sync set-B   d

       1       0        0        -      faulty   b
";
    assert_eq!(Detail::new(&degraded(), "/dev/md0").to_string(), expected);
}

#[test]
fn a_rebuild_is_told_as_mdadm_tells_it() {
    let mut array = snapshot(Level::Raid1, 0, 0, 2);
    array.status.degraded = 1;
    array.status.state = ArrayState::Active;
    array.status.members[0].write_mostly = true;
    array.status.members[1] = MemberStatus { in_sync: false, failfast: true, ..member(1, 3) };
    array.status.members.push(MemberStatus { in_sync: false, replacement: true, ..member(0, 4) });
    array.status.members.push(spare(5));
    array.status.members.push(MemberStatus { faulty: true, ..spare(2) });
    array.bitmap = Some(BitmapStatus { kind: BitmapKind::Classic, mdstat: String::new() });
    let run = Run {
        done: Sectors(300 << 11),
        total: Sectors(1000 << 11),
        speed_kib: 1,
        left: Some(Duration::from_secs(2)),
    };
    array.progress = Progress { action: SyncAction::Recover, step: Step::Running(run), ..IDLE };
    let text = Detail::new(&array, "/dev/md0").to_string();
    let expected = "
       Persistence : Superblock is persistent

     Intent Bitmap : Internal

       Update Time : Sun Sep  9 01:46:41 2001
             State : active, degraded, recovering\u{20}
    Active Devices : 1
   Working Devices : 4
    Failed Devices : 1
     Spare Devices : 3

Consistency Policy : bitmap

    Rebuild Status : 29% complete

              Name : host:0
              UUID : 00112233:44556677:8899aabb:ccddeeff
            Events : 17

    Number   Major   Minor   RaidDevice State
       0       0        0        0      active sync writemostly   a
       4       0        0        0      spare rebuilding   e
       3       0        0        1      failfast spare rebuilding   d

       2       0        0        -      faulty   c
       5       0        0        -      spare   f
";
    assert!(text.ends_with(expected), "{text}");
}

#[test]
fn an_array_that_waits_for_its_first_write_is_clean() {
    let mut array = snapshot(Level::Raid1, 0, 0, 2);
    (array.status.state, array.status.unsynced) = (ArrayState::ReadAuto, true);
    array.progress = Progress { action: SyncAction::Idle, step: Step::Pending, ..IDLE };
    let text = Detail::new(&array, "x").to_string();
    assert!(text.contains("             State : clean, resyncing (PENDING) \n"), "{text}");
}

#[test]
fn the_state_says_what_is_done_and_what_is_waited_for() {
    let run = Step::Running(Run { done: Sectors(0), total: Sectors(8), speed_kib: 0, left: None });
    for (action, step, state, status) in [
        (SyncAction::Check, run, "clean, checking", Some("      Check Status : 0% complete\n\n")),
        (SyncAction::Resync, run, "clean, resyncing", Some("     Resync Status : 0% complete\n\n")),
        (SyncAction::Repair, run, "clean, resyncing", Some("     Resync Status : 0% complete\n\n")),
        (SyncAction::Idle, Step::Pending, "clean, resyncing (PENDING)", None),
        (SyncAction::Idle, Step::None, "clean", None),
    ] {
        let mut array = snapshot(Level::Raid1, 0, 0, 2);
        array.progress = Progress { action, step, ..IDLE };
        let text = Detail::new(&array, "x").to_string();
        assert!(text.contains(&format!("             State : {state} \n")), "{text}");
        match status {
            Some(line) => assert!(text.contains(line), "{text}"),
            None => assert!(!text.contains(" Status :"), "{text}"),
        }
    }
}

#[test]
fn json_goes_both_ways() {
    let detail = Detail::new(&degraded(), "/dev/md0");
    let text = serde_json::to_string(&detail).unwrap();
    assert_eq!(serde_json::from_str::<Detail>(&text).unwrap(), detail);
}

#[test]
fn a_raid0_has_no_used_size_and_no_sets() {
    let text = Detail::new(&snapshot(Level::Raid0, 2, 1024, 4), "x").to_string();
    assert!(!text.contains("Used Dev Size") && !text.contains("set-"), "{text}");
    assert!(text.contains("Consistency Policy : none\n"), "{text}");
}
