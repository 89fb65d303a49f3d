//! Copies a thin volume to standard output: `thin_read METADATA DATA CHUNK ID SECTORS [ORIGIN]`, where
//! the first two are images of a pool's devices, CHUNK is its block size in sectors, and ORIGIN is the
//! image of an external origin.

use std::error::Error;
use std::io::Write;
use std::sync::Arc;

use ashlar_block::{Gateway, Sector, Sectors};
use ashlar_dm::thin::{Options, ThinPool};
use ashlar_dm::{Device, Table, Target};
use ashlar_sim::{Media, Sim, SimDisk, SimRuntime};

/// Length of a read: some blocks, and parts of blocks.
const STEP: Sectors = Sectors(1000);

fn disk(path: &str) -> Result<Gateway, Box<dyn Error>> {
    let bytes = std::fs::read(path).map_err(|error| format!("{path}: {error}"))?;
    let media = Media::new(Sectors::from_bytes_ceil(bytes.len() as u64));
    media.poke(Sector::ZERO, &bytes);
    Ok(SimDisk::over(path, media).gateway())
}

async fn copy(args: &[String]) -> Result<(), Box<dyn Error>> {
    let [metadata, data, chunk, id, sectors, origin @ ..] = args else {
        return Err("usage: thin_read METADATA DATA CHUNK ID SECTORS [ORIGIN]".into());
    };
    let options = Options { data_block: Some(Sectors(chunk.parse()?)), ..Options::default() };
    let pool = ThinPool::open("pool", disk(metadata)?, disk(data)?, options).await?;
    let len = Sectors(sectors.parse()?);
    let mut volume = pool.volume(id.parse()?, len).await?;
    for origin in origin {
        volume = volume.with_origin(origin, disk(origin)?);
    }
    let table = Table::of(vec![(len, Box::new(volume) as Box<dyn Target>)])?;
    let device = Gateway::new(Device::start("thin", table, Arc::new(SimRuntime)).await?);
    let mut out = std::io::stdout().lock();
    let mut at = Sector::ZERO;
    while at < len.as_end() {
        let part = STEP.min(len.as_end() - at);
        out.write_all(device.read(at, part).await?.as_slice())?;
        at += part;
    }
    Ok(out.flush()?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    Sim::new(1).block_on(copy(&args))
}
