//! Accepting connections on a reactor, and serving them on several.
//!
//! The reactor that accepts runs the handshakes, too: a client that never chooses an export weighs on no other thread and counts as no
//! load, and the limit on handshakes needs no lock. Once a client has chosen, its socket goes to the thread where the fewest
//! connections are in transmission ([`placement`](super::placement)), and stays there. The handshake's task waits for its end.

use std::future::Future;
use std::io;
use std::net::Shutdown;
use std::pin::pin;
use std::sync::Arc;

use ashlar_engine::net::Listener;
use ashlar_engine::{ReceiveError, sleep, spawn};
use ashlar_nbd::tls::Channel;
use futures_util::future::{Either, select};

use super::budget::Budget;
pub use super::config::{Config, Tls};
use super::export::Exports;
use super::peers::{Departed, PeerSlot, Peers, Shared};
use super::placement::{Place, Placement};
use super::server::{Begun, Disconnect, End, begin, resume};
use super::throttle::Topic;

/// Accepts the clients that connect to `listener` on the current reactor, and serves `exports` to them on the threads of `placement`,
/// until `stop`; then waits for the connections to end. Requests hold memory of `budget`. When `stop` ends, all its clones must
/// end, too.
///
/// # Errors
/// The listening socket failed. Existing connections were not disturbed, and have ended.
///
/// # Panics
/// On a thread without a reactor.
pub async fn listen(
    listener: Listener,
    exports: Arc<Exports>,
    budget: Arc<Budget>,
    placement: Arc<Placement>,
    config: Config,
    tls: Tls,
    stop: impl Future<Output = ()> + Clone + Send + 'static,
) -> io::Result<()> {
    let shared = Shared::new(config, tls, budget, exports);
    let peers = Peers::new(Arc::clone(&shared));
    let accept_all = async {
        let passing = |error: &io::Error| {
            let say = || tracing::warn!(%error, "accepting an NBD connection");
            shared.say(Topic::Accepting, say);
        };
        loop {
            match listener.next(passing).await {
                Ok(socket) => {
                    let slot = peers.admit(Channel::plain(socket), None);
                    let (shared, placement) = (Arc::clone(&shared), Arc::clone(&placement));
                    spawn(connection(slot, shared, placement, stop.clone())).detach();
                }
                Err(error) => return error,
            }
        }
    };
    let result = match select(Box::pin(accept_all), pin!(stop.clone())).await {
        Either::Left((error, _)) => Err(error),
        Either::Right(((), _)) => Ok(()),
    };
    // No new client can connect; wait for the existing ones.
    drop(listener);
    peers.all_gone().await;
    result
}

/// The handshake of a connection, and then its transmission on the thread where it is placed.
async fn connection(
    slot: PeerSlot,
    shared: Arc<Shared>,
    placement: Arc<Placement>,
    stop: impl Future<Output = ()> + Clone + Send + 'static,
) {
    let config = shared.config;
    let (stream, peer, patience) = (&slot.stream, &slot.peer, sleep(config.handshake));
    // Boxed: its state is not needed while the transmission runs.
    let handshake = begin(stream, &shared.tls, &shared.exports, peer, stop.clone(), patience);
    let handshake = Box::pin(handshake);
    let outcome = handshake.await;
    if peer.was_refused() {
        let (why, most) =
            ("NBD client refused: the maximum number is connected", config.max_connections);
        shared.say(Topic::Refused, || tracing::warn!(most, "{why}"));
    }
    let topic = if peer.is_served() { Topic::Transmission } else { Topic::Handshake };
    let begun = match slot.dropped().map_or(outcome, Err) {
        Ok(Ok(begun)) => begun,
        Ok(Err(end)) => return log_end(&shared, topic, Ok(end)),
        Err(why) => return log_end(&shared, topic, Err(why)),
    };
    let (departed, away) = match slot.depart() {
        Ok(departed) => departed,
        Err(why) => return log_end(&shared, topic, Err(why)),
    };
    let place = placement.place();
    let thread = place.thread();
    let served = thread.spawn_on(move || transmission(departed, begun, shared, place, stop));
    if let Err(ReceiveError) = served.await {
        tracing::debug!("an NBD connection has ended with its thread or by a panic");
    }
    drop(away);
}

/// Serves a connection whose transmission has begun, and closes it.
async fn transmission(
    departed: Departed,
    begun: Begun,
    shared: Arc<Shared>,
    place: Place,
    stop: impl Future<Output = ()> + Clone,
) {
    let slot = departed.arrive(&shared);
    let (stream, grace) = (&slot.stream, shared.config.grace);
    let served = pin!(resume(stream, begun, &slot.peer, stop.clone()));
    let deadline = pin!(async {
        stop.await;
        sleep(grace).await;
    });
    let result = match select(served, deadline).await {
        Either::Left((result, _)) => result,
        Either::Right(((), served)) => {
            // Breaks a send that the client does not take; requests in flight still run to their end.
            if let Err(error) = stream.stream().shutdown(Shutdown::Both).await {
                tracing::debug!(%error, "shutting an NBD connection down");
            }
            served.await
        }
    };
    log_end(&shared, Topic::Transmission, slot.dropped().map_or(result, Err));
    // Before the client sees the end, with the socket.
    drop(place);
}

fn log_end(shared: &Shared, topic: Topic, result: Result<End, Disconnect>) {
    match result {
        Ok(end) => tracing::debug!(?end, "NBD connection ended"),
        Err(error @ (Disconnect::Io(_) | Disconnect::Truncated)) => {
            shared.say(topic, || tracing::info!(%error, "NBD connection lost"));
        }
        Err(error) => shared.say(topic, || tracing::warn!(%error, "NBD connection dropped")),
    }
}

#[cfg(test)]
#[path = "listen_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "listen_threads_tests.rs"]
mod thread_tests;
