//! How many connections a listener takes, and how long it waits for them.

use std::time::Duration;

use ashlar_nbd::tls::ServerTls;

use super::handshake::TlsPolicy;

/// TLS of a listener's clients.
#[derive(Clone, Default)]
pub struct Tls {
    /// The credentials; `None` if there is no TLS.
    server: Option<ServerTls>,
    is_required: bool,
}

impl Tls {
    /// Clients may use TLS, or must.
    pub fn new(server: ServerTls, is_required: bool) -> Self {
        Self { server: Some(server), is_required }
    }

    /// What the negotiation asks of clients.
    pub(crate) fn policy(&self) -> TlsPolicy {
        match (&self.server, self.is_required) {
            (None, _) => TlsPolicy::Off,
            (Some(_), false) => TlsPolicy::On,
            (Some(_), true) => TlsPolicy::Require,
        }
    }

    /// Whether each client has to prove who it is.
    pub fn proves_clients(&self) -> bool {
        self.is_required && self.server.as_ref().is_some_and(ServerTls::proves_clients)
    }

    /// The credentials.
    pub fn server(&self) -> Option<&ServerTls> {
        self.server.as_ref()
    }
}

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
