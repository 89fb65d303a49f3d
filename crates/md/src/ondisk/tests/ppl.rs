//! Partial parity logs, against areas that Linux 6.12 wrote: four members, chunks of 64 KiB, left-symmetric.

use ashlar_block::units::{Sector, Sectors};
use uuid::{Uuid, uuid};

use crate::ondisk::ppl::{Entry, HEADER, Log, LogError, MAX_ENTRIES, crc, newest, signature};

/// The array's UUID, and its logs' number of data chunks in a row.
const ARRAY: Uuid = uuid!("3bd2a2c1-0b86-28af-1836-2bafcc8e4236");
const DATA_DISKS: u32 = 3;
/// Logs of 4 KiB writes at sectors 8, 16, 152 and 136 of the array, whose rows have P on member 3.
const AREA_3: &[u8] = include_bytes!("../../../../../tests/images/md/ppl/area3.bin");
/// Logs of whole rows.
const AREA_0: &[u8] = include_bytes!("../../../../../tests/images/md/ppl/area0.bin");

fn at(area: &[u8], offset: usize) -> Log {
    Log::parse(&area[offset..], signature(ARRAY), DATA_DISKS).unwrap()
}

#[test]
fn the_signature_is_a_checksum_of_the_uuid() {
    assert_eq!(signature(Uuid::nil()), 0x4270_9aea);
    assert_eq!(signature(ARRAY), 0x695b_6e10);
}

#[test]
fn an_empty_header_is_linuxs() {
    let empty = Log { generation: 0, entries: Vec::new() };
    let bytes = empty.encode(signature(ARRAY));
    assert_eq!(bytes.len() as u64, HEADER.bytes());
    assert_eq!(bytes[532..536], 0x21ff_43e1_u32.to_le_bytes());
    assert_eq!(at(&bytes, 0), empty);
}

#[test]
fn logs_of_linux_are_read_and_written_byte_for_byte() {
    for (number, sector) in [8, 16, 152, 136].into_iter().enumerate() {
        let log = at(AREA_3, number * 8192);
        assert_eq!(log.generation, number as u64 + 1);
        let parity = &AREA_3[number * 8192 + 4096..][..4096];
        let entry = Entry {
            data_sector: Sector(sector),
            len: Sectors(8),
            chunks: 1,
            is_whole: false,
            parity_slot: 3,
            checksum: crc(parity),
        };
        assert_eq!(log.entries, [entry]);
        assert_eq!(log.encode(signature(ARRAY)), AREA_3[number * 8192..][..4096]);
    }
    for (number, sector) in [1152, 1216].into_iter().enumerate() {
        let log = at(AREA_0, number * 4096);
        let [entry] = log.entries[..] else { panic!("{log:?}") };
        assert_eq!((entry.data_sector, entry.len), (Sector(sector), Sectors(64)));
        assert!(entry.is_whole && entry.chunks == DATA_DISKS);
        assert_eq!(log.encode(signature(ARRAY)), AREA_0[number * 4096..][..4096]);
    }
}

#[test]
fn the_last_of_the_logs_that_follow_one_another_is_the_newest() {
    let found = |area: &[u8]| {
        newest(area, signature(ARRAY), DATA_DISKS).map(|(at, log)| (at.0, log.generation))
    };
    assert_eq!(found(AREA_3), Some((48, 4)));
    assert_eq!(found(AREA_0), Some((8, 6)));
    assert_eq!(found(&AREA_3[..20480]), Some((32, 3)));
    assert_eq!(found(&[0; 8192]), None);
    // The ring began again at its start.
    let mut area = AREA_3.to_vec();
    let again = Log { generation: 9, entries: at(&area, 0).entries };
    area[..4096].copy_from_slice(&again.encode(signature(ARRAY)));
    assert_eq!(found(&area), Some((0, 9)));
}

/// Linux bug B5: it reads the partial parity of such a log from behind the log.
#[test]
fn a_newest_log_at_the_end_of_the_area_is_found() {
    for behind in [0, 512, 3584, 4096] {
        let mut area = AREA_3.to_vec();
        area.resize(32768 + behind, 0);
        let found = newest(&area, signature(ARRAY), DATA_DISKS);
        assert_eq!(found.map(|(at, log)| (at.0, log.generation)), Some((48, 4)), "{behind}");
    }
}

#[test]
fn no_bytes_are_taken_for_a_log_that_is_none() {
    let parse = |bytes: &[u8]| Log::parse(bytes, signature(ARRAY), DATA_DISKS);
    assert_eq!(parse(&AREA_3[..4095]), Err(LogError::Truncated(4095)));
    assert_eq!(Log::parse(AREA_3, 1, DATA_DISKS), Err(LogError::Signature));
    for bit in 0..4096 * 8 {
        let mut bytes = AREA_3[..4096].to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(parse(&bytes), Err(LogError::Checksum), "{bit}");
    }
    let sealed = |change: &dyn Fn(&mut [u8])| {
        let mut bytes = AREA_3[..4096].to_vec();
        change(&mut bytes);
        bytes[532..536].fill(0);
        let sum = crc(&bytes).to_le_bytes();
        bytes[532..536].copy_from_slice(&sum);
        parse(&bytes)
    };
    let set = |at: usize, value: u32| {
        move |bytes: &mut [u8]| bytes[at..at + 4].copy_from_slice(&value.to_le_bytes())
    };
    assert_eq!(sealed(&set(528, 149)), Err(LogError::Entries(149)));
    assert_eq!(sealed(&set(528, u32::MAX)), Err(LogError::Entries(u32::MAX)));
    // The length of the partial parity, then of the data.
    for (offset, value) in
        [(544, 1), (544, 4095), (544, u32::MAX), (548, 0), (548, 4097), (548, u32::MAX)]
    {
        assert_eq!(sealed(&set(offset, value)), Err(LogError::Entry(0)), "{offset} {value}");
    }
    assert_eq!(at(AREA_3, 0).entries.len(), 1);
    assert_eq!(MAX_ENTRIES * 24 + 536, 4088);
}
