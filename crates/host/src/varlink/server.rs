//! A varlink service on a reactor: `org.varlink.service`, and one interface of ours.
//!
//! A peer that sends invalid varlink loses its connection and affects no other; at most one message is buffered for it.

use std::io;
use std::rc::Rc;

use ashlar_engine::net::{Listener, Socket};
use ashlar_engine::spawn;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::{Call, Frames, MAX_CALL, Reply, encode};
use crate::access::{Caller, Refusals};
use crate::lending::{Lent, MAX_LENT};

/// The most concurrent connections; more are closed at once.
const MAX_CONNECTIONS: usize = 64;
/// The interface that every varlink service has.
const SERVICE: &str = "org.varlink.service";

/// An interface, as its server has it.
pub(crate) trait Interface {
    /// Its name.
    const NAME: &'static str;
    /// Its types, methods and errors, in varlink's language.
    const DESCRIPTION: &'static str;

    /// The replies to a call of one of its methods: one, unless the caller accepts more; `None` once it has ended, which closes the
    /// connection. `lent` says for whom, and has the descriptors that came with the call.
    async fn answer(&self, method: &str, call: Call, lent: &Lent) -> Option<Vec<Reply>>;

    /// Uses the connection for the replies to a call, until it ends; returns a call that is none for this.
    ///
    /// # Errors
    /// The peer is gone.
    async fn take_over(&self, _: &Socket, call: Call) -> io::Result<Option<Call>> {
        Ok(Some(call))
    }
}

/// Parameters of a method.
pub(crate) fn parse<T: DeserializeOwned>(parameters: Map<String, Value>) -> Result<T, Reply> {
    serde_json::from_value(Value::Object(parameters)).map_err(|error| {
        // The message contains the parameter's name in backquotes, if it concerns one.
        let text = error.to_string();
        Reply::invalid_parameter(text.split('`').nth(1).unwrap_or(&text))
    })
}

/// Checks that a method without parameters got none.
pub(crate) fn nothing(parameters: &Map<String, Value>) -> Result<(), Reply> {
    parameters.keys().next().map_or(Ok(()), |name| Err(Reply::invalid_parameter(name)))
}

/// Answers all connections that `admit` lets in, while the socket listens; it returns the reply for the others.
pub(crate) async fn serve<I: Interface + 'static>(
    listener: Listener,
    admit: impl Fn(&Socket) -> Result<Caller, Reply>,
    interface: Rc<I>,
) {
    let refusals = Refusals::default();
    let passing = |error: &io::Error| tracing::warn!(%error, "accepting a control connection");
    loop {
        match listener.next(passing).await {
            Ok(socket) => {
                let caller = match admit(&socket) {
                    Ok(caller) => caller,
                    Err(reply) => {
                        if let Some(refusal) = refusals.one_more() {
                            spawn(refusal.tell(socket, reply)).detach();
                        }
                        continue;
                    }
                };
                // Each connection holds a reference, beside those of others.
                if Rc::strong_count(&interface) > MAX_CONNECTIONS {
                    tracing::warn!("too many control connections");
                    continue;
                }
                let interface = Rc::clone(&interface);
                spawn(async move { converse(&socket, caller, &*interface).await }).detach();
            }
            Err(error) => return tracing::error!(%error, "no more control connections"),
        }
    }
}

/// Serves one connection, until it ends.
async fn converse<I: Interface>(socket: &Socket, caller: Caller, interface: &I) {
    let mut frames = Frames::new(MAX_CALL);
    let (mut buffer, mut files) = (vec![0; 4096], Vec::new());
    loop {
        loop {
            let message = match frames.next_message() {
                Ok(Some(message)) => message,
                Ok(None) => break,
                Err(error) => return tracing::info!(%error, "control connection dropped"),
            };
            let call = match serde_json::from_slice::<Call>(&message) {
                Ok(call) => call,
                Err(error) => return tracing::info!(%error, "control connection dropped"),
            };
            let lent = Lent::new(&call.lent, std::mem::take(&mut files), caller);
            match exchange(socket, interface, call, lent).await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => return tracing::debug!(%error, "control connection lost"),
            }
        }
        let (received, same) = socket.recv_with_files(buffer, &mut files).await;
        buffer = same;
        match received {
            Ok(0) => return,
            Ok(_) if files.len() > MAX_LENT => {
                return tracing::info!("control connection dropped: too many descriptors");
            }
            Ok(len) => frames.push(&buffer[..len]),
            Err(error) => return tracing::debug!(%error, "control connection lost"),
        }
    }
}

/// Answers one call; returns whether the connection can be used for another.
async fn exchange<I: Interface>(
    socket: &Socket,
    interface: &I,
    call: Call,
    lent: Result<Lent, Reply>,
) -> io::Result<bool> {
    let Some(call) = interface.take_over(socket, call).await? else { return Ok(false) };
    let oneway = call.oneway;
    let replies = match call.method.rsplit_once('.') {
        Some((name, method)) if name == I::NAME => {
            let method = method.to_owned();
            match lent {
                Ok(lent) => interface.answer(&method, call, &lent).await,
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
