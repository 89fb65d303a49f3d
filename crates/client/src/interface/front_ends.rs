//! What front ends tell of themselves: their fields of [`Status`](super::Status) and [`Sample`](super::Sample), and the texts for users.

use serde::{Deserialize, Serialize};

/// The places where clients find the volumes.
#[derive(Serialize, Deserialize, Debug, Default)]
pub struct PlaceStatus {
    /// The mount point, if any.
    pub mount: Option<String>,
    /// The addresses of the NBD servers.
    pub nbd: Vec<String>,
    /// The pattern of the sockets for virtual machines, if there are any; none from an older daemon.
    #[serde(default)]
    pub vhost_user: Option<String>,
    /// The block devices of volumes; none from an older daemon.
    #[serde(default)]
    pub ublk: Vec<UblkDevice>,
    /// The address of the metrics, if they are served over HTTP.
    pub metrics: Option<String>,
}

impl PlaceStatus {
    /// The places, for users.
    pub fn lines(&self) -> Vec<String> {
        let mount = self.mount.iter().map(|mount| format!("mounted on {mount}"));
        let nbd = self.nbd.iter().map(|address| format!("NBD at {address}"));
        let vhost_user =
            self.vhost_user.iter().map(|pattern| format!("vhost-user-blk at {pattern}"));
        let metrics = self.metrics.iter().map(|address| format!("metrics at {address}"));
        let device = |UblkDevice { volume, path }: &UblkDevice| format!("{volume} is {path}");
        let ublk = self.ublk.iter().map(device);
        mount.chain(nbd).chain(vhost_user).chain(ublk).chain(metrics).collect()
    }
}

/// The block device of a volume.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug, Default)]
pub struct UblkDevice {
    /// The volume's name for clients.
    pub volume: String,
    /// The device's path.
    pub path: String,
}

/// The clients of a volume.
#[derive(Clone, Serialize, Deserialize, Debug, Default)]
pub struct VolumeClients {
    /// The NBD clients that have chosen it; none from an older daemon, which does not list them.
    #[serde(default)]
    pub nbd_clients: Vec<NbdClient>,
    /// The virtual machines that have it; none from an older daemon.
    #[serde(default)]
    pub vhost_user_clients: Vec<VhostUserClient>,
}

impl VolumeClients {
    /// The clients, for users.
    pub fn lines(&self) -> Vec<String> {
        let client = |NbdClient { peer, connections }: &NbdClient| {
            let s = if *connections == 1 { "" } else { "s" };
            format!("NBD client {peer}, {connections} connection{s}")
        };
        let machine = |VhostUserClient { process }: &VhostUserClient| {
            format!("vhost-user front end, process {process}")
        };
        let machines = self.vhost_user_clients.iter().map(machine);
        self.nbd_clients.iter().map(client).chain(machines).collect()
    }

    /// The connections of all NBD clients.
    pub fn nbd_connections(&self) -> u64 {
        self.nbd_clients.iter().map(|client| client.connections).sum()
    }

    /// The connections of all virtual machines.
    pub fn vhost_user_connections(&self) -> u64 {
        self.vhost_user_clients.len() as u64
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

/// A virtual machine that has a volume.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug, Default)]
pub struct VhostUserClient {
    /// The process that runs it, 0 if it is not known.
    pub process: u64,
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
