//! Pools for tests: made by `thin_restore` from XML, on simulated disks.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use ashlar_block::{Sector, Sectors};
use ashlar_dm::thin::ondisk::{self, Block};
use ashlar_dm::thin::{Details, Options, ThinError, ThinPool};
use ashlar_sim::{Media, SimDisk};

pub(crate) const BLOCK: usize = ondisk::BLOCK_BYTES;

/// The data block and time for each block of a device.
pub(crate) type Map = BTreeMap<u64, (u64, u32)>;

/// A pool, as in XML.
#[derive(Clone, Default)]
pub(crate) struct Shape {
    pub(crate) data_block: u64,
    pub(crate) data_blocks: u64,
    pub(crate) transaction: u64,
    pub(crate) devices: BTreeMap<u32, (Details, Map)>,
}

impl Shape {
    pub(crate) fn new(data_block: u64, data_blocks: u64) -> Self {
        Self { data_block, data_blocks, transaction: 77, devices: BTreeMap::new() }
    }

    /// Adds a device.
    pub(crate) fn with(mut self, id: u32, map: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let map: Map = map.into_iter().map(|(block, data)| (block, (data, id % 1000))).collect();
        let details = Details {
            mapped_blocks: map.len() as u64,
            transaction_id: u64::from(id) + 1,
            creation_time: 3,
            snapshotted_time: 5,
        };
        self.devices.insert(id, (details, map));
        self
    }

    fn xml(&self) -> String {
        let mut xml = format!(
            "<superblock uuid=\"\" time=\"9\" transaction=\"{}\" data_block_size=\"{}\" \
             nr_data_blocks=\"{}\">\n",
            self.transaction, self.data_block, self.data_blocks
        );
        for (id, (of, map)) in &self.devices {
            let (mapped, transaction) = (of.mapped_blocks, of.transaction_id);
            let (created, snapshotted) = (of.creation_time, of.snapshotted_time);
            writeln!(
                xml,
                "<device dev_id=\"{id}\" mapped_blocks=\"{mapped}\" transaction=\"{transaction}\" \
                 creation_time=\"{created}\" snap_time=\"{snapshotted}\">"
            )
            .expect("text");
            for (block, (data, time)) in map {
                writeln!(
                    xml,
                    "<single_mapping origin_block=\"{block}\" data_block=\"{data}\" time=\"{time}\"/>"
                )
                .expect("text");
            }
            xml += "</device>\n";
        }
        xml + "</superblock>\n"
    }

    /// The metadata device of `blocks` blocks that `thin_restore` makes of it.
    pub(crate) fn restore(&self, blocks: usize) -> Vec<u8> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let unique = format!("thin-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(unique);
        std::fs::create_dir_all(&dir).expect("a directory");
        let (xml, image) = (dir.join("xml"), dir.join("image"));
        std::fs::write(&xml, self.xml()).expect("the XML");
        std::fs::write(&image, vec![0; blocks * BLOCK]).expect("an image");
        let mut run = Command::new("thin_restore");
        run.arg("-q").arg("-i").arg(&xml).arg("-o").arg(&image);
        let done = run.output().expect("thin_restore of the package thin-provisioning-tools");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let bytes = std::fs::read(&image).expect("the image");
        std::fs::remove_dir_all(&dir).expect("to remove what was made");
        bytes
    }

    /// Parses the output of `thin_dump`.
    pub(crate) fn parse(xml: &str) -> Self {
        let mut shape = Self::default();
        let mut map = None;
        for line in xml.lines().map(str::trim) {
            let number = |name: &str| -> u64 {
                let (_, rest) = line.split_once(&format!(" {name}=\"")).expect(name);
                rest.split('"').next().and_then(|text| text.parse().ok()).expect(name)
            };
            let word = line.split(' ').next().unwrap_or_default();
            let map_of = |map: &mut Option<u32>| map.expect("a device");
            match word {
                "<superblock" => {
                    shape.data_block = number("data_block_size");
                    shape.data_blocks = number("nr_data_blocks");
                    shape.transaction = number("transaction");
                }
                "<device" => {
                    let details = Details {
                        mapped_blocks: number("mapped_blocks"),
                        transaction_id: number("transaction"),
                        creation_time: number("creation_time") as u32,
                        snapshotted_time: number("snap_time") as u32,
                    };
                    let id = number("dev_id") as u32;
                    shape.devices.insert(id, (details, Map::new()));
                    map = Some(id);
                }
                "<single_mapping" | "<range_mapping" => {
                    let single = word == "<single_mapping";
                    let (from, len) = match single {
                        true => (number("origin_block"), 1),
                        false => (number("origin_begin"), number("length")),
                    };
                    let data = number(if single { "data_block" } else { "data_begin" });
                    let time = number("time") as u32;
                    let (_, map) = shape.devices.get_mut(&map_of(&mut map)).expect("a device");
                    map.extend((0..len).map(|i| (from + i, (data + i, time))));
                }
                _ => assert!(word.starts_with("</"), "{line}"),
            }
        }
        shape
    }
}

/// A medium with these bytes.
pub(crate) fn medium(bytes: &[u8]) -> Media {
    let media = Media::new(Sectors::from_bytes_ceil(bytes.len() as u64));
    media.poke(Sector::ZERO, bytes);
    media
}

pub(crate) fn block(image: &[u8], number: usize) -> &Block {
    image[number * BLOCK..][..BLOCK].try_into().expect("a block")
}

/// Corrects the checksum of a block.
pub(crate) fn seal(image: &mut [u8], number: usize) {
    let bytes = block(image, number);
    let sum = match number {
        0 => ondisk::superblock_checksum(bytes),
        _ => ondisk::node_checksum(bytes),
    };
    image[number * BLOCK..][..4].copy_from_slice(&sum.to_le_bytes());
}

/// Opens the pool on two media.
pub(crate) async fn open(
    metadata: &Media,
    data: &Media,
    options: Options,
) -> Result<Arc<ThinPool>, ThinError> {
    let metadata = SimDisk::over("metadata", metadata.clone()).gateway();
    let data = SimDisk::over("data", data.clone()).gateway();
    ThinPool::open("pool", metadata, data, options).await
}

/// Reads everything from a pool.
pub(crate) async fn read_all(pool: &ThinPool) -> Result<Shape, ThinError> {
    let superblock = pool.superblock();
    let mut shape = Shape {
        data_block: superblock.data_block.0,
        data_blocks: superblock.data_blocks,
        transaction: superblock.transaction_id,
        devices: BTreeMap::new(),
    };
    for (id, details) in pool.devices().await? {
        assert_eq!(pool.details(id).await?, Some(details));
        let mut map = Map::new();
        let add = |run: ashlar_dm::thin::Mapping| {
            map.extend((0..run.len).map(|i| (run.block + i, (run.data_block + i, run.time))));
        };
        pool.mappings(id, add).await?;
        shape.devices.insert(id, (details, map));
    }
    Ok(shape)
}

/// Compares two pools; reports the differing device without all of its mappings.
pub(crate) fn assert_same(found: &Shape, wanted: &Shape) {
    let head = |shape: &Shape| {
        let ids: Vec<u32> = shape.devices.keys().copied().collect();
        (shape.data_block, shape.data_blocks, shape.transaction, ids)
    };
    assert_eq!(head(found), head(wanted));
    for (id, (details, map)) in &found.devices {
        let (wanted_details, wanted_map) = &wanted.devices[id];
        assert_eq!(details, wanted_details, "device {id}");
        assert!(map == wanted_map, "device {id} has other mappings");
    }
}
