//! Rates, percentiles, orders, keys and screens, from made-up samples.

use ashlar_client::interface::front_ends::NbdClient;
use ashlar_client::interface::{
    ArraySample, DelaySample, DeviceSample, Job, JobKind, JobState, LimitSample, OperationSample,
    Sample, SnapshotSample,
};
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::{Color, Modifier};

use super::*;
use crate::columns::fitting;
use crate::head::Tone;
use crate::rates::{Latency, percentile};
use crate::screen::{Theme, draw};
use crate::view::{Outcome, View};

/// Ranges up to 16, 32, 64 us, and a last one.
const BOUNDS: [u64; 3] = [16, 32, 64];

fn operation(ios: u64, latencies: &[u64]) -> OperationSample {
    OperationSample { ios, merges: 0, bytes: ios * 4096, time_ns: 0, latencies: latencies.to_vec() }
}

fn device(name: &str, alias: Option<&str>, usage: &str, below: &[&str]) -> DeviceSample {
    DeviceSample {
        name: name.to_owned(),
        path: format!("/dev/{name}"),
        alias: alias.map(str::to_owned),
        kind: if below.is_empty() { "disk" } else { "md" }.to_owned(),
        usage: usage.to_owned(),
        below: below.iter().map(|name| (*name).to_owned()).collect(),
        size_bytes: 1 << 30,
        state: "answering".to_owned(),
        ..DeviceSample::default()
    }
}

/// Two disks below a degraded array that is under recovery, and a plain disk; `times` samples of one second each.
fn sample(times: u64) -> Sample {
    let mut devices = vec![
        device("d0", None, "member", &[]),
        device("d1", None, "member", &[]),
        device("d2", None, "volume", &[]),
        device("md0", Some("md/data"), "volume", &["d0", "d1"]),
    ];
    devices[0].write = operation(200 * times, &[0, 200 * times]);
    devices[0].write.merges = 50 * times;
    devices[0].busy_ns = 250_000_000 * times;
    devices[0].in_flight = 3;
    devices[3].read = operation(1000 * times, &[0, 0, 0, 1000 * times]);
    devices[3].clients.nbd_clients =
        vec![NbdClient { peer: "192.0.2.7".to_owned(), connections: 4 }];
    Sample {
        version: "0.1.0".to_owned(),
        io: "io_uring".to_owned(),
        now_ns: 5_000_000_000 + times * 1_000_000_000,
        uptime_ns: times * 1_000_000_000,
        latency_bounds_us: BOUNDS.to_vec(),
        threads: Vec::new(),
        limits: Default::default(),
        devices,
        arrays: vec![ArraySample {
            device: "md0".to_owned(),
            level: "raid1".to_owned(),
            state: "active".to_owned(),
            required: 2,
            active: 1,
            failed: 0,
            spare: 1,
            degraded: 1,
            unsynced: false,
            sync: None,
            members: Vec::new(),
        }],
        pools: Vec::new(),
        jobs: Some(vec![Job {
            name: "md0".to_owned(),
            alias: Some("md/data".to_owned()),
            kind: JobKind::Recover,
            state: JobState::Running,
            done_bytes: 250,
            total_bytes: 1000,
            bytes_per_second: Some(100 << 20),
            seconds_left: Some(75),
            actions: Vec::new(),
        }]),
    }
}

fn interval() -> Interval {
    Interval::between(&sample(1), &sample(2))
}

fn options() -> Options {
    Options { delay: Duration::from_secs(1), sort: Column::Device, filter: String::new() }
}

#[test]
fn a_percentile_lies_within_its_range() {
    let at = |counts: &[u64], share| percentile(counts, &BOUNDS, share);
    let us = |us| Some(Latency { us, is_over: false });
    assert_eq!(at(&[], 0.5), None);
    assert_eq!(at(&[0, 0, 0, 0], 0.5), None);
    assert_eq!(at(&[10], 0.5), us(8.0));
    assert_eq!(at(&[0, 10], 0.5), us(24.0));
    assert_eq!(at(&[0, 10], 1.0), us(32.0));
    // 50 of 100 are at the end of the first range, 99 of 100 in the third one.
    assert_eq!(at(&[50, 0, 50], 0.5), us(16.0));
    assert_eq!(at(&[50, 0, 50], 0.99), us(32.0 + 32.0 * 0.98));
    assert_eq!(at(&[99, 0, 0, 1], 0.99), us(16.0));
    assert_eq!(at(&[98, 0, 0, 2], 0.99), Some(Latency { us: 64.0, is_over: true }));
}

#[test]
fn percentiles_are_those_of_a_sorted_list() {
    // All ways to spread up to 4 operations over each of the ranges.
    for code in 0..625_u64 {
        let counts: Vec<u64> = (0..4).map(|place| code / 5_u64.pow(place) % 5).collect();
        let times = counts.iter().enumerate();
        let ranges: Vec<usize> =
            times.flat_map(|(range, count)| vec![range; *count as usize]).collect();
        for share in [0.5, 0.99] {
            let found = percentile(&counts, &BOUNDS, share);
            let rank = (ranges.len() as f64 * share).ceil() as usize;
            let Some(range) = rank.checked_sub(1).map(|index| ranges[index]) else {
                assert_eq!(found, None);
                continue;
            };
            let found = found.unwrap();
            let (lower, upper) = ([0, 16, 32, 64][range], BOUNDS.get(range));
            assert_eq!(found.is_over, upper.is_none(), "{counts:?} {share}");
            let upper = upper.map_or(lower as f64, |upper| *upper as f64);
            assert!((lower as f64..=upper).contains(&found.us), "{counts:?} {share}: {found:?}");
        }
    }
}

#[test]
fn rates_are_those_of_the_interval() {
    let interval = interval();
    let [d0, _, d2, md0] = &interval.devices[..] else { panic!("{interval:?}") };
    assert_eq!((d0.write.ios_per_second, d0.write.bytes_per_second), (200.0, 819_200.0));
    assert_eq!((d0.merged_percent, d0.busy_percent, d0.queue), (Some(20.0), 25.0, 3));
    assert_eq!(d0.write.p50, Some(Latency { us: 24.0, is_over: false }));
    assert_eq!(md0.read.p99, Some(Latency { us: 64.0, is_over: true }));
    assert_eq!((d2.read.p50, d2.merged_percent, d2.is_idle()), (None, None, true));
    assert!(!d0.is_idle() && interval.seconds == 1.0);
}

/// A sample in which the plain disk is a snapshot in this state, as full as this.
fn with_snapshots(all: &[(&str, f64)]) -> Sample {
    let mut sample = sample(1);
    for (index, (state, percent)) in all.iter().enumerate() {
        let mut snapshot = device(&format!("dm-{index}"), Some("vg/snap"), "volume", &[]);
        snapshot.snapshot = Some(SnapshotSample {
            origin: "vg/data".to_owned(),
            state: (*state).to_owned(),
            used_percent: Some(*percent),
            used_bytes: Some(1 << 20),
            size_bytes: 4 << 20,
        });
        sample.devices.push(snapshot);
    }
    sample
}

#[test]
fn each_snapshot_has_a_line_the_lost_and_the_fullest_first() {
    let lines = |all: &[(&str, f64)]| {
        let interval = Interval::between(&sample(0), &with_snapshots(all));
        let lines = crate::head::lines(&interval).into_iter();
        let all = lines.filter(|(_, line)| line.contains("snapshot"));
        all.map(|(tone, line)| (tone == Tone::Bad, line)).collect::<Vec<_>>()
    };
    let found = lines(&[("active", 79.99), ("invalid", 100.0), ("active", 80.0), ("merging", 9.0)]);
    let expected = [
        (true, "vg/snap: invalid, snapshot of vg/data, 100.00 % of 4M used"),
        (true, "vg/snap: snapshot of vg/data, 80.00 % of 4M used"),
        (false, "vg/snap: snapshot of vg/data, 79.99 % of 4M used"),
    ];
    assert_eq!(found, expected.map(|(bad, line)| (bad, line.to_owned())));
    let many = lines(&[("active", 90.0); 6]);
    assert_eq!(many.len(), 4);
    assert_eq!(many[3], (true, "and 3 more snapshots".to_owned()));
    let interval = Interval::between(&sample(0), &with_snapshots(&[("invalid", 100.0)]));
    assert_eq!(Column::Use.text(&interval.devices[4]), "invalid");
}

#[test]
fn each_volume_with_limits_has_a_line_the_one_with_the_most_waiting_first() {
    let mut after = sample(1);
    let limits = |wbps, riops, waiting| LimitSample {
        wbps,
        riops,
        write: DelaySample { waiting, ..DelaySample::default() },
        read: DelaySample { waiting, ..DelaySample::default() },
        ..LimitSample::default()
    };
    after.devices[2].limits = Some(limits(Some(1 << 20), None, 0));
    after.devices[3].limits = Some(limits(Some(5), Some(20), 3));
    // Its limits were taken away.
    after.devices[0].limits = Some(limits(None, None, 0));
    let lines = crate::head::lines(&Interval::between(&sample(0), &after));
    let found: Vec<_> = lines.into_iter().filter(|(_, line)| line.contains("limited")).collect();
    let expected = [
        "md/data: limited to wbps=5 riops=20; 6 requests wait",
        "d2: limited to wbps=1048576; 0 requests wait",
    ];
    assert_eq!(found, expected.map(|line| (Tone::Plain, line.to_owned())));
}

#[test]
fn a_device_that_is_new_or_another_one_counts_from_zero() {
    let (before, after) = (sample(3), sample(4));
    let mut without = sample(3);
    without.devices.clear();
    let all_of = |before: &Sample| Interval::between(before, &after).devices[3].read;
    assert_eq!(all_of(&without).ios_per_second, 4000.0);
    // The counters are smaller than before.
    assert_eq!(Interval::between(&sample(9), &before).devices[3].read.ios_per_second, 3000.0 * 1e9);
}

#[test]
fn columns_stand_in_their_order_and_have_names() {
    for (index, column) in Column::ALL.into_iter().enumerate() {
        assert_eq!(column as usize, index);
        assert_eq!(Column::named(column.key()), Some(column));
        assert_eq!(column.neighbour(true).neighbour(false), column);
    }
    assert_eq!(Column::named("colour"), None);
}

#[test]
fn narrow_terminals_have_the_columns_that_matter_and_no_line_is_too_long() {
    let mut before = Vec::new();
    for width in 0..200 {
        let columns = fitting(width, 10);
        let taken: usize = columns.iter().map(|(_, width)| width + 1).sum::<usize>() - 1;
        assert!(taken <= width || columns.len() == 1, "{width}: {columns:?}");
        assert!(before.iter().all(|column| columns.contains(column)), "{width}: {columns:?}");
        before = columns;
    }
    assert_eq!(before.len(), Column::ALL.len());
    let keys =
        |width| fitting(width, 10).iter().map(|(column, _)| column.key()).collect::<Vec<_>>();
    assert_eq!(keys(26), ["device", "reads", "writes"]);
    assert_eq!(
        keys(80),
        [
            "device",
            "kind",
            "reads",
            "writes",
            "read-bytes",
            "written-bytes",
            "queue",
            "read-p99",
            "write-p99",
            "busy"
        ]
    );
}

#[test]
fn every_column_sorts() {
    let mut interval = interval();
    let mut names = |sort: &str| {
        interval.arrange(&Options { sort: Column::named(sort).unwrap(), ..options() });
        interval.devices.iter().map(|device| device.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(names("device"), ["d0", "d1", "d2", "md0"]);
    assert_eq!(names("reads"), ["md0", "d0", "d1", "d2"]);
    assert_eq!(names("written-bytes"), ["d0", "d1", "d2", "md0"]);
    assert_eq!(names("read-p99"), ["md0", "d0", "d1", "d2"]);
    assert_eq!(names("use"), ["d0", "d1", "d2", "md0"]);
    assert_eq!(names("nbd"), ["md0", "d2", "d0", "d1"]);
    for column in Column::ALL {
        assert_eq!(names(column.key()).len(), 4);
    }
    let mut numbered = interval;
    for (device, name) in numbered.devices.iter_mut().zip(["d10", "d9", "d1", "c11"]) {
        (device.name, device.alias) = (name.to_owned(), None);
    }
    numbered.arrange(&options());
    let names: Vec<&str> = numbered.devices.iter().map(|device| device.name.as_str()).collect();
    assert_eq!(names, ["c11", "d1", "d9", "d10"]);
}

/// A view and its screen.
struct Tried {
    view: View,
    interval: Interval,
    terminal: Terminal<TestBackend>,
    height: usize,
    has_colours: bool,
}

impl Tried {
    fn new(width: u16, height: u16) -> Self {
        let terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        let mut tried = Self {
            view: View::new(&options()),
            interval: interval(),
            terminal,
            height: 0,
            has_colours: true,
        };
        tried.draw();
        tried
    }

    fn draw(&mut self) {
        let theme = Theme::new(self.has_colours);
        let (view, interval, height) = (&mut self.view, &self.interval, &mut self.height);
        let drawn = self.terminal.draw(|frame| {
            *height = draw(frame.buffer_mut(), view, Some(interval), theme);
        });
        drawn.unwrap();
    }

    fn key(&mut self, code: KeyCode) -> Outcome {
        self.press(KeyEvent::from(code))
    }

    fn press(&mut self, key: KeyEvent) -> Outcome {
        let outcome = self.view.key(key, Some(&self.interval), self.height);
        self.draw();
        outcome
    }

    fn keys(&mut self, text: &str) {
        for c in text.chars() {
            assert_ne!(self.key(KeyCode::Char(c)), Outcome::Quit);
        }
    }

    fn lines(&self) -> Vec<String> {
        let buffer = self.terminal.backend().buffer();
        let width = usize::from(buffer.area.width);
        let lines = buffer.content.chunks(width.max(1));
        let text = lines.map(|line| line.iter().map(|cell| cell.symbol()).collect::<String>());
        text.map(|line| line.trim_end().to_owned()).collect()
    }

    /// The first words of the lines of the table.
    fn names(&self) -> Vec<String> {
        let lines = self.lines();
        let begin = lines.iter().position(|line| line.starts_with("DEVICE")).unwrap() + 1;
        let rows = lines[begin..lines.len() - 1].iter().filter(|line| !line.is_empty());
        rows.map(|line| line.trim_start().split(' ').next().unwrap().to_owned()).collect()
    }

    /// The name of the selected device.
    fn selected(&self) -> String {
        let rows = self.view.rows(&self.interval.devices);
        let line = self.view.selected_line(&self.interval.devices, &rows).unwrap();
        self.interval.devices[rows[line].index].name.clone()
    }
}

#[test]
fn the_screen_has_the_daemon_its_defects_its_work_and_its_devices() {
    let tried = Tried::new(100, 12);
    let expected = [
        "ashlar 0.1.0, I/O by io_uring, up 0:02",
        "4 devices, 2 volumes: 1000 reads/s, 4.1 MB/s; 0 writes/s, 0 MB/s",
        "md/data: raid1, degraded, 1 of 2 members work",
        "md/data recovery [|||||||                  25.0%] 100M/s, 1:15 left",
        "DEVICE   KIND   READ/S WRITE/S RD-MB/S WR-MB/S FLUSH/S QUEUE RD-P50 RD-P99 WR-P50 WR-P99  BUSY",
        "d0       disk        0     200       0     0.8       0     3      -      -   24us   32us   25%",
        "d1       disk        0       0       0       0       0     0      -      -      -      -    0%",
        "d2       disk        0       0       0       0       0     0      -      -      -      -    0%",
        "md/data  md       1000       0     4.1       0       0     0  >64us  >64us      -      -    0%",
        "",
        "",
        "[1.0 s]  F10 Quit  F1 Help  F3 Search  F4 Filter  F5 Tree  F6 Sort  I Invert  0 Idle",
    ];
    assert_eq!(tried.lines(), expected);
    let cell = tried.terminal.backend().buffer().cell((0, 2)).unwrap();
    assert_eq!((cell.fg, cell.modifier), (Color::Red, Modifier::BOLD));
}

#[test]
fn on_a_small_terminal_nothing_is_cut_without_a_sign() {
    let mut tried = Tried::new(80, 24);
    let sample_at_start = sample(0);
    let mut sample = with_snapshots(&[("active", 27.88)]);
    let last = sample.devices.last_mut().unwrap();
    last.kind = "lvm".to_owned();
    last.alias = Some("vg/before-the-upgrade-of-2026".to_owned());
    last.snapshot.as_mut().unwrap().origin = "vg/home-of-all-the-users".to_owned();
    tried.interval = Interval::between(&sample_at_start, &sample);
    tried.draw();
    let lines = tried.lines();
    let at = lines.iter().position(|line| line.contains("snapshot of")).unwrap();
    let text = "vg/before-the-upgrade-of-2026: snapshot of vg/home-of-all-the-users, 27.88 %";
    assert_eq!(lines[at..at + 2], [text, "  of 4M used"]);
    assert!(lines.iter().any(|line| line.starts_with("vg/before-~e-of-2026 lvm")), "{lines:#?}");
    assert!(lines.iter().any(|line| line.contains("RD-P99")), "{lines:#?}");
    assert!(lines[23].ends_with("I Invert"), "no part of a label: {}", lines[23]);
}

#[test]
fn without_colours_there_are_none() {
    let mut tried = Tried::new(100, 12);
    let coloured = |tried: &Tried| {
        let cells = tried.terminal.backend().buffer().content.iter();
        cells.filter(|cell| (cell.fg, cell.bg) != (Color::Reset, Color::Reset)).count()
    };
    assert!(coloured(&tried) > 100);
    tried.has_colours = false;
    tried.draw();
    assert_eq!(coloured(&tried), 0);
}

#[test]
fn screens_of_every_size_are_drawn() {
    for width in 0..90 {
        for height in 0..14 {
            let mut tried = Tried::new(width, height);
            for code in [KeyCode::End, KeyCode::PageUp, KeyCode::F(1), KeyCode::F(4)] {
                tried.key(code);
            }
        }
    }
    let tried = Tried::new(30, 5);
    let lines = tried.lines();
    assert_eq!(lines[0], "DEVICE    READ/S WRITE/S", "the table comes before its head");
    assert_eq!(tried.names(), ["d0", "d1", "d2"]);
}

#[test]
fn keys_sort_invert_and_hide() {
    let mut tried = Tried::new(100, 12);
    tried.keys(">>>>>");
    assert_eq!((tried.view.sort, tried.names()[0].as_str()), (Column::Reads, "md/data"));
    tried.keys("I");
    assert_eq!(tried.names()[3], "md/data");
    tried.keys("<");
    tried.key(KeyCode::F(6));
    assert_eq!(tried.view.sort, Column::Reads);
    tried.keys("I0");
    assert_eq!(tried.names(), ["md/data", "d0"]);
}

#[test]
fn the_tree_has_members_below_their_array() {
    let mut tried = Tried::new(100, 12);
    tried.keys("t");
    assert_eq!(tried.names(), ["d2", "md/data", "d0", "d1"]);
    assert!(tried.lines().iter().any(|line| line.starts_with("  d0 ")), "{:?}", tried.lines());
    // One that says it is below itself is listed once, if at all.
    tried.interval.devices[1].below = vec!["md0".to_owned(), "d1".to_owned()];
    tried.draw();
    assert!(tried.names().len() <= 4);
}

#[test]
fn keys_select_and_the_selection_stays_with_its_device() {
    let mut tried = Tried::new(100, 8);
    assert_eq!((tried.height, tried.selected().as_str()), (3, "d0"));
    for (code, name) in [
        (KeyCode::Up, "d0"),
        (KeyCode::Down, "d1"),
        (KeyCode::PageDown, "md0"),
        (KeyCode::Down, "md0"),
        (KeyCode::PageUp, "d0"),
        (KeyCode::End, "md0"),
        (KeyCode::Home, "d0"),
    ] {
        tried.key(code);
        assert_eq!(tried.selected(), name, "{code:?}");
        let title = if name == "md0" { "md/data" } else { name };
        assert!(tried.names().contains(&title.to_owned()), "{code:?}: {:?}", tried.names());
    }
    tried.key(KeyCode::Down);
    tried.keys("I");
    assert_eq!(tried.selected(), "d1");
    // The device is gone.
    tried.interval.devices.remove(1);
    tried.draw();
    assert_eq!(tried.selected(), "d2");
}

#[test]
fn filters_and_searches_take_text() {
    let mut tried = Tried::new(100, 12);
    tried.keys("\\MD/q");
    assert_eq!(tried.names(), ["no"], "no device is shown");
    tried.key(KeyCode::Backspace);
    tried.key(KeyCode::Enter);
    assert_eq!(tried.names(), ["md/data"]);
    assert!(tried.lines().last().unwrap().contains("filter: MD/"));
    tried.key(KeyCode::Esc);
    assert_eq!(tried.names().len(), 4);
    tried.keys("/d");
    assert_eq!(tried.selected(), "d0");
    for name in ["d1", "d2", "md0", "d0"] {
        tried.key(KeyCode::F(3));
        assert_eq!(tried.selected(), name);
    }
    tried.keys("ata");
    assert_eq!(tried.selected(), "md0");
    tried.key(KeyCode::Esc);
    assert_eq!(tried.key(KeyCode::Char('q')), Outcome::Quit);
}

#[test]
fn keys_change_the_delay() {
    let mut tried = Tried::new(100, 12);
    let pace = |seconds| Outcome::Pace(Duration::from_secs_f64(seconds));
    assert_eq!(tried.key(KeyCode::Char('+')), pace(1.5));
    assert_eq!(tried.key(KeyCode::Char('-')), pace(1.0));
    tried.keys("d0.25");
    assert_eq!(tried.key(KeyCode::Enter), pace(0.3));
    tried.keys("d9999999");
    assert_eq!(tried.key(KeyCode::Enter), pace(3600.0));
    tried.keys("d-1");
    assert_eq!(tried.key(KeyCode::Enter), Outcome::Draw);
    tried.keys("d0");
    assert_eq!(tried.key(KeyCode::Enter), pace(0.1));
    tried.keys("d7");
    tried.key(KeyCode::Esc);
    assert_eq!(tried.view.delay, Duration::from_millis(100));
}

#[test]
fn every_way_to_quit_works_and_help_is_left_by_any_of_its_keys() {
    let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    // What a terminal sends for Esc and q at once.
    let alt_q = KeyEvent::new(KeyCode::Char('q'), KeyModifiers::ALT);
    let quits =
        [KeyEvent::from(KeyCode::Char('q')), KeyEvent::from(KeyCode::F(10)), control_c, alt_q];
    for key in quits {
        assert_eq!(Tried::new(80, 24).press(key), Outcome::Quit, "{key:?}");
    }
    let mut tried = Tried::new(80, 24);
    for leaves in [KeyCode::Char('h'), KeyCode::F(1), KeyCode::Esc] {
        tried.key(KeyCode::F(1));
        assert!(tried.lines().iter().any(|line| line.contains("F10 q  quit, as Ctrl-C")));
        let last = "requests under way, added up over the daemon's threads.";
        assert!(tried.lines().iter().any(|line| line == last), "the help fits");
        tried.key(leaves);
        assert!(!tried.view.has_help);
    }
    tried.keys("\\a");
    assert_eq!(tried.press(control_c), Outcome::Quit, "also while a line is typed");
    let mut tried = Tried::new(80, 24);
    tried.keys("/a");
    assert_eq!(tried.press(alt_q), Outcome::Quit, "the Esc ends the line");
}

#[test]
fn a_bar_is_full_only_at_the_end() {
    assert_eq!(crate::format::bar(0.0, 12), "[      0.0%]");
    assert_eq!(crate::format::bar(0.9999, 12), "[||||| 99.9%]".replace("| ", "|"));
    assert_eq!(crate::format::bar(1.0, 12), "[||||100.0%]");
}

#[test]
fn what_a_name_says_to_the_terminal_is_shown_and_not_done() {
    let mut tried = Tried::new(100, 12);
    tried.interval.devices[0].name = "a\u{1b}[31m\nb".to_owned();
    tried.draw();
    assert!(tried.names()[0].starts_with("a\\u{1b}[31m"), "{:?}", tried.names());
    let text = report::text(&tried.interval, &options());
    assert!(!text.contains('\u{1b}'), "{text:?}");
    assert_eq!(text.lines().count(), 9, "{text}");
}

#[test]
fn many_degraded_arrays_leave_room_for_the_table() {
    let mut tried = Tried::new(100, 20);
    let one = tried.interval.arrays[0].clone();
    tried.interval.arrays = vec![one; 9];
    tried.draw();
    let named = tried.lines().iter().filter(|line| line.contains("members work")).count();
    assert_eq!(named, 3);
    assert!(
        tried.lines().contains(&"and 6 more degraded arrays".to_owned()),
        "{:?}",
        tried.lines()
    );
}
