//! The page of a made-up daemon, and what users are given to read it with: the manual and the dashboard.

use std::collections::{BTreeMap, BTreeSet};

use ashlar_client::interface::front_ends::{ConnectionLimits, ThreadConnections};
use ashlar_client::interface::{
    ArraySample, DeviceSample, Job, JobAction, JobKind, JobState, PoolStatus, SnapshotSample,
    ThreadSample,
};
use prometheus_client::metrics::MetricType;

use super::*;

const MANUAL: &str = include_str!("../../../../docs/metrics.md");
const DASHBOARD: &str = include_str!("../../../../docs/grafana/ashlar.json");
const RULES: &str = include_str!("../../../../docs/prometheus/ashlar.rules.yml");

/// A page with all metrics.
fn page() -> Page {
    let job = Job {
        name: "md0".to_owned(),
        alias: None,
        kind: JobKind::Recover,
        state: JobState::Running,
        done_bytes: 1024,
        total_bytes: 4096,
        bytes_per_second: Some(512),
        seconds_left: Some(6),
        actions: vec![JobAction::Pause],
    };
    let pool = PoolStatus {
        name: "tank".to_owned(),
        pid: 1,
        release: "2.3.2".to_owned(),
        ended: Some("by a signal".to_owned()),
    };
    let snapshot = SnapshotSample {
        origin: "vg/data".to_owned(),
        state: "active".to_owned(),
        used_percent: Some(25.0),
        used_bytes: Some(1 << 20),
        size_bytes: 4 << 20,
    };
    let snapshot = DeviceSample { snapshot: Some(snapshot), ..device::tests::sample("a\"b\\c\nd") };
    Page(Sample {
        version: "0".to_owned(),
        io: "io_uring".to_owned(),
        now_ns: 1,
        uptime_ns: 2,
        latency_bounds_us: Sample::bounds_us(),
        threads: vec![ThreadSample {
            name: "ashlar-0".to_owned(),
            connections: ThreadConnections { nbd_connections: 3 },
        }],
        limits: ConnectionLimits { nbd_connections_limit: Some(256) },
        devices: vec![device::tests::sample("md0"), snapshot],
        arrays: vec![array::tests::recovering()],
        pools: vec![pool],
        jobs: Some(vec![job]),
    })
}

fn text_of(page: Page) -> String {
    page::text(page).unwrap()
}

/// The values of a page, by the name and labels as they are written.
fn samples(text: &str) -> BTreeMap<&str, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let pairs = lines.map(|line| line.rsplit_once(' ').unwrap());
    let all: Vec<_> = pairs.map(|(name, value)| (name, value.parse().unwrap())).collect();
    let map: BTreeMap<_, _> = all.iter().copied().collect();
    assert_eq!(map.len(), all.len(), "no sample comes twice");
    map
}

/// A metric: its name, type and help.
type Metric = (&'static str, &'static str, &'static str);

fn rows<T: page::Subject>() -> impl Iterator<Item = Metric> {
    T::ROWS.iter().map(|row| (row.name, row.kind.as_str(), row.help))
}

fn metrics() -> Vec<Metric> {
    rows::<Build>()
        .chain(rows::<Backend>())
        .chain(rows::<ThreadSample>())
        .chain(rows::<ConnectionLimits>())
        .chain(rows::<DeviceInfo>())
        .chain(rows::<DeviceSample>())
        .chain(rows::<LimitOf>())
        .chain(rows::<SnapshotOf>())
        .chain(rows::<ArraySample>())
        .chain(rows::<MemberOf>())
        .chain(rows::<PoolStatus>())
        .chain(rows::<Job>())
        .chain(rows::<JobsListed>())
        .collect()
}

#[test]
fn a_page_has_every_metric_once_with_help_and_type_before_its_samples() {
    let text = text_of(page());
    let mut expected = Vec::new();
    for (name, kind, help) in metrics() {
        expected.push(format!("# HELP {name} {help}"));
        expected.push(format!("# TYPE {name} {kind}"));
    }
    let comments: Vec<&str> = text.lines().filter(|line| line.starts_with('#')).collect();
    assert_eq!(comments, expected);
    let mut current = "";
    for line in text.lines() {
        match line.strip_prefix("# TYPE ") {
            Some(rest) => current = rest.split(' ').next().unwrap(),
            None => assert!(line.starts_with('#') || line.starts_with(current), "{line}"),
        }
    }
    assert!(text.ends_with('\n'));
}

#[test]
fn names_follow_the_conventions() {
    for (name, kind, help) in metrics() {
        assert!(name.starts_with("ashlar_") && help.ends_with('.'), "{name}: {help}");
        assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{name}");
        let is_counter = kind == MetricType::Counter.as_str();
        assert_eq!(name.ends_with("_total"), is_counter, "{name}");
        let is_histogram = kind == MetricType::Histogram.as_str();
        assert_eq!(name.ends_with("_duration_seconds"), is_histogram, "{name}");
    }
}

#[test]
fn values_are_in_seconds_and_bytes() {
    let text = text_of(page());
    let samples = samples(&text);
    let version = format!("ashlar_build_info{{version=\"{}\"}}", env!("CARGO_PKG_VERSION"));
    let cases = [
        (version.as_str(), 1.0),
        ("ashlar_io_backend{backend=\"io_uring\"}", 1.0),
        ("ashlar_nbd_connections{thread=\"ashlar-0\"}", 3.0),
        ("ashlar_nbd_connections_limit", 256.0),
        ("ashlar_nbd_export_connections{device=\"md0\"}", 5.0),
        ("ashlar_vhost_user_connections{device=\"md0\"}", 1.0),
        (
            "ashlar_device_info{device=\"md0\",path=\"/dev/md0\",alias=\"md/data\",type=\"md\",use=\"volume\"}",
            1.0,
        ),
        ("ashlar_device_size_bytes{device=\"md0\"}", 1_099_511_627_776.0),
        ("ashlar_device_state{device=\"md0\",state=\"answering\"}", 0.0),
        ("ashlar_device_state{device=\"md0\",state=\"silent\"}", 1.0),
        ("ashlar_disk_reads_completed_total{device=\"md0\"}", 10.0),
        ("ashlar_disk_reads_merged_total{device=\"md0\"}", 11.0),
        ("ashlar_disk_read_bytes_total{device=\"md0\"}", 12.0 * 512.0),
        ("ashlar_disk_read_time_seconds_total{device=\"md0\"}", 3.25),
        ("ashlar_disk_written_bytes_total{device=\"md0\"}", 22.0 * 512.0),
        ("ashlar_disk_discarded_bytes_total{device=\"md0\"}", 32.0 * 512.0),
        ("ashlar_disk_flush_requests_total{device=\"md0\"}", 40.0),
        ("ashlar_disk_io_errors_total{device=\"md0\"}", 9.0),
        ("ashlar_disk_io_now{device=\"md0\"}", 4.0),
        ("ashlar_disk_io_time_seconds_total{device=\"md0\"}", 1.5),
        // One is below 16 us, three up to 4.2 s, six in all.
        ("ashlar_disk_read_duration_seconds_bucket{le=\"0.000016\",device=\"md0\"}", 1.0),
        ("ashlar_disk_read_duration_seconds_bucket{le=\"1.048576\",device=\"md0\"}", 1.0),
        ("ashlar_disk_read_duration_seconds_bucket{le=\"4.194304\",device=\"md0\"}", 3.0),
        ("ashlar_disk_read_duration_seconds_bucket{le=\"+Inf\",device=\"md0\"}", 6.0),
        ("ashlar_disk_read_duration_seconds_count{device=\"md0\"}", 6.0),
        ("ashlar_disk_read_duration_seconds_sum{device=\"md0\"}", 3.25),
        ("ashlar_disk_io_now{device=\"a\\\"b\\\\c\\nd\"}", 4.0),
        (
            "ashlar_snapshot_state{device=\"a\\\"b\\\\c\\nd\",origin=\"vg/data\",state=\"active\"}",
            1.0,
        ),
        ("ashlar_snapshot_used_bytes{device=\"a\\\"b\\\\c\\nd\",origin=\"vg/data\"}", 1_048_576.0),
        ("ashlar_limit_bytes_per_second{device=\"md0\",direction=\"write\"}", 2000.0),
        ("ashlar_limit_requests_per_second{device=\"md0\",direction=\"read\"}", 30.0),
        ("ashlar_limit_waiting_requests{device=\"md0\",direction=\"read\"}", 5.0),
        ("ashlar_limited_requests_total{device=\"md0\",direction=\"write\"}", 9.0),
        ("ashlar_limited_seconds_total{device=\"md0\",direction=\"read\"}", 7.5),
        ("ashlar_md_state{device=\"md0\",level=\"raid1\",state=\"active\"}", 1.0),
        ("ashlar_md_disks{device=\"md0\",level=\"raid1\",state=\"failed\"}", 1.0),
        ("ashlar_md_disks_required{device=\"md0\",level=\"raid1\"}", 2.0),
        ("ashlar_md_degraded{device=\"md0\",level=\"raid1\"}", 1.0),
        ("ashlar_md_sync_action{device=\"md0\",level=\"raid1\",action=\"recover\"}", 1.0),
        ("ashlar_md_sync_action{device=\"md0\",level=\"raid1\",action=\"idle\"}", 0.0),
        ("ashlar_md_sync_completed_bytes{device=\"md0\",level=\"raid1\"}", 1024.0),
        ("ashlar_md_sync_size_bytes{device=\"md0\",level=\"raid1\"}", 4096.0),
        ("ashlar_md_mismatched_bytes{device=\"md0\",level=\"raid1\"}", 1536.0),
        ("ashlar_md_member_state{device=\"md0\",member=\"sda\",state=\"spare\"}", 1.0),
        ("ashlar_md_member_read_errors_total{device=\"md0\",member=\"sda\"}", 5.0),
        ("ashlar_md_member_corrected_bytes_total{device=\"md0\",member=\"sda\"}", 3072.0),
        ("ashlar_zfs_pool_up{pool=\"tank\",release=\"2.3.2\"}", 0.0),
        ("ashlar_job_state{name=\"md0\",kind=\"recovery\",state=\"running\"}", 1.0),
        ("ashlar_job_progress_ratio{name=\"md0\",kind=\"recovery\"}", 0.25),
        ("ashlar_job_bytes_per_second{name=\"md0\",kind=\"recovery\"}", 512.0),
        ("ashlar_job_remaining_seconds{name=\"md0\",kind=\"recovery\"}", 6.0),
        ("ashlar_scrape_collector_success{collector=\"jobs\"}", 1.0),
    ];
    for (name, value) in cases {
        assert_eq!(samples.get(name), Some(&value), "{name}\n{text}");
    }
    let unlimited = "ashlar_limit_requests_per_second{device=\"md0\",direction=\"write\"}";
    assert_eq!(samples.get(unlimited), None);
}

#[test]
fn what_does_not_apply_is_left_out() {
    let empty = Sample {
        threads: Vec::new(),
        limits: ConnectionLimits::default(),
        devices: Vec::new(),
        arrays: Vec::new(),
        pools: Vec::new(),
        jobs: None,
        ..page().0
    };
    let text = text_of(Page(empty));
    let names: Vec<&str> = samples(&text).into_keys().collect();
    assert_eq!(names.len(), 3, "{names:?}");
    assert!(text.contains("\nashlar_scrape_collector_success{collector=\"jobs\"} 0\n"), "{text}");
}

#[test]
fn the_manual_lists_every_metric_with_its_labels() {
    let text = text_of(page());
    let labels = |name: &str| {
        let start = ["{", "_sum{", " "].map(|end| format!("{name}{end}"));
        let line = text.lines().find(|line| start.iter().any(|start| line.starts_with(start)));
        let Some((_, rest)) = line.unwrap().split_once('{') else { return String::new() };
        // No value has a comma.
        let (labels, _) = rest.rsplit_once('}').unwrap();
        let names = labels.split(',').map(|label| label.split('=').next().unwrap());
        names.collect::<Vec<_>>().join(", ")
    };
    let rows = metrics().into_iter().map(|(name, kind, help)| {
        format!("| `{name}` | {kind} | {} | {} |", labels(name), help.trim_end_matches('.'))
    });
    let listed: Vec<&str> = MANUAL.lines().filter(|line| line.starts_with("| `")).collect();
    assert_eq!(listed, rows.collect::<Vec<_>>());
}

/// All values of a key, at any depth.
fn values<'a>(json: &'a Value, key: &str, found: &mut Vec<&'a Value>) {
    match json {
        Value::Object(map) => {
            found.extend(map.get(key));
            map.values().for_each(|value| values(value, key, found));
        }
        Value::Array(all) => all.iter().for_each(|value| values(value, key, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The names of metrics in a text, all of which must exist.
fn known_names(text: &str) -> BTreeSet<&str> {
    let mut known = BTreeSet::new();
    for (name, kind, _) in metrics() {
        if kind == MetricType::Histogram.as_str() {
            known.extend(["bucket", "sum", "count"].map(|suffix| format!("{name}_{suffix}")));
        } else {
            known.insert(name.to_owned());
        }
    }
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let names: BTreeSet<&str> = words.filter(|word| word.starts_with("ashlar_")).collect();
    for name in &names {
        assert!(known.contains(*name), "{name} in {text}");
    }
    names
}

#[test]
fn the_dashboard_asks_for_metrics_that_exist() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let (mut queries, mut variables) = (Vec::new(), Vec::new());
    values(&dashboard["panels"], "expr", &mut queries);
    values(&dashboard["templating"], "query", &mut variables);
    assert!(queries.len() >= 10, "{queries:?}");
    for query in queries.iter().chain(&variables) {
        let text = query.as_str().map_or_else(|| query.to_string(), str::to_owned);
        assert!(!known_names(&text).is_empty() || text == "prometheus", "{text}");
    }
    // Each panel has queries and a place, and no two have one number.
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<u64> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len());
    for panel in panels {
        assert!(panel["gridPos"]["w"].as_u64().is_some_and(|w| w <= 24), "{panel}");
        assert!(panel["type"] == "row" || !panel["targets"].as_array().unwrap().is_empty());
    }
}

#[test]
fn the_alert_rules_ask_for_metrics_that_exist_and_say_how_bad_it_is_and_what_to_do() {
    assert!(known_names(RULES).len() >= 10);
    let alerts: Vec<&str> = RULES.split("- alert: ").skip(1).collect();
    assert!(alerts.len() >= 10, "{RULES}");
    for alert in alerts {
        for part in ["expr: ", "for: ", "severity: ", "summary: ", "description: "] {
            assert_eq!(alert.matches(part).count(), 1, "{part}in {alert}");
        }
    }
}
