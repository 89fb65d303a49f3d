//! One connection, from greeting to end.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::Poll;

use ashlar_engine::{ChunkList, ReceiveError, blocking};

use super::config::Tls;
pub use super::end::{Disconnect, End};
use super::export::{Export, Exports, OpenExport};
use super::handshake::{Event, Handshake, Session, Step};
use super::info::ExportInfo;
use super::input::Input;
use super::peer::Peer;
use super::transmission::Terms;
use super::transmit::transmit;
use crate::stream::TryRecv;
use ashlar_nbd::stream::Stream;
use ashlar_nbd::tls::{Channel, SecureError};
use ashlar_nbd::wire::FLAG_CAN_MULTI_CONN;

/// A client that has chosen an export: what its transmission needs, on any thread.
pub(crate) struct Begun {
    export: OpenExport,
    terms: Terms,
    /// What the client has sent without waiting for the end of the handshake.
    received: Vec<u8>,
}

/// Serves one client on `stream`, on one thread and without TLS: [`begin`] and [`resume`].
///
/// # Errors
/// Those of both.
pub async fn serve<S: TryRecv>(
    stream: &S,
    exports: &Exports,
    peer: &Peer,
    stop: impl Future<Output = ()>,
    patience: impl Future<Output = ()>,
) -> Result<End, Disconnect> {
    let mut stop = pin!(stop);
    let (stream, tls) = (Channel::plain(stream), Tls::default());
    match begin(&stream, &tls, exports, peer, stop.as_mut(), patience).await? {
        Ok(begun) => resume(&stream, begun, peer, stop).await,
        Err(end) => Ok(end),
    }
}

/// The handshake: ends when the client has chosen an export, and knows it, or with the normal end of the connection.
///
/// `stop` ends the connection. When `patience` ends, a client that has not chosen an export is dropped. `peer` is the state that
/// the listener's watching task sees meanwhile.
///
/// # Errors
/// The client broke the protocol or the connection failed.
pub(crate) async fn begin<S: TryRecv>(
    stream: &Channel<S>,
    tls: &Tls,
    exports: &Exports,
    peer: &Peer,
    stop: impl Future<Output = ()>,
    patience: impl Future<Output = ()>,
) -> Result<Result<Begun, End>, Disconnect> {
    let (mut stop, mut patience) = (pin!(stop), pin!(patience));
    // A client in its handshake uses nothing: what is removed meanwhile may end.
    let (list, mut infos): (Vec<Weak<Export>>, Vec<ExportInfo>) =
        exports.list().iter().map(|export| (Arc::downgrade(export), export.info())).unzip();
    if peer.is_alone() {
        // Its further connections would be refused.
        infos.iter_mut().for_each(|info| info.flags &= !FLAG_CAN_MULTI_CONN);
    }
    let open = |chosen: usize| list[chosen].upgrade().and_then(|export| export.open(peer.origin()));
    let mut input = Input::new(stream).ok_or(Disconnect::NoMemory)?;
    let (session, mut export) = {
        let mut negotiation = pin!(negotiate(stream, tls, &mut input, &infos, open, peer));
        let outcome = poll_fn(|cx| match negotiation.as_mut().poll(cx) {
            Poll::Ready(outcome) => Poll::Ready(Some(outcome)),
            Poll::Pending if patience.as_mut().poll(cx).is_ready() => {
                Poll::Ready(Some(Err(Disconnect::Impatient)))
            }
            Poll::Pending => stop.as_mut().poll(cx).map(|()| None),
        });
        match outcome.await {
            Some(Ok(Ok(begun))) => begun,
            Some(Ok(Err(end))) => return Ok(Err(end)),
            Some(Err(disconnect)) => return Err(disconnect),
            None => return Ok(Err(End::Stopped)),
        }
    };
    let Session { export: chosen, structured, contexts } = session;
    let terms = Terms::new(&infos[chosen], structured, !contexts.is_empty());
    tracing::debug!(export = export.name(), structured, ?contexts, "nbd transmission begins");
    export.select(contexts);
    Ok(Ok(Begun { export, terms, received: input.bytes().to_vec() }))
}

/// The transmission, and the end of every request that was started. The caller closes the stream afterwards.
///
/// `stop` ends the connection early: requests in flight are finished and answered, requests received after them get
/// `ESHUTDOWN`, and no more are received. A client that does not take its replies can delay that; the caller sets the
/// deadline and closes the socket.
///
/// The future must be polled to its end (spawned), not dropped: dropping it abandons requests half way.
///
/// # Errors
/// The client broke the protocol or the connection failed. Requests in flight were still finished.
pub(crate) async fn resume<S: TryRecv>(
    stream: &S,
    begun: Begun,
    peer: &Peer,
    stop: impl Future<Output = ()>,
) -> Result<End, Disconnect> {
    let Begun { export, terms, received } = begun;
    let input = Input::resume(stream, &received).ok_or(Disconnect::NoMemory)?;
    drop(received);
    let result = transmit(stream, input, &export, terms, peer, stop).await;
    tracing::debug!(export = export.name(), ?result, "nbd connection ends");
    result
}

/// The handshake: the session and its export, or how the connection ended normally. `open` opens an export by its index.
async fn negotiate<S: TryRecv>(
    stream: &Channel<S>,
    tls: &Tls,
    input: &mut Input<'_, Channel<S>>,
    exports: &[ExportInfo],
    open: impl Fn(usize) -> Option<OpenExport>,
    peer: &Peer,
) -> Result<Result<(Session, OpenExport), End>, Disconnect> {
    let mut handshake = Handshake::new(tls.policy());
    let mut out = Handshake::greeting().to_vec();
    loop {
        if !out.is_empty() {
            stream.send(ChunkList::of(std::mem::take(&mut out))).await.0?;
        }
        handshake.set_full(!peer.has_room());
        let (taken, step) = handshake.step(input.bytes(), exports, &mut out);
        input.consume(taken);
        if handshake.was_refused() {
            peer.refuse();
        }
        let end = match step {
            Step::Taken => continue,
            Step::Incomplete if input.fill().await? => continue,
            Step::Tls => {
                stream.send(ChunkList::of(std::mem::take(&mut out))).await.0?;
                secure(stream, tls, input, peer).await?;
                handshake.secured();
                continue;
            }
            Step::Incomplete if input.is_empty() => return Ok(Err(End::Closed)),
            Step::Incomplete => return Err(Disconnect::Truncated),
            Step::Transmission(session) => {
                // Before the reply that grants the export.
                let Some(export) = open(session.export) else { return Err(Disconnect::Withdrawn) };
                // Before another connection can take the room.
                peer.begin();
                Ok(Ok((session, export)))
            }
            Step::Closed(Event::Ended) => Ok(Err(End::Negotiation)),
            Step::Closed(event) => Err(Disconnect::Handshake(event)),
        };
        if !out.is_empty() {
            stream.send(ChunkList::of(out)).await.0?;
        }
        return end;
    }
}

/// The handshake of TLS, after the client was told that it may begin.
async fn secure<S: TryRecv>(
    stream: &Channel<S>,
    tls: &Tls,
    input: &Input<'_, Channel<S>>,
    peer: &Peer,
) -> Result<(), Disconnect> {
    // A client waits for the answer to STARTTLS. What came before it must not be taken for something that came in TLS.
    if !input.is_empty() {
        return Err(Disconnect::Injected);
    }
    let insecure = |error: &dyn std::fmt::Display| Disconnect::Insecure(format!("TLS: {error}"));
    let server = tls.server().ok_or_else(|| insecure(&"it is switched off"))?;
    let budget = peer.budget();
    let memory = budget.session().await;
    peer.secure(memory.ok_or_else(|| Disconnect::TooManySecure(budget.most_sessions()))?);
    let looking = server.clone();
    if let Err(ReceiveError) = blocking::run(move || looking.renew()).await {
        tracing::debug!("no look at the files of the credentials for TLS");
    }
    let ssl = server.session().map_err(|error| insecure(&error))?;
    match stream.secure(ssl).await {
        Ok(client) => {
            tracing::debug!(client, "TLS with an NBD client");
            Ok(())
        }
        Err(SecureError::Io(error)) => Err(error.into()),
        Err(SecureError::NoMemory) => Err(Disconnect::NoMemory),
        Err(error @ SecureError::Handshake(_)) => Err(Disconnect::Insecure(error.to_string())),
    }
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "tls_tests.rs"]
mod tls_tests;

#[cfg(test)]
#[path = "server_random_tests.rs"]
mod random_tests;

#[cfg(test)]
#[path = "gathering_tests.rs"]
mod gathering_tests;
