//! Arrays for the measurements.

use std::sync::Arc;

use ashlar_block::{Buffer, Flags, Gateway, Runtime, Sector, Sectors};
use ashlar_engine::{Engine, EngineRuntime};
use ashlar_md::create::{NewDevice, create};
use ashlar_md::ondisk::create::{CreateSpec, DEFAULT_DAEMON_SLEEP, NewBitmap, NewMember};
use ashlar_md::ondisk::{DeviceFlags, Level, Version};
use ashlar_md::{Array, Candidate, Options, plan, probe};
use uuid::Uuid;

use crate::common::{Outcome, block_on};

/// Where the data areas of members begin.
pub(crate) const DATA_OFFSET: Sectors = Sectors(2048);

/// How to make an array.
#[derive(Clone, Copy)]
pub(crate) struct Recipe {
    pub(crate) level: Level,
    pub(crate) bitmap: NewBitmap,
    /// Otherwise it is resynced as soon as it is started.
    pub(crate) assume_clean: bool,
    /// A partial parity log, of a RAID5.
    pub(crate) ppl: bool,
}

impl Recipe {
    /// A clean array without a bitmap.
    pub(crate) fn clean(level: Level) -> Self {
        Self { level, bitmap: NewBitmap::None, assume_clean: true, ppl: false }
    }
}

/// Creates an array with the level's default layout on `disks`, whose contents do not matter, and starts it on the
/// current reactor.
pub(crate) async fn make(
    recipe: Recipe,
    disks: &[Gateway],
    runtime: Arc<dyn Runtime>,
) -> Outcome<Arc<Array>> {
    let members = disks.iter().map(|disk| {
        let (device, device_uuid) = (disk.capacity(), Uuid::new_v4());
        Some(NewMember { device, device_uuid, flags: DeviceFlags::default() })
    });
    let spec = CreateSpec {
        version: Version::V1_2,
        level: recipe.level,
        layout: None,
        chunk: None,
        raid_devices: disks.len() as u32,
        members: members.collect(),
        size: None,
        // Behind the log, which has 1 MiB.
        data_offset: Some(if recipe.ppl { Sectors(2 * DATA_OFFSET.0) } else { DATA_OFFSET }),
        set_uuid: Uuid::new_v4(),
        name: "bench:0".into(),
        ctime: 0,
        assume_clean: recipe.assume_clean,
        bitmap: recipe.bitmap,
        write_behind: 0,
        daemon_sleep: DEFAULT_DAEMON_SLEEP,
        ppl: recipe.ppl,
        bad_block_log: false,
        numbers: Default::default(),
    };
    let devices: Vec<_> = disks
        .iter()
        .map(|disk| {
            let path = disk.disk().name().to_owned();
            Some(NewDevice { gateway: disk.clone(), path, known_zero: false, wiped: Vec::new() })
        })
        .collect();
    create(&spec, &devices).await?;
    assemble(disks, runtime).await
}

/// As [`make`], on the first reactor of an engine.
pub(crate) fn on(engine: &Engine, recipe: Recipe, disks: Vec<Gateway>) -> Outcome<Gateway> {
    let array = engine.handles()[0]
        .spawn_on(move || async move { make(recipe, &disks, Arc::new(EngineRuntime)).await });
    Ok(Gateway::new(block_on(array)??))
}

/// As [`make`], with a bitmap without marks: a new bitmap has all of them set.
pub(crate) async fn make_unmarked(
    recipe: Recipe,
    disks: &[Gateway],
    runtime: Arc<dyn Runtime>,
) -> Outcome<Arc<Array>> {
    let array = make(recipe, disks, Arc::clone(&runtime)).await?;
    let mut zeroes = Buffer::zeroed(4096);
    Gateway::new(Arc::<Array>::clone(&array))
        .write(Sector::ZERO, &mut zeroes, Flags::empty())
        .await?;
    // Stopping an array in sync clears its marks.
    array.stop().await?;
    drop(array);
    let array = assemble(disks, runtime).await?;
    match array.bitmap().map(|bitmap| bitmap.marked_chunks()) {
        None | Some(0) => Ok(array),
        Some(n) => Err(format!("{n} marks are left in the bitmap").into()),
    }
}

/// Starts the array that is on `disks`, on the current reactor.
async fn assemble(disks: &[Gateway], runtime: Arc<dyn Runtime>) -> Outcome<Arc<Array>> {
    let mut candidates = Vec::new();
    for disk in disks {
        let sb = probe(disk).await?.ok_or("a new member has no superblock")?;
        candidates.push(Candidate { gateway: disk.clone(), path: sb.name.clone(), sb });
    }
    let plan = plan(candidates, &Options::default()).await?;
    Ok(Array::start(plan, "md0", runtime))
}
