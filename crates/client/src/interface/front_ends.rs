//! What front ends tell of themselves: their fields of [`Status`](super::Status) and [`Sample`](super::Sample), and the texts for users.

use serde::{Deserialize, Serialize};

/// The places where clients find the volumes.
#[derive(Serialize, Deserialize, Debug, Default)]
pub struct PlaceStatus {
    /// The mount point, if any.
    pub mount: Option<String>,
    /// The addresses of the NBD servers.
    pub nbd: Vec<String>,
    /// The address of the metrics, if they are served over HTTP.
    pub metrics: Option<String>,
}

impl PlaceStatus {
    /// The places, for users.
    pub fn lines(&self) -> Vec<String> {
        let mount = self.mount.iter().map(|mount| format!("mounted on {mount}"));
        let nbd = self.nbd.iter().map(|address| format!("NBD at {address}"));
        let metrics = self.metrics.iter().map(|address| format!("metrics at {address}"));
        mount.chain(nbd).chain(metrics).collect()
    }
}

/// The clients of a volume.
#[derive(Clone, Serialize, Deserialize, Debug, Default)]
pub struct VolumeClients {
    /// The NBD clients that have chosen it; none from an older daemon, which does not list them.
    #[serde(default)]
    pub nbd_clients: Vec<NbdClient>,
}

impl VolumeClients {
    /// The clients, for users.
    pub fn lines(&self) -> Vec<String> {
        let client = |NbdClient { peer, connections }: &NbdClient| {
            let s = if *connections == 1 { "" } else { "s" };
            format!("NBD client {peer}, {connections} connection{s}")
        };
        self.nbd_clients.iter().map(client).collect()
    }

    /// The connections of all NBD clients.
    pub fn nbd_connections(&self) -> u64 {
        self.nbd_clients.iter().map(|client| client.connections).sum()
    }
}

/// An NBD client of a volume.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug, Default)]
pub struct NbdClient {
    /// Who it is: an IP address, or `process` and a number.
    pub peer: String,
    /// Its connections to the volume.
    pub connections: u64,
}

/// The connections that a thread serves.
#[derive(Clone, Serialize, Deserialize, Debug, Default)]
pub struct ThreadConnections {
    /// Connections of NBD clients that have chosen an export, of all addresses.
    pub nbd_connections: u64,
}

/// The most connections that are served.
#[derive(Clone, Serialize, Deserialize, Debug, Default)]
pub struct ConnectionLimits {
    /// Those of NBD clients at each address, if there is an address.
    #[serde(default)]
    pub nbd_connections_limit: Option<u64>,
}
