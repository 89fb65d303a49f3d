//! The contents of a file.

use std::sync::Arc;

use ashlar_block::LocalFuture;
use ashlar_files::{Contents, FileError, LossReason, Piece};

use super::verify::{Sectors, Verifier};
use crate::compress::{self, DecompressError, EXTENT_BYTES_MAX};
use crate::error::{ReadError, TreeError};
use crate::ondisk::items::{
    Compression, DataExtent, FileExtent, FileExtentBody, InodeFlags, InodeItem,
};
use crate::ondisk::key::{Key, item};
use crate::path::{Path, Root};
use crate::readahead::Reada;
use crate::units::Logical;
use crate::volume::FileSystem;

/// Bytes read at a time.
const PIECE_BYTES: u64 = 512 << 10;
/// Maximum size of an extent in bytes: kernels create none above 256 MiB. An item that claims more
/// is not read piece by piece only to find nothing.
const DATA_EXTENT_BYTES_MAX: u64 = 1 << 30;

/// Content of the file according to an item.
#[derive(Clone, Debug)]
enum Source {
    /// Bytes in memory, from file offset `start` on.
    Bytes { start: u64, bytes: Arc<[u8]> },
    /// An extent as stored, and the offset in it at which the item's part begins.
    Plain(DataExtent),
    /// Zeroes.
    Zero,
    /// Cannot be read.
    Lost(LossReason),
}

/// The part of the file that is being read.
#[derive(Clone, Debug)]
struct FilePart {
    start: u64,
    end: u64,
    source: Source,
}

/// Reads a file from its beginning to its end, in pieces of bounded size.
#[derive(Debug)]
pub(super) struct Reader {
    fs: Arc<FileSystem>,
    tree: Root,
    inode: u64,
    size: u64,
    has_sums: bool,
    verifier: Verifier,
    /// Start of the next piece.
    at: u64,
    part: Option<FilePart>,
    /// The last extent that was decompressed: its address and its content.
    decompressed: Option<(Logical, Arc<[u8]>)>,
    /// Pieces of a read that was split at lost sectors, in reverse order.
    ready: Vec<Piece>,
}

impl Reader {
    pub(super) async fn new(
        fs: &Arc<FileSystem>,
        tree: Root,
        inode: u64,
        it: &InodeItem,
    ) -> Result<Self, FileError> {
        let has_sums = !it.inode_flags().contains(InodeFlags::NODATASUM);
        let verifier = Verifier::new(fs).await?;
        let size = it.size.get();
        let (fs, part, decompressed, ready) = (Arc::clone(fs), None, None, Vec::new());
        Ok(Self { fs, tree, inode, size, has_sums, verifier, at: 0, part, decompressed, ready })
    }

    async fn piece(&mut self) -> Option<Piece> {
        if let Some(piece) = self.ready.pop() {
            return Some(piece);
        }
        if self.at >= self.size {
            return None;
        }
        let part = match self.part.clone().filter(|part| part.end > self.at) {
            Some(part) => part,
            None => {
                let part = self.find().await;
                self.part = Some(part.clone());
                part
            }
        };
        let offset = self.at;
        let left = part.end.min(self.size) - offset;
        let piece = match part.source {
            Source::Zero => Piece::Hole { offset, len: left },
            Source::Lost(why) => Piece::Lost { offset, len: left, why },
            Source::Bytes { start, bytes } => {
                let from = usize::try_from(offset - start).unwrap_or(usize::MAX);
                let len = usize::try_from(left).unwrap_or(usize::MAX);
                let bytes = bytes.get(from..).map_or(&[][..], |rest| &rest[..rest.len().min(len)]);
                if bytes.is_empty() {
                    Piece::Hole { offset, len: left }
                } else {
                    Piece::Data { offset, bytes: bytes.to_vec() }
                }
            }
            Source::Plain(extent) => self.plain(extent, offset - part.start, left).await,
        };
        self.at = self.ready.first().unwrap_or(&piece).end();
        Some(piece)
    }

    /// The part of the file at [`Self::at`].
    async fn find(&mut self) -> FilePart {
        let start = self.at;
        match self.look().await {
            Ok(part) => part,
            Err((error, resume)) => {
                let is_ours = |key: &Key| {
                    (key.objectid, key.kind) == (self.inode, item::EXTENT_DATA)
                        && key.offset > start
                };
                let end = resume.filter(is_ours).map_or(self.size, |key| key.offset);
                FilePart { start, end, source: Source::Lost(LossReason::Extent(error.to_string())) }
            }
        }
    }

    async fn look(&mut self) -> Result<FilePart, (TreeError, Option<Key>)> {
        let (start, inode) = (self.at, self.inode);
        let fs = Arc::clone(&self.fs);
        let mut path = Path::new(&fs, self.tree).with_reada(Reada::Forward);
        let wanted = Key::new(inode, item::EXTENT_DATA, start);
        let is_ours = |key: Key| (key.objectid, key.kind) == (inode, item::EXTENT_DATA);
        // The item that covers `start`, or the next one.
        let found = path.search_back(wanted).await;
        let found = found.map_err(|error| (error, path.resume()))?;
        let before = path.item().filter(|(key, _)| found && is_ours(*key));
        let mut wrong = None;
        if let Some((key, data)) = before {
            match FileExtent::parse(data, fs.sectorsize()) {
                Ok(extent) => {
                    let end = key.offset.saturating_add(extent.len());
                    if end > start {
                        let (body, compression) = (extent.body, extent.compression);
                        let ram_bytes = extent.ram_bytes;
                        let source = self.source(key.offset, body, compression, ram_bytes).await;
                        // If items overlap, the later one counts from its start on.
                        return Ok(FilePart { start: key.offset, end, source });
                    }
                }
                Err(why) => wrong = Some(why.to_string()),
            }
        }
        let mut more = path.search(wanted).await.map_err(|error| (error, path.resume()))?;
        if more && path.key() == Some(wanted) {
            more = path.next().await.map_err(|error| (error, path.resume()))?;
        }
        let next = path.key().filter(|key| more && is_ours(*key));
        let end = next.map_or(self.size, |key| key.offset);
        let source = match wrong {
            Some(why) => Source::Lost(LossReason::Extent(why)),
            None => Source::Zero,
        };
        Ok(FilePart { start, end: end.max(start + 1), source })
    }

    /// Content according to an item at file offset `start`.
    async fn source(
        &mut self,
        start: u64,
        body: FileExtentBody<'_>,
        compression: Compression,
        ram_bytes: u64,
    ) -> Source {
        match body {
            FileExtentBody::Prealloc(_) => Source::Zero,
            FileExtentBody::Inline(bytes) if compression == Compression::None => {
                Source::Bytes { start, bytes: bytes.into() }
            }
            FileExtentBody::Inline(bytes) => {
                match compress::decompress(compression, bytes, ram_bytes, self.fs.sectorsize()) {
                    Ok(bytes) => Source::Bytes { start, bytes: bytes.into() },
                    Err(why) => Source::Lost(LossReason::Decompress(why.to_string())),
                }
            }
            FileExtentBody::Regular(extent) => match extent.at {
                None => Source::Zero,
                Some(at) if compression == Compression::None => {
                    let chunk = self.fs.chunks().get(at);
                    let end = at.checked_add(extent.disk_num_bytes);
                    let fits = chunk.is_some_and(|chunk| end.is_some_and(|end| end <= chunk.end()));
                    if fits && extent.disk_num_bytes <= DATA_EXTENT_BYTES_MAX {
                        Source::Plain(extent)
                    } else {
                        Source::Lost(ReadError::Unmapped(at).into())
                    }
                }
                Some(at) => match self.decompress(at, extent, compression, ram_bytes).await {
                    Ok(bytes) => {
                        let from = usize::try_from(extent.offset).unwrap_or(usize::MAX);
                        let bytes = bytes.get(from..).unwrap_or(&[]).into();
                        Source::Bytes { start, bytes }
                    }
                    Err(why) => Source::Lost(why),
                },
            },
        }
    }

    async fn decompress(
        &mut self,
        at: Logical,
        extent: DataExtent,
        compression: Compression,
        ram_bytes: u64,
    ) -> Result<Arc<[u8]>, LossReason> {
        if let Some((last, bytes)) = &self.decompressed
            && *last == at
            && bytes.len() as u64 == ram_bytes
        {
            return Ok(Arc::clone(bytes));
        }
        if extent.disk_num_bytes > EXTENT_BYTES_MAX as u64 {
            let too_large = DecompressError::TooLarge(extent.disk_num_bytes);
            return Err(LossReason::Decompress(too_large.to_string()));
        }
        let Sectors { bytes, lost } =
            self.verifier.read(at, extent.disk_num_bytes, self.has_sums).await;
        if let Some(why) = lost.into_iter().flatten().next() {
            return Err(why);
        }
        let sector = self.fs.sectorsize();
        let bytes = compress::decompress(compression, &bytes, ram_bytes, sector);
        let bytes: Arc<[u8]> = bytes.map_err(|why| LossReason::Decompress(why.to_string()))?.into();
        self.decompressed = Some((at, Arc::clone(&bytes)));
        Ok(bytes)
    }

    /// The next piece of an uncompressed extent, `skip` bytes into the item's part. Pieces after it
    /// go to [`Self::ready`].
    async fn plain(&mut self, extent: DataExtent, skip: u64, left: u64) -> Piece {
        let offset = self.at;
        let sector = u64::from(self.fs.sectorsize());
        // Kernels create no item that begins within a sector; for one that does, whole sectors are read.
        let from = extent.offset.saturating_add(skip);
        let within = from % sector;
        let start = extent.at.and_then(|at| at.checked_add(from - within));
        let len = left.min(PIECE_BYTES);
        let (Some(start), Some(whole)) = (start, (within + len).checked_next_multiple_of(sector))
        else {
            let why = LossReason::Extent("it leads out of the space".to_owned());
            return Piece::Lost { offset, len, why };
        };
        let Sectors { bytes, lost } = self.verifier.read(start, whole, self.has_sums).await;
        let mut pieces: Vec<Piece> = Vec::new();
        for (index, lost) in lost.into_iter().enumerate() {
            // The bytes of this sector that belong to the piece, as offsets into the bytes read.
            let first = (index as u64 * sector).max(within);
            let end = ((index as u64 + 1) * sector).min(within + len);
            if first >= end {
                continue;
            }
            let at = offset + (first - within);
            let sector = &bytes[first as usize..end as usize];
            match (pieces.last_mut(), lost) {
                (Some(Piece::Data { bytes, .. }), None) => bytes.extend_from_slice(sector),
                (Some(Piece::Lost { len, why, .. }), Some(next)) if *why == next => {
                    *len += end - first;
                }
                (_, None) => pieces.push(Piece::Data { offset: at, bytes: sector.to_vec() }),
                (_, Some(why)) => pieces.push(Piece::Lost { offset: at, len: end - first, why }),
            }
        }
        pieces.reverse();
        self.ready = pieces;
        self.ready.pop().unwrap_or(Piece::Hole { offset, len })
    }
}

impl Contents for Reader {
    fn size(&self) -> u64 {
        self.size
    }

    fn next(&mut self) -> LocalFuture<'_, Option<Piece>> {
        Box::pin(self.piece())
    }
}
