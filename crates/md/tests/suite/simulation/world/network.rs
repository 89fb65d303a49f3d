//! Members on a network: far ones, links that break and come back, servers that stand still or restart; and the daemon, which
//! has reads prefer near members and re-adds those that come back.
//!
//! A request has one reply: a second one cannot exist here, because completing a request consumes it. The client of NBD ends
//! a connection on which a reply comes twice, which these worlds know as a link that breaks
//! (`crates/nbd/tests/suite/violations.rs`).

use std::collections::HashSet;
use std::time::Duration;

use ashlar_block::{Presence, Runtime};
use ashlar_md::Array;
use ashlar_md::ondisk::Level;
use ashlar_sim::{Break, Model, Rng, SimDisk, SimRuntime, Tail};
use futures_util::future::{join, join_all};

use super::World;
use super::script::Script;

/// How often the daemon looks, and how long it waits at least before it re-adds a member.
const DAEMON: Duration = Duration::from_secs(1);

/// The links to the disks.
pub(crate) struct Links {
    /// How far the disks are.
    pub(crate) models: Vec<Model>,
    /// How one breaks while the server lives on, and executes within that time what it got before.
    late: fn(Duration) -> Break,
}

impl World {
    /// A random new array whose members are on a network, some near and some far.
    pub(crate) fn networked(level: Level, seed: u64) -> Self {
        let (mut rng, mut lag) = (Rng::new(seed ^ 0x6e_6574), Rng::new(seed ^ 0x6c_6167));
        // A quarter does not: these are the worlds of earlier seeds.
        let mut world = Self::random(level, seed, !lag.chance(1, 4));
        let mut models: Vec<Model> =
            world.media.iter().map(|_| random_distance(&mut rng)).collect();
        if world.lags {
            models.iter_mut().for_each(|model| model.tail = Some(random_tail(model, &mut lag)));
        }
        world.links = Some(Links { models, late: |within| Break::Late { within } });
        world
    }

    /// As [`Self::networked`], with drivers that abandon writes which may take effect later.
    pub(crate) fn networked_by_forgetful_drivers(level: Level, seed: u64) -> Self {
        let mut world = Self::networked(level, seed);
        if let Some(links) = &mut world.links {
            links.late = |within| Break::LateAndForgotten { within };
        }
        world
    }

    /// Whether writes that were acknowledged may be lost before a flush. A write that only waits for write-mostly members is
    /// acknowledged. If the member that has it fails, and they do not take it, it is lost, as with a cache: the next flush fails.
    pub(crate) fn may_lose_writes_behind(&self, array: &Array, script: &Script) -> bool {
        let behind = array.bitmap().is_some_and(|b| b.superblock().write_behind.get() > 0);
        self.links.is_some() && behind && script.too_many
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
                let late = self.links.as_ref().filter(|_| self.lags).map(|links| links.late);
                break_link(&disks[*disk], keeps_data, late, rng)
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

/// Of the commands of a far disk, some take up to 100 times as long, but not as long as they may.
fn random_tail(model: &Model, rng: &mut Rng) -> Tail {
    const MOST_NS: u64 = 400_000_000;
    let usual_ns = model.write_ns.max(model.flush_ns) * (100 + model.jitter_percent) / 100;
    Tail { one_in: [5, 20, 100][rng.index(3)], most_times: (MOST_NS / usual_ns).clamp(1, 100) }
}

/// Breaks the link to a disk, or stops its server, a few times.
async fn break_link(
    disk: &SimDisk,
    keeps_data: bool,
    late: Option<fn(Duration) -> Break>,
    mut rng: Rng,
) {
    let media = disk.media();
    // The link tells of what may be lost, whether or not a request is in flight.
    let cut_off = |how| {
        media.cut_off(how);
        disk.disk().note_loss();
    };
    for _ in 0..=rng.below(4) {
        SimRuntime.sleep(Duration::from_micros(rng.below(30_000))).await;
        match (rng.below(if late.is_some() { 8 } else { 6 }), late) {
            (0, _) if keeps_data => cut_off(Break::Restart),
            (0..3, _) => cut_off(Break::Ended),
            (6.., Some(late)) => {
                until_written(disk).await;
                cut_off(late(Duration::from_millis([50, 5000, 5000][rng.index(3)])));
            }
            (3, _) => media.fall_silent(),
            (4, _) => media.hang_nth_command(rng.below(8)),
            _ => media.slow_down(2 + rng.below(20)),
        }
        let most_us = [5_000, 3_000_000][rng.index(2)];
        SimRuntime.sleep(Duration::from_micros(rng.below(most_us))).await;
        media.answer();
        media.reconnect();
        media.slow_down(1);
    }
}

/// Waits until writes are in flight, or for as long as an idle array may take to begin one.
async fn until_written(disk: &SimDisk) {
    for _ in 0..400 {
        if disk.disk().stats().totals().write.in_flight > 0 {
            return;
        }
        SimRuntime.sleep(Duration::from_micros(500)).await;
    }
}
