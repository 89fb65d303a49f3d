//! Structs of a label as bytes, their places, and the checksum that is inside of what it covers.

use sha2::{Digest, Sha256};
use zerocopy::byteorder::{BigEndian, ByteOrder, LittleEndian, U64};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::ondisk_layout;

/// Bytes of a label (`vdev_label_t`).
pub const LABEL_BYTES: usize = 256 << 10;
/// Labels of a device: two at its start, two at its end (`VDEV_LABELS`).
pub const LABELS: usize = 4;
/// Where the configuration is in a label.
pub const PHYS_OFFSET: usize = 16 << 10;
/// Bytes of the configuration, its checksum included (`VDEV_PHYS_SIZE`).
pub const PHYS_BYTES: usize = 112 << 10;
/// Where the ring of uberblocks is in a label.
pub const RING_OFFSET: usize = 128 << 10;
/// Bytes of the ring (`VDEV_UBERBLOCK_RING`).
pub const RING_BYTES: usize = 128 << 10;
/// Bytes of the checksum at the end of what it covers.
pub const CHECKSUM_BYTES: usize = size_of::<EmbeddedChecksum<LittleEndian>>();
/// What tells that there is a checksum, and its byte order (`ZEC_MAGIC`).
pub const CHECKSUM_MAGIC: u64 = 0x0210_da7a_b10c_7a11;

/// `vdev_label_t`
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawLabel {
    /// Left to partition tables and boot sectors.
    pub pad: [u8; 8 << 10],
    /// The boot loader's variables (`vdev_boot_envblock_t`).
    pub boot_env: [u8; 8 << 10],
    /// The configuration: an nvlist, and behind it an [`EmbeddedChecksum`].
    pub phys: [u8; PHYS_BYTES],
    /// Uberblocks, each in a slot with an [`EmbeddedChecksum`] at its end.
    pub ring: [u8; RING_BYTES],
}

ondisk_layout!(RawLabel, LABEL_BYTES, { pad: 0, boot_env: 8192, phys: PHYS_OFFSET, ring: RING_OFFSET });

/// `zio_eck_t`, in the byte order of the machine that wrote it.
#[derive(Clone, Copy, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct EmbeddedChecksum<O: ByteOrder = LittleEndian> {
    /// [`CHECKSUM_MAGIC`]
    pub magic: U64<O>,
    /// SHA-256, as four big-endian numbers.
    pub sum: [U64<O>; 4],
}

ondisk_layout!(EmbeddedChecksum, 40, { magic: 0, sum: 8 });

/// The uberblock (`uberblock_t`), in the byte order of the machine that wrote it.
#[derive(Clone, Copy, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawUberblock<O: ByteOrder = LittleEndian> {
    /// [`UBERBLOCK_MAGIC`](super::uberblock::UBERBLOCK_MAGIC)
    pub magic: U64<O>,
    /// Version of the pool.
    pub version: U64<O>,
    /// Transaction group that this one ends.
    pub txg: U64<O>,
    /// Sum of the identities of all vdevs, modulo 2^64.
    pub guid_sum: U64<O>,
    /// When it was written, seconds since 1970.
    pub timestamp: U64<O>,
    /// Block pointer to the root of everything.
    pub root: [u8; 128],
    /// Highest version that the software which wrote it knows.
    pub software_version: U64<O>,
    /// [`MMP_MAGIC`](super::uberblock::MMP_MAGIC), from OpenZFS 0.7 on.
    pub mmp_magic: U64<O>,
    /// Nanoseconds since the last sign of life; zero if `multihost` is off.
    pub mmp_delay: U64<O>,
    /// Interval, sequence number and patience of `multihost`, each with a bit that says if it is there.
    pub mmp_config: U64<O>,
    /// Transaction group of the checkpoint, on the uberblock of a checkpoint.
    pub checkpoint_txg: U64<O>,
    /// How far the expansion of a RAID-Z is, and the state of its scratch area.
    pub raidz_reflow: U64<O>,
}

ondisk_layout!(RawUberblock, 216, {
    magic: 0, version: 8, txg: 16, guid_sum: 24, timestamp: 32, root: 40, software_version: 168,
    mmp_magic: 176, mmp_delay: 184, mmp_config: 192, checkpoint_txg: 200, raidz_reflow: 208,
});

/// Byte order of a struct.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Endian {
    /// Least significant byte first.
    Little,
    /// Most significant byte first.
    Big,
}

/// What is wrong with a checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ChecksumError {
    /// It was never written.
    #[error("there is no checksum")]
    Absent,
    /// The bytes are not those that it was made of, or were written for another place.
    #[error("its checksum is wrong")]
    Wrong,
}

/// Where label `index` begins, in bytes, on a device of `device_bytes`; `None` on one that is too small for four of them.
pub fn label_offset(device_bytes: u64, index: usize) -> Option<u64> {
    let (label, index) = (LABEL_BYTES as u64, index as u64);
    let end = device_bytes - device_bytes % label;
    if end < LABELS as u64 * label || index >= LABELS as u64 {
        return None;
    }
    Some(if index < 2 { index * label } else { end - (LABELS as u64 - index) * label })
}

/// Checks the checksum at the end of `bytes`, which begin at `offset` on their device; the byte order it was written in.
///
/// It covers all of `bytes`, with the place instead of the checksum itself: so a copy elsewhere is a wrong one.
///
/// # Errors
/// There is none, or another.
pub fn verify(bytes: &[u8], offset: u64) -> Result<Endian, ChecksumError> {
    let (little, big) = (trailer::<LittleEndian>(bytes), trailer::<BigEndian>(bytes));
    let (Some(little), Some(big)) = (little, big) else { return Err(ChecksumError::Absent) };
    let (endian, place, stored) = if little.magic == CHECKSUM_MAGIC {
        (Endian::Little, offset.to_le_bytes(), little.sum.map(U64::get))
    } else if big.magic == CHECKSUM_MAGIC {
        (Endian::Big, offset.to_be_bytes(), big.sum.map(U64::get))
    } else {
        return Err(ChecksumError::Absent);
    };
    if digest(bytes, place) == stored { Ok(endian) } else { Err(ChecksumError::Wrong) }
}

/// Writes the checksum at the end of `bytes`, which are at least [`CHECKSUM_BYTES`] and begin at `offset` on their device: for
/// the making of test images. The byte order is little.
pub fn seal(bytes: &mut [u8], offset: u64) {
    let Some(at) = bytes.len().checked_sub(CHECKSUM_BYTES) else { return };
    bytes[at..at + 8].copy_from_slice(&CHECKSUM_MAGIC.to_le_bytes());
    let sum = digest(bytes, offset.to_le_bytes());
    for (to, word) in bytes[at + 8..].chunks_exact_mut(8).zip(sum) {
        to.copy_from_slice(&word.to_le_bytes());
    }
}

fn trailer<O: ByteOrder>(bytes: &[u8]) -> Option<EmbeddedChecksum<O>> {
    EmbeddedChecksum::read_from_suffix(bytes).ok().map(|(_, trailer)| trailer)
}

/// As [`seal`], on a machine of the other byte order.
#[cfg(test)]
pub(super) fn seal_big(bytes: &mut [u8], offset: u64) {
    let at = bytes.len() - CHECKSUM_BYTES;
    bytes[at..at + 8].copy_from_slice(&CHECKSUM_MAGIC.to_be_bytes());
    let sum = digest(bytes, offset.to_be_bytes());
    for (to, word) in bytes[at + 8..].chunks_exact_mut(8).zip(sum) {
        to.copy_from_slice(&word.to_be_bytes());
    }
}

/// The checksum of `bytes`, whose last 32 are taken to be `place` and zeros.
fn digest(bytes: &[u8], place: [u8; 8]) -> [u64; 4] {
    let mut hasher = Sha256::new();
    hasher.update(&bytes[..bytes.len() - 32]);
    hasher.update(place);
    hasher.update([0; 24]);
    let digest: [u8; 32] = hasher.finalize().into();
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(digest.as_chunks().0) {
        *word = u64::from_be_bytes(*bytes);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_at_both_ends_of_what_is_a_multiple_of_their_size() {
        let mib = 1 << 20;
        let places = |bytes| [0, 1, 2, 3].map(|index| label_offset(bytes, index));
        let expected = [0, 256, 64 * 1024 - 512, 64 * 1024 - 256];
        assert_eq!(places(64 * mib), expected.map(|kib| Some(kib << 10)));
        assert_eq!(places(64 * mib + (256 << 10) - 1), expected.map(|kib| Some(kib << 10)));
        assert_eq!(places(mib), [0, 256, 512, 768].map(|kib| Some(kib << 10)));
        assert_eq!(places(mib - 1), [None; 4]);
        assert_eq!(label_offset(u64::MAX, 4), None);
        assert!(label_offset(u64::MAX, 3).is_some_and(|at| at < u64::MAX - LABEL_BYTES as u64));
    }

    #[test]
    fn a_checksum_holds_for_its_bytes_at_its_place_only() {
        let mut bytes = vec![7; 1024];
        assert_eq!(verify(&bytes, 0), Err(ChecksumError::Absent));
        assert_eq!(verify(&bytes[..39], 0), Err(ChecksumError::Absent));
        seal(&mut bytes, 4096);
        assert_eq!(verify(&bytes, 4096), Ok(Endian::Little));
        assert_eq!(verify(&bytes, 8192), Err(ChecksumError::Wrong));
        bytes[0] ^= 1;
        assert_eq!(verify(&bytes, 4096), Err(ChecksumError::Wrong));
    }

    #[test]
    fn a_machine_of_the_other_byte_order_writes_the_same_checksum_the_other_way_round() {
        let mut bytes = vec![7; 1024];
        seal_big(&mut bytes, 4096);
        assert_eq!(verify(&bytes, 4096), Ok(Endian::Big));
        assert_eq!(verify(&bytes, 0), Err(ChecksumError::Wrong));
    }
}
