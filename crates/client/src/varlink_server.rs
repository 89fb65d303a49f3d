//! A varlink service on a reactor: `org.varlink.service`, and one interface of ours.
//!
//! A peer that sends invalid varlink loses its connection and affects no other; at most one message is buffered for it. An idle
//! peer loses its connection to a newcomer that finds no place, and in any case after a while ([`Limits`]).

use std::io;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use ashlar_block::rate_limited;
use ashlar_control::varlink::{Call, Frames, MAX_CALL, Reply, encode};
use ashlar_engine::net::{Listener, MAX_FILES, Socket};
use ashlar_engine::{spawn, timeout};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::access::{Caller, Refusals};
use crate::connection_slots::{ConnectionSlot, ConnectionSlots};
use crate::interface::refused;
use crate::passed_files::PassedFiles;

/// What clients may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The most concurrent connections.
    pub connections: usize,
    /// How many of them are for owners alone.
    pub reserved: usize,
    /// How long a connection may be open without a call under way.
    pub idle: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections: 64, reserved: 8, idle: Duration::from_secs(600) }
    }
}

/// The interface that every varlink service has.
const SERVICE: &str = "org.varlink.service";

/// An interface, as its server has it.
pub trait Interface {
    /// Its name.
    const NAME: &'static str;
    /// Its types, methods and errors, in varlink's language.
    const DESCRIPTION: &'static str;

    /// The replies to a call of one of its methods: one, unless the caller accepts more; `None` once it has ended, which closes the
    /// connection. `passed` says for whom, and has the descriptors that came with the call.
    fn answer(
        &self,
        method: &str,
        call: Call,
        passed: &PassedFiles,
    ) -> impl Future<Output = Option<Vec<Reply>>>;

    /// Uses the connection for the replies to a call, until it ends; returns a call that does not need a whole connection.
    ///
    /// # Errors
    /// The peer is gone.
    fn take_over(&self, _: &Socket, call: Call) -> impl Future<Output = io::Result<Option<Call>>> {
        async { Ok(Some(call)) }
    }
}

/// Parameters of a method.
pub fn parse<T: DeserializeOwned>(parameters: Map<String, Value>) -> Result<T, Reply> {
    serde_json::from_value(Value::Object(parameters)).map_err(|error| {
        // The message contains the parameter's name in backquotes, if it concerns one.
        let text = error.to_string();
        Reply::invalid_parameter(text.split('`').nth(1).unwrap_or(&text))
    })
}

/// Checks that a method without parameters got none.
pub fn nothing(parameters: &Map<String, Value>) -> Result<(), Reply> {
    parameters.keys().next().map_or(Ok(()), |name| Err(Reply::invalid_parameter(name)))
}

/// Answers all connections that `admit` lets in, while the socket listens; it returns the reply for the others.
pub async fn serve<I: Interface + 'static>(
    listener: Listener,
    limits: Limits,
    admit: impl Fn(&Socket) -> Result<Caller, Reply>,
    interface: Rc<I>,
) {
    let refusals = Refusals::default();
    let slots = ConnectionSlots::new(limits.connections, limits.reserved);
    let passing = |error: &io::Error| rate_limited!(warn, %error, "accepting a control connection");
    loop {
        let socket = match listener.next(passing).await {
            Ok(socket) => socket,
            Err(error) => return tracing::error!(%error, "no more control connections"),
        };
        let (socket, reply) = match admit(&socket) {
            Err(reply) => (socket, reply),
            Ok(caller) => match slots.take(socket, caller.rank()) {
                Ok(slot) => {
                    let interface = Rc::clone(&interface);
                    let converse =
                        async move { converse(&slot, caller, limits.idle, &*interface).await };
                    spawn(converse).detach();
                    continue;
                }
                Err(socket) => {
                    rate_limited!(warn, most = limits.connections, "too many control connections");
                    (socket, refused("too many calls in progress", Some("try again later")))
                }
            },
        };
        if let Some(refusal) = refusals.one_more() {
            spawn(refusal.tell(socket, reply)).detach();
        }
    }
}

/// Why a connection ends before its client ends it.
enum Dropped {
    /// It failed.
    Lost(io::Error),
    /// What the client sends is not varlink.
    Garbage(String),
}

impl From<io::Error> for Dropped {
    fn from(error: io::Error) -> Self {
        Self::Lost(error)
    }
}

/// The state of a connection between two calls.
struct Conversation {
    frames: Frames,
    buffer: Vec<u8>,
    /// Descriptors that came with the next call.
    files: Vec<OwnedFd>,
}

impl Conversation {
    /// Receives the next call; `None` once the client has closed the connection.
    async fn next_call(&mut self, socket: &Socket) -> Result<Option<Call>, Dropped> {
        let garbage = |error: &dyn std::fmt::Display| Dropped::Garbage(error.to_string());
        loop {
            if let Some(message) = self.frames.next_message().map_err(|error| garbage(&error))? {
                return serde_json::from_slice(&message).map_err(|error| garbage(&error)).map(Some);
            }
            let buffer = std::mem::take(&mut self.buffer);
            let (received, buffer) = socket.recv_with_files(buffer, &mut self.files).await;
            self.buffer = buffer;
            match received? {
                0 => return Ok(None),
                _ if self.files.len() > MAX_FILES => return Err(garbage(&"too many descriptors")),
                len => self.frames.push(&self.buffer[..len]),
            }
        }
    }
}

/// Serves one connection, until it ends.
async fn converse<I: Interface>(
    slot: &ConnectionSlot,
    caller: Caller,
    idle: Duration,
    interface: &I,
) {
    match answer_all(slot, caller, idle, interface).await {
        Ok(()) => {}
        Err(Dropped::Lost(error)) => tracing::debug!(%error, "control connection lost"),
        Err(Dropped::Garbage(error)) => rate_limited!(info, error, "control connection dropped"),
    }
}

async fn answer_all<I: Interface>(
    slot: &ConnectionSlot,
    caller: Caller,
    idle: Duration,
    interface: &I,
) -> Result<(), Dropped> {
    let mut conversation =
        Conversation { frames: Frames::new(MAX_CALL), buffer: vec![0; 4096], files: Vec::new() };
    loop {
        let Some(call) = timeout(idle, pin!(conversation.next_call(slot))).await else {
            tracing::debug!("an idle control connection is closed");
            return Ok(());
        };
        let Some(call) = call? else { return Ok(()) };
        // A call that came too late for a connection that has lost its place is not begun: nothing could answer it.
        if !slot.work() {
            tracing::debug!("an idle control connection lost its place to another");
            return Ok(());
        }
        let passed =
            PassedFiles::new(&call.passed, std::mem::take(&mut conversation.files), caller);
        if !exchange(slot, interface, call, passed).await? {
            return Ok(());
        }
        slot.rest();
    }
}

/// Answers one call; returns whether the connection can be used for another.
async fn exchange<I: Interface>(
    socket: &Socket,
    interface: &I,
    call: Call,
    passed: Result<PassedFiles, Reply>,
) -> io::Result<bool> {
    let Some(call) = interface.take_over(socket, call).await? else { return Ok(false) };
    let oneway = call.oneway;
    let replies = match call.method.rsplit_once('.') {
        Some((name, method)) if name == I::NAME => {
            let method = method.to_owned();
            match passed {
                Ok(passed) => interface.answer(&method, call, &passed).await,
                Err(reply) => Some(vec![reply]),
            }
        }
        _ => Some(vec![answer_itself::<I>(call)]),
    };
    let Some(replies) = replies else { return Ok(false) };
    if !oneway {
        let bytes: Vec<u8> = replies.iter().flat_map(encode).collect();
        socket.send_all(bytes).await.0?;
    }
    Ok(true)
}

/// Answers a call of an interface that is not ours.
fn answer_itself<I: Interface>(call: Call) -> Reply {
    let result = match call.method.rsplit_once('.') {
        None => return Reply::method_not_found(&call.method),
        Some((SERVICE, "GetInfo")) => nothing(&call.parameters).map(|()| info::<I>()),
        Some((SERVICE, "GetInterfaceDescription")) => describe::<I>(&call.parameters),
        Some((SERVICE, _)) => Err(Reply::method_not_found(&call.method)),
        Some((other, _)) => Err(Reply::interface_not_found(other)),
    };
    result.map_or_else(|error| error, Reply::ok)
}

fn info<I: Interface>() -> Value {
    json!({
        "vendor": "ashlar",
        "product": "ashlar",
        "version": env!("CARGO_PKG_VERSION"),
        "url": "",
        "interfaces": [SERVICE, I::NAME],
    })
}

/// Its description (varlink.org, "Service Interface").
const SERVICE_DESCRIPTION: &str = "\
# The interface every varlink service has.
interface org.varlink.service

method GetInfo() -> (
  vendor: string,
  product: string,
  version: string,
  url: string,
  interfaces: []string
)

method GetInterfaceDescription(interface: string) -> (description: string)

error InterfaceNotFound (interface: string)
error MethodNotFound (method: string)
error MethodNotImplemented (method: string)
error InvalidParameter (parameter: string)
";

fn describe<I: Interface>(parameters: &Map<String, Value>) -> Result<Value, Reply> {
    match parameters.get("interface").and_then(Value::as_str) {
        Some(SERVICE) => Ok(json!({ "description": SERVICE_DESCRIPTION })),
        Some(name) if name == I::NAME => Ok(json!({ "description": I::DESCRIPTION })),
        Some(other) => Err(Reply::interface_not_found(other)),
        None => Err(Reply::invalid_parameter("interface")),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io::{BufReader, Read, Write};
    use std::os::unix::net::UnixStream;
    use std::path::Path;

    use super::*;
    use crate::stop::Stop;
    use ashlar_engine::Reactor;

    /// An interface with a method that never answers.
    struct Deaf;

    impl Interface for Deaf {
        const NAME: &'static str = "a.b";
        const DESCRIPTION: &'static str = "";

        async fn answer(&self, method: &str, _: Call, _: &PassedFiles) -> Option<Vec<Reply>> {
            match method {
                "Wait" => std::future::pending().await,
                _ => Some(vec![Reply::ok(json!({}))]),
            }
        }
    }

    /// Serves while `clients` runs: connections are of these callers, in order.
    fn with_server(limits: Limits, callers: Vec<Caller>, clients: impl FnOnce(&Path)) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let stop = Stop::default();
        std::thread::scope(|scope| {
            let ended = stop.clone();
            scope.spawn(move || {
                Reactor::new(Default::default()).unwrap().block_on(async {
                    let bound =
                        ashlar_engine::net::BoundSocket::listening(listener.into()).unwrap();
                    let next = Cell::new(0);
                    let admit = move |_: &Socket| Ok(callers[next.replace(next.get() + 1)]);
                    let server = spawn(serve(bound.into(), limits, admit, Rc::new(Deaf)));
                    ended.await;
                    server.cancel().await;
                });
            });
            // Ends the server if a client panics, too.
            struct Ends(Stop);
            impl Drop for Ends {
                fn drop(&mut self) {
                    self.0.stop();
                }
            }
            let ends = Ends(stop);
            clients(&path);
            drop(ends);
        });
    }

    fn connect(path: &Path) -> UnixStream {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream
    }

    fn send(mut stream: &UnixStream, method: &str) {
        stream.write_all(format!("{{\"method\":\"a.b.{method}\"}}\0").as_bytes()).unwrap();
    }

    /// The next reply; empty at the end of the connection.
    fn reply(stream: &UnixStream) -> String {
        let bytes =
            BufReader::new(stream).bytes().map_while(Result::ok).take_while(|byte| *byte != 0);
        String::from_utf8(bytes.collect()).unwrap()
    }

    #[test]
    fn calls_under_way_leave_a_place_for_owners_and_others_are_refused_with_a_word() {
        let limits = Limits { connections: 3, reserved: 1, idle: Duration::from_secs(60) };
        let member = Caller::Member { user: 7 };
        let callers = [[member; 3], [Caller::Owner; 3]].concat();
        with_server(limits, callers, |path| {
            let guests = [connect(path), connect(path)];
            guests.iter().for_each(|guest| send(guest, "Wait"));
            let refused = connect(path);
            send(&refused, "Say");
            let text = reply(&refused);
            assert!(text.contains(".Refused\"") && text.contains("calls in progress"), "{text}");
            assert_eq!(reply(&refused), "");
            let owner = connect(path);
            send(&owner, "Say");
            assert_eq!(reply(&owner), r#"{"parameters":{}}"#);
            // Without a call it gives its place to the next one.
            let next = connect(path);
            send(&next, "Say");
            assert_eq!(reply(&next), r#"{"parameters":{}}"#);
            assert_eq!(reply(&owner), "");
            send(&next, "Wait");
            let last = connect(path);
            send(&last, "Say");
            assert!(reply(&last).contains(".Refused\""));
        });
    }

    #[test]
    fn a_connection_without_a_call_under_way_is_closed_after_a_while() {
        let limits = Limits { connections: 3, reserved: 1, idle: Duration::from_millis(100) };
        with_server(limits, vec![Caller::Owner; 3], |path| {
            let (silent, half, busy) = (connect(path), connect(path), connect(path));
            send(&busy, "Wait");
            (&half).write_all(b"{").unwrap();
            assert_eq!((reply(&silent), reply(&half)), (String::new(), String::new()));
            busy.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
            let error = (&busy).read(&mut [0]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        });
    }
}
