//! Exception stores as bytes: the kernel's, malformed ones, and torn ones.

use ashlar_block::{Sector, Sectors};
use ashlar_dm::snapshot::load::Fault;
use ashlar_dm::snapshot::ondisk::{ChunkSizeError, Exception, Header};
use ashlar_dm::snapshot::{StoreError, Summary, examine};
use ashlar_sim::{Media, Sim};
use zerocopy::{FromBytes, IntoBytes};

use crate::snapshot::rig::{Rig, fill, filled, status};

/// Sectors of the origin.
const ORIGIN: u64 = 40_960;
const AREA: usize = 256;

/// A COW device with chunks of 8 sectors, a header and a list that begins in the first area.
fn store(exceptions: &[(u64, u64)]) -> Media {
    let media = Media::new(Sectors(8 * 1000));
    media.poke(Sector(0), b"SnAp\x01\0\0\0\x01\0\0\0\x08\0\0\0");
    for (area, part) in (0..).zip(exceptions.chunks(AREA)) {
        let entries: Vec<_> = part.iter().map(|(old, new)| Exception::new(*old, *new)).collect();
        media.poke(Sector(8 * (1 + 257 * area)), entries.as_bytes());
    }
    media
}

fn look(media: &Media) -> Result<Option<Summary>, StoreError> {
    let sim = Sim::new(1);
    let rig = Rig::default();
    let cow = rig.disk("cow", media);
    let before = media.snapshot();
    let found = sim.block_on(examine(&cow, Sectors(ORIGIN)));
    assert!(media.diff(&before).is_empty(), "a look changes nothing");
    found
}

fn fault(exceptions: &[(u64, u64)]) -> (u64, usize, Fault) {
    match look(&store(exceptions)) {
        Err(StoreError::Exception { area, index, fault, .. }) => (area, index, fault),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_store_of_several_areas_is_read_to_its_end() {
    let all: Vec<(u64, u64)> = (0..600).map(|n| (n, n + 2 + n / 256)).collect();
    let found = look(&store(&all)).unwrap().unwrap();
    assert_eq!(found, Summary { chunk: Sectors(8), valid: true, exceptions: all });
}

#[test]
fn no_store_an_invalid_one_and_a_full_area_are_told_apart() {
    assert_eq!(look(&Media::new(Sectors(800))), Ok(None));
    let invalid = store(&[(1, 2)]);
    invalid.poke(Sector(0), b"SnAp\0\0\0\0");
    let found = look(&invalid).unwrap().unwrap();
    assert!(!found.valid && found.exceptions.is_empty());
    let full: Vec<(u64, u64)> = (0..256).map(|n| (n, n + 2)).collect();
    assert_eq!(look(&store(&full)).unwrap().unwrap().exceptions, full);
}

#[test]
fn every_impossible_exception_is_named() {
    assert_eq!(fault(&[(1, 2), (5120, 3)]), (0, 1, Fault::BeyondOrigin(5120)));
    assert_eq!(fault(&[(1, 1000)]), (0, 0, Fault::BeyondCow(1000)));
    assert_eq!(fault(&[(u64::MAX, 2)]), (0, 0, Fault::BeyondOrigin(u64::MAX)));
    assert_eq!(fault(&[(1, u64::MAX)]), (0, 0, Fault::BeyondCow(u64::MAX)));
    assert_eq!(fault(&[(1, 1)]), (0, 0, Fault::InMetadata(1)));
    assert_eq!(fault(&[(1, 258)]), (0, 0, Fault::InMetadata(258)));
    assert_eq!(fault(&[(1, 2), (1, 3)]), (0, 1, Fault::OldTwice(1)));
    assert_eq!(fault(&[(1, 2), (2, 2)]), (0, 1, Fault::NewTwice(2)));
    let mut long: Vec<(u64, u64)> = (0..256).map(|n| (n, n + 2)).collect();
    long.push((7, 900));
    assert_eq!(fault(&long), (1, 0, Fault::OldTwice(7)));
}

#[test]
fn every_impossible_header_is_named() {
    let with = |bytes: &[u8]| {
        let media = store(&[(1, 2)]);
        media.poke(Sector(0), bytes);
        look(&media).unwrap_err()
    };
    assert!(matches!(with(b"ext4"), StoreError::NotAStore { magic: 0x3474_7865, .. }));
    let header = |valid: u32, version: u32, chunk_size: u32| {
        let mut header = Header::read_from_bytes(b"SnAp............").unwrap();
        (header.valid, header.version) = (valid.into(), version.into());
        header.chunk_size = chunk_size.into();
        with(header.as_bytes())
    };
    assert!(matches!(header(1, 2, 8), StoreError::Version { version: 2, .. }));
    let size = |error| StoreError::ChunkSize { device: "cow".to_owned(), error };
    assert_eq!(header(1, 1, 0), size(ChunkSizeError::NotAPowerOfTwo(0)));
    assert_eq!(header(1, 1, 24), size(ChunkSizeError::NotAPowerOfTwo(24)));
    assert_eq!(header(1, 1, 1 << 31), size(ChunkSizeError::TooLarge(1 << 31)));
    assert!(matches!(header(1, 1, 4096), StoreError::TooSmall { .. }));
}

#[test]
fn a_list_without_an_end_is_refused() {
    let media = Media::new(Sectors(8 * 258));
    media.poke(Sector(0), b"SnAp\x01\0\0\0\x01\0\0\0\x08\0\0\0");
    let full: Vec<_> = (0..256).map(|n| Exception::new(n, n + 2)).collect();
    media.poke(Sector(8), full.as_bytes());
    assert!(matches!(look(&media), Err(StoreError::NoEnd { area: 1, .. })));
}

#[test]
fn a_device_that_cannot_be_read_is_no_empty_one() {
    let media = store(&[(1, 2)]);
    media.fail_reads(8..9);
    assert!(matches!(look(&media), Err(StoreError::Read { sector: Sector(8), .. })));
    let tiny = Media::new(Sectors(16));
    assert!(matches!(look(&tiny), Err(StoreError::TooSmall { .. })));
}

#[test]
fn a_new_store_is_written_as_the_kernel_does_and_its_area_comes_first() {
    let sim = Sim::new(1);
    let rig = Rig::default();
    rig.disk("real", &Media::new(Sectors(ORIGIN)));
    let media = Media::noisy(Sectors(8000), 3);
    media.poke(Sector(0), &[0; 512]);
    rig.disk("cow", &media);
    let (device, _) = sim.block_on(rig.device("snap", "0 40960 snapshot real cow P 16"));
    assert_eq!(status(&device), "32/8000 32");
    assert_eq!(media.peek(Sector(0))[..16], *b"SnAp\x01\0\0\0\x01\0\0\0\x10\0\0\0");
    assert!(media.peek_range(Sector(16), Sectors(16)).iter().all(|byte| *byte == 0));
    let writes: Vec<u64> =
        media.log().iter().flat_map(|c| c.ranges.clone()).map(|r| r.start).collect();
    // The read of the header, the area, and only then the header.
    assert_eq!(writes, [0, 16, 0]);
    (0..32).for_each(|at| assert_eq!(media.peek(Sector(at)), media.peek_durable(Sector(at))));
}

#[test]
fn what_a_torn_write_left_behind_the_end_never_comes_back() {
    // An area of two pages, 16 sectors. The end of the list is in the first page, and the second
    // holds the rest of a torn write of both.
    let media = Media::new(Sectors(16 * 2000));
    media.poke(Sector(0), b"SnAp\x01\0\0\0\x01\0\0\0\x10\0\0\0");
    let listed: Vec<_> = (0..250).map(|n| Exception::new(n, n + 2)).collect();
    let stale: Vec<_> = (0..8).map(|n| Exception::new(1000 + n, 252 + n)).collect();
    media.poke(Sector(16), listed.as_bytes());
    media.poke(Sector(24), stale.as_bytes());
    let boot = |work: bool| {
        let sim = Sim::new(1);
        let rig = Rig::default();
        rig.disk("real", &Media::new(Sectors(ORIGIN)));
        rig.disk("cow", &media);
        sim.block_on(async {
            let (_device, snap) = rig.device("snap", "0 40960 snapshot real cow P 16").await;
            if work {
                // The first page is full now: the second page's old contents would be in the list.
                fill(&snap, 300 * 16, 6 * 16, 7).await.unwrap();
            }
            assert_eq!(filled(&snap, 300 * 16, 6 * 16).await, Ok(7));
            let cow = rig.disk("cow", &media);
            examine(&cow, Sectors(ORIGIN)).await.unwrap().unwrap().exceptions
        })
    };
    let found = boot(true);
    assert_eq!((found.len(), found.last()), (256, Some(&(305, 257))));
    assert_eq!(boot(false), found);
}
