//! Accepting connections on a reactor; their queues run on several.

use std::future::Future;
use std::io;
use std::net::Shutdown;
use std::pin::pin;
use std::sync::Arc;

use ashlar_block::rate_limited;
use ashlar_engine::net::{Listener, Socket};
use ashlar_engine::{Handle, process, sleep, spawn};
use futures_util::future::{Either, select};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};

use crate::config::Config;
use crate::export::Export;
use crate::session::Session;
use crate::violation::Violation;

/// Accepts the front ends that connect to `listener` on the current reactor until `closed`, and serves `export` to them, with their
/// queues on `threads`, until `stop`, which ends the acceptance, too; then waits for the connections to end.
///
/// # Errors
/// The listening socket failed. Existing connections have ended.
///
/// # Panics
/// On a thread without a reactor; without threads; or with no queue or more than 256.
pub async fn listen(
    listener: Listener,
    export: Arc<Export>,
    threads: Arc<[Handle]>,
    config: Config,
    closed: impl Future<Output = ()>,
    stop: impl Future<Output = ()> + Clone + 'static,
) -> io::Result<()> {
    assert!(!threads.is_empty() && (1..=256).contains(&config.queues));
    let config = Arc::new(config);
    let mut connections = FuturesUnordered::new();
    let (closed, stopping) = (pin!(closed), pin!(stop.clone()));
    let mut stopped = pin!(select(closed, stopping).map(|_| ()).fuse());
    let mut first_thread = 0usize;
    let passing = |error: &io::Error| {
        rate_limited!(warn, %error, "accepting a vhost-user connection");
    };
    let result = loop {
        let event = {
            let accepting = pin!(listener.next(passing));
            let ending = pin!(async {
                while connections.next().await.is_some() {}
                std::future::pending::<()>().await;
            });
            let accepted = select(accepting, ending);
            match select(accepted, stopped.as_mut()).await {
                Either::Left((Either::Left((accepted, _)), _)) => accepted,
                Either::Left((Either::Right(((), _)), _)) => continue,
                Either::Right(((), _)) => break Ok(()),
            }
        };
        let socket = match event {
            Ok(socket) => socket,
            Err(error) => break Err(error),
        };
        if connections.len() >= config.max_connections {
            let (volume, most) = (export.name(), config.max_connections);
            rate_limited!(
                warn,
                volume,
                most,
                "vhost-user front end refused: the maximum number is connected"
            );
            continue;
        }
        let served = connection(
            socket,
            Arc::clone(&export),
            Arc::clone(&threads),
            Arc::clone(&config),
            first_thread,
            stop.clone(),
        );
        first_thread = first_thread.wrapping_add(usize::from(config.queues));
        connections.push(spawn(served).fallible());
    };
    drop(listener);
    while connections.next().await.is_some() {}
    result
}

async fn connection(
    socket: Socket,
    export: Arc<Export>,
    threads: Arc<[Handle]>,
    config: Arc<Config>,
    first_thread: usize,
    stop: impl Future<Output = ()> + Clone,
) {
    let client = process::peer_pid(&socket).unwrap_or(0);
    let Some(volume) = export.open() else {
        tracing::debug!(
            volume = export.name(),
            client,
            "vhost-user front end of a withdrawn volume"
        );
        return;
    };
    let _connected = export.connected(client);
    tracing::debug!(volume = export.name(), client, "vhost-user connection begins");
    let mut session = Session::new(&export, volume, &config, &threads, first_thread, client);
    let served = pin!(session.run(&socket, stop.clone()));
    let deadline = pin!(async {
        stop.await;
        sleep(config.grace).await;
    });
    let result = match select(served, deadline).await {
        Either::Left((result, _)) => result,
        Either::Right(((), _)) => {
            // Its requests still run to their ends, and then their queues end.
            Err(io::Error::from(io::ErrorKind::TimedOut).into())
        }
    };
    log_end(export.name(), client, result);
    if let Err(error) = socket.shutdown(Shutdown::Both).await {
        tracing::debug!(%error, "shutting a vhost-user connection down");
    }
}

fn log_end(volume: &str, client: i32, result: Result<(), Violation>) {
    match result {
        Ok(()) => tracing::debug!(volume, client, "vhost-user connection ended"),
        Err(Violation::Io(error)) => {
            rate_limited!(info, volume, client, %error, "vhost-user connection lost");
        }
        Err(Violation::Ring(queue, fault)) => {
            rate_limited!(warn, volume, client, queue, %fault, "vhost-user connection ended: its guest broke the rules");
        }
        Err(violation) => {
            rate_limited!(warn, volume, client, %violation, "vhost-user connection ended: its front end broke the rules");
        }
    }
}
