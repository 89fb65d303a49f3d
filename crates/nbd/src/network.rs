//! What the connections of a disk run on: byte streams, tasks, time and threads. A disk has the [engine's](Internet); the
//! simulation has others.

use std::io;
use std::net::ToSocketAddrs;
use std::time::Duration;

use ashlar_engine::net::Socket;
use ashlar_engine::{Handle, Receiver, blocking};
use rustix::net::sockopt;

use crate::stream::Stream;
use crate::uri::Address;

/// A peer that is gone without a word is noticed by probes when nothing is sent, and otherwise by data that are not
/// acknowledged in this time.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_COUNT: u32 = 3;
const USER_TIMEOUT_MS: u32 = 25_000;

/// See the module text.
pub trait Network: 'static {
    /// A connection.
    type Stream: Stream + 'static;
    /// A thread as others see it.
    type Thread: Clone + Send + Sync + 'static;

    /// Connects to a server.
    fn connect(address: &Address) -> impl Future<Output = io::Result<Self::Stream>>;
    /// Runs a task on the current thread.
    fn spawn(task: impl Future<Output = ()> + 'static);
    /// Ends after `duration`.
    fn sleep(duration: Duration) -> impl Future<Output = ()>;
    /// Runs what `make` returns on a thread, in the order of the current thread's calls. Dropping the result does not stop it.
    fn run_on<F, Fut>(thread: &Self::Thread, make: F) -> Receiver<Fut::Output>
    where
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future + 'static,
        Fut::Output: Send + 'static;
}

/// Sockets, and the reactors of the engine.
pub struct Internet;

impl Network for Internet {
    type Stream = Socket;
    type Thread = Handle;

    async fn connect(address: &Address) -> io::Result<Socket> {
        match address {
            Address::Unix(path) => Socket::connect_unix(path).await,
            Address::Tcp(host, port) => {
                let mut last = io::Error::from(io::ErrorKind::NotFound);
                let (host, port) = (host.clone(), *port);
                // Blocks while the name is looked up.
                let look_up = move || (host.as_str(), port).to_socket_addrs().map(Vec::from_iter);
                for address in blocking::run(look_up).await.map_err(io::Error::other)?? {
                    match Socket::connect_tcp(address).await {
                        Ok(socket) => {
                            sockopt::set_tcp_keepidle(&socket, KEEPALIVE_IDLE)?;
                            sockopt::set_tcp_keepintvl(&socket, KEEPALIVE_INTERVAL)?;
                            sockopt::set_tcp_keepcnt(&socket, KEEPALIVE_COUNT)?;
                            sockopt::set_socket_keepalive(&socket, true)?;
                            sockopt::set_tcp_user_timeout(&socket, USER_TIMEOUT_MS)?;
                            return Ok(socket);
                        }
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
        }
    }

    fn spawn(task: impl Future<Output = ()> + 'static) {
        ashlar_engine::spawn(task).detach();
    }

    async fn sleep(duration: Duration) {
        ashlar_engine::sleep(duration).await;
    }

    fn run_on<F, Fut>(thread: &Handle, make: F) -> Receiver<Fut::Output>
    where
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future + 'static,
        Fut::Output: Send + 'static,
    {
        thread.spawn_on(make)
    }
}
