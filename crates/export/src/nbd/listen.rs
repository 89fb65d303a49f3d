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
use rustix::io::Errno;

use super::budget::Budget;
use super::export::Exports;
use super::peers::{Peers, Seat};
use super::server::{Disconnect, serve};
use super::throttle::Topic;

/// The knobs of a listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Connections in transmission at a time; further clients are refused.
    pub max_connections: usize,
    /// Connections in the handshake at a time; the oldest is dropped for a further one.
    pub max_handshakes: usize,
    /// Time a client has to choose an export.
    pub handshake: Duration,
    /// Time after which a connection on which nothing happens is dropped.
    pub idle: Option<Duration>,
    /// Time that a client may leave a transfer waiting while others wait for the memory that it holds;
    /// a long transfer has as much time besides as it takes at 1 MiB/s.
    pub patience: Duration,
    /// Time a client has to take its replies once the server stops.
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

/// Pause after an accept that failed for want of a resource.
const RETRY: Duration = Duration::from_millis(100);

/// Serves `exports` to the clients that connect to `listener`, on the current reactor, until `stop`; then
/// waits for the connections to end. Requests hold memory of `budget`. Every clone of `stop` must end
/// when the first does.
///
/// # Errors
/// The listening socket failed. Connections are not disturbed by that, and were waited for.
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
    let peers = Peers::new(config, budget);
    let accept_all = async {
        loop {
            match listener.accept().await {
                Ok(socket) => {
                    let seat = peers.admit(socket);
                    spawn(connection(seat, Arc::clone(&exports), config, stop.clone())).detach();
                }
                Err(error) if is_passing(&error) => {
                    peers.say(
                        Topic::Accepting,
                        || tracing::warn!(%error, "accepting an NBD connection"),
                    );
                    sleep(RETRY).await;
                }
                Err(error) => return error,
            }
        }
    };
    let result = match select(Box::pin(accept_all), pin!(stop.clone())).await {
        Either::Left((error, _)) => Err(error),
        Either::Right(((), _)) => Ok(()),
    };
    // Nobody connects any more; those who have are waited for.
    drop(listener);
    peers.all_gone().await;
    result
}

/// Whether accepting may succeed another time: it is not the listening socket that is wrong. Errors of
/// the network come from accept(2) for connections that are gone already.
fn is_passing(error: &io::Error) -> bool {
    let of_the_socket = [Errno::BADF, Errno::FAULT, Errno::INVAL, Errno::NOTSOCK, Errno::OPNOTSUPP];
    Errno::from_io_error(error).is_some_and(|errno| !of_the_socket.contains(&errno))
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
            // Breaks a send that the client does not take; requests in flight still end.
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
