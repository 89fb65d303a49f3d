//! The simulated machine: disks at their paths, which one program at a time has open, and the simulator's time.

use std::cell::{Cell, RefCell};
use std::future::ready;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use ashlar_block::{BlockDevice, Gateway, LocalFuture, Runtime, Sector, Sectors};
use ashlar_commands::lvm::archive::Archives;
use ashlar_disks::{Identity, Opener};
use ashlar_lvm::Uuid as LvmId;
use ashlar_lvm::ondisk::layout::LABEL_SCAN_SECTORS;
use ashlar_lvm::ondisk::{MdaHeader, Range, crc, find_label};
use ashlar_md::ondisk::{Superblock, Version};
use ashlar_sim::{Break, Media, Model, Rng, SimDisk, SimRuntime};
use ashlar_stack::assemble::Disk;

use crate::error::{Error, Result};
use crate::machine::Machine;

/// Why a disk is not opened that is open.
pub(super) const IN_USE: &str = "in use";
/// The size of a disk that is only for arrays: enough for metadata and a few hundred sectors of data.
pub(super) const SMALL: Sectors = Sectors(448);
/// The size of one that may become a physical volume: LVM's least.
pub(super) const LARGE: Sectors = Sectors(4096);
/// Where the superblocks are: version 1.2.
const SUPERBLOCK: Sector = Sector(8);
/// The deadline of a disk's requests.
const IO_TIMEOUT: Duration = Duration::from_secs(1);
/// What was in flight on a disk that was silent ends within this time after it answers.
const LATE: Duration = Duration::from_millis(20);

/// The device that was opened last for a disk.
struct Opened {
    device: Weak<dyn BlockDevice>,
    /// Whether it has given back its file.
    is_released: Arc<AtomicBool>,
}

/// A physical volume, as it is on a disk.
pub(super) struct Physical {
    pub(super) uuid: LvmId,
    /// Whether its label says that a group has it.
    pub(super) is_used: bool,
    /// The text of its group.
    pub(super) text: Option<Vec<u8>>,
}

/// A disk of the machine.
pub(super) struct SimulatedDisk {
    pub(super) path: String,
    pub(super) media: Media,
    number: u64,
    opened: RefCell<Option<Opened>>,
    /// Until then it may execute what it received before.
    busy_until_ns: Cell<u64>,
}

impl SimulatedDisk {
    /// Disk `number`; one that is far has the path of a disk on a network, which a daemon re-adds by itself.
    pub(super) fn new(number: u64, size: Sectors, is_far: bool) -> Self {
        let path = match is_far {
            true => format!("nbd://far/f{number}"),
            false => format!("/disks/d{number}"),
        };
        let (opened, busy_until_ns) = (RefCell::default(), Cell::new(0));
        Self { path, media: Media::new(size), number, opened, busy_until_ns }
    }

    /// Its name below `sys/block`.
    pub(super) fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    pub(super) fn is_far(&self) -> bool {
        ashlar_disks::is_on_network(Path::new(&self.path))
    }

    /// Whether a program has it open.
    pub(super) fn is_open(&self) -> bool {
        let opened = self.opened.borrow();
        opened
            .as_ref()
            .is_some_and(|it| it.device.strong_count() > 0 && !it.is_released.load(Relaxed))
    }

    /// It is not open, and nothing is in flight, in a new simulation.
    pub(super) fn rest(&self) {
        self.opened.take();
        self.busy_until_ns.set(0);
        self.media.heal();
        self.media.reconnect();
    }

    fn open(&self) -> Gateway {
        let limits = Model::nvme().limits();
        let disk = SimDisk::with_io_timeout(
            self.name(),
            self.media.clone(),
            limits,
            Model::nvme(),
            IO_TIMEOUT,
        );
        let device = disk.device();
        *self.opened.borrow_mut() =
            Some(Opened { device: Arc::downgrade(&device), is_released: disk.released() });
        Gateway::new(device)
    }

    /// The superblock on it, if it has one.
    pub(super) fn superblock(&self) -> Option<Superblock> {
        let bytes = self.media.peek_range(SUPERBLOCK, Sectors(8));
        Superblock::parse(Version::V1_2, &bytes, self.media.capacity()).ok()
    }

    /// The physical volume on it, if it is one.
    pub(super) fn physical(&self) -> Option<Physical> {
        let sectors = self.media.peek_range(Sector(0), Sectors(LABEL_SCAN_SECTORS as u64));
        let label = find_label(&sectors).ok()??.label;
        let text = label.metadata_areas.first().and_then(|area| self.text(*area));
        Some(Physical { uuid: label.uuid, is_used: label.is_used(), text })
    }

    /// The current text in a metadata area.
    fn text(&self, area: Range) -> Option<Vec<u8>> {
        let sector = self.media.peek(Sector::from_bytes_floor(area.offset));
        let header = MdaHeader::parse(&sector, area).ok()?;
        let current = header.current?;
        let mut text = Vec::new();
        for part in header.locate(current).ok()?.parts {
            let (first, len) =
                (Sector::from_bytes_floor(part.offset), Sectors::from_bytes_ceil(part.size));
            let bytes = self.media.peek_range(first, len);
            text.extend_from_slice(&bytes[..part.size as usize]);
        }
        if crc::crc(&text) != current.checksum {
            return None;
        }
        text.truncate(text.iter().position(|byte| *byte == 0).unwrap_or(text.len()));
        Some(text)
    }

    /// Makes it blank, as a user does with a disk that no daemon has: superblock, header of the metadata area, label.
    pub(super) fn make_blank(&self) {
        self.media.poke(SUPERBLOCK, &[0; 512]);
        self.media.poke(Sector(0), &[0; LABEL_SCAN_SECTORS * 512]);
    }

    /// It misbehaves for a while, and loses nothing that it has acknowledged.
    pub(super) async fn misbehave(&self, rng: &mut Rng) {
        let while_ms = [5, 50, 500, 1500, 4000][rng.index(5)];
        let pause = Duration::from_millis(1 + rng.below(while_ms));
        match rng.below(6) {
            0 => self.media.fail_nth_write(rng.below(10)),
            1 => self.media.fail_nth_read(rng.below(10)),
            2 => {
                self.media.slow_down(1 + rng.below(200));
                SimRuntime.sleep(pause).await;
                self.media.slow_down(1);
            }
            3 => {
                self.media.fall_silent();
                self.busy_until_ns.set(u64::MAX);
                SimRuntime.sleep(pause).await;
                self.media.answer();
                self.busy_until_ns.set(SimRuntime.now_ns() + LATE.as_nanos() as u64);
            }
            _ => {
                self.media.cut_off(Break::Ended);
                SimRuntime.sleep(pause).await;
                self.media.reconnect();
            }
        }
    }
}

/// See the module text.
pub(super) struct SimulatedMachine {
    runtime: Arc<dyn Runtime>,
    disks: Vec<Rc<SimulatedDisk>>,
}

impl SimulatedMachine {
    pub(super) fn new(disks: &[Rc<SimulatedDisk>]) -> Self {
        Self { runtime: Arc::new(SimRuntime), disks: disks.to_vec() }
    }

    fn at(&self, path: &Path) -> Option<&Rc<SimulatedDisk>> {
        self.disks.iter().find(|disk| Path::new(&disk.path) == path)
    }
}

impl Machine for SimulatedMachine {
    fn runtime(&self) -> &Arc<dyn Runtime> {
        &self.runtime
    }

    fn identity<'a>(&'a self, path: &'a Path) -> LocalFuture<'a, Result<Option<Identity>>> {
        let identity = self.at(path).map(|disk| Identity::File(0, disk.number));
        Box::pin(ready(Ok(identity)))
    }

    fn open<'a>(&'a self, path: &'a Path, _: &'a Opener) -> LocalFuture<'a, Result<Disk>> {
        Box::pin(async move {
            let failed = |why| Error::new("cannot open", path.display(), why);
            let disk = self.at(path).ok_or_else(|| failed("no such disk"))?;
            if disk.is_far() {
                self.runtime.sleep(Duration::from_micros(200)).await;
            }
            if SimRuntime.now_ns() < disk.busy_until_ns.get() {
                return Err(failed("it does not answer"));
            }
            // A server takes another connection; a file has the lock of the first opener.
            if disk.is_open() && !disk.is_far() {
                return Err(failed(IN_USE));
            }
            Ok(Disk { path: path.to_owned(), gateway: disk.open() })
        })
    }

    /// It has no files.
    fn archives(&self, _: bool, command: &str) -> Result<Archives> {
        Archives::new(false, command)
    }
}
