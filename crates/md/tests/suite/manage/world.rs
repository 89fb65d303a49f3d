//! An array on simulated disks, with data in it and extra disks.

use std::sync::Arc;

use ashlar_block::{Gateway, Sector, Sectors};
use ashlar_md::ondisk::create::{CreateSpec, NewBitmap};
use ashlar_md::{AddOptions, AddOutcome, Array, Index, ManageError, MemberStatus, Options};
use ashlar_sim::{Media, Sim, SimDisk};
use uuid::Uuid;

use crate::common::{Shape, disks, gateway, make_with, spec, stamped, start, write};

/// Size of the disks.
pub(crate) const DISK: Sectors = Sectors(8192);
/// Sectors of data written at the beginning.
pub(crate) const LEN: u64 = 512;
pub(crate) const RW: Options = Options { run: false, read_only: false, force: false };
pub(crate) const RUN: Options = Options { run: true, read_only: false, force: false };

/// The array to create.
#[derive(Clone)]
pub(crate) struct Recipe {
    pub(crate) shape: Shape,
    /// Extra disks besides the members; they hold noise.
    pub(crate) extra: usize,
    pub(crate) bitmap: NewBitmap,
    /// Used size of each member.
    pub(crate) used: Option<Sectors>,
    /// Members that are spares from the beginning.
    pub(crate) spares: usize,
}

impl Recipe {
    pub(crate) fn new(shape: Shape) -> Self {
        Self { shape, extra: 1, bitmap: NewBitmap::None, used: None, spares: 0 }
    }

    pub(crate) fn bitmap(self, bitmap: NewBitmap) -> Self {
        Self { bitmap, ..self }
    }

    pub(crate) fn internal(self) -> Self {
        self.bitmap(NewBitmap::Internal { chunk: Some(1 << 16) })
    }

    pub(crate) fn members(&self) -> usize {
        self.shape.members + self.spares
    }

    pub(crate) fn media(&self) -> Vec<Media> {
        let all = 0..(self.members() + self.extra) as u64;
        all.map(|seed| match seed < self.members() as u64 {
            true => Media::new(DISK),
            false => Media::noisy(DISK, seed),
        })
        .collect()
    }

    fn spec(&self) -> CreateSpec {
        let mut spec = spec(&self.shape, &vec![DISK; self.members()]);
        spec.bitmap = self.bitmap;
        spec.size = self.used;
        spec.bad_block_log = true;
        spec.daemon_sleep = 1;
        spec
    }

    /// Creates and starts the array, and writes [`LEN`] sectors of generation 1.
    pub(crate) async fn start(&self, sim: &Sim, media: &[Media]) -> World {
        let disks = disks(media);
        make_with(&self.spec(), &disks[..self.members()]).await;
        let array = start(sim, &disks[..self.members()], &RW).await.unwrap();
        let world = World { array, media: media.to_vec(), disks };
        world.write(0, LEN, 1).await;
        world
    }

    /// Runs a test on the array.
    pub(crate) fn run(&self, test: impl AsyncFnOnce(&Sim, &World)) {
        let media = self.media();
        let sim = Sim::new(1);
        sim.block_on(async {
            let world = self.start(&sim, &media).await;
            test(&sim, &world).await;
            world.array.stop().await.unwrap();
        });
    }
}

pub(crate) struct World {
    pub(crate) array: Arc<Array>,
    pub(crate) media: Vec<Media>,
    pub(crate) disks: Vec<SimDisk>,
}

/// Options of a new member with this identity.
pub(crate) fn options(uuid: u128) -> AddOptions {
    AddOptions {
        device_uuid: Uuid::from_u128(uuid),
        write_mostly: None,
        failfast: None,
        spare_only: false,
    }
}

impl World {
    pub(crate) fn volume(&self) -> Gateway {
        gateway(&self.array)
    }

    /// Writes and flushes.
    pub(crate) async fn write(&self, sector: u64, len: u64, generation: u8) {
        write(&self.volume(), sector, len, generation).await.unwrap();
        self.volume().flush().await.unwrap();
    }

    pub(crate) async fn add(&self, disk: usize) -> Result<AddOutcome, ManageError> {
        let device = &self.disks[disk];
        let options = options(1000 + disk as u128);
        self.array.add(device.gateway(), device.disk().name(), options).await
    }

    pub(crate) async fn check(&self, sector: u64, len: u64, generation: u8) {
        check(&self.array, sector, len, generation).await;
    }

    /// The member on a disk.
    pub(crate) async fn member(&self, disk: usize) -> MemberStatus {
        member(&self.array, disk).await.unwrap_or_else(|| panic!("d{disk} is not a member"))
    }

    pub(crate) async fn index(&self, disk: usize) -> Index {
        self.member(disk).await.index.unwrap()
    }

    /// Asserts that no copies differ.
    pub(crate) async fn check_copies(&self) {
        check_copies(&self.array, &self.media, self.array.personality().size().0).await;
    }

    /// Waits for the sync, then asserts that nothing is missing and all copies are the same.
    pub(crate) async fn settle(&self) {
        self.array.sync_ended().await;
        assert_eq!(self.array.degraded(), 0, "{:?}", self.array.status().await.members);
        assert!(!self.array.is_unsynced());
        self.check_copies().await;
    }
}

pub(crate) async fn member(array: &Array, disk: usize) -> Option<MemberStatus> {
    let members = array.status().await.members;
    members.into_iter().find(|member| member.path.as_deref() == Some(&format!("d{disk}")))
}

/// Asserts the array's contents.
pub(crate) async fn check(array: &Arc<Array>, sector: u64, len: u64, generation: u8) {
    if len == 0 {
        return;
    }
    let got = gateway(array).read(Sector(sector), Sectors(len)).await.unwrap();
    assert!(got.as_slice() == stamped(sector, len, generation), "not generation {generation}");
}

/// Asserts that the copies of the first `len` sectors on in-sync members are the same.
pub(crate) async fn check_copies(array: &Array, media: &[Media], len: u64) {
    let differ = differing(array, media, len).await;
    assert!(differ.is_empty(), "copies of {differ:?} differ: {:#?}", array.status().await.members);
}

/// The sectors below `len` whose copies on in-sync members differ.
pub(crate) async fn differing(array: &Array, media: &[Media], len: u64) -> Vec<u64> {
    let members = array.status().await.members;
    let on = |slot: usize| {
        let here = members.iter().filter(move |m| m.slot == Some(slot as u16) && m.in_sync);
        here.map(|m| {
            let disk: usize = m.path.as_deref().unwrap()[1..].parse().unwrap();
            (disk, m.data_offset)
        })
    };
    let differs = |sector: &u64| {
        let copies = array.personality().map(Sector(*sector));
        let mut bytes = copies
            .iter()
            .flat_map(|at| on(at.disk).map(|(disk, offset)| media[disk].peek(at.sector + offset)));
        let first = bytes.next();
        !bytes.all(|other| Some(other) == first)
    };
    (0..len).filter(differs).collect()
}
