//! The four checksums of btrfs.
//!
//! On disk a tree block's checksum takes 32 bytes, of which the algorithm uses the first
//! [`ChecksumKind::size`]; the checksum tree stores only these.

use std::fmt;

use sha2::Digest;

/// Maximum size of a checksum in bytes (`BTRFS_CSUM_SIZE`).
pub const MAX_SIZE: usize = 32;

/// An algorithm (`csum_type` of the superblock).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ChecksumKind {
    /// 0: CRC-32C.
    Crc32c,
    /// 1: XXH64 with seed 0.
    Xxhash64,
    /// 2: SHA-256.
    Sha256,
    /// 3: BLAKE2b with 256 bits.
    Blake2b,
}

impl ChecksumKind {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Crc32c, Self::Xxhash64, Self::Sha256, Self::Blake2b];

    /// The algorithm with this number in a superblock.
    pub fn from_number(number: u16) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Its number in a superblock.
    pub const fn number(self) -> u16 {
        match self {
            Self::Crc32c => 0,
            Self::Xxhash64 => 1,
            Self::Sha256 => 2,
            Self::Blake2b => 3,
        }
    }

    /// Its name in btrfs-progs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Crc32c => "crc32c",
            Self::Xxhash64 => "xxhash64",
            Self::Sha256 => "sha256",
            Self::Blake2b => "blake2",
        }
    }

    /// Size of a checksum in bytes.
    pub const fn size(self) -> usize {
        match self {
            Self::Crc32c => 4,
            Self::Xxhash64 => 8,
            Self::Sha256 | Self::Blake2b => 32,
        }
    }

    /// Whether computing it takes longer than reading the bytes from a fast device: about a
    /// nanosecond per byte, as the cryptographic ones do.
    pub const fn is_slow(self) -> bool {
        match self {
            Self::Crc32c | Self::Xxhash64 => false,
            Self::Sha256 | Self::Blake2b => true,
        }
    }

    /// The checksum of `bytes`.
    pub fn compute(self, bytes: &[u8]) -> Checksum {
        let mut all = [0; MAX_SIZE];
        match self {
            Self::Crc32c => {
                let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32;
                all[..4].copy_from_slice(&crc.to_le_bytes());
            }
            Self::Xxhash64 => {
                let hash = xxhash_rust::xxh64::xxh64(bytes, 0);
                all[..8].copy_from_slice(&hash.to_le_bytes());
            }
            Self::Sha256 => all.copy_from_slice(&sha2::Sha256::digest(bytes)),
            Self::Blake2b => {
                let hash = blake2b_simd::Params::new().hash_length(MAX_SIZE).hash(bytes);
                all.copy_from_slice(hash.as_bytes());
            }
        }
        Checksum { bytes: all, len: self.size() as u8 }
    }
}

impl fmt::Display for ChecksumKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A checksum.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Checksum {
    bytes: [u8; MAX_SIZE],
    len: u8,
}

impl Checksum {
    /// The checksum at the start of a field.
    pub fn stored(kind: ChecksumKind, field: &[u8; MAX_SIZE]) -> Self {
        let mut bytes = [0; MAX_SIZE];
        bytes[..kind.size()].copy_from_slice(&field[..kind.size()]);
        Self { bytes, len: kind.size() as u8 }
    }

    /// The bytes as stored.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Whether `stored` begins with this checksum.
    pub fn is(&self, stored: &[u8]) -> bool {
        stored.starts_with(self.as_bytes())
    }
}

impl fmt::Display for Checksum {
    /// Formats as btrfs-progs and the kernel's log do: `0x` and the stored bytes in order.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("0x")?;
        self.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_algorithm_gives_what_its_authors_published() {
        let of = |kind: ChecksumKind, bytes: &[u8]| kind.compute(bytes).to_string();
        // CRC catalogue: CRC-32/ISCSI of the check string is e3069283, stored little-endian.
        assert_eq!(of(ChecksumKind::Crc32c, b"123456789"), "0x839206e3");
        // xxHash's own test: XXH64 of nothing with seed 0 is ef46db3751d8e999.
        assert_eq!(of(ChecksumKind::Xxhash64, b""), "0x99e9d85137db46ef");
        // FIPS 180-4, "abc".
        assert_eq!(
            of(ChecksumKind::Sha256, b"abc"),
            "0xba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        // BLAKE2b with a digest of 32 bytes, "abc".
        assert_eq!(
            of(ChecksumKind::Blake2b, b"abc"),
            "0xbddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319"
        );
    }

    #[test]
    fn numbers_lead_there_and_back() {
        for kind in ChecksumKind::ALL {
            assert_eq!(ChecksumKind::from_number(kind.number()), Some(kind));
            assert_eq!(kind.compute(b"x").as_bytes().len(), kind.size());
        }
        assert_eq!(ChecksumKind::from_number(4), None);
    }
}
