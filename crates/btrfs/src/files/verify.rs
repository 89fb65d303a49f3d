//! Verified reads of data, from whichever mirror, or copy of a mirror below the file system, has it right.

use std::sync::Arc;

use ashlar_block::CopyNumber;
use ashlar_files::LossReason;
use tracing::debug;

use crate::csum::{ChecksumKind, MAX_SIZE};
use crate::error::TreeError;
use crate::ondisk::items::CsumItem;
use crate::ondisk::key::{Key, item, objectid};
use crate::path::{Path, Root};
use crate::readahead::Reada;
use crate::roots::damaged;
use crate::units::Logical;
use crate::volume::FileSystem;

/// The checksum of a sector, if any.
type Sum = Option<[u8; MAX_SIZE]>;

/// Reads data and verifies it.
#[derive(Debug)]
pub(super) struct Verifier {
    fs: Arc<FileSystem>,
    /// The checksum tree; `None` if the file system has no such tree.
    sums: Option<Root>,
}

/// Bytes, some of which may be lost.
pub(super) struct Sectors {
    /// All bytes; lost ones are zero.
    pub(super) bytes: Vec<u8>,
    /// For each sector, why it is lost.
    pub(super) lost: Vec<Option<LossReason>>,
}

impl Verifier {
    pub(super) async fn new(fs: &Arc<FileSystem>) -> Result<Self, TreeError> {
        let sums = fs.root(objectid::CSUM_TREE).await?;
        Ok(Self { fs: Arc::clone(fs), sums })
    }

    /// Reads `len` bytes in whole sectors, as data extents are.
    pub(super) async fn read(&self, start: Logical, len: u64, has_sums: bool) -> Sectors {
        let sector = u64::from(self.fs.sectorsize());
        let count = (len / sector) as usize;
        let mut sectors = Sectors { bytes: vec![0; len as usize], lost: vec![None; count] };
        let sums = if has_sums { self.sums(start, count).await } else { Ok(vec![None; count]) };
        let sums = match sums {
            Ok(sums) => sums,
            Err(error) => {
                // Without checksums there is no telling whether the bytes are right.
                sectors.lost.fill(Some(LossReason::Sums(error.to_string())));
                return sectors;
            }
        };
        let mut wanted: Vec<bool> = vec![true; count];
        for leg in self.fs.legs(start, len) {
            // Without a checksum nothing shows which copy below is right.
            let is_tried = |wanted: &[bool], index: usize| {
                wanted[index] && (leg.copy == CopyNumber::ANY || sums[index].is_some())
            };
            let mut first = 0;
            while let Some(from) = (first..count).find(|index| is_tried(&wanted, *index)) {
                let run = (from..count).take_while(|index| is_tried(&wanted, *index)).count();
                first = from + run;
                let at = Logical(start.0.saturating_add(from as u64 * sector));
                match self.fs.read_data(at, run as u64 * sector, leg).await {
                    Ok(bytes) => self.take(&mut sectors, &mut wanted, &sums, from, &bytes),
                    Err(_) => {
                        // One bad sector fails a whole read: read each sector by itself.
                        for index in from..first {
                            let at = Logical(start.0.saturating_add(index as u64 * sector));
                            match self.fs.read_data(at, sector, leg).await {
                                Ok(bytes) => {
                                    self.take(&mut sectors, &mut wanted, &sums, index, &bytes);
                                }
                                // A mirror's error is that of its plain read.
                                Err(_) if leg.copy != CopyNumber::ANY => {}
                                Err(error) => sectors.lost[index] = Some(error.into()),
                            }
                        }
                    }
                }
            }
            if !wanted.contains(&true) {
                break;
            }
            let (mirror, copy) = (leg.mirror.0, leg.copy.0);
            debug!(%start, mirror, copy, "data is wrong or unreadable there");
        }
        sectors
    }

    /// Copies the valid sectors, starting with sector `first`.
    fn take(
        &self,
        sectors: &mut Sectors,
        wanted: &mut [bool],
        sums: &[Sum],
        first: usize,
        bytes: &[u8],
    ) {
        let size = self.fs.sectorsize() as usize;
        let kind = self.fs.superblock().csum_kind();
        for (index, sector) in (first..wanted.len()).zip(bytes.chunks_exact(size)) {
            if sums[index].is_none_or(|sum| is_right(kind, sector, &sum)) {
                sectors.bytes[index * size..][..size].copy_from_slice(sector);
                sectors.lost[index] = None;
                wanted[index] = false;
            } else {
                sectors.lost[index] = Some(LossReason::Checksum);
            }
        }
    }

    /// The checksums of sectors.
    async fn sums(&self, start: Logical, count: usize) -> Result<Vec<Sum>, TreeError> {
        let mut all: Vec<Sum> = vec![None; count];
        let Some(root) = self.sums else { return Ok(all) };
        let fs = &self.fs;
        let (kind, sector) = (fs.superblock().csum_kind(), u64::from(fs.sectorsize()));
        let end = start.0.saturating_add(count as u64 * sector);
        let mut path = Path::new(fs, root).with_reada(Reada::Forward);
        let from = Key::new(objectid::EXTENT_CSUM, item::EXTENT_CSUM, start.0);
        // The previous item may reach into the range.
        let mut more = path.search_back(from).await? || path.search(from).await?;
        while more {
            let Some((key, data)) = path.item() else { break };
            let is_sums = (key.objectid, key.kind) == (from.objectid, from.kind);
            if key > from && (!is_sums || key.offset >= end) {
                break;
            }
            if is_sums {
                let item = CsumItem::parse(key, data, kind, fs.sectorsize());
                let item = item.map_err(|why| damaged(root.id, key, &why))?;
                for (index, sum) in all.iter_mut().enumerate() {
                    let at = Logical(start.0.saturating_add(index as u64 * sector));
                    if let Some(stored) = item.get(at) {
                        let mut copy = [0; MAX_SIZE];
                        copy[..stored.len()].copy_from_slice(stored);
                        *sum = Some(copy);
                    }
                }
            }
            more = path.next().await?;
        }
        Ok(all)
    }
}

fn is_right(kind: ChecksumKind, sector: &[u8], sum: &[u8; MAX_SIZE]) -> bool {
    kind.compute(sector).is(sum)
}
