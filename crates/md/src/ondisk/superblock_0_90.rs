//! The 0.90 superblock as bytes: `struct mdp_superblock_s` of the kernel's
//! `include/uapi/linux/raid/md_p.h`.
//!
//! 4096 bytes, 1024 words of 32 bits in the byte order of the machine that wrote them. A big-endian machine also has the high
//! word of a 64-bit number first. ashlar reads both, and writes little-endian ones: for arrays that it
//! runs, it updates only the clean state and members that failed or turned out to be spares.

use std::mem;

use ashlar_block::ondisk_layout;
use zerocopy::byteorder::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::MAGIC;
use super::fields::Role;

/// Bytes of a 0.90 superblock.
pub const BLOCK_SIZE: usize = 4096;
/// Descriptors in the table.
pub const MAX_DISKS: usize = 27;

/// Bits of [`Block090::state`].
pub mod state {
    /// The array was stopped cleanly.
    pub const CLEAN: u32 = 1 << 0;
    /// The array had errors.
    pub const ERRORS: u32 = 1 << 1;
    /// There is a bitmap 4 KiB after the superblock.
    pub const BITMAP_PRESENT: u32 = 1 << 8;
}

/// Bits of [`Descriptor::state`].
pub mod disk {
    /// Failed.
    pub const FAULTY: u32 = 1 << 0;
    /// Running.
    pub const ACTIVE: u32 = 1 << 1;
    /// In sync with the array.
    pub const SYNC: u32 = 1 << 2;
    /// Removed.
    pub const REMOVED: u32 = 1 << 3;
    /// Write-mostly.
    pub const WRITE_MOSTLY: u32 = 1 << 9;
    /// Fail at the first error.
    pub const FAILFAST: u32 = 1 << 10;
    /// What a member's own superblock decides.
    pub(super) const OWN: u32 = WRITE_MOSTLY | FAILFAST;
}

/// Description of one member.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Descriptor {
    /// Its index in the table.
    pub number: U32,
    /// Major device number it had.
    pub major: U32,
    /// Minor device number it had.
    pub minor: U32,
    /// Slot in the array.
    pub raid_disk: U32,
    /// Bits of [`disk`].
    pub state: U32,
    /// Zero.
    pub reserved: [U32; 27],
}

ondisk_layout!(Descriptor, 128, {
    number: 0, major: 4, minor: 8, raid_disk: 12, state: 16, reserved: 20,
});

impl Descriptor {
    /// The role that the kernel gives this member when it loads the superblock.
    pub fn role(&self) -> Role {
        let bits = self.state.get();
        if bits & disk::FAULTY != 0 {
            Role::Faulty
        } else if bits & disk::SYNC != 0 {
            Role::Active(u16::try_from(self.raid_disk.get()).unwrap_or(u16::MAX))
        } else {
            Role::Spare
        }
    }

    /// Whether the entry has device numbers.
    fn names_a_device(&self) -> bool {
        self.major.get() != 0 || self.minor.get() != 0
    }

    /// Whether the entry describes a spare. Files have no device numbers; unused entries also have no
    /// index.
    fn is_spare(&self) -> bool {
        self.role() == Role::Spare && (self.names_a_device() || self.number.get() != 0)
    }
}

/// A whole 0.90 superblock.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Block090 {
    /// [`MAGIC`](super::MAGIC).
    pub md_magic: U32,
    /// 0.
    pub major_version: U32,
    /// 90, or 91 while a reshape is under way.
    pub minor_version: U32,
    /// Patch level.
    pub patch_version: U32,
    /// Unused.
    pub gvalid_words: U32,
    /// First word of the array's identity.
    pub set_uuid0: U32,
    /// Creation time in seconds.
    pub ctime: U32,
    /// RAID level, signed.
    pub level: U32,
    /// KiB used of each member.
    pub size: U32,
    /// Number of members.
    pub nr_disks: U32,
    /// Active members of a complete array.
    pub raid_disks: U32,
    /// Preferred minor number of the array.
    pub md_minor: U32,
    /// Non-zero if there is no superblock, which cannot be read here.
    pub not_persistent: U32,
    /// Second word of the array's identity.
    pub set_uuid1: U32,
    /// Third word of the array's identity.
    pub set_uuid2: U32,
    /// Fourth word of the array's identity.
    pub set_uuid3: U32,
    /// Zero.
    pub gstate_creserved: [U32; 16],
    /// Time of the last update in seconds.
    pub utime: U32,
    /// Bits of [`state`].
    pub state: U32,
    /// Members in sync.
    pub active_disks: U32,
    /// Members that have not failed.
    pub working_disks: U32,
    /// Members that have failed or are missing.
    pub failed_disks: U32,
    /// Spares.
    pub spare_disks: U32,
    /// Checksum of the block.
    pub sb_csum: U32,
    /// Low word of the event count.
    pub events_lo: U32,
    /// High word of the event count.
    pub events_hi: U32,
    /// Low word of the event count when `recovery_cp` was written.
    pub cp_events_lo: U32,
    /// High word of the event count when `recovery_cp` was written.
    pub cp_events_hi: U32,
    /// Sectors known to be in sync; valid only if `cp_events` equals `events`.
    pub recovery_cp: U32,
    /// Next array sector to reshape, low word first (minor version 91).
    pub reshape_position: [U32; 2],
    /// Level a reshape leads to.
    pub new_level: U32,
    /// Change of `raid_disks` by the reshape, signed.
    pub delta_disks: U32,
    /// Layout a reshape leads to.
    pub new_layout: U32,
    /// Chunk size in bytes a reshape leads to.
    pub new_chunk: U32,
    /// Logical block size of the array in bytes (Linux 6.19 and later), or zero.
    pub logical_block_size: U32,
    /// Zero.
    pub gstate_sreserved: [U32; 13],
    /// Layout of RAID 5, 6, 10.
    pub layout: U32,
    /// Chunk size in bytes.
    pub chunk_size: U32,
    /// Unused.
    pub root_pv: U32,
    /// Unused.
    pub root_block: U32,
    /// Zero.
    pub pstate_reserved: [U32; 60],
    /// The members.
    pub disks: [Descriptor; MAX_DISKS],
    /// The member this superblock is on.
    pub this_disk: Descriptor,
}

ondisk_layout!(Block090, BLOCK_SIZE, {
    md_magic: 0, major_version: 4, minor_version: 8, patch_version: 12, gvalid_words: 16,
    set_uuid0: 20, ctime: 24, level: 28, size: 32, nr_disks: 36, raid_disks: 40, md_minor: 44,
    not_persistent: 48, set_uuid1: 52, set_uuid2: 56, set_uuid3: 60, gstate_creserved: 64,
    utime: 128, state: 132, active_disks: 136, working_disks: 140, failed_disks: 144,
    spare_disks: 148, sb_csum: 152, events_lo: 156, events_hi: 160, cp_events_lo: 164,
    cp_events_hi: 168, recovery_cp: 172, reshape_position: 176, new_level: 184, delta_disks: 188,
    new_layout: 192, new_chunk: 196, logical_block_size: 200, gstate_sreserved: 204,
    layout: 256, chunk_size: 260, root_pv: 264, root_block: 268, pstate_reserved: 272,
    disks: 512, this_disk: 3968,
});

impl Block090 {
    /// The block at the start of `bytes`, in the order of this form, and whether a big-endian machine wrote it; `None` if there are fewer
    /// than [`BLOCK_SIZE`].
    pub fn from_either(bytes: &[u8]) -> Option<(Box<Self>, bool)> {
        let mut block = Self::from_bytes(bytes)?;
        let is_big_endian = block.md_magic.get() == MAGIC.swap_bytes();
        if is_big_endian {
            block.as_mut_bytes().as_chunks_mut::<4>().0.iter_mut().for_each(|word| word.reverse());
            let Self { events_lo, events_hi, cp_events_lo, cp_events_hi, .. } = &mut *block;
            mem::swap(events_lo, events_hi);
            mem::swap(cp_events_lo, cp_events_hi);
            block.reshape_position.reverse();
        }
        Some((block, is_big_endian))
    }

    /// The block at the start of `bytes`; `None` if there are fewer than [`BLOCK_SIZE`].
    pub fn from_bytes(bytes: &[u8]) -> Option<Box<Self>> {
        Self::read_from_prefix(bytes).ok().map(|(block, _)| Box::new(block))
    }

    /// The checksum this block should have: the sum of its words with the stored checksum counted as
    /// zero, folded once.
    pub fn checksum(&self) -> u32 {
        let (words, _) = self.as_bytes().as_chunks::<4>();
        let sum: u64 = words.iter().map(|word| u64::from(u32::from_le_bytes(*word))).sum();
        let sum = sum - u64::from(self.sb_csum.get());
        (sum as u32).wrapping_add((sum >> 32) as u32)
    }

    /// Whether the stored checksum is acceptable. Old kernels stored sums that equal
    /// [`checksum`](Self::checksum) only after folding to 16 bits, so the kernel compares only that.
    pub fn checksum_is_correct(&self) -> bool {
        fold_to_16(self.sb_csum.get()) == fold_to_16(self.checksum())
    }

    /// Stores the correct checksum.
    pub fn seal(&mut self) {
        self.sb_csum = self.checksum().into();
    }

    /// The event count.
    pub fn events(&self) -> u64 {
        join(self.events_hi, self.events_lo)
    }

    /// The event count when `recovery_cp` was written.
    pub fn cp_events(&self) -> u64 {
        join(self.cp_events_hi, self.cp_events_lo)
    }

    /// Stores the event count.
    pub fn set_events(&mut self, events: u64) {
        (self.events_hi, self.events_lo) = split(events);
    }

    /// Next array sector to reshape.
    pub fn reshape_position(&self) -> u64 {
        join(self.reshape_position[1], self.reshape_position[0])
    }

    /// The array's identity, with its words in the order in which mdadm prints them.
    pub fn set_uuid(&self) -> [u8; 16] {
        let mut uuid = [0; 16];
        let words = [self.set_uuid0, self.set_uuid1, self.set_uuid2, self.set_uuid3];
        for (bytes, word) in uuid.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *bytes = word.get().to_be_bytes();
        }
        uuid
    }

    /// Stores the array's identity, given with its words in printing order.
    pub fn set_set_uuid(&mut self, uuid: [u8; 16]) {
        let words =
            [&mut self.set_uuid0, &mut self.set_uuid1, &mut self.set_uuid2, &mut self.set_uuid3];
        for (bytes, word) in uuid.as_chunks::<4>().0.iter().zip(words) {
            *word = u32::from_be_bytes(*bytes).into();
        }
    }

    /// Sectors known to be in sync, `u64::MAX` for a clean array, as the kernel loads it.
    pub fn resync_offset(&self) -> u64 {
        if self.state.get() & state::CLEAN != 0 {
            u64::MAX
        } else if self.cp_events() == self.events() {
            u64::from(self.recovery_cp.get())
        } else {
            0
        }
    }

    /// Stores how much is in sync (`u64::MAX`: all, the array is clean), for the current event count.
    /// A position beyond 32 bits is rounded down, which only repeats some resync.
    pub fn set_resync_offset(&mut self, offset: u64) {
        let bits = self.state.get() & !state::CLEAN;
        if offset == u64::MAX {
            self.state = (bits | state::CLEAN).into();
            self.recovery_cp = u32::MAX.into();
        } else {
            self.state = bits.into();
            self.recovery_cp = u32::try_from(offset).unwrap_or(u32::MAX - 1).into();
        }
        (self.cp_events_hi, self.cp_events_lo) = (self.events_hi, self.events_lo);
    }

    /// Records that the member with this number has failed: its entry becomes an empty slot marked
    /// faulty and removed, as the kernel writes it for slots without a device.
    pub fn fail_member(&mut self, number: usize) {
        let slot = u32::try_from(number).unwrap_or(u32::MAX);
        let Some(entry) = self.disks.get_mut(number) else { return };
        entry.number = slot.into();
        entry.major = 0.into();
        entry.minor = 0.into();
        entry.raid_disk = slot.into();
        entry.state = (disk::FAULTY | disk::REMOVED).into();
        self.recount();
    }

    /// Records that the active member with this number is a spare, as the kernel writes it.
    pub fn make_spare(&mut self, number: usize) {
        let slot = u32::try_from(number).unwrap_or(u32::MAX);
        let Some(entry) = self.disks.get_mut(number) else { return };
        entry.number = slot.into();
        entry.raid_disk = slot.into();
        entry.state = (entry.state.get() & disk::OWN).into();
        self.recount();
    }

    /// The block that this member has after an update by an array whose freshest member has the block `fresher`: as the kernel
    /// writes it, the same on all members, but for what is known of this one alone.
    pub fn following(&self, fresher: &Self) -> Box<Self> {
        let mut block = Box::new(fresher.clone());
        let number = self.this_disk.number.get();
        block.this_disk = self.this_disk.clone();
        if let (Some(own), Some(entry)) =
            (self.disks.get(number as usize), block.disks.get_mut(number as usize))
        {
            // The fresher one need not list a spare.
            if entry.role() == Role::Spare {
                (entry.number, entry.raid_disk) = (number.into(), number.into());
            }
            (entry.major, entry.minor) = (own.major, own.minor);
            let flags = own.state.get() & disk::OWN;
            entry.state = (entry.state.get() & !disk::OWN | flags).into();
            block.this_disk = entry.clone();
        }
        block.recount();
        block.seal();
        block
    }

    /// Computes the counts of members from the table.
    fn recount(&mut self) {
        let count = |wanted: &dyn Fn(&Descriptor) -> bool| {
            self.disks.iter().filter(|entry| wanted(entry)).count() as u32
        };
        let active = count(&|entry| matches!(entry.role(), Role::Active(_)));
        let spare = count(&|entry| entry.is_spare());
        let failed = count(&|entry| entry.role() == Role::Faulty);
        let failed_here = count(&|entry| entry.role() == Role::Faulty && entry.names_a_device());
        self.active_disks = active.into();
        self.working_disks = (active + spare).into();
        self.spare_disks = spare.into();
        self.failed_disks = failed.into();
        self.nr_disks = (active + spare + failed_here).into();
    }
}

fn join(high: U32, low: U32) -> u64 {
    u64::from(high.get()) << 32 | u64::from(low.get())
}

fn split(value: u64) -> (U32, U32) {
    (((value >> 32) as u32).into(), (value as u32).into())
}

fn fold_to_16(sum: u32) -> u32 {
    let once = (sum & 0xffff) + (sum >> 16);
    (once & 0xffff) + (once >> 16)
}
