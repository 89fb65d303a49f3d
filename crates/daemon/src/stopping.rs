//! `Stop`: begins the daemon's shutdown; a caller with `more` gets reports of what the shutdown waits for, and its result.

use std::cell::Cell;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use ashlar_client::interface::{self, Stop, StopReply, refused};
use ashlar_client::varlink_server::parse;
use ashlar_control::varlink::{Call, Reply, encode};
use ashlar_engine::net::Socket;
use ashlar_engine::{sleep, timeout};
use futures_util::future::{Either, select};
use serde_json::{Map, Value, json};

use crate::clients::Clients;
use crate::ending::Ending;

/// How often to check what the shutdown waits for.
const INTERVAL: Duration = Duration::from_millis(250);

/// How long sending the final replies may take: a caller that does not read them is abandoned.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often it is checked whether they were sent.
const SAYING: Duration = Duration::from_millis(1);

/// The number of callers waiting for the result of the end, or for the last events of a trace.
#[derive(Clone, Default)]
pub(crate) struct Farewells(Rc<Cell<usize>>);

impl Farewells {
    /// One more, until the returned guard is dropped.
    pub(crate) fn one_more(&self) -> impl Drop {
        struct Caller(Rc<Cell<usize>>);
        impl Drop for Caller {
            fn drop(&mut self) {
                self.0.set(self.0.get() - 1);
            }
        }
        self.0.set(self.0.get() + 1);
        Caller(Rc::clone(&self.0))
    }

    /// Waits until all callers have their final reply.
    pub(crate) async fn said(&self) {
        let said = async {
            while self.0.get() > 0 {
                sleep(SAYING).await;
            }
        };
        if timeout(PATIENCE, pin!(said)).await.is_none() {
            tracing::debug!("a caller does not read the last reply");
        }
    }
}

/// Whether a call asks for reports about the end.
pub(crate) fn is_asked_for(call: &Call) -> bool {
    call.more && call.method.strip_prefix(interface::NAME) == Some(".Stop")
}

/// Begins the end, or forces it.
///
/// # Errors
/// The parameters are invalid; a client has a volume open, and the caller does not want to stop the daemon then.
pub(crate) async fn begin(
    ending: &Ending,
    clients: &Clients,
    parameters: Map<String, Value>,
) -> Result<Value, Reply> {
    let Stop { force, unused } = parse(parameters)?;
    if unused.unwrap_or_default() && !ending.draining().is_stopped() {
        // From now on no client can open one.
        clients.shut_all().await.map_err(|busy| refused(format!("not stopped: {busy}"), None))?;
    }
    if force.unwrap_or_default() {
        ending.force()
    } else {
        ending.ask()
    }
    Ok(json!(StopReply::default()))
}

/// Begins the end, and reports its progress until it is over.
///
/// # Errors
/// The caller is gone.
pub(crate) async fn follow(
    socket: &Socket,
    ending: &Ending,
    clients: &Clients,
    farewells: &Farewells,
    call: Call,
) -> io::Result<()> {
    if let Err(reply) = begin(ending, clients, call.parameters).await {
        return send(socket, &reply).await;
    }
    let _told = farewells.one_more();
    // Reply at once, so that the caller knows its request was received.
    let mut last = None;
    loop {
        let waits_for = ending.delayed_by(Instant::now());
        if last.as_ref() != Some(&waits_for) {
            let reply = StopReply { waits_for: waits_for.clone(), failure: None };
            send(socket, &Reply::ok(json!(reply)).continues()).await?;
            last = Some(waits_for);
        }
        if let Either::Left(_) = select(ending.over(), pin!(sleep(INTERVAL))).await {
            let reply = StopReply { waits_for: Vec::new(), failure: ending.failure() };
            return send(socket, &Reply::ok(json!(reply))).await;
        }
    }
}

async fn send(socket: &Socket, reply: &Reply) -> io::Result<()> {
    socket.send_all(encode(reply)).await.0
}
