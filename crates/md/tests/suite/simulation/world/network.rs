//! Members on a network: far ones, links that break and come back, servers that stand still or restart; and the daemon, which
//! has reads prefer near members and re-adds those that come back.
//!
//! A request has one reply: a second one cannot end it, because completing a request consumes it (and the client of NBD ends
//! a connection on which a reply comes twice: `crates/nbd/tests`).

use std::collections::HashSet;
use std::time::Duration;

use ashlar_block::{Presence, Runtime};
use ashlar_md::Array;
use ashlar_md::ondisk::Level;
use ashlar_sim::{Model, Rng, SimDisk, SimRuntime};
use futures_util::future::{join, join_all};

use super::World;
use super::script::Script;

/// How often the daemon looks, and how long it waits at least before it re-adds a member.
const DAEMON: Duration = Duration::from_secs(1);

impl World {
    /// A random new array whose members are on a network, some near and some far.
    pub(crate) fn networked(level: Level, seed: u64) -> Self {
        let mut world = Self::new(level, seed);
        let mut rng = Rng::new(seed ^ 0x6e_6574);
        let distances = world.media.iter().map(|_| random_distance(&mut rng)).collect();
        world.distances = Some(distances);
        world
    }

    /// Whether writes that were acknowledged may be lost before a flush. A write that only waits for write-mostly members is
    /// acknowledged. If the member that has it fails, and they do not take it, it is lost, as with a cache: the next flush fails.
    pub(crate) fn may_lose_writes_behind(&self, array: &Array, script: &Script) -> bool {
        let behind = array.bitmap().is_some_and(|b| b.superblock().write_behind.get() > 0);
        self.distances.is_some() && behind && script.too_many
    }

    /// What happens on the network, and what the daemon does about it, for ever.
    pub(crate) async fn network(
        &self,
        array: &Array,
        disks: &[SimDisk],
        script: &Script,
        mut rng: Rng,
    ) {
        if rng.chance(1, 3) {
            array.members().set_read_hedge_us(100 << rng.below(8));
        }
        let daemon = self.daemon(array, rng.fork());
        let links = async {
            // While copies may differ, the member with the first copy must not fail.
            while array.is_unsynced() {
                SimRuntime.sleep(Duration::from_micros(200)).await;
            }
            let keeps_data = !script.too_many;
            join_all(script.victims.iter().map(|disk| {
                let rng = rng.fork();
                break_link(&disks[*disk], keeps_data, rng)
            }))
            .await;
        };
        join(daemon, links).await;
    }

    /// As `returns.rs` of the host.
    async fn daemon(&self, array: &Array, mut rng: Rng) {
        let mut seen = HashSet::new();
        loop {
            SimRuntime.sleep(DAEMON).await;
            array.balance_reads();
            for member in array.status().await.members.into_iter().filter(|member| member.lost) {
                let Some(index) = member.index else { continue };
                let Some(rdev) = array.members().get(index) else { continue };
                let device = rdev.gateway();
                let is_away =
                    device.disk().presence() == Presence::Silent || device.holds_changes();
                if seen.insert(index) || is_away || rng.chance(1, 4) {
                    continue;
                }
                self.added.borrow_mut().insert(self.disk_at(rdev.path()));
                let done = array.set_member_state(index, "re-add").await;
                if std::env::var_os("ASHLAR_SEED").is_some() {
                    eprintln!("re-add {}: {done:?}", rdev.path());
                }
            }
        }
    }
}

/// A local disk, one in the same room, or one that is up to 50 ms away.
fn random_distance(rng: &mut Rng) -> Model {
    let near = Model::nvme();
    if rng.chance(1, 3) {
        return near;
    }
    let most = 1 << (1 + rng.below(9));
    let far_ns = 100_000 * (1 + rng.below(most)).min(500);
    Model {
        read_ns: near.read_ns + far_ns,
        write_ns: near.write_ns + far_ns,
        flush_ns: near.flush_ns + far_ns,
        discard_ns: near.discard_ns + far_ns,
        jitter_percent: [10, 50, 100][rng.index(3)],
        ..near
    }
}

/// Breaks the link to a disk, or stops its server, a few times.
async fn break_link(disk: &SimDisk, keeps_data: bool, mut rng: Rng) {
    let media = disk.media();
    for _ in 0..=rng.below(4) {
        SimRuntime.sleep(Duration::from_micros(rng.below(30_000))).await;
        match rng.below(6) {
            kind @ 0..3 => {
                media.cut_off(kind == 0 && keeps_data);
                // The link tells of what may be lost, whether or not a request is in flight.
                disk.disk().note_loss();
            }
            3 => media.fall_silent(),
            4 => media.hang_nth_command(rng.below(8)),
            _ => media.slow_down(2 + rng.below(20)),
        }
        let most_us = [5_000, 3_000_000][rng.index(2)];
        SimRuntime.sleep(Duration::from_micros(rng.below(most_us))).await;
        media.answer();
        media.reconnect();
        media.slow_down(1);
    }
}
