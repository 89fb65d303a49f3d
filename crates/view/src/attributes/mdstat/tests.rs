//! `proc/mdstat` compared with texts that kernels wrote.

use std::time::Duration;

use ashlar_block::Sectors;
use ashlar_md::ondisk::Version;
use ashlar_md::{BitmapKind, SyncAction};
use ashlar_stack::arrays::WaitingMember;
use ashlar_stack::names::ArrayName;

use super::*;
use crate::snapshot::BitmapStatus;
use crate::testing::{IDLE, member, snapshot, spare};

fn text(array: Snapshot) -> String {
    let name = |member: &MemberStatus| member.path.clone();
    let text = mdstat([(array, name)], &[], |_| None);
    let text = text
        .strip_prefix(
            "Personalities : [linear] [raid0] [raid1] [raid6] [raid5] [raid4] [raid10] \n",
        )
        .unwrap();
    text.strip_suffix("unused devices: <none>").unwrap().to_owned()
}

#[test]
fn no_array_is_two_lines() {
    let none = mdstat::<fn(&MemberStatus) -> Option<String>>([], &[], |_| None);
    assert_eq!(
        none,
        "Personalities : [linear] [raid0] [raid1] [raid6] [raid5] [raid4] [raid10] \nunused devices: <none>"
    );
}

#[test]
fn each_level_reads_as_the_kernel_writes_it() {
    assert_eq!(
        text(snapshot(Level::Raid10, 0x102, 1024, 4)),
        "md0 : active raid10 d[3] c[2] b[1] a[0]\n      \
         2093056 blocks super 1.2 512K chunks 2 near-copies [4/4] [UUUU]\n      \n"
    );
    let far = text(snapshot(Level::Raid10, 0x201, 128, 3));
    assert!(far.contains(" super 1.2 64K chunks 2 far-copies [3/3] [UUU]\n"), "{far}");
    let offset = text(snapshot(Level::Raid10, 0x1_0201, 128, 3));
    assert!(offset.contains(" 64K chunks 2 offset-copies [3/3] [UUU]\n"), "{offset}");
    assert_eq!(
        text(snapshot(Level::Raid0, 2, 1024, 2)),
        "md0 : active raid0 b[1] a[0]\n      2093056 blocks super 1.2 512k chunks\n      \n"
    );
    assert_eq!(
        text(snapshot(Level::Raid1, 0, 0, 2)),
        "md0 : active raid1 b[1] a[0]\n      2093056 blocks super 1.2 [2/2] [UU]\n      \n"
    );
}

#[test]
fn failed_missing_and_read_only_are_shown() {
    let mut sick = snapshot(Level::Raid1, 0, 0, 3);
    let status = &mut sick.status;
    status.degraded = 2;
    status.state = ArrayState::ReadOnly;
    status.members[0].in_sync = false;
    status.members[0].faulty = true;
    status.members[1] = MemberStatus::empty(1);
    status.members[2].write_mostly = true;
    sick.progress.step = Step::Pending;
    let expected = "md0 : active (read-only) raid1 c[2](W) a[0](F)\n      \
                    2093056 blocks super 1.2 [3/1] [__U]\n      \tresync=PENDING\n      \n";
    assert_eq!(text(sick.clone()), expected);
    sick.status.state = ArrayState::ReadAuto;
    let auto = expected.replace(" (read-only)", " (auto-read-only)");
    assert_eq!(text(sick), auto);
}

#[test]
fn a_rebuild_with_spare_and_replacement_is_shown_to_its_end() {
    let mut array = snapshot(Level::Raid1, 0, 0, 2);
    let status = &mut array.status;
    status.size = Sectors(2 * 1_047_552);
    status.degraded = 1;
    status.members[1] = MemberStatus { in_sync: false, ..member(1, 2) };
    status.members.push(MemberStatus { replacement: true, in_sync: false, ..member(0, 3) });
    status.members.push(spare(4));
    array.progress = Progress {
        action: SyncAction::Recover,
        step: Step::Running(Run {
            done: Sectors(2 * 286_592),
            total: Sectors(2 * 1_047_552),
            speed_kib: 95_530,
            left: Some(Duration::from_secs(7)),
        }),
        ..IDLE
    };
    let bitmap = "bitmap: 0/1 pages [0KB], 65536KB chunk".to_owned();
    array.bitmap = Some(BitmapStatus { kind: BitmapKind::Classic, mdstat: bitmap });
    assert_eq!(
        text(array),
        "md0 : active raid1 e[4](S) d[3](R) c[2] a[0]\n      \
         1047552 blocks super 1.2 [2/1] [U_]\n      \
         [=====>...............]  recovery = 27.3% (286592/1047552) finish=0.1min speed=95530K/sec\n      \
         bitmap: 0/1 pages [0KB], 65536KB chunk\n\n"
    );
}

#[test]
fn each_action_has_its_word() {
    for (action, word) in [
        (SyncAction::Resync, "resync"),
        (SyncAction::Repair, "resync"),
        (SyncAction::Check, "check"),
        (SyncAction::Recover, "recovery"),
    ] {
        let mut array = snapshot(Level::Raid10, 0x102, 1024, 4);
        let run = Run { done: Sectors(8), total: Sectors(8 << 20), speed_kib: 4, left: None };
        array.progress = Progress { action, step: Step::Running(run), ..IDLE };
        let expected = format!(
            "\n      [>....................]  {word} =  0.0% (4/4194304) finish=0.0min speed=4K/sec\n      \n"
        );
        let all = text(array);
        assert!(all.ends_with(&expected), "{all}");
    }
}

#[test]
fn the_time_left_is_in_minutes_and_tenths() {
    for (seconds, expected) in [(0, "0.0"), (6, "0.1"), (59, "0.9"), (60, "1.0"), (4000, "66.6")] {
        let mut array = snapshot(Level::Raid1, 0, 0, 2);
        let left = Some(Duration::from_secs(seconds));
        let run = Run { done: Sectors(0), total: Sectors(8 << 20), speed_kib: 1, left };
        array.progress.step = Step::Running(run);
        let all = text(array);
        assert!(all.contains(&format!(" finish={expected}min speed=1K/sec\n")), "{all}");
    }
}

#[test]
fn an_array_that_waits_for_members_is_inactive() {
    let member = |number: u32| WaitingMember {
        path: format!("/disks/{number}"),
        number,
        data_offset: Sectors(2048),
        data_size: Sectors(2_093_056),
        write_mostly: number == 2,
    };
    let waiting = WaitingArray {
        name: ArrayName { number: 127, alias: Some("data".to_owned()) },
        uuid: uuid::Uuid::nil(),
        set_name: "host:data".to_owned(),
        version: Version::V1_2,
        level: Level::Raid1,
        raid_disks: 3,
        events: 17,
        members: vec![member(0), member(2)],
    };
    let name = |path: &str| path.strip_prefix("/disks/").map(|number| format!("sd{number}"));
    let text = mdstat::<fn(&MemberStatus) -> Option<String>>([], &[waiting], name);
    assert_eq!(
        text,
        "Personalities : [linear] [raid0] [raid1] [raid6] [raid5] [raid4] [raid10] \nmd127 : inactive sd2[2](W)(S) sd0[0](S)\n      \
         2093056 blocks super 1.2\n       \nunused devices: <none>"
    );
}
