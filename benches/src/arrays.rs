//! Arrays to measure.

use std::sync::Arc;

use ashlar_block::{Gateway, Sectors};
use ashlar_engine::EngineRuntime;
use ashlar_md::create::{NewDevice, create};
use ashlar_md::ondisk::create::{CreateSpec, DEFAULT_DAEMON_SLEEP, NewBitmap, NewMember};
use ashlar_md::ondisk::{DeviceFlags, Level, Version};
use ashlar_md::probe::probe;
use ashlar_md::{Array, Candidate, Options, plan};
use uuid::Uuid;

/// Makes an array of the level's default layout on `disks`, whose contents do not matter, and starts
/// it.
pub(crate) async fn make(level: Level, disks: &[Gateway]) -> Arc<Array> {
    let members = disks.iter().map(|disk| {
        let (device, device_uuid) = (disk.capacity(), Uuid::new_v4());
        Some(NewMember { device, device_uuid, flags: DeviceFlags::default() })
    });
    let spec = CreateSpec {
        version: Version::V1_2,
        level,
        layout: None,
        chunk: None,
        raid_devices: disks.len() as u32,
        members: members.collect(),
        size: None,
        data_offset: Some(Sectors(2048)),
        set_uuid: Uuid::new_v4(),
        name: "bench:0".into(),
        ctime: 0,
        assume_clean: true,
        bitmap: NewBitmap::None,
        write_behind: 0,
        daemon_sleep: DEFAULT_DAEMON_SLEEP,
        bad_block_log: false,
    };
    let devices: Vec<_> = disks
        .iter()
        .map(|disk| {
            let path = disk.disk().name().to_owned();
            Some(NewDevice { gateway: disk.clone(), path, known_zero: false })
        })
        .collect();
    create(&spec, &devices).await.expect("making an array");
    let mut candidates = Vec::new();
    for disk in disks {
        let sb = probe(disk).await.expect("probing").expect("a superblock");
        candidates.push(Candidate { gateway: disk.clone(), path: sb.name.clone(), sb });
    }
    let plan = plan(candidates, &Options::default()).await.expect("assembling");
    Array::start(plan, "md0", Arc::new(EngineRuntime))
}
