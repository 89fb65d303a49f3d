//! The tables: ours, and those of the pull request that brought blk-mq to zvols.

use serde::Serialize;

use super::load::Way;

/// A row of a table, ours or the pull request's.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Row {
    /// `use_blk_mq`
    pub(super) queue: bool,
    /// Size of a bio, bytes; in the pull request 1 MiB is `O_DIRECT`, 4 KiB is buffered.
    pub(super) bio_bytes: u64,
    pub(super) megabytes_per_second: f64,
    pub(super) seconds: f64,
    /// Processor time of all processes.
    pub(super) system_seconds: f64,
    pub(super) user_seconds: f64,
    /// For writes: until all data are on the disks.
    pub(super) synced_seconds: Option<f64>,
}

/// Size of the bio that the page cache makes of a page, bytes.
pub(super) const SMALL: u64 = 4 << 10;
/// Size of a bio of `dd bs=1M` with `O_DIRECT`, bytes.
pub(super) const LARGE: u64 = 1 << 20;

impl Row {
    const fn seed(queue: bool, bio_bytes: u64, figures: [f64; 4]) -> Self {
        let [megabytes_per_second, seconds, system_seconds, user_seconds] = figures;
        Self {
            queue,
            bio_bytes,
            megabytes_per_second,
            seconds,
            system_seconds,
            user_seconds,
            synced_seconds: None,
        }
    }
}

/// A table of the pull request (OpenZFS #12664, October 2021); missing figures are NaN.
pub(super) struct Seed {
    machine: &'static str,
    way: Way,
    rows: [Row; 4],
}

/// The tables of both machines.
pub(super) const SEED: [Seed; 4] = [
    Seed {
        machine: FAST,
        way: Way::Write,
        rows: [
            Row::seed(false, SMALL, [862.0, 95.0, 62.8, 62.8]),
            Row::seed(false, LARGE, [6080.0, 13.5, 31.0, 31.0]),
            Row::seed(true, SMALL, [3037.0, 27.0, 74.0, 74.0]),
            Row::seed(true, LARGE, [6463.0, 12.7, 23.9, f64::NAN]),
        ],
    },
    Seed {
        machine: FAST,
        way: Way::Read,
        rows: [
            Row::seed(false, SMALL, [7294.0, 11.2, 49.3, 49.3]),
            Row::seed(false, LARGE, [10889.0, 7.6, 4.3, 4.3]),
            Row::seed(true, SMALL, [9011.0, 9.1, 42.8, 42.8]),
            Row::seed(true, LARGE, [13260.0, 6.2, 3.1, 3.1]),
        ],
    },
    Seed {
        machine: SLOW,
        way: Way::Write,
        rows: [
            Row::seed(false, SMALL, [1222.0, 134.2, 163.8, 163.8]),
            Row::seed(false, LARGE, [3219.0, 50.9, 32.6, 32.6]),
            Row::seed(true, SMALL, [2837.0, 57.7, 201.3, 201.3]),
            Row::seed(true, LARGE, [3196.0, 51.3, 26.8, 26.8]),
        ],
    },
    Seed {
        machine: SLOW,
        way: Way::Read,
        rows: [
            Row::seed(false, SMALL, [3180.0, 51.5, 95.2, 95.2]),
            Row::seed(false, LARGE, [3539.0, 46.3, 6.7, 6.7]),
            Row::seed(true, SMALL, [3627.0, 45.2, 70.2, 70.2]),
            Row::seed(true, LARGE, [3779.0, 43.4, 5.6, 5.6]),
        ],
    },
];
const FAST: &str = "16 processors, 8 NVMe drives in 4 mirrors";
const SLOW: &str = "32 processors, 60 SAS disks in 6 raidz2 of 10";

/// The tables of the pull request.
pub(super) fn seed() -> String {
    let mut text =
        "OpenZFS #12664, October 2021: parallel dd, volblocksize 1M, compression off; buffered (not O_DIRECT) and O_DIRECT\n"
            .to_owned();
    for Seed { machine, way, rows } in &SEED {
        text += &heading(&format!("{}, {machine}", way.name()), false);
        text += &body(rows);
    }
    text
}

/// The heading above the rows.
pub(super) fn heading(title: &str, is_synced: bool) -> String {
    let synced = if is_synced { "  on the disks" } else { "" };
    format!(
        "\n{title}\n  {:<28} {:>8} {:>8} {:>8} {:>8}{synced}\n",
        "", "MB/s", "elapsed", "system", "user"
    )
}

/// The rows, and the queue's gain.
pub(super) fn body(rows: &[Row]) -> String {
    let mut text = String::new();
    for row in rows {
        let kind = if row.bio_bytes == LARGE { "bios of 1 MiB" } else { "bios of 4 KiB" };
        let name = format!("queue {}, {kind}", if row.queue { "on" } else { "off" });
        let number = |value: f64, width: usize, digits: usize| {
            if value.is_nan() {
                format!("{:>width$}", "")
            } else {
                format!("{value:>width$.digits$}")
            }
        };
        text += &format!(
            "  {name:<28} {} {} {} {}{}\n",
            number(row.megabytes_per_second, 8, 0),
            number(row.seconds, 8, 2),
            number(row.system_seconds, 8, 2),
            number(row.user_seconds, 8, 2),
            row.synced_seconds.map_or_else(String::new, |seconds| number(seconds, 14, 2)),
        );
    }
    for (kind, bio_bytes) in [("4 KiB", SMALL), ("1 MiB", LARGE)] {
        if let Some(gain) = gain(rows, bio_bytes) {
            text += &format!("  with the queue on, bios of {kind}: {gain:.2} times the rate\n");
        }
    }
    text
}

/// The rate with the queue on divided by the rate with the queue off.
pub(super) fn gain(rows: &[Row], bio_bytes: u64) -> Option<f64> {
    let rate = |queue| {
        let row = rows.iter().find(|row| row.queue == queue && row.bio_bytes == bio_bytes)?;
        Some(row.megabytes_per_second)
    };
    Some(rate(true)? / rate(false)?)
}

/// The median.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// A size as ZFS writes it.
pub(super) fn size(bytes: u64) -> String {
    match bytes {
        _ if bytes.is_multiple_of(1 << 20) => format!("{}M", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{}K", bytes >> 10),
        _ => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gains_are_those_that_the_pull_request_prints() {
        let printed = [252, 6, 24, 22, 132, -1, 14, 7];
        let gains = SEED.iter().flat_map(|seed| [SMALL, LARGE].map(|bio| gain(&seed.rows, bio)));
        let percent = gains.map(|gain| ((gain.unwrap() - 1.0) * 100.0).round() as i64);
        assert!(percent.eq(printed), "the tables are copied wrongly");
    }

    #[test]
    fn sizes_are_short() {
        assert_eq!([512, 8 << 10, 1 << 20].map(size), ["512", "8K", "1M"]);
    }
}
