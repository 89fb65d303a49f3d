//! Who uses which volume: the connections in transmission, by volume and by who is at their other end.
//!
//! It changes when a transmission begins or ends, so a lock around a map is enough.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ashlar_block::byte_volume::ByteVolume;
use ashlar_engine::process;

/// Who is at the other end of a connection. The connections of one are counted together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub enum Origin {
    /// It is not known: the kernel did not say.
    #[default]
    Unknown,
    /// A process of this machine; 0 if it is in another PID namespace.
    Process(i32),
    /// A machine.
    Address(IpAddr),
}

impl Origin {
    /// The other end of a connected socket.
    pub(crate) fn of(socket: impl AsFd) -> Self {
        let address = rustix::net::getpeername(&socket).ok().flatten();
        match address.and_then(|address| SocketAddr::try_from(address).ok()) {
            Some(address) => Self::Address(address.ip().to_canonical()),
            None => process::peer_pid(socket).map_or(Self::Unknown, Self::Process),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("unknown"),
            Self::Process(0) => f.write_str("process of another PID namespace"),
            Self::Process(pid) => write!(f, "process {pid}"),
            Self::Address(address) => address.fmt(f),
        }
    }
}

/// A volume, as long as a client has it open.
type VolumeKey = usize;

fn key(volume: &ByteVolume) -> VolumeKey {
    ptr::from_ref(volume.gateway().disk()).addr()
}

/// See the module text.
#[derive(Default)]
pub(crate) struct Clients(Mutex<BTreeMap<(VolumeKey, Origin), usize>>);

impl Clients {
    /// Counts a connection that has opened `volume`. The caller drops the result before it closes the volume.
    pub(crate) fn enter(self: &Arc<Self>, volume: &ByteVolume, origin: Origin) -> Client {
        let of = (key(volume), origin);
        *self.lock().entry(of).or_default() += 1;
        Client { clients: Arc::clone(self), of }
    }

    /// All connections.
    pub(crate) fn count(&self) -> usize {
        self.lock().values().sum()
    }

    /// The connections to `volume`, by their origin.
    pub(crate) fn of(&self, volume: &ByteVolume) -> Vec<(Origin, usize)> {
        let key = key(volume);
        let map = self.lock();
        let all = map.iter().filter(|((volume, _), _)| *volume == key);
        all.map(|((_, origin), count)| (*origin, *count)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(VolumeKey, Origin), usize>> {
        // No code panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection's part of the count, until it is dropped.
pub(crate) struct Client {
    clients: Arc<Clients>,
    of: (VolumeKey, Origin),
}

impl Drop for Client {
    fn drop(&mut self) {
        let mut map = self.clients.lock();
        if let Some(count) = map.get_mut(&self.of) {
            *count -= 1;
            if *count == 0 {
                map.remove(&self.of);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use super::super::testing::SlowRam;
    use super::*;

    #[test]
    fn connections_are_counted_by_volume_and_origin_until_they_end() {
        let [one, other] = [(); 2].map(|()| SlowRam::new(4096, 0).volume());
        let (near, far) = (Origin::Process(7), Origin::Address(Ipv4Addr::LOCALHOST.into()));
        let clients = Arc::new(Clients::default());
        let open = one.open().unwrap();
        let mut all = vec![clients.enter(&open, near), clients.enter(&one, far)];
        all.push(clients.enter(&one, near));
        let last = clients.enter(&other, near);
        assert_eq!(clients.of(&one), [(near, 2), (far, 1)]);
        assert_eq!((clients.of(&other), clients.count()), (vec![(near, 1)], 4));
        all.truncate(1);
        assert_eq!(clients.of(&one), [(near, 1)]);
        drop((all, last));
        assert_eq!((clients.of(&one), clients.count()), (Vec::new(), 0));
    }

    #[test]
    fn the_other_end_is_a_process_or_an_address_and_never_a_port() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        assert_eq!(Origin::of(&ours).to_string(), format!("process {}", std::process::id()));
        let listener = TcpListener::bind("[::]:0").or_else(|_| TcpListener::bind("0.0.0.0:0"));
        let listener = listener.unwrap();
        let port = listener.local_addr().unwrap().port();
        let _client = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        let (ours, _) = listener.accept().unwrap();
        assert_eq!(Origin::of(&ours).to_string(), "127.0.0.1");
    }
}
