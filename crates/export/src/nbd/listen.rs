//! Accepting connections on a reactor.

use std::future::Future;
use std::io;
use std::net::Shutdown;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use ashlar_engine::net::Listener;
use ashlar_engine::{sleep, spawn};
use futures_util::future::{Either, select};

use super::budget::Budget;
use super::export::Exports;
use super::peers::{Peers, Seat};
use super::server::{Disconnect, serve};
use super::throttle::Topic;

/// The settings of a listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// The most connections in transmission; further clients are refused.
    pub max_connections: usize,
    /// The most connections in the handshake; a new one displaces the oldest.
    pub max_handshakes: usize,
    /// The time that a client has to choose an export.
    pub handshake: Duration,
    /// The time after which an idle connection is dropped.
    pub idle: Option<Duration>,
    /// How long a client may leave a transfer waiting while others wait for the memory that it holds; a long transfer
    /// additionally gets the time that it takes at 1 MiB/s.
    pub patience: Duration,
    /// The time that a client has to take its replies once the server stops.
    pub grace: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            max_connections: 256,
            max_handshakes: 64,
            handshake: Duration::from_secs(30),
            idle: None,
            patience: Duration::from_secs(10),
            grace: Duration::from_secs(5),
        }
    }
}

/// Serves `exports` to the clients that connect to `listener`, on the current reactor, until `stop`; then waits for the
/// connections to end. Requests hold memory of `budget`. When `stop` ends, all its clones must end, too.
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
    config: Config,
    stop: impl Future<Output = ()> + Clone + 'static,
) -> io::Result<()> {
    let peers = Peers::new(config, budget, Arc::clone(&exports));
    let accept_all = async {
        let passing = |error: &io::Error| {
            peers.say(Topic::Accepting, || tracing::warn!(%error, "accepting an NBD connection"));
        };
        loop {
            match listener.next(passing).await {
                Ok(socket) => {
                    let seat = peers.admit(socket);
                    spawn(connection(seat, Arc::clone(&exports), config, stop.clone())).detach();
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

/// Serves one connection and closes it.
async fn connection(
    seat: Seat,
    exports: Arc<Exports>,
    config: Config,
    stop: impl Future<Output = ()> + Clone,
) {
    let (socket, peer) = (&seat.socket, &seat.peer);
    let served = pin!(serve(socket, &exports, peer, stop.clone(), sleep(config.handshake)));
    let deadline = pin!(async {
        stop.await;
        sleep(config.grace).await;
    });
    let result = match select(served, deadline).await {
        Either::Left((result, _)) => result,
        Either::Right(((), served)) => {
            // Breaks a send that the client does not take; requests in flight still run to their end.
            if let Err(error) = socket.shutdown(Shutdown::Both).await {
                tracing::debug!(%error, "shutting an NBD connection down");
            }
            served.await
        }
    };
    let peers = seat.peers();
    if peer.was_refused() {
        let (why, most) =
            ("NBD client refused: there are as many as may be", config.max_connections);
        peers.say(Topic::Refused, || tracing::warn!(most, "{why}"));
    }
    let topic = if peer.is_served() { Topic::Transmission } else { Topic::Handshake };
    match seat.dropped().map_or(result, Err) {
        Ok(end) => tracing::debug!(?end, "NBD connection ended"),
        Err(error @ (Disconnect::Io(_) | Disconnect::Truncated)) => {
            peers.say(topic, || tracing::info!(%error, "NBD connection lost"));
        }
        Err(error) => peers.say(topic, || tracing::warn!(%error, "NBD connection dropped")),
    }
}

#[cfg(test)]
#[path = "listen_tests.rs"]
mod tests;
