//! Structs of a label as bytes, their offsets, and the embedded checksum.

use ashlar_block::ondisk_layout;
use sha2::{Digest, Sha256};
use zerocopy::byteorder::{BigEndian, ByteOrder, LittleEndian, U64};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

/// Bytes of a label (`vdev_label_t`).
pub const LABEL_BYTES: usize = 256 << 10;
/// Labels of a device: two at its start, two at its end (`VDEV_LABELS`).
pub const LABELS: usize = 4;
/// Offset of the configuration in a label.
pub const PHYS_OFFSET: usize = 16 << 10;
/// Bytes of the configuration, including its checksum (`VDEV_PHYS_SIZE`).
pub const PHYS_BYTES: usize = 112 << 10;
/// Offset of the ring of uberblocks in a label.
pub const RING_OFFSET: usize = 128 << 10;
/// Bytes of the ring (`VDEV_UBERBLOCK_RING`).
pub const RING_BYTES: usize = 128 << 10;
/// Bytes of the embedded checksum, at the end of the bytes that it covers.
pub const CHECKSUM_BYTES: usize = size_of::<EmbeddedChecksum<LittleEndian>>();
/// The magic number of the checksum, which also indicates its byte order (`ZEC_MAGIC`).
pub const CHECKSUM_MAGIC: u64 = 0x0210_da7a_b10c_7a11;

/// `vdev_label_t`
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawLabel {
    /// Reserved for partition tables and boot sectors.
    pub pad: [u8; 8 << 10],
    /// The boot loader's variables (`vdev_boot_envblock_t`).
    pub boot_env: [u8; 8 << 10],
    /// The configuration: an nvlist, followed by an [`EmbeddedChecksum`].
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
    /// The transaction group that this uberblock completes.
    pub txg: U64<O>,
    /// Sum of the identities of all vdevs, modulo 2^64.
    pub guid_sum: U64<O>,
    /// Time of the write, seconds since 1970.
    pub timestamp: U64<O>,
    /// Block pointer to the root of the pool.
    pub root: [u8; 128],
    /// Highest version known to the software that wrote it.
    pub software_version: U64<O>,
    /// [`MMP_MAGIC`](super::uberblock::MMP_MAGIC), from OpenZFS 0.7 on.
    pub mmp_magic: U64<O>,
    /// Nanoseconds since the last heartbeat; zero if `multihost` is off.
    pub mmp_delay: U64<O>,
    /// Interval, sequence number and fail intervals of `multihost`, each with a validity bit.
    pub mmp_config: U64<O>,
    /// Transaction group of the checkpoint, in a checkpoint's uberblock.
    pub checkpoint_txg: U64<O>,
    /// Progress of a RAID-Z expansion, and the state of its scratch area.
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

/// Why a checksum is invalid.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ChecksumError {
    /// There is no checksum.
    #[error("there is no checksum")]
    Absent,
    /// The bytes differ from those that were summed, or were written for another offset.
    #[error("its checksum is wrong")]
    Wrong,
}

/// Offset of label `index` on a device of `device_bytes`; `None` if the device is too small for four labels.
pub fn label_offset(device_bytes: u64, index: usize) -> Option<u64> {
    let (label, index) = (LABEL_BYTES as u64, index as u64);
    let end = device_bytes - device_bytes % label;
    if end < LABELS as u64 * label || index >= LABELS as u64 {
        return None;
    }
    Some(if index < 2 { index * label } else { end - (LABELS as u64 - index) * label })
}

/// Verifies the checksum at the end of `bytes`, which begin at `offset` on their device; returns
/// its byte order.
///
/// It covers all of `bytes`, with the offset in place of the checksum itself: so a copy at another
/// offset is invalid.
///
/// # Errors
/// There is no checksum, or a wrong one.
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

/// Writes the checksum at the end of `bytes`, which are at least [`CHECKSUM_BYTES`] and begin at
/// `offset` on their device: for test images. The byte order is little-endian.
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

/// As [`seal`], but big-endian.
#[cfg(test)]
pub(super) fn seal_big(bytes: &mut [u8], offset: u64) {
    let at = bytes.len() - CHECKSUM_BYTES;
    bytes[at..at + 8].copy_from_slice(&CHECKSUM_MAGIC.to_be_bytes());
    let sum = digest(bytes, offset.to_be_bytes());
    for (to, word) in bytes[at + 8..].chunks_exact_mut(8).zip(sum) {
        to.copy_from_slice(&word.to_be_bytes());
    }
}

/// The checksum of `bytes`, with `place` and zeros instead of the last 32.
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
