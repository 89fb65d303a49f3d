//! The sums of a picture against those of a naive reader that keeps all events.

use std::collections::BTreeSet;

use ashlar_block::trace::Action;

use super::*;
use crate::trace::{Categories, Payload, Record};

const DEVICE: DeviceNumber = DeviceNumber { major: 9, minor: 0 };

/// Numbers from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

fn record(action: Action, kind: usize, sector: u64, sectors: u32, time_ns: u64) -> Record {
    let categories = match kind {
        0 => Categories::READ,
        1 => Categories::WRITE,
        2 => Categories::WRITE | Categories::DISCARD,
        _ => Categories::WRITE | Categories::FLUSH,
    };
    Record {
        sequence: 0,
        time_ns,
        sector,
        bytes: sectors * 512,
        action,
        categories,
        pid: 1,
        device: DEVICE,
        thread: 0,
        error: 0,
        payload: Payload::None,
    }
}

/// A trace of I/O that does not overlap while it is under way, in the order of time; and how long each
/// took: from its arrival, to the driver, from there.
fn trace(random: &mut Random) -> (Vec<Record>, Vec<[u64; 3]>) {
    let (mut all, mut durations) = (Vec::new(), Vec::new());
    let (mut now_ns, count) = (1_000_000, 1 + random.below(60));
    let (gap_ns, spread) = (1 << random.below(24), 1 << random.below(30));
    for n in 0..count {
        now_ns += random.below(gap_ns) + 1;
        let kind = random.below(4) as usize;
        if kind == 3 {
            all.push(record(Action::Queue, 3, 0, 0, now_ns));
            continue;
        }
        // Of its own sectors, as a reader of events cannot tell two apart that are of the same.
        let sectors = 1 + random.below(64) as u32;
        let sector = (random.below(spread) * count + n) * 64;
        let [d, c] = [random.below(gap_ns) + 1, random.below(gap_ns) + 1];
        all.push(record(Action::Queue, kind, sector, sectors, now_ns));
        all.push(record(Action::Issue, kind, sector, sectors, now_ns + d));
        all.push(record(Action::Complete, kind, sector, sectors, now_ns + d + c));
        if random.below(3) == 0 {
            all.push(record(Action::BackMerge, kind, sector, sectors, now_ns));
        }
        durations.push([d + c, d, c]);
    }
    all.sort_by_key(|it| it.time_ns);
    for (sequence, it) in (1..).zip(&mut all) {
        it.sequence = sequence;
    }
    (all, durations)
}

fn check(random: &mut Random) {
    let (all, mut durations) = trace(random);
    let mut plot = Plot::new(vec![(DEVICE, "md0".to_owned())]);
    all.iter().for_each(|it| plot.add(it));
    let device = &plot.devices[0].1;
    let column = |it: &Record| ((it.time_ns - all[0].time_ns) >> plot.shift) as u16;
    let last = all.iter().map(column).max().unwrap();
    assert!(u64::from(last) < COLUMNS);
    assert!(
        plot.shift == NARROWEST || u64::from(last) >= COLUMNS / 2,
        "columns as narrow as possible"
    );
    let of = |at: u16, action| all.iter().filter(move |it| column(it) == at && it.action == action);
    let is =
        |it: &&Record, kind: usize| it.categories == record(it.action, kind, 0, 0, 0).categories;
    let (mut under_way, mut quiet) = ([0_u32; 2], Vec::new());
    for at in 0..=last {
        let mut most = under_way;
        for it in all.iter().filter(|it| column(it) == at && it.bytes > 0) {
            let changes = [
                (Action::Queue, [1, 0]),
                (Action::Issue, [0, 1]),
                (Action::Complete, [u32::MAX, u32::MAX]),
            ];
            for (_, by) in changes.iter().filter(|(action, _)| *action == it.action) {
                under_way = [0, 1].map(|which| under_way[which].wrapping_add(by[which]));
            }
            most = [0, 1].map(|which| most[which].max(under_way[which]));
        }
        let Some(found) = device.columns.get(&at) else {
            quiet.push(at);
            continue;
        };
        for kind in 0..3 {
            let done = || of(at, Action::Complete).filter(|it| is(it, kind));
            let bytes: u64 = done().map(|it| u64::from(it.bytes)).sum();
            let amount = found.done[kind];
            assert_eq!((amount.count, amount.bytes), (done().count() as u64, bytes));
        }
        assert_eq!(found.flushes, of(at, Action::Queue).filter(|it| is(it, 3)).count() as u64);
        assert_eq!(found.merges, of(at, Action::BackMerge).count() as u64);
        assert_eq!(found.depths.map(|depth| depth.most), most);
        assert_eq!(found.depths.map(|depth| depth.last), under_way);
    }
    assert!(quiet.iter().all(|at| all.iter().all(|it| column(it) != *at)));
    // Where it was, and when.
    let row = device.marks.row_sectors();
    let mut wanted: [BTreeSet<(u64, u16)>; 3] = Default::default();
    for it in all.iter().filter(|it| it.action == Action::Queue && it.bytes > 0) {
        let kind = (0..3).find(|kind| is(&it, *kind)).unwrap();
        let end = it.sector + u64::from(it.sectors());
        wanted[kind].extend((it.sector / row..end.div_ceil(row)).map(|at| (at, column(it))));
    }
    let base = device.marks.range().map_or(0, |(first, _)| first / row);
    let rows = wanted.iter().flatten().map(|(at, _)| at - base);
    assert!(rows.max().unwrap_or(0) < marks::ROWS);
    for (kind, wanted) in wanted.iter().enumerate() {
        let runs = device.marks.runs(kind);
        let cells = runs.iter().flat_map(|(at, from, count)| {
            (*from..from + count).map(move |column| (at + base, column))
        });
        let cells: Vec<_> = cells.collect();
        assert!(cells.iter().eq(wanted), "{kind}");
    }
    // How long it took.
    let parts = &device.parts;
    for (which, found) in [&parts.q2c, &parts.q2d, &parts.d2c].into_iter().enumerate() {
        durations.sort_by_key(|it| it[which]);
        assert_eq!(found.count(), durations.len() as u64);
        let sum: u64 = durations.iter().map(|it| it[which]).sum();
        assert_eq!(found.mean_ns(), sum.checked_div(durations.len() as u64).unwrap_or(0));
        let longest = durations.last().map_or(0, |it| it[which]);
        assert_eq!((found.max_ns(), found.quantile_ns(1000)), (longest, longest));
    }
    let in_columns = device.columns.values().filter_map(|column| column.q2c.as_ref());
    assert_eq!(in_columns.map(latency::Latencies::count).sum::<u64>(), durations.len() as u64);
}

#[test]
fn columns_rows_and_durations_are_those_of_a_naive_reader() {
    for seed in 0..400 {
        check(&mut Random(seed));
    }
}

#[test]
fn a_long_trace_makes_a_picture_of_bounded_size() {
    let mut random = Random(7);
    let devices = (0..20).map(|minor| (DeviceNumber { major: 9, minor }, format!("d{minor}")));
    let mut plot = Plot::new(devices.collect());
    for n in 0..200_000_u64 {
        let device = DeviceNumber { major: 9, minor: (n % 20) as u32 };
        let kind = random.below(2) as usize;
        let it = record(Action::Queue, kind, random.below(1 << 40), 8, n * 1000);
        plot.add(&Record { device, ..it });
        plot.add(&Record { device, action: Action::Complete, time_ns: n * 1000 + 500, ..it });
    }
    assert_eq!(plot.devices.len(), DEVICES_MAX);
    let size = plot.svg(&[]).len();
    assert!(size < 150_000 * DEVICES_MAX, "{size}");
    assert!(plot.svg(&[]).contains(", 8 more devices"));
    assert!(plot.page(&[], &[]).contains("<td class=\"name\">d19 (9:19)</td>"));
}

#[test]
fn a_device_is_below_those_that_send_it_io() {
    let number = |minor| DeviceNumber { major: 9, minor };
    let names = [(0, "low"), (1, "middle"), (2, "high"), (3, "other")];
    let names = names.map(|(minor, name)| (number(minor), name.to_owned()));
    let mut plot = Plot::new(names.to_vec());
    for (from, to) in [(2, 1), (1, 0), (2, 0), (0, 0)] {
        let (from, to) = (number(from), number(to));
        let payload = Payload::Remap { from, to, sector: 0 };
        plot.add(&Record { device: to, payload, ..record(Action::Remap, 0, 0, 8, 5) });
    }
    let order: Vec<_> = plot.layers().iter().map(|(_, device)| device.name.clone()).collect();
    assert_eq!(order, ["high", "other", "middle", "low"]);
    let tree = |plot: &Plot| -> Vec<String> {
        let branch = |it: &Branch| {
            let untraced: Vec<_> = it.untraced.iter().map(ToString::to_string).collect();
            format!("{}{} {untraced:?}", " ".repeat(it.depth), plot.devices[it.index].1.name)
        };
        plot.tree().iter().map(branch).collect()
    };
    let low = ["high []", " low []", " middle []", "  low []", "other []"];
    assert_eq!(tree(&plot), low);
    // One of a device that is not traced.
    let payload = Payload::Remap { from: number(9), to: number(3), sector: 0 };
    plot.add(&Record { device: number(3), payload, ..record(Action::Remap, 0, 0, 8, 5) });
    assert_eq!(tree(&plot)[4], "other [\"9:9\"]");
    // Even if each says that the other is above.
    let payload = Payload::Remap { from: number(0), to: number(2), sector: 0 };
    plot.add(&Record { device: number(2), payload, ..record(Action::Remap, 0, 0, 8, 5) });
    assert_eq!(plot.layers().len(), 4);
    let all: BTreeSet<usize> = plot.tree().iter().map(|branch| branch.index).collect();
    assert_eq!(all.len(), 4);
}

#[test]
fn lost_events_are_no_latencies() {
    let mut plot = Plot::new(vec![(DEVICE, "d".to_owned())]);
    let events = [(Action::Queue, 1, 10), (Action::Queue, 3, 1000), (Action::Complete, 4, 1010)];
    for (action, sequence, time_ns) in events {
        plot.add(&Record { sequence, ..record(action, 0, 8, 8, time_ns) });
    }
    let found = &plot.devices[0].1.parts.q2c;
    assert_eq!((found.count(), found.max_ns()), (1, 10));
    assert!(plot.svg(&[]).contains(", 1 events lost"));
}

#[test]
fn the_heading_says_what_the_reader_needs() {
    let mut plot = Plot::new(vec![(DEVICE, "md0".to_owned())]);
    for (n, time_ns) in (0..1000).zip((10..).step_by(100)) {
        plot.add(&record(Action::Queue, 0, 8 * n, 8, time_ns));
        plot.add(&record(Action::Complete, 0, 8 * n, 8, time_ns + 1000 * n));
    }
    let facts = [("Date", "2026-11-24 08:27:45 UTC".to_owned()), ("Host", "nas".to_owned())];
    for text in [plot.svg(&facts), plot.page(&facts, &[])] {
        for (name, value) in &facts {
            assert!(text.contains(&format!(">{name}</text>")), "{text}");
            assert!(text.contains(&format!(">{value}</text>")), "{text}");
        }
        for part in [
            ">I/O of md0</text>",
            ">md0 (9:0)</text>",
            ">1.1 ms, 2,000 events</text>",
            "time since the first event, ms<",
            "in steps of 8.19 \u{b5}s.<",
            ">p99.9</text>",
            ">1,000</text>",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
    // A percentile is a number of the table, and not a line over the marks.
    assert!(!plot.svg(&[]).contains("late p99"));
}

#[test]
fn names_and_empty_traces_do_no_harm() {
    let name = "<script>&\"'\u{1}".to_owned();
    let plot = Plot::new(vec![(DEVICE, name.clone())]);
    let row = FileRow { name: name.clone(), count: 1, read_bytes: 2, written_bytes: 3 };
    let facts = [("Command", name)];
    for text in [plot.svg(&facts), plot.page(&facts, &[row])] {
        assert!(!text.contains("<script") && !text.contains('\u{1}'), "{text}");
        assert!(text.contains("&lt;script&gt;&amp;&quot;&#39;\u{fffd}"), "{text}");
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        let outside = text.matches("http").count();
        assert_eq!(outside, 1, "only the name space");
    }
}
