//! Records as lines: blkparse's default format.

use std::collections::HashMap;

use ashlar_block::trace::Action;

use super::record::{Payload, Record};

/// The names of threads.
pub type Names = HashMap<u32, String>;

/// The line that blkparse prints for `record`, without a newline; times count from `start_ns`.
pub fn line(record: &Record, start_ns: u64, names: &Names) -> String {
    let time_ns = record.time_ns.saturating_sub(start_ns);
    let (seconds, nanoseconds) = (time_ns / 1_000_000_000, time_ns % 1_000_000_000);
    let Record { sequence, pid, thread, action, .. } = record;
    let header = format!(
        "{:3},{:<3} {thread:2} {sequence:8} {seconds:5}.{nanoseconds:09} {pid:5} {:>2} {:>3} ",
        record.device.major,
        record.device.minor,
        action.letter(),
        record.rwbs(),
    );
    header + &rest(record, names)
}

/// The part of the line that depends on the action.
fn rest(record: &Record, names: &Names) -> String {
    let Record { sector, error, .. } = record;
    let sectors = record.sectors();
    let name = names.get(&record.pid).map_or("(null)", String::as_str);
    // blkparse uses 32 bits.
    let number = match record.payload {
        Payload::Number(number) => number as u32,
        Payload::None | Payload::Remap { .. } => 0,
    };
    match record.action {
        Action::Complete | Action::Requeue if sectors == 0 => format!("{sector} [{error}]"),
        Action::Complete | Action::Requeue => format!("{sector} + {sectors} [{error}]"),
        Action::Plug => format!("[{name}]"),
        Action::Unplug => format!("[{name}] {number}"),
        Action::Split => format!("{sector} / {number} [{name}]"),
        Action::Remap => match record.payload {
            Payload::Remap { from, sector: above, .. } => {
                format!("{sector} + {sectors} <- ({},{}) {above}", from.major, from.minor)
            }
            Payload::None | Payload::Number(_) => format!("{sector} + {sectors}"),
        },
        Action::Queue
        | Action::GetRequest
        | Action::BackMerge
        | Action::FrontMerge
        | Action::Insert
        | Action::Issue => {
            if sectors == 0 {
                format!("[{name}]")
            } else {
                format!("{sector} + {sectors} [{name}]")
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::trace::categories::Categories;
    use ashlar_block::disk::DeviceNumber;

    /// A read of 4 KiB that is queued.
    pub(crate) fn record() -> Record {
        Record {
            sequence: 195,
            time_ns: 532_634,
            sector: 7_358_960,
            bytes: 4096,
            action: Action::Queue,
            categories: Categories::READ | Categories::QUEUE,
            pid: 1897,
            device: DeviceNumber { major: 259, minor: 0 },
            thread: 0,
            error: 0,
            payload: Payload::None,
        }
    }

    fn check(record: Record, expected: &str) {
        let names = Names::from([(1897, "cat".to_owned()), (1579, "cat".to_owned())]);
        assert_eq!(line(&record, 0, &names), expected);
    }

    #[test]
    fn lines_are_those_of_the_report_about_merges() {
        // Bug 1833319 at Launchpad: reads of an LVM snapshot, and of a linear volume.
        let remap = Payload::Remap {
            from: DeviceNumber { major: 253, minor: 0 },
            to: record().device,
            sector: 7_356_912,
        };
        let sum = Record { sector: 7_358_464, bytes: 512 * 512, ..record() };
        let at = |sequence, time_ns, action| Record { sequence, time_ns, action, ..record() };
        let of = |sequence, time_ns, action| Record { sequence, time_ns, action, ..sum };
        check(
            Record { payload: remap, ..at(194, 532_515, Action::Remap) },
            "259,0    0      194     0.000532515  1897  A   R 7358960 + 8 <- (253,0) 7356912",
        );
        check(
            at(195, 532_634, Action::Queue),
            "259,0    0      195     0.000532634  1897  Q   R 7358960 + 8 [cat]",
        );
        check(
            at(196, 532_810, Action::BackMerge),
            "259,0    0      196     0.000532810  1897  M   R 7358960 + 8 [cat]",
        );
        check(
            of(201, 534_586, Action::Insert),
            "259,0    0      201     0.000534586  1897  I   R 7358464 + 512 [cat]",
        );
        check(
            of(202, 537_055, Action::Issue),
            "259,0    0      202     0.000537055  1897  D   R 7358464 + 512 [cat]",
        );
        check(
            Record { pid: 0, ..of(203, 2_242_539, Action::Complete) },
            "259,0    0      203     0.002242539     0  C   R 7358464 + 512 [0]",
        );
        let linear = Record { sector: 280_576, bytes: 512 * 512, pid: 1579, thread: 1, ..record() };
        check(
            Record { sequence: 15, time_ns: 2_547_020, action: Action::GetRequest, ..linear },
            "259,0    1       15     0.002547020  1579  G   R 280576 + 512 [cat]",
        );
        check(
            Record {
                sequence: 16,
                time_ns: 2_547_631,
                action: Action::Unplug,
                sector: 0,
                bytes: 0,
                payload: Payload::Number(1),
                ..linear
            },
            "259,0    1       16     0.002547631  1579  U   N [cat] 1",
        );
        let categories = Categories::READ | Categories::SYNC;
        let time_ns = 2_551_381;
        check(
            Record { sequence: 18, time_ns, action: Action::Issue, categories, ..linear },
            "259,0    1       18     0.002551381  1579  D  RS 280576 + 512 [cat]",
        );
    }

    #[test]
    fn the_other_actions_look_as_in_blkparse() {
        let split = Record { payload: Payload::Number(7_358_968), ..record() };
        check(
            Record { action: Action::Split, ..split },
            "259,0    0      195     0.000532634  1897  X   R 7358960 / 7358968 [cat]",
        );
        check(
            Record { action: Action::Plug, bytes: 0, ..record() },
            "259,0    0      195     0.000532634  1897  P   N [cat]",
        );
        let failed = Record { error: (-5i16) as u16, ..record() };
        check(
            Record { action: Action::Complete, ..failed },
            "259,0    0      195     0.000532634  1897  C   R 7358960 + 8 [65531]",
        );
        let flush = Record {
            sector: 0,
            bytes: 0,
            categories: Categories::WRITE | Categories::FLUSH,
            pid: 1,
            ..record()
        };
        check(flush, "259,0    0      195     0.000532634     1  Q  FW [(null)]");
        check(
            Record { action: Action::Complete, time_ns: 12_000_000_001, ..flush },
            "259,0    0      195    12.000000001     1  C  FW 0 [0]",
        );
    }
}
