//! Copies a RAID volume to standard output: `dm_raid_read LEVEL COPIES CHUNK SECTORS LEG...`, where COPIES
//! is md's layout with raid5 and raid6, and each leg is `META,DATA`, images of its devices; an empty name is a missing device. CHUNK is in sectors.
//! Legs left out, and why, are printed to standard error.

use std::error::Error;
use std::io::Write;

use ashlar_block::{Gateway, Sector, Sectors};
use ashlar_md::dm_raid::{Leg, Shape, candidates};
use ashlar_md::ondisk::Level;
use ashlar_md::{Array, Options, plan};
use ashlar_sim::{Media, Sim, SimDisk};
use uuid::Uuid;

/// Length of each read: several chunks, and parts of chunks.
const STEP: Sectors = Sectors(1000);

fn disk(path: &str) -> Result<Option<Gateway>, Box<dyn Error>> {
    if path.is_empty() {
        return Ok(None);
    }
    let bytes = std::fs::read(path).map_err(|error| format!("{path}: {error}"))?;
    let media = Media::new(Sectors::from_bytes_ceil(bytes.len() as u64));
    media.poke(Sector::ZERO, &bytes);
    Ok(Some(SimDisk::over(path, media).gateway()))
}

async fn copy(sim: &Sim, args: &[String]) -> Result<(), Box<dyn Error>> {
    let [level, copies, chunk, sectors, legs @ ..] = args else {
        return Err("usage: dm_raid_read LEVEL COPIES CHUNK SECTORS META,DATA...".into());
    };
    let shape = Shape {
        level: Level::from_raw(level.parse()?),
        copies: copies.parse()?,
        parity: copies.parse()?,
        chunk: Sectors(chunk.parse()?),
    };
    let mut pairs = Vec::new();
    for leg in legs {
        let (meta, data) = leg.split_once(',').ok_or("a leg is META,DATA")?;
        pairs.push(Leg { meta: disk(meta)?, data: disk(data)? });
    }
    let found = candidates(Uuid::from_u128(1), shape, &pairs).await?;
    let plan =
        plan(found.candidates, &Options { run: true, read_only: true, force: false }).await?;
    for note in found.notes.iter().chain(&plan.notes) {
        eprintln!("{note}");
    }
    let array = Gateway::new(Array::start(plan, "md0", sim.runtime()));
    let (mut at, end) = (Sector::ZERO, Sectors(sectors.parse()?).as_end());
    let mut out = std::io::stdout().lock();
    while at < end {
        let part = STEP.min(end - at);
        out.write_all(array.read(at, part).await?.as_slice())?;
        at += part;
    }
    Ok(out.flush()?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let sim = Sim::new(1);
    sim.block_on(copy(&sim, &args))
}
