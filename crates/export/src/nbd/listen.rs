//! Accepting connections on a reactor.

use std::future::Future;
use std::io;
use std::net::Shutdown;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use ashlar_engine::net::{Listener, Socket};
use ashlar_engine::{sleep, spawn};
use async_lock::Semaphore;
use futures_util::future::{Either, select};

use super::export::Exports;
use super::server::{Disconnect, serve};

/// The knobs of a listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Connections at a time; further clients wait in the kernel's queue.
    pub max_connections: usize,
    /// Time a client has to choose an export.
    pub handshake: Duration,
    /// Time a client has to take its replies once the server stops.
    pub grace: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            max_connections: 256,
            handshake: Duration::from_secs(30),
            grace: Duration::from_secs(5),
        }
    }
}

/// Pause after an accept that failed for want of a resource.
const RETRY: Duration = Duration::from_millis(100);

/// Serves `exports` to whoever connects to `listener`, on the current reactor, until `stop`; then
/// waits for the connections to end. Every clone of `stop` must end when the first does.
///
/// # Errors
/// The listening socket failed. Connections are not disturbed by that, and were waited for.
///
/// # Panics
/// On a thread without a reactor.
pub async fn listen(
    listener: Listener,
    exports: Arc<Exports>,
    config: Config,
    stop: impl Future<Output = ()> + Clone + 'static,
) -> io::Result<()> {
    let places = Arc::new(Semaphore::new(config.max_connections));
    let accept_all = async {
        loop {
            let place = places.acquire_arc().await;
            match listener.accept().await {
                Ok(socket) => {
                    let served = connection(socket, Arc::clone(&exports), config, stop.clone());
                    let task = spawn(async move {
                        served.await;
                        drop(place);
                    });
                    task.detach();
                }
                Err(error) if is_passing(&error) => {
                    tracing::warn!(%error, "accepting an NBD connection");
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
    let mut ended = Vec::with_capacity(config.max_connections);
    while ended.len() < config.max_connections {
        ended.push(places.acquire().await);
    }
    result
}

fn is_passing(error: &io::Error) -> bool {
    // ConnectionAborted: the client was gone before it was accepted. The numbers are ENFILE, EMFILE,
    // ENOBUFS and ENOMEM, the same on all architectures.
    error.kind() == io::ErrorKind::ConnectionAborted
        || matches!(error.raw_os_error(), Some(23 | 24 | 105 | 12))
}

/// Serves one connection and closes it.
async fn connection(
    socket: Socket,
    exports: Arc<Exports>,
    config: Config,
    stop: impl Future<Output = ()> + Clone,
) {
    let served = pin!(serve(&socket, &exports, stop.clone(), sleep(config.handshake)));
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
    match result {
        Ok(end) => tracing::debug!(?end, "NBD connection ended"),
        Err(error @ (Disconnect::Io(_) | Disconnect::Truncated)) => {
            tracing::info!(%error, "NBD connection lost");
        }
        Err(error) => tracing::warn!(%error, "NBD connection dropped"),
    }
}
