//! The settings of a socket.

use std::time::Duration;

use crate::memory::Unsealed;

/// How a socket serves its volume.
#[derive(Clone, Debug)]
pub struct Config {
    /// The queues that a device has, 1 to 256. A driver uses as many of them as it likes.
    pub queues: u16,
    /// What becomes of memory that its front end can shorten.
    pub unsealed: Unsealed,
    /// The most connections at a time; further ones are closed.
    pub max_connections: usize,
    /// How long a queue looks at an empty ring before it sleeps, unless its driver lets it wait longer most times: less latency, and
    /// fewer signals of the driver, for more processor time.
    pub spin: Duration,
    /// How long the requests in flight of a connection may take to end after `stop`, before it is abandoned.
    pub grace: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            queues: 16,
            unsealed: Unsealed::default(),
            max_connections: 16,
            spin: Duration::ZERO,
            grace: Duration::from_secs(10),
        }
    }
}
