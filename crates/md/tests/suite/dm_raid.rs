//! RAID volumes of dm-raid: the effect of what their superblocks say.
//!
//! The superblocks are built here from the kernel's definition; `tests/images/dm-raid` has some that the
//! kernel wrote, and tests/interop/dm-raid.sh compares whole volumes.

use std::path::Path;
use std::sync::Arc;

use ashlar_block::{Buffer, Flags, Gateway, Sector, Sectors, Status};
use ashlar_md::dm_raid::{DmRaidError, DmRaidSuperblock, Leg, MAGIC, Shape, candidates};
use ashlar_md::ondisk::Level;
use ashlar_md::{Array, Options, plan};
use ashlar_sim::{Media, Sim, SimDisk};
use uuid::Uuid;

const SIZE: u64 = 2048;
const READ: Options = Options { run: true, read_only: true, force: false };
const MIRROR: Shape = Shape { level: Level::Raid1, copies: 0, parity: 0, chunk: Sectors(0) };
const TEN: Shape = Shape { level: Level::Raid10, copies: 2, parity: 0, chunk: Sectors(128) };
const FIVE: Shape = Shape { level: Level::Raid5, copies: 0, parity: 2, chunk: Sectors(128) };
const SIX: Shape = Shape { level: Level::Raid6, copies: 0, parity: 8, chunk: Sectors(64) };
const STRIPED: Shape = Shape { level: Level::Raid0, copies: 0, parity: 0, chunk: Sectors(64) };

/// A superblock's fields, by offset.
#[derive(Clone)]
struct Fields {
    bytes: [u8; 512],
}

impl Fields {
    /// A leg of a volume that was stopped in sync.
    fn new(shape: Shape, leg: u32, legs: u32) -> Self {
        let mut fields = Self { bytes: [0; 512] };
        fields.u32(0, MAGIC).u32(4, 1).u32(8, legs).u32(12, leg);
        fields.u64(16, 10).u64(32, u64::MAX).u64(40, u64::MAX);
        let layout = if shape.level == Level::Raid10 { 0x102 } else { 0 };
        fields.u32(48, shape.level.raw() as u32).u32(52, layout).u32(56, shape.chunk.0 as u32);
        fields.u64(64, u64::MAX).u64(112, SIZE);
        fields
    }

    fn u32(&mut self, at: usize, value: u32) -> &mut Self {
        self.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        self
    }

    fn u64(&mut self, at: usize, value: u64) -> &mut Self {
        self.bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        self
    }
}

/// A kernel bitmap without marks.
fn bitmap(events: u64) -> Vec<u8> {
    let mut bytes = vec![0; 512];
    bytes[..4].copy_from_slice(b"bitm");
    bytes[4] = 4;
    bytes[24..32].copy_from_slice(&events.to_le_bytes());
    bytes[40..48].copy_from_slice(&SIZE.to_le_bytes());
    bytes[52..56].copy_from_slice(&65_536_u32.to_le_bytes());
    bytes[56] = 5;
    bytes
}

/// A volume's devices: for each leg `n` the metadata, and data whose sectors begin with `n` and their
/// number.
struct Volume {
    shape: Shape,
    legs: Vec<(Media, Media)>,
}

impl Volume {
    fn new(shape: Shape, legs: u32) -> Self {
        let leg = |leg| {
            let (meta, data) = (Media::new(Sectors(64)), Media::new(Sectors(SIZE)));
            meta.poke(Sector(0), &Fields::new(shape, leg, legs).bytes);
            meta.poke(Sector(8), &bitmap(10));
            for sector in 0..SIZE {
                data.poke(Sector(sector), &(u64::from(leg) << 32 | sector).to_le_bytes());
            }
            (meta, data)
        };
        Self { shape, legs: (0..legs).map(leg).collect() }
    }

    /// The same volume on media of its own.
    fn copy(&self) -> Self {
        let leg = |(meta, data): &(Media, Media)| (meta.copy(), data.copy());
        Self { shape: self.shape, legs: self.legs.iter().map(leg).collect() }
    }

    /// Changes the superblock of a leg.
    fn change(&self, leg: usize, change: impl Fn(&mut Fields)) -> &Self {
        let mut fields = Fields { bytes: self.legs[leg].0.peek(Sector(0)) };
        change(&mut fields);
        self.legs[leg].0.poke(Sector(0), &fields.bytes);
        self
    }

    /// Ends a chain of changes.
    fn done(&self) {}

    fn change_all(&self, change: impl Fn(&mut Fields)) -> &Self {
        (0..self.legs.len()).for_each(|leg| {
            self.change(leg, &change);
        });
        self
    }

    fn all(&self) -> Vec<Leg> {
        let disk = |name: String, media: &Media| Some(SimDisk::over(name, media.clone()).gateway());
        let pairs = self.legs.iter().enumerate();
        let leg = |(n, (meta, data)): (usize, &(Media, Media))| Leg {
            meta: disk(format!("meta{n}"), meta),
            data: disk(format!("data{n}"), data),
        };
        pairs.map(leg).collect()
    }

    /// Starts the array of these legs. Also returns the notes, or the error as text.
    async fn start(
        &self,
        sim: &Sim,
        legs: &[Leg],
    ) -> Result<(Gateway, Arc<Array>, String), String> {
        let found = candidates(Uuid::from_u128(5), self.shape, legs).await;
        let found = found.map_err(|error| error.to_string())?;
        let mut notes = found.notes;
        let plan = plan(found.candidates, &READ).await.map_err(|error| error.to_string())?;
        notes.extend(plan.notes.iter().cloned());
        let array = Array::start(plan, "md0", sim.runtime());
        Ok((Gateway::new(array.clone()), array, notes.join("\n")))
    }

    /// For each array sector in `read` the leg, and the sector of the leg, that it comes from; and the
    /// notes.
    fn read(&self, legs: &[Leg], read: &[u64]) -> Result<(Vec<(u64, u64)>, String), String> {
        let sim = Sim::new(1);
        sim.block_on(async {
            let (array, _, notes) = self.start(&sim, legs).await?;
            let mut places = Vec::new();
            for sector in read {
                let found = array.read(Sector(*sector), Sectors(1)).await;
                let found = found.map_err(|status| status.to_string())?;
                let word = found.as_slice().first_chunk().copied().map(u64::from_le_bytes);
                let word = word.expect("a sector");
                places.push((word >> 32, word & 0xffff_ffff));
            }
            Ok((places, notes))
        })
    }

    /// All legs that reads come from, and the notes.
    fn sources(&self, legs: &[Leg]) -> (Vec<u64>, String) {
        let all: Vec<u64> = (0..SIZE).step_by(16).collect();
        let (places, notes) = self.read(legs, &all).expect("an array");
        let mut sources: Vec<u64> = places.into_iter().map(|(leg, _)| leg).collect();
        sources.sort_unstable();
        sources.dedup();
        (sources, notes)
    }

    fn refusal(&self) -> String {
        let legs = self.all();
        Sim::new(1).block_on(async {
            let found = candidates(Uuid::nil(), self.shape, &legs).await;
            found.err().expect("a refusal").to_string()
        })
    }
}

#[test]
fn every_field_is_where_the_kernel_has_it() {
    let mut bytes: Vec<u8> = (0..148).collect();
    assert!(DmRaidSuperblock::parse(&bytes).is_none(), "there is no magic number");
    bytes[..4].copy_from_slice(&0x6452_6d44_u32.to_le_bytes());
    let sb = DmRaidSuperblock::parse(&bytes).expect("a superblock");
    let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| (at + i) as u8));
    let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
    let words = [
        (sb.compat_features, 4),
        (sb.num_devices, 8),
        (sb.array_position, 12),
        (sb.level, 48),
        (sb.layout, 52),
        (sb.stripe_sectors, 56),
        (sb.flags, 60),
        (sb.new_level, 72),
        (sb.new_layout, 76),
        (sb.new_stripe_sectors, 80),
        (sb.delta_disks, 84),
        (sb.incompat_features, 144),
    ];
    let longs = [
        (sb.events, 16),
        (sb.failed_devices, 24),
        (sb.disk_recovery_offset, 32),
        (sb.array_resync_offset, 40),
        (sb.reshape_position, 64),
        (sb.array_sectors, 88),
        (sb.data_offset, 96),
        (sb.new_data_offset, 104),
        (sb.sectors, 112),
        (sb.extended_failed_devices[0], 120),
        (sb.extended_failed_devices[2], 136),
    ];
    words.iter().for_each(|(found, at)| assert_eq!(found.get(), word(*at), "at {at}"));
    longs.iter().for_each(|(found, at)| assert_eq!(found.get(), long(*at), "at {at}"));
}

#[test]
fn a_mirror_in_sync_is_read_from_any_leg_and_nothing_is_written() {
    let volume = Volume::new(MIRROR, 2);
    let sim = Sim::new(1);
    let legs = volume.all();
    sim.block_on(async {
        let (array, of, notes) = volume.start(&sim, &legs).await.expect("an array");
        assert_eq!((array.capacity(), notes.as_str()), (Sectors(SIZE), ""));
        assert_eq!(of.status().await.degraded, 0);
        assert!(!of.status().await.unsynced);
        let read = array.read(Sector(0), Sectors(SIZE)).await.expect("a read");
        let sector = |at: usize| read.as_slice()[at * 512..].first_chunk().copied();
        for at in 0..SIZE as usize {
            let word = u64::from_le_bytes(sector(at).expect("a sector"));
            assert_eq!(word & 0xffff_ffff, at as u64);
        }
        let mut buffer = Buffer::zeroed(512);
        let written = array.write(Sector(0), &mut buffer, Flags::empty()).await;
        assert_eq!(written, Err(Status::ReadOnly));
    });
    for (meta, data) in &volume.legs {
        assert_eq!(meta.counts().writes + data.counts().writes, 0);
    }
}

#[test]
fn legs_that_failed_or_are_old_or_not_rebuilt_or_missing_are_left_out_and_named() {
    type Change = fn(&Volume);
    let cases: [(Change, &str); 6] = [
        (
            |v| v.change(0, |f| _ = f.u64(24, 2)).change(2, |f| _ = f.u64(24, 2)).done(),
            "know it as failed",
        ),
        (|v| v.change(1, |f| _ = f.u64(16, 8)).done(), "out of date (events 8 of 10)"),
        (|v| v.change(1, |f| _ = f.u64(32, 512)).done(), "being rebuilt, 512 sectors are done"),
        (|v| v.change(1, |f| _ = f.u32(0, 0)).done(), "has no superblock, so it was never written"),
        (|v| v.legs[1].0.fail_reads(0..1), "leg 1 left out: meta1: "),
        (|v| v.change(0, |f| _ = f.u64(16, 11).u64(24, 2)).done(), "know it as failed"),
    ];
    for (change, wanted) in cases {
        let volume = Volume::new(MIRROR, 3);
        change(&volume);
        let (sources, notes) = volume.sources(&volume.all());
        assert!(!sources.contains(&1), "{wanted}: {sources:?}");
        assert!(notes.contains(wanted), "{wanted}: {notes}");
    }
    for without in [|leg: &mut Leg| leg.meta = None, |leg: &mut Leg| leg.data = None] {
        let volume = Volume::new(MIRROR, 2);
        let mut legs = volume.all();
        without(&mut legs[0]);
        let (sources, notes) = volume.sources(&legs);
        assert_eq!(sources, [1]);
        assert!(notes.starts_with("leg 0 left out: its ") && notes.contains("missing"), "{notes}");
    }
}

#[test]
fn copies_that_may_differ_are_read_from_the_first_leg() {
    let marked = Volume::new(MIRROR, 2);
    marked.legs[1].0.poke(Sector(8), &{
        let mut bytes = bitmap(10);
        bytes[256 + 1] = 4;
        bytes
    });
    let stale = Volume::new(MIRROR, 2);
    stale.legs[1].0.poke(Sector(8), &bitmap(9));
    let none = Volume::new(MIRROR, 2);
    none.legs[1].0.poke(Sector(8), &[0; 512]);
    let unreadable = Volume::new(MIRROR, 2);
    unreadable.legs[1].0.fail_reads(8..9);
    let never = Volume::new(MIRROR, 2);
    never.change_all(|f| _ = f.u64(40, 0));
    for volume in [marked, stale, none, unreadable, never] {
        let (sources, notes) = volume.sources(&volume.all());
        assert_eq!(sources, [0]);
        assert!(notes.contains("first copy of everything is read"), "{notes}");
    }
    // With marks, but only after the bitmap's last bit.
    let volume = Volume::new(MIRROR, 2);
    volume.legs[0].0.poke(Sector(8), &{
        let mut bytes = bitmap(10);
        bytes[256 + 2] = 0xff;
        bytes
    });
    assert_eq!(volume.sources(&volume.all()).1, "");
}

#[test]
fn what_is_behind_the_point_that_copies_are_equal_to_is_read_from_the_first_leg() {
    let volume = Volume::new(MIRROR, 2);
    volume.change_all(|f| _ = f.u64(40, 1024));
    let behind: Vec<u64> = (1024..SIZE).collect();
    let (places, _) = volume.read(&volume.all(), &behind).expect("an array");
    assert!(places.iter().all(|(leg, _)| *leg == 0));
    // Legs that have grown since the superblock was written: the rest was never synced.
    let volume = Volume::new(MIRROR, 2);
    volume.change_all(|f| _ = f.u64(112, 512));
    let behind: Vec<u64> = (512..SIZE).collect();
    let (places, _) = volume.read(&volume.all(), &behind).expect("an array");
    assert!(places.iter().all(|(leg, _)| *leg == 0));
}

#[test]
fn legs_of_a_mirror_that_changed_places_fail_by_their_old_ones() {
    let volume = Volume::new(MIRROR, 3);
    // Legs 0 and 2 have changed places; the old leg 0 has failed.
    volume.change(0, |f| _ = f.u32(12, 2).u64(24, 1)).change(1, |f| _ = f.u64(24, 1));
    volume.change(2, |f| _ = f.u32(12, 0).u64(16, 9));
    let (sources, notes) = volume.sources(&volume.all());
    assert!(!sources.contains(&2), "{sources:?}");
    assert!(notes.contains("data2 left out: the other members know it as failed"), "{notes}");
}

#[test]
fn a_raid10_has_its_chunks_where_mds_near_layout_has_them_with_any_leg_missing() {
    let volume = Volume::new(TEN, 4);
    let all: Vec<u64> = (0..SIZE * 2).step_by(13).collect();
    for missing in [None, Some(0), Some(1), Some(2), Some(3)] {
        let mut legs = volume.all();
        if let Some(missing) = missing {
            legs[missing] = Leg::default();
        }
        let (places, _) = volume.read(&legs, &all).expect("an array");
        for (sector, (leg, at)) in all.iter().zip(places) {
            let chunk = sector / 128;
            assert_eq!((leg / 2, at), (chunk % 2, chunk / 2 * 128 + sector % 128), "{sector}");
            assert_ne!(Some(leg as usize), missing);
        }
    }
    let mut legs = volume.all();
    (legs[2], legs[3]) = (Leg::default(), Leg::default());
    let error = volume.read(&legs, &all).expect_err("no copy is left");
    assert!(error.contains("not enough members"), "{error}");
    assert!(error.contains("2, 3"), "{error}");
}

#[test]
fn a_raid0_needs_no_superblocks_and_all_of_its_legs() {
    let all: Vec<u64> = (0..SIZE * 3).step_by(7).collect();
    for with_meta in [true, false] {
        let volume = Volume::new(STRIPED, 3);
        // These fields are not kept up to date with raid0.
        volume.change(1, |f| _ = f.u64(16, 3).u64(24, 7).u64(32, 5));
        let mut legs = volume.all();
        if !with_meta {
            legs.iter_mut().for_each(|leg| leg.meta = None);
        }
        let (places, notes) = volume.read(&legs, &all).expect("an array");
        assert_eq!(notes, "");
        for (sector, (leg, at)) in all.iter().zip(places) {
            let chunk = sector / 64;
            assert_eq!((leg, at), (chunk % 3, chunk / 3 * 64 + sector % 64), "{sector}");
        }
        legs[1].data = None;
        let error = volume.read(&legs, &all).expect_err("a leg is missing");
        assert!(error.contains("not enough members"), "{error}");
    }
}

#[test]
fn what_is_not_read_is_named() {
    type Change = fn(&mut Fields);
    let cases: [(Change, &str); 9] = [
        (|f| _ = f.u32(60, 1), "the volume is being reshaped (meta1)"),
        (|f| _ = f.u64(96, 2048), "begins at sector 2048 of its legs (meta1)"),
        (|f| _ = f.u32(4, 3), "unknown features (compatible 0x3, incompatible 0x0)"),
        (|f| _ = f.u32(144, 8), "unknown features (compatible 0x1, incompatible 0x8)"),
        (|f| _ = f.u32(48, 5), "meta1 has level 5, the volume group 10"),
        (|f| _ = f.u32(52, 0x201), "meta1 has layout 513, the volume group 258"),
        (|f| _ = f.u32(56, 8), "meta1 has a chunk size of 8, the volume group 128"),
        (|f| _ = f.u32(8, 6), "meta1 has a number of legs of 6, the volume group 4"),
        (|f| _ = f.u32(12, 3), "meta1 has the place of leg 3, the volume group 1"),
    ];
    for (change, wanted) in cases {
        let volume = Volume::new(TEN, 4);
        volume.change(1, change);
        let error = volume.refusal();
        assert!(error.contains(wanted), "{wanted}: {error}");
    }
    for level in [Level::Raid4, Level::Linear, Level::Other(7)] {
        let volume = Volume { shape: Shape { level, ..TEN }, legs: Vec::new() };
        let error = volume.refusal();
        assert!(
            error.ends_with("not supported, only raid0, raid1, raid5, raid6 and raid10"),
            "{error}"
        );
    }
    assert_eq!(Volume::new(MIRROR, 0).refusal(), "the volume has 0 legs, but must have 1 to 253");
    let volume = Volume::new(MIRROR, 2);
    volume.change_all(|f| _ = f.u32(0, 7));
    let error = volume.refusal();
    assert!(error.contains("meta0 has no superblock") && error.contains("leg 1"), "{error}");
}

#[test]
fn any_bytes_in_a_superblock_are_an_error_or_an_array() {
    let sim = Sim::new(1);
    for shape in [MIRROR, TEN, STRIPED, FIVE, SIX] {
        let legs = if shape == MIRROR { 2 } else { 4 };
        let whole = Volume::new(shape, legs);
        for at in 4..148 {
            for value in [0, 1, 0x7f, 0xff] {
                let volume = whole.copy();
                volume.change(1, |f| f.bytes[at] = value);
                let all = volume.all();
                sim.block_on(async {
                    match candidates(Uuid::nil(), shape, &all).await {
                        Ok(found) => match plan(found.candidates, &READ).await {
                            Ok(plan) => drop(Array::start(plan, "md0", sim.runtime())),
                            Err(error) => assert!(!error.to_string().is_empty()),
                        },
                        Err(error) => assert!(!error.to_string().is_empty()),
                    }
                });
            }
        }
    }
}

/// A volume that the kernel wrote: `tests/images/dm-raid` has the start of each leg's metadata device,
/// and `NAME.shape` the expected result.
fn golden(name: &str) -> (Volume, Option<u64>) {
    let images = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/images/dm-raid");
    let shape = std::fs::read_to_string(images.join(format!("{name}.shape"))).expect("a shape");
    let numbers: Vec<u64> =
        shape.split_whitespace().map(|word| word.parse().expect("a number")).collect();
    let [level, copies, chunk, legs, out @ ..] = numbers.as_slice() else {
        panic!("{shape}");
    };
    let shape = Shape {
        level: Level::from_raw(*level as i32),
        copies: *copies as u8,
        parity: *copies as u32,
        chunk: Sectors(*chunk),
    };
    let leg = |leg| {
        let file = images.join(format!("{name}.{leg}.meta"));
        let mut bytes = std::fs::read(file).expect("an image");
        bytes.resize(bytes.len().max(512), 0);
        let sectors = DmRaidSuperblock::parse(&bytes).expect("a superblock").sectors.get();
        let (meta, data) = (Media::new(Sectors(1024)), Media::new(Sectors(sectors)));
        meta.poke(Sector(0), &bytes);
        (meta, data)
    };
    (Volume { shape, legs: (0..*legs).map(leg).collect() }, out.first().copied())
}

#[test]
fn superblocks_that_the_kernel_wrote_make_the_arrays_that_they_were() {
    let sim = Sim::new(1);
    for (name, degraded, unsynced) in [
        ("mirror", 0, false),
        ("three", 1, true),
        ("partly", 0, true),
        ("joined", 1, false),
        ("ten", 0, false),
        ("tenless", 1, true),
        ("nought", 0, false),
    ] {
        let (volume, out) = golden(name);
        let legs = volume.all();
        sim.block_on(async {
            let (_, array, notes) = volume.start(&sim, &legs).await.expect(name);
            let status = array.status().await;
            assert_eq!((status.degraded, status.unsynced), (degraded, unsynced), "{name}: {notes}");
            let missing = status.members.iter().filter(|member| member.slot.is_some());
            let missing = missing.filter(|member| !member.in_sync).count();
            assert_eq!(missing, degraded, "{name}");
            if let Some(out) = out {
                assert!(notes.contains(&format!("data{out} left out: ")), "{name}: {notes}");
            }
        });
    }
}

#[test]
fn what_the_volume_group_says_wrongly_is_not_taken_from_it() {
    let (mut volume, _) = golden("ten");
    volume.shape.copies = 3;
    let legs = volume.all();
    let refused = Sim::new(1).block_on(candidates(Uuid::nil(), volume.shape, &legs));
    let refused = refused.err().expect("a refusal");
    assert!(matches!(refused, DmRaidError::Disagree { what: "layout", .. }), "{refused}");
}
