//! Physical volumes in files, for tests/interop/lvm-metadata.sh: LVM checks what this crate writes.
//!
//! ```text
//! lvm-files make FILE...      makes a physical volume of each (the first with two metadata areas), and group vg
//! lvm-files change N FILE...  N commits, each with another tag and another logical volume
//! lvm-files show FILE...      the group's text, as vgcfgbackup would write it
//! ```
//!
//! The files are small: they are read into simulated disks and written back.

use std::env;
use std::error::Error;
use std::fs;
use std::sync::Arc;

use ashlar_block::{Gateway, Sector, Sectors};
use ashlar_lvm::alloc::Wish;
use ashlar_lvm::commit::{Member, commit};
use ashlar_lvm::format::{Layout, format_pv, write_label};
use ashlar_lvm::group::assemble;
use ashlar_lvm::metadata::{Creation, Header, Segment, SegmentKind, Snapshot};
use ashlar_lvm::text::Form;
use ashlar_lvm::{LogicalVolume, Metadata, PhysicalVolume, PvOnDisk, Uuid, VolumeGroup, read_pv};
use ashlar_sim::{Media, Rng, Sim, SimDisk};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match &args[..] {
        ["make", files @ ..] => with_disks(files, make),
        ["change", times, files @ ..] => {
            let times = times.parse()?;
            with_disks(files, |sim, gateways| change(sim, gateways, times))
        }
        ["show", files @ ..] => with_disks(files, show),
        _ => Err("usage: lvm-files make|change N|show FILE...".into()),
    }
}

fn with_disks(files: &[&str], work: impl Fn(&Sim, &[Gateway]) -> Result<()>) -> Result<()> {
    let mut media = Vec::new();
    for file in files {
        let bytes = fs::read(file)?;
        let medium = Media::new(Sectors::from_bytes_floor(bytes.len() as u64));
        medium.poke(Sector(0), &bytes);
        media.push(medium);
    }
    let disk = |media: &Media| SimDisk::over("disk", media.clone()).gateway();
    let gateways: Vec<Gateway> = media.iter().map(disk).collect();
    work(&Sim::new(1), &gateways)?;
    for (file, medium) in files.iter().zip(&media) {
        fs::write(file, medium.peek_range(Sector(0), medium.capacity()))?;
    }
    Ok(())
}

fn header(why: &str) -> Header {
    Header {
        generator: "ashlar".into(),
        description: why.into(),
        creation_host: "host".into(),
        host_details: String::new(),
        creation_time: 1_700_000_000,
    }
}

fn make(sim: &Sim, gateways: &[Gateway]) -> Result<()> {
    let mut rng = Rng::new(9);
    let mut group = VolumeGroup::new("vg", new_uuid(&mut rng), Sectors(2048));
    let mut pvs = Vec::new();
    for (i, gateway) in gateways.iter().enumerate() {
        let copies = if i == 0 { 2 } else { 1 };
        let layout = Layout { metadata_copies: copies, ..Layout::default() };
        let mut pv = sim.block_on(format_pv(gateway, new_uuid(&mut rng), &layout))?;
        pv.label.set_used(true);
        sim.block_on(write_label(gateway, &pv))?;
        let member = PhysicalVolume::of_label(&pv.label, group.extent_size);
        group.pvs.push(member.ok_or("too large")?);
        pvs.push(pv);
    }
    write(sim, gateways, &mut pvs, Metadata::new(group, header("made")))
}

fn read_all(sim: &Sim, gateways: &[Gateway]) -> Result<(Vec<PvOnDisk>, Metadata)> {
    let mut pvs = Vec::new();
    for gateway in gateways {
        pvs.push(sim.block_on(read_pv(gateway))?.ok_or("no physical volume")?);
    }
    let found = assemble(&pvs.iter().collect::<Vec<_>>());
    let group = found.groups.into_iter().next().ok_or("no volume group")?;
    if !group.is_complete() {
        return Err("the group is not complete".into());
    }
    Ok((pvs, Arc::unwrap_or_clone(group.metadata)))
}

fn change(sim: &Sim, gateways: &[Gateway], times: u32) -> Result<()> {
    for _ in 0..times {
        let (mut pvs, mut metadata) = read_all(sim, gateways)?;
        let group = &mut metadata.group;
        let mut rng = Rng::new(group.seqno.into());
        group.tags.push(format!("change{}", group.seqno));
        let wish = match group.seqno % 3 {
            0 => Wish::striped(2, 2, Sectors(128)),
            _ => Wish::linear(3),
        };
        // Leave some room for LVM's volumes.
        let room = group.free_extents() > 20;
        if let Some(segments) = group.allocate(&wish, None).ok().filter(|_| room) {
            let name = group.free_name("lvol");
            let mut lv = LogicalVolume::new(name, new_uuid(&mut rng), true, segments);
            lv.creation = Some(Creation { time: 1_700_000_000, host: "host".into() });
            lv.tags = vec!["a+b".into()];
            group.add_lv(lv);
        }
        snapshot(group, &mut rng);
        metadata.set_header(header("changed"));
        write(sim, gateways, &mut pvs, metadata)?;
    }
    Ok(())
}

/// Makes a snapshot of the first volume, once.
fn snapshot(group: &mut VolumeGroup, rng: &mut Rng) {
    if group.lv("snap").is_some() || group.lv("lvol0").is_none() {
        return;
    }
    let Ok(segments) = group.allocate(&Wish::linear(2), None) else { return };
    let snapshot = Snapshot {
        origin: "lvol0".into(),
        cow: "snap".into(),
        chunk_size: Sectors(8),
        merging: false,
    };
    let size = group.lv("lvol0").map_or(0, LogicalVolume::extents);
    let tie = Segment::new(0, size, SegmentKind::Snapshot(snapshot));
    group.add_lv(LogicalVolume::new("snap", new_uuid(rng), false, segments));
    let name = group.free_name("snapshot");
    group.add_lv(LogicalVolume::new(name, new_uuid(rng), true, vec![tie]));
}

fn write(
    sim: &Sim,
    gateways: &[Gateway],
    pvs: &mut [PvOnDisk],
    mut metadata: Metadata,
) -> Result<()> {
    metadata.group.seqno += 1;
    metadata.group.check()?;
    let mut members: Vec<Member<'_>> =
        gateways.iter().zip(pvs).map(|(gateway, pv)| Member { gateway, pv }).collect();
    let done = sim.block_on(commit(&mut members, &metadata))?;
    if done.stale.is_empty() { Ok(()) } else { Err("some volumes are stale".into()) }
}

fn show(sim: &Sim, gateways: &[Gateway]) -> Result<()> {
    let (_, metadata) = read_all(sim, gateways)?;
    let text = metadata.print(Form::Backup { utc_offset: 0 });
    print!("{}", String::from_utf8_lossy(&text));
    Ok(())
}

fn new_uuid(rng: &mut Rng) -> Uuid {
    let mut random = [0; 32];
    for part in random.chunks_mut(8) {
        part.copy_from_slice(&rng.next_u64().to_le_bytes());
    }
    Uuid::from_random(random)
}
