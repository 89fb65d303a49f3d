//! Metrics of a running daemon, over HTTP and on the control socket.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde_json::{Value, json};

use super::support::{Daemon, Images, MIB, Nbd, ashlar_in, until};

const PATIENCE: Duration = Duration::from_secs(30);

/// The address at which the daemon serves metrics, by its status.
fn address(daemon: &Daemon) -> String {
    let status: Value =
        serde_json::from_str(&daemon.client(&["status", "--json"]).ok().out).unwrap();
    let address = status["metrics"].as_str().unwrap();
    let text = daemon.client(&["status"]).ok().out;
    assert!(text.contains(&format!("\nmetrics at {address}\n")), "{text}");
    address.strip_prefix("tcp:").unwrap().to_owned()
}

fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Head and body of the answer to a request.
fn ask(address: &str, request: &str) -> (String, String) {
    let mut stream = connect(address);
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

/// A request with the fields that curl sends.
fn by_curl(method: &str, path: &str, address: &str) -> String {
    format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nUser-Agent: curl/7.88.1\r\nAccept: */*\r\n\r\n"
    )
}

/// The samples of a page.
struct Page(BTreeMap<String, f64>);

impl Page {
    fn get(address: &str) -> Self {
        let (head, body) = ask(address, &by_curl("GET", "/metrics", address));
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(
            head.contains("\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"),
            "{head}"
        );
        assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())), "{head}");
        Self::of(&body)
    }

    fn of(text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let pairs = lines.map(|line| line.rsplit_once(' ').unwrap());
        Self(pairs.map(|(name, value)| (name.to_owned(), value.parse().unwrap())).collect())
    }

    /// The value of a metric with these labels, if there is one.
    fn find(&self, name: &str, labels: &str) -> Option<f64> {
        self.0.get(&format!("{name}{{{labels}}}")).copied()
    }

    #[track_caller]
    fn value(&self, name: &str, labels: &str) -> f64 {
        self.find(name, labels).unwrap_or_else(|| panic!("no {name}{{{labels}}} in {:#?}", self.0))
    }
}

#[test]
fn what_clients_do_is_counted_exactly() {
    let images = Images::array(2, 32 * MIB, &["--level=1", "--assume-clean"]);
    let daemon = images.serve(&["--nbd", "unix:nbd.sock", "--metrics", "tcp:0"]);
    let address = address(&daemon);
    assert!(address.starts_with("127.0.0.1:"), "{address}");
    let before = Page::get(&address);
    let mut client = Nbd::open(&images.path("nbd.sock"), "md0");
    for n in 0..8 {
        client.write_at(n * MIB, &[7; 4096]);
    }
    for n in 0..2 {
        client.read_at(n * MIB, 65536);
    }
    client.flush();
    let after = Page::get(&address);
    let grown = |name: &str, device: &str| {
        let labels = format!("device=\"{device}\"");
        after.value(name, &labels) - before.value(name, &labels)
    };
    for (name, count) in [
        ("ashlar_disk_writes_completed_total", 8.0),
        ("ashlar_disk_writes_merged_total", 0.0),
        ("ashlar_disk_written_bytes_total", 8.0 * 4096.0),
        ("ashlar_disk_write_duration_seconds_count", 8.0),
        ("ashlar_disk_reads_completed_total", 2.0),
        ("ashlar_disk_read_bytes_total", 2.0 * 65536.0),
        ("ashlar_disk_read_duration_seconds_count", 2.0),
        ("ashlar_disk_flush_requests_total", 1.0),
        ("ashlar_disk_flush_duration_seconds_count", 1.0),
        ("ashlar_disk_discards_completed_total", 0.0),
    ] {
        assert_eq!(grown(name, "md0"), count, "{name}");
    }
    // All copies are written, and superblocks; one copy is read.
    for member in ["d0", "d1"] {
        assert!(grown("ashlar_disk_written_bytes_total", member) >= 8.0 * 4096.0, "{member}");
    }
    let read = |member| grown("ashlar_disk_read_bytes_total", member);
    assert_eq!(read("d0") + read("d1"), 2.0 * 65536.0);
    // The ranges of a histogram include those below, and the last one has all.
    let bucket = |le: &str| {
        after.value(
            "ashlar_disk_write_duration_seconds_bucket",
            &format!("le=\"{le}\",device=\"md0\""),
        )
    };
    let labels = "device=\"md0\"";
    let count = after.value("ashlar_disk_write_duration_seconds_count", labels);
    assert!(bucket("0.000016") <= bucket("4.194304") && bucket("4.194304") <= bucket("+Inf"));
    assert_eq!(bucket("+Inf"), count);
    let sum = after.value("ashlar_disk_write_duration_seconds_sum", labels);
    assert_eq!(sum, after.value("ashlar_disk_write_time_seconds_total", labels));
    assert_eq!(after.value("ashlar_disk_io_now", labels), 0.0);
    let version = format!("version=\"{}\"", env!("CARGO_PKG_VERSION"));
    assert_eq!(after.value("ashlar_build_info", &version), 1.0);
    let size = after.value("ashlar_device_size_bytes", "device=\"d0\"");
    assert_eq!(size, (32 * MIB) as f64);
    drop(client);
    daemon.end();
}

#[test]
fn a_failed_member_and_a_check_are_seen() {
    let images = Images::array(2, 32 * MIB, &["--level=1", "--assume-clean"]);
    let daemon = images.serve(&["--metrics", "tcp:localhost:0"]);
    let address = address(&daemon);
    let array = "device=\"md0\",level=\"raid1\"";
    let state =
        |page: &Page, of: &str| page.value("ashlar_md_disks", &format!("{array},state=\"{of}\""));
    let page = Page::get(&address);
    assert_eq!(page.value("ashlar_md_degraded", array), 0.0);
    assert_eq!((state(&page, "active"), state(&page, "failed")), (2.0, 0.0));
    assert_eq!(page.find("ashlar_md_sync_completed_bytes", array), None);

    // The least speed, so that the check is still under way.
    daemon.client(&["set", "sys/block/md0/md/sync_speed_max", "1"]).ok();
    daemon.client(&["md", "action", "md0", "check", "--no-wait"]).ok();
    let mut page = Page::get(&address);
    until(PATIENCE, "no check is seen", || {
        page = Page::get(&address);
        page.value("ashlar_md_sync_action", &format!("{array},action=\"check\"")) == 1.0
    });
    assert_eq!(page.value("ashlar_md_sync_action", &format!("{array},action=\"idle\"")), 0.0);
    let job = "name=\"md0\",kind=\"check\"";
    assert_eq!(page.value("ashlar_job_state", &format!("{job},state=\"running\"")), 1.0);
    let ratio = page.value("ashlar_job_progress_ratio", job);
    assert!((0.0..1.0).contains(&ratio), "{ratio}");
    let (done, size) = ("ashlar_md_sync_completed_bytes", "ashlar_md_sync_size_bytes");
    assert!(page.value(done, array) < page.value(size, array));
    daemon.client(&["md", "action", "md0", "idle"]).ok();

    daemon.client(&["md", "fail", "md0", "d1"]).ok();
    let page = Page::get(&address);
    assert_eq!(page.value("ashlar_md_degraded", array), 1.0);
    assert_eq!(page.value("ashlar_md_disks_required", array), 2.0);
    assert_eq!((state(&page, "active"), state(&page, "failed")), (1.0, 1.0));
    let member = "device=\"md0\",member=\"d1\",state=\"failed\"";
    assert_eq!(page.value("ashlar_md_member_state", member), 1.0);
    daemon.end();
}

#[test]
fn only_requests_for_the_metrics_get_them() {
    let images = Images::new(1, MIB);
    let daemon = images.serve(&["--metrics", "tcp:0"]);
    let address = address(&daemon);
    let host = format!("Host: {address}\r\n");
    let long = format!("GET /metrics HTTP/1.1\r\n{host}X: {}\r\n\r\n", "y".repeat(9000));
    for (request, status, field) in [
        (by_curl("GET", "/", &address), "404 Not Found", ""),
        (by_curl("GET", "/metrics.json", &address), "404 Not Found", ""),
        (by_curl("DELETE", "/metrics", &address), "405 Method Not Allowed", "Allow: GET, HEAD"),
        (by_curl("POST", "/", &address), "404 Not Found", ""),
        (format!("GET /metrics HTTP/3\r\n{host}\r\n"), "400 Bad Request", ""),
        ("GET /metrics HTTP/1.1\r\n\r\n".to_owned(), "400 Bad Request", ""),
        ("\u{1}\u{2}\r\n\r\n".to_owned(), "400 Bad Request", ""),
        (long, "431 Request Header Fields Too Large", ""),
    ] {
        let (head, body) = ask(&address, &request);
        assert!(head.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{request:?}: {head}");
        assert!(head.ends_with("\r\nConnection: close") && head.contains(field), "{head}");
        assert!(!body.is_empty() && !body.contains("ashlar_"), "{body}");
    }
    let (head, body) = ask(&address, &by_curl("HEAD", "/metrics", &address));
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && body.is_empty(), "{head}");
    // A scraper's own fields, and a body behind the head.
    let scraper = "Accept: application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3\r\n\
                   Accept-Encoding: gzip\r\nX-Prometheus-Scrape-Timeout-Seconds: 10\r\nContent-Length: 3\r\n";
    let (head, _) = ask(&address, &format!("GET /metrics?a=b HTTP/1.1\r\n{host}{scraper}\r\nabc"));
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    daemon.end();
}

#[test]
fn silent_clients_keep_neither_readers_nor_the_control_socket_nor_the_end_waiting() {
    let images = Images::new(1, MIB);
    let daemon = images.serve(&["--metrics", "tcp:0"]);
    let address = address(&daemon);
    let mut silent: Vec<TcpStream> = (0..16).map(|_| connect(&address)).collect();
    for client in &mut silent {
        client.write_all(b"GET /metrics HTT").unwrap();
    }
    // The one that has waited longest gives its place to a further one.
    let mut answer = String::new();
    let mut reader = connect(&address);
    reader.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    reader.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    assert_eq!(silent[0].read(&mut [0]).unwrap_or(0), 0);
    daemon.client(&["get", "sys/block/d0/size"]).ok();
    daemon.end();
}

#[test]
fn an_address_in_use_is_one_clear_error() {
    let images = Images::array(2, 32 * MIB, &["--level=1"]);
    let before = images.bytes();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp:{}", other.local_addr().unwrap().port());
    let args = ["serve", "--control", "control", "--metrics", &address];
    let full = format!("tcp:{}", other.local_addr().unwrap());
    let why =
        ["cannot listen for readers of metrics", &full, "Address already in use", "another port"];
    images.run(&args, &images.refs()).fails(1, &why);
    assert!(images.bytes() == before, "nothing is written");
    let bad = images.run(&["serve", "--metrics", "9100"], &["d0"]);
    assert_eq!(bad.code, Some(2), "{bad:?}");
    assert!(bad.err.contains("`9100` is neither tcp:PORT nor tcp:ADDRESS:PORT"), "{bad:?}");
}

#[test]
fn the_control_socket_has_the_same_text() {
    let images = Images::new(1, MIB);
    let file = "disks = [\"d0\"]\ncontrol = \"control\"\nmetrics = \"tcp:0\"\n";
    std::fs::write(images.path("stack.toml"), file).unwrap();
    let mut command = super::support::program();
    command.args(["serve", "--config", "stack.toml"]).current_dir(images.dir.path());
    let daemon = Daemon::of(command, images.dir.path());
    let page = Page::get(&address(&daemon));
    let mut control = UnixStream::connect(&daemon.control).unwrap();
    control.set_read_timeout(Some(PATIENCE)).unwrap();
    let call = json!({ "method": "io.ashlar.Control.Metrics" });
    control.write_all(format!("{call}\0").as_bytes()).unwrap();
    let mut reply = Vec::new();
    while reply.last() != Some(&0) {
        let mut part = [0; 4096];
        let len = control.read(&mut part).unwrap();
        assert!(len > 0, "the connection ends");
        reply.extend(&part[..len]);
    }
    let reply: Value = serde_json::from_slice(&reply[..reply.len() - 1]).unwrap();
    let text = reply["parameters"]["text"].as_str().unwrap();
    assert!(Page::of(text).0.keys().eq(page.0.keys()), "{text}");
    daemon.end();
    // Without the option there is no address.
    let daemon = Daemon::start(images.dir.path(), &["d0"]);
    let status = daemon.client(&["status", "--json"]).ok().out;
    assert!(serde_json::from_str::<Value>(&status).unwrap()["metrics"].is_null(), "{status}");
    assert!(
        !ashlar_in(images.dir.path(), &["status", "--control", "control"]).out.contains("metrics")
    );
    daemon.end();
}
