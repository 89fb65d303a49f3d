//! `Trace`: streams bio events until the client stops it.

use std::io;
use std::pin::pin;
use std::time::Duration;

use ashlar_block::disk::DeviceNumber;
use ashlar_client::interface::{self, Trace, TraceReply, TracedDevice, refused};
use ashlar_client::varlink_server::parse;
use ashlar_control::varlink::{Call, Reply, encode};
use ashlar_engine::net::Socket;
use ashlar_engine::{now_ns, sleep, wall_clock};
use ashlar_plot::trace::{Categories, Host, Session, ThreadIdentity};
use ashlar_view::attributes::Attributes;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::future::{Either, select};
use serde_json::{Map, Value, json};

use crate::ending::Ending;
use crate::stopping::Farewells;

/// How often records are sent.
const INTERVAL: Duration = Duration::from_millis(10);
/// The minimum age of a record that is sent: by then its thread has put it into its ring.
const SETTLED: Duration = Duration::from_millis(1);
/// The most records in a message.
const BATCH: usize = 8192;

/// The calling thread of this process.
fn who() -> ThreadIdentity {
    let pid = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
    let name = rustix::thread::name().unwrap_or_default();
    ThreadIdentity { pid, name: name.to_string_lossy().into_owned() }
}

const HOST: Host = Host { clock: now_ns, wall_clock, who };

/// Whether a call asks for a trace stream.
pub(crate) fn is_asked_for(call: &Call) -> bool {
    call.more && call.method.strip_prefix(interface::NAME) == Some(".Trace")
}

/// Traces until the peer shuts down its side of the connection or sends something, or the daemon stops. The connection
/// cannot be used afterwards.
///
/// # Errors
/// The peer is gone.
pub(crate) async fn stream(
    socket: &Socket,
    attributes: &Attributes,
    ending: &Ending,
    farewells: &Farewells,
    call: Call,
) -> io::Result<()> {
    let (mut session, devices) = match start(attributes, call.parameters) {
        Ok(started) => started,
        Err(reply) => return send(socket, &reply).await,
    };
    // The daemon's shutdown waits until the client has the last events.
    let _told = farewells.one_more();
    // Reply at once: from now on the client misses no event.
    send(socket, &Reply::ok(answer(devices, &[], 0)).continues()).await?;
    let mut gone = pin!(socket.recv(vec![0; 1]));
    loop {
        let end = select(gone.as_mut(), ending.wanted());
        let is_last = matches!(select(end, pin!(sleep(INTERVAL))).await, Either::Left(_));
        let settled = if is_last { Duration::ZERO } else { SETTLED };
        let until_ns = now_ns().saturating_sub(settled.as_nanos() as u64);
        loop {
            let (records, count) = session.take(until_ns, BATCH);
            let all = count < BATCH;
            let reply = Reply::ok(answer(Vec::new(), &records, session.lost()));
            if is_last && all {
                return send(socket, &reply).await;
            }
            if !records.is_empty() {
                send(socket, &reply.continues()).await?;
            }
            if all {
                break;
            }
        }
    }
}

fn answer(devices: Vec<TracedDevice>, records: &[u8], lost: u64) -> Value {
    json!(TraceReply { devices, records: STANDARD.encode(records), lost })
}

async fn send(socket: &Socket, reply: &Reply) -> io::Result<()> {
    socket.send_all(encode(reply)).await.0
}

/// Starts the trace.
fn start(
    attributes: &Attributes,
    parameters: Map<String, Value>,
) -> Result<(Session, Vec<TracedDevice>), Reply> {
    let Trace { devices, actions } = parse(parameters)?;
    let categories = categories(actions.as_deref().unwrap_or_default())?;
    let (mut traced, mut numbers) = (Vec::new(), Vec::new());
    for name in &devices {
        let name = name.strip_prefix("/dev/").unwrap_or(name);
        let number = number(attributes, name)?;
        if !numbers.contains(&number) {
            numbers.push(number);
            let DeviceNumber { major, minor } = number;
            traced.push(TracedDevice { name: name.to_owned(), major, minor });
        }
    }
    if numbers.is_empty() {
        return Err(Reply::invalid_parameter("devices"));
    }
    Ok((Session::start(numbers, categories, HOST), traced))
}

/// The categories with these names; all if `names` is empty.
fn categories(names: &[String]) -> Result<Categories, Reply> {
    if names.is_empty() {
        return Ok(Categories::all());
    }
    let named = names.iter().map(|name| Categories::named(name));
    let all: Result<Vec<_>, _> = named.collect();
    Ok(all.map_err(|error| refused(error, None))?.into_iter().collect())
}

/// The number of the device named `name` below `dev` or `sys/block`.
fn number(attributes: &Attributes, name: &str) -> Result<DeviceNumber, Reply> {
    let real = attributes.resolve(&format!("dev/{name}"));
    let real = real.as_deref().and_then(|path| path.strip_prefix("dev/")).unwrap_or(name);
    let text = attributes.read(&format!("sys/block/{real}/dev")).ok();
    let number = text.as_deref().and_then(|text| text.trim_end().split_once(':'));
    let number = number.and_then(|(major, minor)| {
        Some(DeviceNumber { major: major.parse().ok()?, minor: minor.parse().ok()? })
    });
    number.ok_or_else(|| {
        let hint = format!("there are {}", attributes.list("sys/block").join(", "));
        refused(format_args!("there is no device {name}"), Some(&hint))
    })
}
