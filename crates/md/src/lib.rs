//! Linux software RAID (md): linear and levels 0, 1, 4, 5, 6 and 10 in the kernel's on-disk formats.
//!
//! # Theory
//!
//! Members carry superblocks ([`ondisk`]). [`probe`] reads them, `assemble` decides which members
//! make an array and whether it may start, and [`Array`] runs it: a block device whose
//! `personality` maps its sectors to the members' (`raid0`, `raid10` and `raid5` are pure geometry), with common code of
//! the levels with copies, and of those with parity.
//!
//! The promises of an array, beyond a block device's contract:
//! - a write is acknowledged when every copy on a member in sync has it; a member that could not
//!   take it has failed by then, and the superblocks of the others record it;
//! - after a read error, the data come from another copy and are written over the bad one;
//! - the superblocks say `active` before a write may make copies differ and `clean` only when they
//!   are the same and flushed;
//! - a discard touches no sector outside its range, on any member, however it is split.
//!
//! Two concurrent writes to one sector may end differently on its copies, as in md.
//!
//! Ordering arguments are at the top of the modules: active and clean in `array`, the order of
//! superblock updates in `superblocks`, corrections against writes in
//! `barrier`, dropped futures in `ashlar_block::sync::uncancellable`. docs/internals/crash-model.md has the
//! whole.
//!
//! Assumed of the layer below: a sector is written atomically; an acknowledged flush or FUA write
//! is durable; after a failed write each sector may be old, new or unreadable.

#![forbid(unsafe_code)]

pub mod canary;
pub mod create;
pub mod dm_raid;
pub mod ondisk;
pub mod update;

mod array;
mod assemble;
mod badblocks;
mod barrier;
mod bitmap;
mod core;
mod gather;
mod level;
mod manage;
mod membership;
mod metadata;
mod personality;
mod probe;
mod raid0;
mod raid10;
mod raid5;
mod reshape;
mod status;
mod sync;

#[cfg(test)]
mod enumeration;

pub use crate::core::failing::Need;
pub use array::{Array, SAFE_MODE_DELAY};
pub use assemble::{
    AssembleError, BackupFile, Options, Plan, group, plan, plan_with_backups, wait_for_others,
};
pub use barrier::BarrierTotals;
pub use bitmap::{Bitmap, Kind as BitmapKind, State as BitmapState};
pub use level::parity::settings::{
    ParitySettings, SETTINGS as PARITY_SETTINGS, Setting, SettingError,
};
pub use manage::{AddOptions, AddOutcome, FlagChange, GrowOptions, ManageError, MemberFlag};
pub use membership::rdev::{Rdev, State as MemberState};
pub use membership::slots::{Index, Members, Place};
pub use probe::{Candidate, ProbeError, probe, probe_all};
pub use reshape::{ReshapePosition, ReshapeStatus};
pub use status::{ArrayState, ArrayStatus, MemberStatus};
pub use sync::{SyncAction, SyncError, SyncRequest, SyncSettings, SyncStatus};

/// The parts that the project's own tests and benches reach into. Other crates use what is above.
#[doc(hidden)]
pub mod internals {
    pub mod badblocks {
        pub use crate::badblocks::*;
    }
    pub mod barrier {
        pub use crate::barrier::*;
    }
    pub mod bitmap {
        pub use crate::bitmap::*;
    }
    pub mod personality {
        pub use crate::personality::*;
    }
    pub mod raid0 {
        pub use crate::raid0::*;
    }
    pub mod raid10 {
        pub use crate::raid10::*;
    }
    pub mod raid5 {
        pub use crate::raid5::*;
    }
}
