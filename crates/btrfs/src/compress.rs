//! Compressed extents.
//!
//! An extent is one stream of its algorithm, which decompresses to at most [`EXTENT_BYTES_MAX`];
//! bytes after the stream pad the last sector and mean nothing. The stream of a regular extent may
//! end before `ram_bytes`, within the last sector: the file ended there, and the rest is zero. In
//! inline extents that old kernels truncated, a stream may also continue past `ram_bytes`: the
//! excess is ignored.
//!
//! LZO has no framing; btrfs uses this one:
//!
//! ```text
//! total: u32    bytes of all, this number included
//! segments:     length: u32, then that many bytes of LZO1X: one sector of the file each
//! ```
//!
//! A segment may cross a sector boundary of the stream, but its length field may not: if fewer than
//! four bytes remain in the sector after a segment, they are zero, and the next segment begins at
//! the next sector.

use std::io::Read;

use miniz_oxide::inflate::TINFLStatus;
use ruzstd::decoding::errors::FrameDecoderError;
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use thiserror::Error;

use crate::ondisk::items::Compression;

/// Maximum size of a compressed extent, also after decompression (`BTRFS_MAX_UNCOMPRESSED`).
pub const EXTENT_BYTES_MAX: usize = 128 << 10;

/// Maximum Zstandard window (`ZSTD_BTRFS_MAX_WINDOWLOG`).
const ZSTD_WINDOW_MAX: u64 = 128 << 10;

/// Why an extent cannot be decompressed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum DecompressError {
    /// The extent is larger than any compressed extent can be.
    #[error("a compressed extent of {0} bytes; at most {EXTENT_BYTES_MAX} can be")]
    TooLarge(u64),
    /// The stream ends early.
    #[error("it ends after {found} bytes, wanted {wanted}")]
    Short {
        /// Bytes it produced.
        found: usize,
        /// Bytes expected.
        wanted: usize,
    },
    /// Invalid zlib stream.
    #[error("damaged zlib stream: {0}")]
    Zlib(&'static str),
    /// Invalid Zstandard stream.
    #[error("damaged zstd stream: {0}")]
    Zstd(String),
    /// Invalid LZO segment.
    #[error("damaged lzo segment at byte {at}: {error}")]
    LzoSegment {
        /// Offset of its length field in the extent.
        at: usize,
        /// What is wrong.
        error: lzokay::Error,
    },
    /// Invalid LZO framing.
    #[error("impossible {field} in the lzo framing, at byte {at}: {value}")]
    LzoFraming {
        /// The field.
        field: &'static str,
        /// Offset of the field in the extent.
        at: usize,
        /// Its value.
        value: u32,
    },
}

/// Decompresses `bytes`, an extent as stored, to `ram_bytes` bytes. The result is right if the
/// checksum of `bytes` is: streams have no checksum that a kernel would check.
///
/// # Errors
/// The stream is damaged; it gives a sector or more too little; or it would give more than any
/// compressed extent holds.
pub fn decompress(
    compression: Compression,
    bytes: &[u8],
    ram_bytes: u64,
    sectorsize: u32,
) -> Result<Vec<u8>, DecompressError> {
    let wanted = usize::try_from(ram_bytes).ok().filter(|wanted| *wanted <= EXTENT_BYTES_MAX);
    let Some(wanted) = wanted.filter(|_| bytes.len() <= EXTENT_BYTES_MAX) else {
        return Err(DecompressError::TooLarge(ram_bytes.max(bytes.len() as u64)));
    };
    let sector = sectorsize.clamp(1, 64 << 10) as usize;
    let mut out = vec![0; wanted];
    let found = match compression {
        Compression::None => {
            let len = wanted.min(bytes.len());
            out[..len].copy_from_slice(&bytes[..len]);
            len
        }
        Compression::Zlib => zlib(bytes, &mut out)?,
        Compression::Lzo => lzo(bytes, &mut out, sector)?,
        Compression::Zstd => zstd(bytes, &mut out)?,
    };
    if wanted - found >= sector {
        return Err(DecompressError::Short { found, wanted });
    }
    out[found..].fill(0);
    Ok(out)
}

/// RFC 1950. Fills `out` as far as the stream goes and returns the length. The functions for the
/// other algorithms do the same.
fn zlib(bytes: &[u8], out: &mut [u8]) -> Result<usize, DecompressError> {
    use miniz_oxide::inflate::core::{DecompressorOxide, decompress, inflate_flags};

    // The stream's checksum is ignored, as in the kernel.
    let flags = inflate_flags::TINFL_FLAG_PARSE_ZLIB_HEADER
        | inflate_flags::TINFL_FLAG_IGNORE_ADLER32
        | inflate_flags::TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
    let mut state = Box::<DecompressorOxide>::default();
    let (status, _, found) = decompress(&mut state, bytes, out, 0, flags);
    let is_full = found == out.len();
    match status {
        TINFLStatus::Done => Ok(found),
        TINFLStatus::HasMoreOutput | TINFLStatus::FailedCannotMakeProgress if is_full => Ok(found),
        TINFLStatus::FailedCannotMakeProgress => Err(DecompressError::Zlib("it is cut off")),
        TINFLStatus::BadParam
        | TINFLStatus::Adler32Mismatch
        | TINFLStatus::Failed
        | TINFLStatus::NeedsMoreInput
        | TINFLStatus::HasMoreOutput
        | _ => Err(DecompressError::Zlib("a code that cannot be")),
    }
}

/// One frame.
fn zstd(mut bytes: &[u8], out: &mut [u8]) -> Result<usize, DecompressError> {
    let damaged = |error: FrameDecoderError| DecompressError::Zstd(error.to_string());
    let mut decoder = FrameDecoder::new();
    decoder.set_max_window_size(ZSTD_WINDOW_MAX);
    decoder.init(&mut bytes).map_err(damaged)?;
    let mut found = 0;
    loop {
        // A block produces at most one window, so the decoder never holds more than two windows.
        let one = BlockDecodingStrategy::UptoBlocks(1);
        let ended = decoder.decode_blocks(&mut bytes, one).map_err(damaged)?;
        let drained = decoder.read(&mut out[found..]);
        found += drained.map_err(FrameDecoderError::FailedToDrainDecodebuffer).map_err(damaged)?;
        if ended || found == out.len() {
            return Ok(found);
        }
    }
}

/// Size of a length field in the LZO framing.
const LENGTH_SIZE: usize = size_of::<u32>();

fn lzo(bytes: &[u8], out: &mut [u8], sector: usize) -> Result<usize, DecompressError> {
    let wrong = |field, at, value| Err(DecompressError::LzoFraming { field, at, value });
    let length_at = |at: usize| {
        let length = bytes.get(at..)?.first_chunk::<LENGTH_SIZE>()?;
        Some(u32::from_le_bytes(*length))
    };
    let total = length_at(0).unwrap_or(0);
    let end = total as usize;
    if !(LENGTH_SIZE..=bytes.len()).contains(&end) {
        return wrong("total length", 0, total);
    }
    let bytes = &bytes[..end];
    // Size of incompressible bytes after LZO.
    let segment_max = sector + sector / 16 + 64 + 3;
    let mut segment_out = vec![0; sector];
    let (mut at, mut found) = (LENGTH_SIZE, 0);
    while at < end && found < out.len() {
        let Some(length) = length_at(at).filter(|_| at + LENGTH_SIZE <= end) else {
            return wrong("room for a length", at, (end - at) as u32);
        };
        let start = at + LENGTH_SIZE;
        let segment = (length as usize <= segment_max).then(|| start + length as usize);
        let Some(segment) = segment.and_then(|segment_end| bytes.get(start..segment_end)) else {
            return wrong("length of a segment", at, length);
        };
        let decompressed = lzokay::decompress::decompress(segment, &mut segment_out)
            .map_err(|error| DecompressError::LzoSegment { at, error })?;
        let taken = decompressed.min(out.len() - found);
        out[found..found + taken].copy_from_slice(&segment_out[..taken]);
        found += taken;
        at = start + segment.len();
        let left = sector - at % sector;
        if left < LENGTH_SIZE {
            at += left;
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Data with little pattern: `content` of the vectors' recipe.
    fn content(seed: u64, len: usize) -> Vec<u8> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut draw = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as usize % below
        };
        let mut out: Vec<u8> = Vec::new();
        while out.len() < len {
            if out.is_empty() || draw(4) == 0 {
                let count = 1 + draw(24);
                out.extend(std::iter::repeat_with(|| draw(256) as u8).take(count));
            } else {
                let limit = out.len().min(1 << draw(13));
                let distance = 1 + draw(limit);
                for _ in 0..3 + draw(400) {
                    out.push(out[out.len() - distance]);
                }
            }
        }
        out.truncate(len);
        out
    }

    struct Vector {
        name: String,
        compression: Compression,
        /// Bytes the kernel stored.
        bytes: Vec<u8>,
        /// Bytes that were written, with zeroes up to `ram_bytes`.
        content: Vec<u8>,
    }

    /// Streams stored by Linux 6.18; the recipe is next to them.
    fn vectors() -> Vec<Vector> {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/images/btrfs-compress");
        let table = std::fs::read_to_string(format!("{path}/vectors.txt")).unwrap();
        let vector = |line: &str| {
            let [name, algorithm, numbers @ ..] = &line.split(' ').collect::<Vec<_>>()[..] else {
                panic!("{line}");
            };
            let numbers: Vec<usize> =
                numbers.iter().map(|number| number.parse().unwrap()).collect();
            let [seed, len, ram_bytes, disk_num_bytes] = numbers[..] else { panic!("{line}") };
            let named = |compression: &Compression| compression.name() == *algorithm;
            let compression = Compression::ALL.into_iter().find(named).unwrap();
            let mut bytes = std::fs::read(format!("{path}/{name}.bin")).unwrap();
            bytes.resize(bytes.len().max(disk_num_bytes), 0);
            let mut content = content(seed as u64, len);
            content.resize(ram_bytes, 0);
            Vector { name: name.to_string(), compression, bytes, content }
        };
        table.lines().map(vector).collect()
    }

    #[test]
    fn what_the_kernel_stored_comes_back() {
        let vectors = vectors();
        assert_eq!(vectors.len(), 13);
        for Vector { name, compression, bytes, content } in vectors {
            let found = decompress(compression, &bytes, content.len() as u64, 4096).unwrap();
            assert!(found == content, "{name}");
            // Fewer bytes may be requested; up to a sector past the stream's end is zero.
            let found = decompress(compression, &bytes, 1234, 4096).unwrap();
            assert!(found == content[..1234], "{name}");
        }
    }

    #[test]
    fn streams_end_within_the_last_sector() {
        let of = |name: &str| vectors().into_iter().find(|vector| vector.name == name).unwrap();
        for algorithm in ["zlib", "lzo", "zstd"] {
            let Vector { compression, bytes, .. } = of(&format!("{algorithm}-part"));
            let found = decompress(compression, &bytes, 10_000 + 4095, 4096).unwrap();
            assert_eq!(found[10_000..], [0; 4095]);
            let short = DecompressError::Short { found: 10_000, wanted: 10_000 + 4096 };
            assert_eq!(decompress(compression, &bytes, 10_000 + 4096, 4096), Err(short));
        }
    }

    #[test]
    fn streams_that_are_cut_off_are_errors() {
        for Vector { name, compression, bytes, content } in vectors() {
            let end = bytes.iter().rposition(|byte| *byte != 0).unwrap();
            // The last bytes of zlib are its checksum, which is ignored.
            let last = if compression == Compression::Zlib { end * 3 / 4 } else { end };
            for cut in [0, 1, 2, 3, 4, 5, 9, 20, end / 2, last] {
                let found = decompress(compression, &bytes[..cut], content.len() as u64, 4096);
                assert!(found.is_err(), "{name}: {cut}");
            }
        }
    }

    #[test]
    fn damage_is_an_error_or_other_bytes_but_never_more() {
        for Vector { compression, bytes, content, .. } in vectors() {
            let step = (bytes.len() / 31).max(1);
            for at in (0..bytes.len()).step_by(step) {
                for value in [0, 0xff, bytes[at] ^ 1, bytes[at] ^ 0x80] {
                    let mut bytes = bytes.clone();
                    bytes[at] = value;
                    if let Ok(found) = decompress(compression, &bytes, content.len() as u64, 4096) {
                        assert_eq!(found.len(), content.len());
                    }
                }
            }
        }
    }

    #[test]
    fn streams_of_other_programs_are_read() {
        let text = b"btrfs btrfs btrfs btrfs btrfs scrub";
        // Python 3.11: zlib.compress(text, 9), then padding to the sector.
        let mut zlib = vec![
            0x78, 0xda, 0x4b, 0x2a, 0x29, 0x4a, 0x2b, 0x56, 0x48, 0xc2, 0x41, 0x16, 0x27, 0x17,
            0x95, 0x26, 0x01, 0x00, 0xf0, 0xf5, 0x0d, 0x65,
        ];
        // zstd 1.5.4: zstd -19 of a file, with its checksum.
        let mut zstd = vec![
            0x28, 0xb5, 0x2f, 0xfd, 0x24, 0x23, 0x8d, 0x00, 0x00, 0x58, 0x62, 0x74, 0x72, 0x66,
            0x73, 0x20, 0x73, 0x63, 0x72, 0x75, 0x62, 0x01, 0x00, 0x01, 0x4b, 0x11, 0x70, 0x94,
            0x8d, 0x41,
        ];
        for _ in 0..2 {
            let wanted = Ok(text.to_vec());
            assert_eq!(decompress(Compression::Zlib, &zlib, text.len() as u64, 4096), wanted);
            assert_eq!(decompress(Compression::Zstd, &zstd, text.len() as u64, 4096), wanted);
            zlib.resize(4096, 0);
            zstd.resize(4096, 0);
        }
        assert_eq!(decompress(Compression::None, text, text.len() as u64, 4096), Ok(text.to_vec()));
    }

    #[test]
    fn output_has_a_limit() {
        let max = EXTENT_BYTES_MAX as u64;
        for compression in Compression::ALL {
            for ram_bytes in [max + 1, u64::MAX] {
                let error = decompress(compression, &[], ram_bytes, 4096).unwrap_err();
                assert_eq!(error, DecompressError::TooLarge(ram_bytes));
            }
            let error = decompress(compression, &vec![0; EXTENT_BYTES_MAX + 1], 1, 4096);
            assert_eq!(error, Err(DecompressError::TooLarge(max + 1)));
        }
        // A gigabyte of zeroes, in blocks of one byte repeated; a window of 128 KiB.
        let mut bomb = vec![0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x38];
        bomb.extend([0x02, 0x00, 0x10, 0x00].repeat(8192));
        assert_eq!(decompress(Compression::Zstd, &bomb, max, 4096), Ok(vec![0; EXTENT_BYTES_MAX]));
        // The same with a window of a gigabyte.
        bomb[5] = 0xa0;
        let error = decompress(Compression::Zstd, &bomb, max, 4096).unwrap_err();
        assert!(matches!(error, DecompressError::Zstd(_)), "{error}");
    }

    #[test]
    fn the_framing_of_lzo_is_checked() {
        let error = |numbers: &[u32], ram_bytes| {
            let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
            let error = decompress(Compression::Lzo, &bytes, ram_bytes, 4096).unwrap_err();
            let DecompressError::LzoFraming { field, at, value } = error else { panic!("{error}") };
            (field, at, value)
        };
        assert_eq!(error(&[], 1), ("total length", 0, 0));
        assert_eq!(error(&[3, 0], 1), ("total length", 0, 3));
        assert_eq!(error(&[9, 0], 1), ("total length", 0, 9));
        assert_eq!(error(&[u32::MAX, 0], 1), ("total length", 0, u32::MAX));
        assert_eq!(error(&[7, 3], 1), ("room for a length", 4, 3));
        assert_eq!(error(&[8, 1], 1), ("length of a segment", 4, 1));
        assert_eq!(error(&[8, u32::MAX], 1), ("length of a segment", 4, u32::MAX));
        let mut long = vec![0; 2000];
        (long[0], long[1]) = (8000, 4096 + 256 + 64 + 3 + 1);
        assert_eq!(error(&long, 1), ("length of a segment", 4, 4420));
        // No segment at all; an empty segment; a segment of more than a sector.
        let empty = decompress(Compression::Lzo, &[4, 0, 0, 0], 4096, 4096);
        assert_eq!(empty, Err(DecompressError::Short { found: 0, wanted: 4096 }));
        let nothing = decompress(Compression::Lzo, &[8, 0, 0, 0, 0, 0, 0, 0], 1, 4096);
        let input = lzokay::Error::InputOverrun;
        assert_eq!(nothing, Err(DecompressError::LzoSegment { at: 4, error: input }));
        let part = vectors().into_iter().find(|vector| vector.name == "lzo-part").unwrap();
        let smaller = decompress(Compression::Lzo, &part.bytes, 12288, 2048);
        let output = lzokay::Error::OutputOverrun;
        assert_eq!(smaller, Err(DecompressError::LzoSegment { at: 4, error: output }));
    }
}
