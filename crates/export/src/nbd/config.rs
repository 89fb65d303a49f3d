//! How many connections a listener takes, and how long it waits for them.

use std::time::Duration;

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
