//! A snapshot under several threads: the simulator has only one, and cannot detect a lost wake-up between two.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use ashlar_block::{Buffer, Flags, Gateway, Runtime, Sector, Sectors};
use ashlar_dm::snapshot::Origins;
use ashlar_dm::{Context, Device, Devices, Table, text};
use ashlar_engine::{Engine, EngineRuntime, RamDevice, Reactor, ReactorConfig};
use ashlar_sim::Rng;

const SIZE: u64 = 16_384;
const THREADS: usize = 4;
const IOS: usize = 1500;

#[derive(Clone)]
struct DeviceList(Vec<(&'static str, Gateway)>);

impl Devices for DeviceList {
    fn find(&self, name: &str) -> Option<Gateway> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, gateway)| gateway.clone())
    }
}

fn pattern(sector: u64, generation: u64) -> [u8; 512] {
    let mut bytes = [0; 512];
    bytes[..8].copy_from_slice(&sector.to_le_bytes());
    bytes[8..16].copy_from_slice(&generation.to_le_bytes());
    bytes
}

async fn write(gateway: &Gateway, at: u64, len: u64, generation: u64) {
    let bytes: Vec<u8> = (at..at + len).flat_map(|sector| pattern(sector, generation)).collect();
    let mut data = Buffer::from_slice(&bytes);
    gateway.write(Sector(at), &mut data, Flags::empty()).await.expect("a write");
}

/// Writes the origin and reads the snapshots, which must not change, from one thread.
async fn work(origin: Gateway, snaps: Vec<Gateway>, seed: u64) {
    let mut rng = Rng::new(seed);
    for io in 0..IOS {
        let at = rng.below(SIZE);
        let len = 1 + rng.below((SIZE - at).min(64));
        if rng.chance(1, 2) {
            write(&origin, at, len, 1 + io as u64).await;
            continue;
        }
        let data = snaps[rng.index(snaps.len())].read(Sector(at), Sectors(len)).await;
        let data = data.expect("a read");
        for (sector, bytes) in (at..).zip(data.as_slice().chunks(512)) {
            assert_eq!(bytes, pattern(sector, 0), "sector {sector}");
        }
    }
}

#[test]
fn snapshots_hold_under_several_threads() {
    (0..12).for_each(round);
}

/// Creates everything again: most happens while first copies are made.
fn round(round: u64) {
    let ram = |name, size| -> Gateway {
        Gateway::new(Arc::new(RamDevice::new(name, Sectors(size)).expect("memory")))
    };
    let (real, cow1, cow2) = (ram("real", SIZE), ram("cow1", 40_000), ram("cow2", 40_000));
    let named = DeviceList(vec![("real", real), ("cow1", cow1), ("cow2", cow2)]);
    let reactor = Reactor::new(ReactorConfig::default()).expect("a reactor");
    let runtime: Arc<dyn Runtime> = Arc::new(EngineRuntime);
    let origins: Arc<Origins> = Arc::default();
    let devices: Vec<Gateway> = reactor.block_on(async {
        let real = named.find("real").expect("a disk");
        for at in (0..SIZE).step_by(64) {
            write(&real, at, 64, 0).await;
        }
        let mut devices = Vec::new();
        for line in ["snapshot-origin real", "snapshot real cow1 P 8", "snapshot real cow2 PO 32"] {
            let lines = text::parse(&format!("0 {SIZE} {line}")).expect("a line");
            let (runtime, origins) = (Arc::clone(&runtime), Arc::clone(&origins));
            let context = Context { devices: &named, runtime: Arc::clone(&runtime), origins };
            let table = Table::load(&lines, &context).await.expect("a table");
            let device = Device::start(line, table, runtime).await.expect("a device");
            devices.push(Gateway::new(device));
        }
        devices
    });
    let engine = Engine::start(THREADS).expect("reactors");
    let done = Arc::new(AtomicUsize::new(0));
    let ends: Vec<_> = engine
        .handles()
        .iter()
        .zip(1_u64..)
        .map(|(handle, seed)| {
            let (origin, snaps, done) =
                (devices[0].clone(), devices[1..].to_vec(), Arc::clone(&done));
            handle.spawn_on(move || async move {
                work(origin, snaps, round * 100 + seed).await;
                done.fetch_add(1, SeqCst);
            })
        })
        .collect();
    reactor.block_on(async {
        for end in ends {
            end.await.expect("a thread that went through");
        }
    });
    assert_eq!(done.load(SeqCst), THREADS);
}
