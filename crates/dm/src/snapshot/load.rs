//! Reads a persistent exception store, and creates a new one.
//!
//! Every number from the disk is checked: a store that does not fit its devices, names a chunk
//! twice or has no end is refused as a whole, and left unchanged. Examining a store writes nothing;
//! a new store is only written where no store exists (`magic` is zero).

use ashlar_block::{Bio, Buffer, Flags, Gateway, Sector, Sectors, Status};
use futures_util::{StreamExt, stream};
use thiserror::Error;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

use super::exceptions::{List, Table};
use super::ondisk::{
    ChunkSizeError, DEFAULT_CHUNK, Exception, Geometry, Header, MAGIC, MOST_CHUNKS, VERSION,
};
use super::store::Area;

/// Areas read ahead, as the kernel does (`DM_PREFETCH_CHUNKS`).
const READ_AHEAD: usize = 12;
const PAGE: Sectors = Sectors(8);

/// Why an exception store cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum StoreError {
    /// The COW device could not be read.
    #[error("cannot read the exception store on {device} at sector {sector}: {status}")]
    Read {
        /// The COW device.
        device: String,
        /// The sector.
        sector: Sector,
        /// The error.
        status: Status,
    },
    /// The COW device could not be written.
    #[error("cannot make an exception store on {device}: {status}")]
    Write {
        /// The COW device.
        device: String,
        /// The error.
        status: Status,
    },
    /// The COW device is too small for a store.
    #[error("{device} has {size} sectors, too few for an exception store with chunks of {chunk}")]
    TooSmall {
        /// The COW device.
        device: String,
        /// Its size in sectors.
        size: Sectors,
        /// Sectors per chunk.
        chunk: Sectors,
    },
    /// The device contains something else.
    #[error(
        "{device} holds no exception store (it begins with {magic:#010x}): zero its first 4 KiB if \
         it is to become one"
    )]
    NotAStore {
        /// The COW device.
        device: String,
        /// The number in place of the magic number.
        magic: u32,
    },
    /// An unknown version.
    #[error("the exception store on {device} has version {version}, only 1 is known")]
    Version {
        /// The COW device.
        device: String,
        /// The header's version.
        version: u32,
    },
    /// The header's or the table's chunk size is invalid.
    #[error("the exception store on {device}: {error}")]
    ChunkSize {
        /// The COW device.
        device: String,
        /// The reason.
        error: ChunkSizeError,
    },
    /// An exception is invalid.
    #[error("exception {index} of area {area} on {device} is wrong: {fault}")]
    Exception {
        /// The COW device.
        device: String,
        /// The area.
        area: u64,
        /// The index of the exception in the area.
        index: usize,
        /// The defect.
        fault: Fault,
    },
    /// The list does not end within the device.
    #[error("the exceptions on {device} have no end: area {area} would lie beyond the device")]
    NoEnd {
        /// The COW device.
        device: String,
        /// The missing area.
        area: u64,
    },
}

/// The defect of an exception.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Fault {
    /// The chunk is beyond the end of the origin.
    #[error("chunk {0} is beyond the end of the origin")]
    BeyondOrigin(u64),
    /// The new chunk is beyond the end of the COW device.
    #[error("new chunk {0} is beyond the end of the COW device")]
    BeyondCow(u64),
    /// The new chunk contains metadata.
    #[error("new chunk {0} holds metadata")]
    InMetadata(u64),
    /// The chunk of the origin already has an exception.
    #[error("chunk {0} has another exception already")]
    OldTwice(u64),
    /// The new chunk is used by another exception.
    #[error("new chunk {0} is that of another exception")]
    NewTwice(u64),
}

/// The contents of a COW device.
pub(super) enum CowContents {
    /// No store yet.
    New(Geometry),
    /// A store that was marked invalid.
    Invalid(Geometry),
    /// A store with these exceptions.
    Valid(Contents),
}

/// A valid store.
pub(super) struct Contents {
    pub(super) geometry: Geometry,
    /// The area in which the list ends.
    pub(super) area: Area,
    /// The chunk after the highest one in use.
    pub(super) next_free: u64,
    pub(super) exceptions: Table,
}

/// A summary of an exception store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Summary {
    /// Sectors per chunk.
    pub chunk: Sectors,
    /// Whether the snapshot is usable.
    pub valid: bool,
    /// The exceptions, as pairs of old and new chunk, in order of creation.
    pub exceptions: Vec<(u64, u64)>,
}

/// Examines the exception store on `cow`, of a snapshot of an origin with `origin_len` sectors;
/// `None` if it contains no store. Writes nothing.
///
/// # Errors
/// The store is unusable.
pub async fn examine(cow: &Gateway, origin_len: Sectors) -> Result<Option<Summary>, StoreError> {
    let block = cow.disk().limits().logical_block();
    let mut exceptions = Vec::new();
    let seen = |old, new| exceptions.push((old, new));
    let (geometry, valid) = match find_each(cow, Sectors::ZERO, block, origin_len, seen).await? {
        CowContents::New(_) => return Ok(None),
        CowContents::Invalid(geometry) => (geometry, false),
        CowContents::Valid(Contents { geometry, .. }) => (geometry, true),
    };
    Ok(Some(Summary { chunk: geometry.chunk(), valid, exceptions }))
}

fn name(cow: &Gateway) -> String {
    cow.disk().name().to_owned()
}

async fn read(cow: &Gateway, sector: Sector, len: Sectors) -> Result<Buffer, StoreError> {
    let failed = |status| StoreError::Read { device: name(cow), sector, status };
    cow.read(sector, len).await.map_err(failed)
}

/// Determines the contents of a COW device; `chunk` (zero: the default) is the chunk size of a new
/// store, `block` the block size of the devices.
pub(super) async fn find(
    cow: &Gateway,
    chunk: Sectors,
    block: Sectors,
    origin_len: Sectors,
) -> Result<CowContents, StoreError> {
    find_each(cow, chunk, block, origin_len, |_, _| {}).await
}

/// As [`find`]; `seen` gets each exception of a valid store, in the order of the list.
async fn find_each(
    cow: &Gateway,
    chunk: Sectors,
    block: Sectors,
    origin_len: Sectors,
    seen: impl FnMut(u64, u64),
) -> Result<CowContents, StoreError> {
    let chunk = if chunk.is_zero() { Sectors(DEFAULT_CHUNK.0.max(block.0)) } else { chunk };
    let geometry = |chunk: Sectors| {
        let geometry = Geometry::new(chunk, block)
            .map_err(|error| StoreError::ChunkSize { device: name(cow), error })?;
        let (device, size) = (name(cow), cow.capacity());
        // The header, an area, and one data chunk.
        if geometry.chunks_in(size) < 3 {
            return Err(StoreError::TooSmall { device, size, chunk });
        }
        Ok(geometry)
    };
    let device_block = cow.disk().limits().logical_block();
    if cow.capacity() < device_block {
        return Err(StoreError::TooSmall { device: name(cow), size: cow.capacity(), chunk });
    }
    let bytes = read(cow, Sector::ZERO, device_block).await?;
    let (header, _) = Header::read_from_prefix(bytes.as_slice()).unwrap_or_default();
    let device = name(cow);
    match header.magic.get() {
        0 => return Ok(CowContents::New(geometry(chunk)?)),
        MAGIC => {}
        magic => return Err(StoreError::NotAStore { device, magic }),
    }
    if header.version.get() != VERSION {
        return Err(StoreError::Version { device, version: header.version.get() });
    }
    let geometry = geometry(Sectors(header.chunk_size.get().into()))?;
    if header.valid.get() == 0 {
        return Ok(CowContents::Invalid(geometry));
    }
    Ok(CowContents::Valid(read_areas(cow, geometry, origin_len, seen).await?))
}

async fn read_areas(
    cow: &Gateway,
    geometry: Geometry,
    origin_len: Sectors,
    mut seen: impl FnMut(u64, u64),
) -> Result<Contents, StoreError> {
    let total = geometry.chunks_in(cow.capacity());
    let numbers = (0..).take_while(|area| geometry.area_chunk(*area) < total);
    let reads = numbers.map(|area| async move {
        let at = geometry.sector(geometry.area_chunk(area));
        (area, read(cow, at, geometry.chunk()).await)
    });
    let mut reads = stream::iter(reads).buffered(READ_AHEAD);
    let mut scan = Scan::new(cow, geometry, origin_len);
    let mut areas = 0;
    while let Some((number, bytes)) = reads.next().await {
        areas = number + 1;
        if let Some(area) = scan.take_area(number, bytes?.as_slice(), &mut seen)? {
            let Scan { old, new, next_free, .. } = scan;
            if let Err(new) = new.sorted().await {
                return Err(second(cow, geometry, Fault::NewTwice(new)).await);
            }
            return match old.sorted().await {
                Ok(exceptions) => Ok(Contents { geometry, area, next_free, exceptions }),
                Err(old) => Err(second(cow, geometry, Fault::OldTwice(old)).await),
            };
        }
    }
    Err(StoreError::NoEnd { device: name(cow), area: areas })
}

/// The error of a chunk that is in two exceptions: the place of the second one.
async fn second(cow: &Gateway, geometry: Geometry, fault: Fault) -> StoreError {
    let total = geometry.chunks_in(cow.capacity());
    let mut found = 0;
    for area in (0..).take_while(|area| geometry.area_chunk(*area) < total) {
        let at = geometry.sector(geometry.area_chunk(area));
        let bytes = match read(cow, at, geometry.chunk()).await {
            Ok(bytes) => bytes,
            Err(error) => return error,
        };
        for (index, entry) in bytes.as_slice().chunks_exact(size_of::<Exception>()).enumerate() {
            let exception = Exception::read_from_bytes(entry).unwrap_or_default();
            let (old, new) = (exception.old_chunk.get(), exception.new_chunk.get());
            found += usize::from(fault == Fault::OldTwice(old) || fault == Fault::NewTwice(new));
            if found == 2 {
                return StoreError::Exception { device: name(cow), area, index, fault };
            }
        }
    }
    // Another host has changed it since.
    StoreError::NoEnd { device: name(cow), area: total }
}

/// The exceptions read so far.
struct Scan<'a> {
    cow: &'a Gateway,
    geometry: Geometry,
    /// Number of chunks of each device.
    origin: u64,
    total: u64,
    old: List,
    /// The new chunks, each mapped to itself: they are consecutive but for the areas.
    new: List,
    count: u64,
    next_free: u64,
}

impl<'a> Scan<'a> {
    fn new(cow: &'a Gateway, geometry: Geometry, origin_len: Sectors) -> Self {
        let origin = origin_len.0.div_ceil(geometry.chunk().0).min(MOST_CHUNKS);
        let total = geometry.chunks_in(cow.capacity());
        let (old, new) = (List::default(), List::default());
        Self { cow, geometry, origin, total, old, new, count: 0, next_free: 2 }
    }

    /// Adds the exceptions of the next area; returns the area if the list ends in it, or one of its chunks is there twice.
    fn take_area(
        &mut self,
        number: u64,
        bytes: &[u8],
        seen: &mut impl FnMut(u64, u64),
    ) -> Result<Option<Area>, StoreError> {
        let mut area = Area::first(self.geometry);
        area.number = number;
        for (index, entry) in bytes.chunks_exact(size_of::<Exception>()).enumerate() {
            let exception = Exception::read_from_bytes(entry).unwrap_or_default();
            let (old, new) = (exception.old_chunk.get(), exception.new_chunk.get());
            if new == 0 {
                area.committed = index;
                let rest = &bytes[index * size_of::<Exception>()..];
                area.stale = rest.iter().any(|byte| *byte != 0);
                return Ok(Some(area));
            }
            self.take(old, new).map_err(|fault| StoreError::Exception {
                device: name(self.cow),
                area: number,
                index,
                fault,
            })?;
            seen(old, new);
            area.entries[index] = exception;
        }
        // With more than the origin has chunks one is there twice: the rest of the device would only take memory.
        self.count += self.geometry.per_area();
        Ok((self.count > self.origin).then_some(area))
    }

    fn take(&mut self, old: u64, new: u64) -> Result<(), Fault> {
        if old >= self.origin {
            return Err(Fault::BeyondOrigin(old));
        }
        if new >= self.total {
            return Err(Fault::BeyondCow(new));
        }
        if self.geometry.is_metadata(new) {
            return Err(Fault::InMetadata(new));
        }
        self.old.push(old, new);
        self.new.push(new, new);
        self.next_free = self.next_free.max(new + 1);
        if self.geometry.is_metadata(self.next_free) {
            self.next_free += 1;
        }
        Ok(())
    }
}

/// Creates a new store: first an empty area, then the header, so that a crash leaves no header with
/// an area that was not zeroed. (The kernel writes them in the opposite order.) On a read-only
/// device nothing is written: the snapshot has no exceptions, and gets none.
pub(super) async fn create(cow: &Gateway, geometry: Geometry) -> Result<(), StoreError> {
    if cow.disk().is_read_only() {
        return Ok(());
    }
    let failed = |status| StoreError::Write { device: name(cow), status };
    let area = geometry.sector(geometry.area_chunk(0));
    zero(cow, area, geometry.chunk(), Flags::FUA).await.map_err(failed)?;
    write_header(cow, geometry, true).await.map_err(failed)
}

/// Writes zeroes.
pub(super) async fn zero(
    cow: &Gateway,
    at: Sector,
    len: Sectors,
    flags: Flags,
) -> Result<(), Status> {
    let mut zeroes = Buffer::zeroed(len.bytes() as usize);
    cow.submit(Bio::write_from(at, &mut zeroes).with_flags(flags | Flags::META)).await
}

/// Writes the header, durably.
pub(super) async fn write_header(
    cow: &Gateway,
    geometry: Geometry,
    valid: bool,
) -> Result<(), Status> {
    let len = geometry.chunk().min(PAGE).0.max(cow.disk().limits().logical_block().0);
    let mut bytes = vec![0; Sectors(len).bytes() as usize];
    let header = Header::new(geometry, valid);
    bytes[..size_of::<Header>()].copy_from_slice(header.as_bytes());
    let mut buffer = Buffer::from_slice(&bytes);
    let flags = Flags::FUA | Flags::SYNC | Flags::META;
    cow.submit(Bio::write_from(Sector::ZERO, &mut buffer).with_flags(flags)).await
}
