//! Descriptions of arrays without disks, for the tests of texts.

use ashlar_block::Sectors;
use ashlar_md::ondisk::{Level, Timestamp, Version};
use ashlar_md::{ArrayState, ArrayStatus, MemberStatus, SyncAction};

use crate::progress::{Progress, Step};
use crate::snapshot::Snapshot;

/// Nothing runs or ran.
pub(crate) const IDLE: Progress = Progress {
    action: SyncAction::Idle,
    last: SyncAction::Idle,
    step: Step::None,
    paused: None,
    mismatches: Sectors::ZERO,
    busy: false,
};

/// A working member in a slot; its index is its number.
pub(crate) fn member(slot: usize, number: u32) -> MemberStatus {
    let letter = char::from(b'a' + number as u8);
    MemberStatus {
        index: Some(number),
        path: Some(letter.to_string()),
        in_sync: true,
        recovered: Sectors::MAX,
        data_offset: Sectors(2048),
        data_size: Sectors(4096),
        dev_number: number,
        ..MemberStatus::empty(slot)
    }
}

/// A spare.
pub(crate) fn spare(number: u32) -> MemberStatus {
    MemberStatus { slot: None, in_sync: false, recovered: Sectors::ZERO, ..member(0, number) }
}

/// A complete array, clean and idle.
pub(crate) fn snapshot(level: Level, layout: u32, chunk: u64, members: usize) -> Snapshot {
    let status = ArrayStatus {
        name: "md0".to_owned(),
        uuid: uuid::Uuid::from_u128(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff),
        set_name: "host:0".to_owned(),
        version: Version::V1_2,
        preferred_minor: None,
        level,
        layout,
        chunk: Sectors(chunk),
        raid_disks: members,
        degraded: 0,
        size: Sectors(4_186_112),
        used_dev_size: Sectors(2_093_056),
        state: ArrayState::Clean,
        unsynced: false,
        events: 17,
        bitmap_offset: None,
        reshape: None,
        has_ppl: false,
        ctime: Timestamp::from_seconds(1_000_000_000),
        utime: Timestamp::from_seconds(1_000_000_001),
        members: (0..members).map(|slot| member(slot, slot as u32)).collect(),
        notes: Vec::new(),
    };
    Snapshot { status, progress: IDLE, bitmap: None }
}
