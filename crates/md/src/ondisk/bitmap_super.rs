//! The superblock at the front of a write-intent bitmap: `bitmap_super_t` of the kernel's
//! `drivers/md/md-bitmap.h`. 256 bytes, little-endian; the bits follow at once.

use core::fmt;

use ashlar_block::ondisk_layout;
use ashlar_block::units::Sectors;
use thiserror::Error;
use uuid::Uuid;
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::fields::{MdadmUuid, Version, swap_words};
use super::text;

/// "bitm", little-endian.
pub const MAGIC: u32 = 0x6d74_6962;
/// Bytes of the superblock. The bits follow immediately; the states of a lockless bitmap do not.
pub const SIZE: usize = 256;
/// Bytes before the states of a lockless bitmap.
pub const LOCKLESS_START: usize = 1024;
/// A bitmap in the byte order of the machine that wrote it.
pub const VERSION_HOST_ENDIAN: u32 = 3;
/// The usual, little-endian bitmap.
pub const VERSION_PORTABLE: u32 = 4;
/// One bitmap per node of a cluster.
pub const VERSION_CLUSTERED: u32 = 5;
/// The "lockless" bitmap of Linux 6.18: one byte of state per chunk.
pub const VERSION_LOCKLESS: u32 = 6;
/// Most write-behind writes the kernel accepts.
pub const MAX_WRITE_BEHIND: u32 = (1 << 14) - 1;

/// Bits of [`BitmapSuper::state`].
pub mod state {
    /// The bits cannot be trusted: everything must be resynced.
    pub const STALE: u32 = 1 << 1;
    /// A write of the bitmap failed.
    pub const WRITE_ERROR: u32 = 1 << 2;
    /// Lockless bitmap: the kernel has not initialised it yet.
    pub const FIRST_USE: u32 = 1 << 3;
    /// Lockless bitmap: all data is in sync at first use.
    pub const CLEAN: u32 = 1 << 4;
    /// The bits are in host byte order.
    pub const HOST_ENDIAN: u32 = 1 << 15;
}

/// The bitmap superblock as bytes.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct BitmapSuper {
    /// [`MAGIC`].
    pub magic: U32,
    /// 3 to 6.
    pub version: U32,
    /// The array's UUID, in the byte order of its superblock.
    pub uuid: [u8; 16],
    /// Event count; updated before that of the array's superblocks.
    pub events: U64,
    /// Event count when bits were last cleared, which happens only while no member is missing.
    pub events_cleared: U64,
    /// Sectors that the bitmap covers: of a member, or for RAID10 of the array.
    pub sync_size: U64,
    /// Bits of [`state`].
    pub state: U32,
    /// Bytes per bit, or sectors per state if lockless. See [`BitmapSuper::chunk`].
    pub chunksize: U32,
    /// Seconds between clearings of bits.
    pub daemon_sleep: U32,
    /// Write-behind writes allowed at a time, 0 for none.
    pub write_behind: U32,
    /// Sectors reserved for the bitmap, or 0 if unknown.
    pub sectors_reserved: U32,
    /// Nodes of the cluster.
    pub nodes: U32,
    /// Name of the cluster.
    pub cluster_name: [u8; 64],
    /// Zero.
    pub pad: [u8; 120],
}

ondisk_layout!(BitmapSuper, SIZE, {
    magic: 0, version: 4, uuid: 8, events: 24, events_cleared: 32, sync_size: 40, state: 48,
    chunksize: 52, daemon_sleep: 56, write_behind: 60, sectors_reserved: 64, nodes: 68,
    cluster_name: 72, pad: 136,
});

/// Why a bitmap superblock was refused; the kernel refuses the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum BitmapSuperError {
    /// Fewer than 256 bytes.
    #[error("bitmap superblock: {found} bytes, not {SIZE}")]
    Truncated {
        /// Bytes given.
        found: usize,
    },
    /// Not a bitmap superblock.
    #[error("bitmap superblock: magic is {found:#010x}, not {MAGIC:#010x}")]
    Magic {
        /// Magic found.
        found: u32,
    },
    /// An unknown version.
    #[error("bitmap superblock: version {found}, not 3 to 6")]
    Version {
        /// Version found.
        found: u32,
    },
    /// A chunk size that is below 512 bytes or not a power of two.
    #[error("bitmap superblock: chunk size of {found} bytes is not a power of two from 512 up")]
    ChunkSize {
        /// Bytes found.
        found: u32,
    },
    /// A chunk size of a lockless bitmap that is not a power of two.
    #[error("bitmap superblock: chunk size of {found} sectors is not a power of two")]
    LocklessChunkSize {
        /// Sectors found.
        found: u32,
    },
    /// A period out of range, for example zero.
    #[error("bitmap superblock: daemon sleep of {found} s is out of range")]
    DaemonSleep {
        /// Seconds found.
        found: u32,
    },
    /// Too many write-behind writes.
    #[error("bitmap superblock: write-behind limit of {found} is above {MAX_WRITE_BEHIND}")]
    WriteBehind {
        /// Limit found.
        found: u32,
    },
    /// It covers more than is possible.
    #[error("bitmap superblock: sync size of {found} sectors is impossible")]
    SyncSize {
        /// Sectors found.
        found: u64,
    },
}

impl BitmapSuper {
    /// A new bitmap superblock as `mdadm --create` writes it.
    pub fn new(
        uuid: [u8; 16],
        sync_size: Sectors,
        chunk_bytes: u32,
        sleep: u32,
        behind: u32,
    ) -> Self {
        Self {
            magic: MAGIC.into(),
            version: VERSION_PORTABLE.into(),
            uuid,
            events: 0.into(),
            events_cleared: 0.into(),
            sync_size: sync_size.0.into(),
            state: 0.into(),
            chunksize: chunk_bytes.into(),
            daemon_sleep: sleep.into(),
            write_behind: behind.into(),
            sectors_reserved: 0.into(),
            nodes: 0.into(),
            cluster_name: [0; 64],
            pad: [0; 120],
        }
    }

    /// A new lockless bitmap superblock as `mdadm --create --bitmap=lockless` writes it: when the array
    /// first runs, the chunk size is chosen and all states become unwritten (clean if `clean`).
    /// `reserved` is the most sectors of the bitmap.
    pub fn new_lockless(
        uuid: [u8; 16],
        sync_size: Sectors,
        reserved: u32,
        sleep: u32,
        clean: bool,
    ) -> Self {
        let mut sb = Self::new(uuid, sync_size, 64 << 20, sleep, 0);
        sb.version = VERSION_LOCKLESS.into();
        sb.state = (state::FIRST_USE | if clean { state::CLEAN } else { 0 }).into();
        sb.sectors_reserved = reserved.into();
        sb
    }

    /// The superblock at the start of `bytes`, checked.
    ///
    /// # Errors
    /// [`BitmapSuperError`] where the kernel would refuse it too.
    pub fn parse(bytes: &[u8]) -> Result<Self, BitmapSuperError> {
        let sb =
            Self::from_bytes(bytes).ok_or(BitmapSuperError::Truncated { found: bytes.len() })?;
        sb.check()?;
        Ok(sb)
    }

    /// The superblock at the start of `bytes`, unchecked; `None` if there are too few bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Self::read_from_prefix(bytes).ok().map(|(sb, _)| sb)
    }

    /// Whether all values are possible.
    ///
    /// # Errors
    /// The first one that is not.
    pub(crate) fn check(&self) -> Result<(), BitmapSuperError> {
        let found = self.magic.get();
        if found != MAGIC {
            return Err(BitmapSuperError::Magic { found });
        }
        let found = self.version.get();
        if !(VERSION_HOST_ENDIAN..=VERSION_LOCKLESS).contains(&found) {
            return Err(BitmapSuperError::Version { found });
        }
        let found = self.chunksize.get();
        if self.is_lockless() {
            if !found.is_power_of_two() {
                return Err(BitmapSuperError::LocklessChunkSize { found });
            }
        } else if found < 512 || !found.is_power_of_two() {
            return Err(BitmapSuperError::ChunkSize { found });
        }
        let found = self.daemon_sleep.get();
        if found == 0 || found > i32::MAX as u32 {
            return Err(BitmapSuperError::DaemonSleep { found });
        }
        let found = self.write_behind.get();
        if found > MAX_WRITE_BEHIND {
            return Err(BitmapSuperError::WriteBehind { found });
        }
        let found = self.sync_size.get();
        if found > u64::MAX >> 9 {
            return Err(BitmapSuperError::SyncSize { found });
        }
        Ok(())
    }

    /// Stores the event count.
    pub fn set_events(&mut self, events: u64) {
        self.events = events.into();
    }

    /// Whether it belongs to a lockless bitmap.
    pub fn is_lockless(&self) -> bool {
        self.version.get() == VERSION_LOCKLESS
    }

    /// Sectors per bit or state. (Meaningless in an uninitialised lockless bitmap.)
    pub fn chunk(&self) -> Sectors {
        match (self.is_lockless(), self.chunksize.get()) {
            (true, sectors) => Sectors(sectors.into()),
            (false, bytes) => Sectors::from_bytes_floor(bytes.into()),
        }
    }

    /// Bits, or states, needed for the covered sectors; 0 if the chunk size is 0.
    pub fn bits(&self) -> u64 {
        match self.chunk() {
            Sectors::ZERO => 0,
            chunk => self.sync_size.get().div_ceil(chunk.0),
        }
    }

    /// Bytes of the superblock and the bits, rounded up to `boundary`.
    pub fn total_bytes(&self, boundary: u64) -> u64 {
        let bytes = if self.is_lockless() {
            self.bits().saturating_add(LOCKLESS_START as u64)
        } else {
            self.bits().div_ceil(8).saturating_add(SIZE as u64)
        };
        bytes.checked_next_multiple_of(boundary.max(1)).unwrap_or(u64::MAX)
    }

    /// The superblock and the bits up to a boundary of 4 KiB, all of them set.
    pub fn all_marked(&self) -> Vec<u8> {
        let mut bytes = vec![0xff; self.total_bytes(4096) as usize];
        bytes[..SIZE].copy_from_slice(self.as_bytes());
        bytes
    }

    /// The text of `mdadm --examine-bitmap` for this superblock, without the line naming the file.
    /// `array` is the version of the array's superblock, which determines the order of the UUID's
    /// bytes; `dirty` is the number of bits set, if the bits were read.
    ///
    /// mdadm (4.5) does not know lockless bitmaps: their text is ashlar's. An uninitialised one has
    /// neither chunks nor states.
    pub fn describe(&self, array: Version, dirty: Option<u64>) -> impl fmt::Display + '_ {
        let uuid = match array {
            Version::V0_90 => swap_words(self.uuid),
            Version::V1_0 | Version::V1_1 | Version::V1_2 => self.uuid,
        };
        Description { sb: self, uuid: Uuid::from_bytes(uuid), dirty }
    }

    /// Whether it is a lockless bitmap that is not initialised yet.
    fn is_unused(&self) -> bool {
        self.is_lockless() && self.state.get() & state::FIRST_USE != 0
    }

    fn chunk_text(&self) -> String {
        let bytes = self.chunk().bytes();
        match u32::try_from(bytes) {
            _ if self.is_unused() => "chosen when the array is first run".to_owned(),
            Ok(bytes) => text::bitmap_chunk(bytes),
            Err(_) => format!("{} GB", bytes >> 30),
        }
    }

    fn state_name(&self) -> &'static str {
        match self.state.get() {
            0 => "OK",
            state::STALE => "Out of date",
            _ if self.is_unused() => "Not initialised",
            _ => "Unknown",
        }
    }
}

struct Description<'a> {
    sb: &'a BitmapSuper,
    uuid: Uuid,
    dirty: Option<u64>,
}

impl fmt::Display for Description<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sb = self.sb;
        writeln!(out, "           Magic : {:08x}", sb.magic.get())?;
        writeln!(out, "         Version : {}", sb.version)?;
        writeln!(out, "            UUID : {}", MdadmUuid(self.uuid))?;
        if sb.nodes.get() == 0 {
            writeln!(out, "          Events : {}", sb.events)?;
            writeln!(out, "  Events Cleared : {}", sb.events_cleared)?;
            writeln!(out, "           State : {}", sb.state_name())?;
        }
        writeln!(out, "       Chunksize : {}", sb.chunk_text())?;
        writeln!(out, "          Daemon : {}s flush period", sb.daemon_sleep)?;
        match sb.write_behind.get() {
            0 => writeln!(out, "      Write Mode : Normal")?,
            max => writeln!(out, "      Write Mode : Allow write behind, max {max}")?,
        }
        let size = Sectors(sb.sync_size.get());
        writeln!(out, "       Sync Size : {}{}", size.0 / 2, text::human_size(size.bytes()))?;
        if sb.nodes.get() != 0 {
            writeln!(out, "   Cluster nodes : {}", sb.nodes)?;
            writeln!(out, "    Cluster name : {:<64}", text::c_string(&sb.cluster_name))?;
        } else if let Some(dirty) = self.dirty.filter(|_| !sb.is_unused()) {
            let bits = sb.bits();
            let percent = 100.0 * dirty as f64 / bits.max(1) as f64;
            writeln!(
                out,
                "          Bitmap : {bits} bits (chunks), {dirty} dirty ({percent:.1}%)"
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lockless_bitmap_has_no_chunks_before_it_is_used_and_large_ones_in_large_arrays() {
        let mut sb = BitmapSuper::new_lockless([7; 16], Sectors(1 << 40), 256, 5, false);
        let text = sb.describe(Version::V1_2, Some(0)).to_string();
        for line in [
            "         Version : 6\n",
            "           State : Not initialised\n",
            "       Chunksize : chosen when the array is first run\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
        assert!(!text.contains("Bitmap :"), "{text}");
        sb.state = 0.into();
        for (sectors, chunk) in [(128, "64 KB"), (1 << 20, "512 MB"), (1 << 24, "8 GB")] {
            sb.chunksize = sectors.into();
            let text = sb.describe(Version::V1_2, Some(1)).to_string();
            assert!(text.contains(&format!("       Chunksize : {chunk}\n")), "{text}");
            assert!(text.contains("State : OK\n") && text.contains(", 1 dirty ("), "{text}");
        }
    }
}
