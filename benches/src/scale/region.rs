//! The volumes of the region, the links between them and their hosts, and what passes over these when a rack has failed.

use ashlar_md::ondisk::Level;
use ashlar_sim::Rng;

use super::network::{Flow, Stream};

pub(super) const VOLUMES: usize = 1000;
pub(super) const RACKS: usize = 20;
/// Hosts that run the daemons, 20 volumes each.
pub(super) const HOSTS: usize = 50;
pub(super) const VOLUME_BYTES: f64 = 100e12;
/// Random writes and reads of 4 KiB per second and volume.
pub(super) const WRITES_PER_S: f64 = 2000.0;
pub(super) const READS_PER_S: f64 = 8000.0;
pub(super) const IO_BYTES: f64 = 4096.0;
const SEED: u64 = 1;

/// Bytes per second of a link of one Gbit/s.
const GBIT: f64 = 125e6;
const MEMBER_GBIT: f64 = 25.0;
const HOST_GBIT: f64 = 100.0;

/// Numbers of the links of racks: out, then in.
pub(super) const RACK_LINKS: std::ops::Range<usize> = 0..2 * RACKS;
/// Numbers of the links of hosts: in, then out.
pub(super) const HOST_LINKS: std::ops::Range<usize> = RACK_LINKS.end..RACK_LINKS.end + 2 * HOSTS;

/// The members of a volume: a stripe over mirrors of two. Each mirror has an equal part of the volume.
#[derive(Clone, Copy)]
pub(super) struct Geometry {
    pub(super) name: &'static str,
    pub(super) level: Level,
    pub(super) mirrors: usize,
}

impl Geometry {
    pub(super) fn member_bytes(self) -> f64 {
        VOLUME_BYTES / self.mirrors as f64
    }
}

/// What the rates of recoveries depend on.
#[derive(Clone, Copy)]
pub(super) struct Network {
    pub(super) rack_gbit: f64,
    /// `sync_speed_min` of each array, in KiB per second.
    pub(super) speed_kib: f64,
}

/// The state of rack 0.
#[derive(Clone, Copy)]
pub(super) enum Rack {
    Up,
    Away,
    /// It is back: its members lack what was written meanwhile.
    Back,
    /// It does not return: members elsewhere replace its own.
    Lost,
}

/// The racks of a volume.
pub(super) struct Volume {
    /// Of its members: mirror after mirror, two each, as near=2 has them.
    members: Vec<usize>,
    /// Of the member that replaces a lost one. It has no other one.
    spare: usize,
}

impl Volume {
    /// The racks of the members of one of its mirrors that hold or receive data: the first is read, all are written.
    fn copies(&self, mirror: &[usize], rack: Rack) -> Vec<usize> {
        let failed = mirror.contains(&0);
        let left = mirror.iter().copied().filter(|rack| *rack != 0);
        match rack {
            Rack::Up => mirror.to_vec(),
            Rack::Away => left.collect(),
            Rack::Back => left.chain(failed.then_some(0)).collect(),
            Rack::Lost => left.chain(failed.then_some(self.spare)).collect(),
        }
    }
}

/// All volumes, their members in racks drawn at random, each in another one.
pub(super) fn volumes(geometry: Geometry) -> Vec<Volume> {
    let mut rng = Rng::new(SEED);
    let count = 2 * geometry.mirrors;
    let mut volume = || {
        let mut racks: Vec<usize> = (0..RACKS).collect();
        for at in 0..=count {
            racks.swap(at, at + rng.index(RACKS - at));
        }
        Volume { members: racks[..count].to_vec(), spare: racks[count] }
    };
    (0..VOLUMES).map(|_| volume()).collect()
}

/// The bytes per second of each link, of which `share` is for use.
///
/// After those of racks and hosts come three of each mirror: from the member that is read, to the other one, and the limit of its
/// recovery. Other directions of members carry clients' I/O alone.
pub(super) fn links(geometry: Geometry, network: Network, share: f64) -> Vec<f64> {
    let mirror =
        [MEMBER_GBIT * GBIT * share, MEMBER_GBIT * GBIT * share, network.speed_kib * 1024.0];
    let racks = RACK_LINKS.map(|_| network.rack_gbit * GBIT * share);
    let hosts = HOST_LINKS.map(|_| HOST_GBIT * GBIT * share);
    let mirrors = (0..VOLUMES * geometry.mirrors).flat_map(|_| mirror);
    racks.chain(hosts).chain(mirrors).collect()
}

/// For each mirror of each volume: its copies, its host, and the number of its first link.
fn mirrors(volumes: &[Volume], rack: Rack) -> impl Iterator<Item = (Vec<usize>, usize, usize)> {
    let all = volumes.iter().enumerate().flat_map(move |(number, volume)| {
        let mirrors = volume.members.chunks(2);
        mirrors.map(move |mirror| (volume.copies(mirror, rack), number % HOSTS))
    });
    all.enumerate().map(|(number, (copies, host))| (copies, host, HOST_LINKS.end + 3 * number))
}

/// The clients' I/O: each volume's spread evenly over its mirrors, reads from the first copy, writes to all of them.
///
/// Reads stay with the member that survives until all recoveries have ended, so that the rates are constant: no read goes to the
/// rack that is back while it is the bottleneck.
pub(super) fn clients(geometry: Geometry, volumes: &[Volume], rack: Rack) -> Vec<Stream> {
    let rate = |ios: f64| ios * IO_BYTES / geometry.mirrors as f64;
    let of_mirror = |(copies, host, own): (Vec<usize>, usize, usize)| {
        let read = vec![copies[0], HOST_LINKS.start + host, own];
        let write = |(number, copy): (usize, usize)| {
            let mut links = vec![HOST_LINKS.start + HOSTS + host, RACKS + copy];
            links.extend((number > 0).then_some(own + 1));
            Stream { links, rate: rate(WRITES_PER_S) }
        };
        let reads = Stream { links: read, rate: rate(READS_PER_S) };
        let writes: Vec<Stream> = copies.into_iter().enumerate().map(write).collect();
        std::iter::once(reads).chain(writes)
    };
    mirrors(volumes, rack).flat_map(of_mirror).collect()
}

/// The recoveries of the members that were in rack 0, of `bytes` each: from the other member of the mirror, through the host.
pub(super) fn recoveries(volumes: &[Volume], rack: Rack, bytes: f64) -> Vec<Flow> {
    let failed = mirrors(volumes, Rack::Away).map(|(copies, ..)| copies.len() == 1);
    let recovery = |(copies, host, own): (Vec<usize>, usize, usize)| {
        let hosts = [HOST_LINKS.start + host, HOST_LINKS.start + HOSTS + host];
        let racks = [copies[0], RACKS + copies[1]];
        Flow { links: racks.into_iter().chain(hosts).chain(own..own + 3).collect(), bytes }
    };
    mirrors(volumes, rack)
        .zip(failed)
        .filter(|(_, failed)| *failed)
        .map(|(all, _)| recovery(all))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scale::GEOMETRIES;
    use crate::scale::network::{beside, load};

    #[test]
    fn each_mirror_that_had_a_member_in_the_rack_is_recovered_elsewhere() {
        for geometry in GEOMETRIES {
            let volumes = volumes(geometry);
            let hit = volumes.iter().filter(|volume| volume.members.contains(&0)).count();
            let expected = VOLUMES * 2 * geometry.mirrors / RACKS;
            assert!(hit > expected / 2 && hit < expected * 2, "{hit}");
            let sources = |rack| -> Vec<usize> {
                recoveries(&volumes, rack, 1.0).iter().map(|flow| flow.links[0]).collect()
            };
            assert_eq!(sources(Rack::Back), sources(Rack::Lost), "the same volumes");
            assert_eq!(sources(Rack::Back).len(), hit, "one mirror of each");
            let count = links(geometry, Network { rack_gbit: 1.0, speed_kib: 1.0 }, 1.0).len();
            for (rack, is_back) in [(Rack::Back, true), (Rack::Lost, false)] {
                for flow in recoveries(&volumes, rack, 1.0) {
                    let target = flow.links[1] - RACKS;
                    assert_eq!(target == 0, is_back);
                    assert!(flow.links.iter().all(|link| *link < count));
                }
            }
            for volume in volumes {
                let mut racks = volume.members;
                racks.push(volume.spare);
                racks.sort_unstable();
                racks.dedup();
                assert_eq!(racks.len(), 2 * geometry.mirrors + 1, "two copies in one rack");
            }
        }
    }

    #[test]
    fn clients_write_all_copies_and_read_the_first() {
        let [_, raid10] = GEOMETRIES;
        let volumes = [
            Volume { members: vec![3, 0, 5, 6], spare: 9 },
            Volume { members: vec![1, 2, 3, 4], spare: 7 },
        ];
        let count = HOST_LINKS.end + 3 * 2 * volumes.len();
        let of = |rack| load(&clients(raid10, &volumes, rack), count);
        // A mirror has half of a volume's I/O.
        let (read, write) = (READS_PER_S * 2048.0, WRITES_PER_S * 2048.0);
        let (out, into) = (|rack: usize| rack, |rack: usize| RACKS + rack);
        let up = of(Rack::Up);
        assert_eq!([up[out(3)], up[out(0)], up[out(5)]], [2.0 * read, 0.0, read]);
        assert_eq!([up[into(3)], up[into(0)], up[into(6)]], [2.0 * write, write, write]);
        let host = HOST_LINKS.start;
        assert_eq!([up[host], up[host + HOSTS]], [2.0 * read, 4.0 * write]);
        let own = HOST_LINKS.end;
        assert_eq!(up[own..own + 6], [read, write, 0.0, read, write, 0.0]);
        let away = of(Rack::Away);
        assert_eq!([away[into(0)], away[host + HOSTS], away[own + 1]], [0.0, 3.0 * write, 0.0]);
        let lost = of(Rack::Lost);
        assert_eq!([lost[into(0)], lost[into(9)], lost[own + 1]], [0.0, write, write]);
        assert_eq!(of(Rack::Back)[..], up[..], "what is read there survived");
        // The first volume's reads were in the rack that failed.
        let turned = [Volume { members: vec![0, 3], spare: 9 }];
        assert_eq!(load(&clients(raid10, &turned, Rack::Back), count)[out(3)], read);
    }

    #[test]
    fn clients_ask_for_less_than_each_link_has() {
        for geometry in GEOMETRIES {
            let links = links(geometry, Network { rack_gbit: 100.0, speed_kib: 1.0 }, 1.0);
            for rack in [Rack::Up, Rack::Away, Rack::Back, Rack::Lost] {
                let load = load(&clients(geometry, &volumes(geometry), rack), links.len());
                assert!(beside(&links, &load).iter().all(|left| *left > 0.0));
            }
        }
    }
}
