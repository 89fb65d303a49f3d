//! The arrays of a stack: running ones, and those that wait for members.
//!
//! Arrays are added while the stack runs ([`crate::incremental`]), and removed when a user ends one. Look-ups take the
//! lock, I/O does not.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use ashlar_block::disk::DeviceNumber;
use ashlar_block::{ByteVolume, Sectors};
use ashlar_md::Candidate;
use ashlar_md::ondisk::{Level, Version};
use uuid::Uuid;

use crate::canary::{Rule, broken};
use crate::names::ArrayName;
use crate::view::ArrayView;

/// A running array.
#[derive(Clone)]
pub struct Volume {
    /// Its name.
    pub name: ArrayName,
    /// The array.
    pub view: Arc<ArrayView>,
    /// Its bytes, for exports: all of them must share this.
    pub bytes: Arc<ByteVolume>,
}

/// An array that does not run yet because it waits for more members (`mdadm --incremental`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WaitingArray {
    /// Its name, now and when it runs.
    pub name: ArrayName,
    /// Its identity.
    pub uuid: Uuid,
    /// Its name in the superblocks.
    pub set_name: String,
    /// Version of the superblocks.
    pub version: Version,
    /// Its level.
    pub level: Level,
    /// Members of the complete array.
    pub raid_disks: u32,
    /// The highest event count of the present members.
    pub events: u64,
    /// The present members, in order of arrival.
    pub members: Vec<WaitingMember>,
}

/// A member of an array that does not run yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WaitingMember {
    /// The path that the user gave.
    pub path: String,
    /// Its index in the role table.
    pub number: u32,
    /// Start of its data area.
    pub data_offset: Sectors,
    /// The size of its data area.
    pub data_size: Sectors,
    /// Write-mostly: read only if no other in-sync member has the data.
    pub write_mostly: bool,
}

impl WaitingArray {
    /// The array of these members. Where their superblocks disagree, the one with the highest event
    /// count decides. `None` without members.
    pub(crate) fn new(name: ArrayName, candidates: &[Candidate]) -> Option<Self> {
        let sb = &candidates.iter().max_by_key(|candidate| candidate.sb.events)?.sb;
        let member = |candidate: &Candidate| WaitingMember {
            path: candidate.path.clone(),
            number: candidate.sb.dev_number,
            data_offset: Sectors(candidate.sb.data_offset.0),
            data_size: candidate.sb.data_size,
            write_mostly: candidate.sb.flags.write_mostly,
        };
        Some(Self {
            name,
            uuid: sb.set_uuid,
            set_name: sb.name.clone(),
            version: sb.version,
            level: sb.level,
            raid_disks: sb.raid_disks,
            events: sb.events,
            members: candidates.iter().map(member).collect(),
        })
    }
}

/// See the module text.
#[derive(Default)]
pub struct Arrays {
    table: RwLock<Table>,
}

#[derive(Default)]
struct Table {
    running: Vec<Volume>,
    waiting: Vec<WaitingArray>,
}

impl Arrays {
    /// The running arrays, in the order they were started.
    pub fn running(&self) -> Vec<Volume> {
        self.read().running.clone()
    }

    /// The waiting arrays, in the order their first members arrived.
    pub fn waiting(&self) -> Vec<WaitingArray> {
        self.read().waiting.clone()
    }

    /// The running array with the name `md127` or `md/data`.
    pub fn find(&self, name: &str) -> Option<Volume> {
        self.read().running.iter().find(|volume| volume.name.is(name)).cloned()
    }

    /// The waiting array with this name.
    pub fn find_waiting(&self, name: &str) -> Option<WaitingArray> {
        self.read().waiting.iter().find(|waiting| waiting.name.is(name)).cloned()
    }

    /// The running array with this identity.
    pub fn of(&self, uuid: Uuid) -> Option<Volume> {
        let all = self.running();
        all.into_iter().find(|volume| volume.view.status().uuid == uuid)
    }

    /// Removes the running array called `name` from the list, and returns it.
    pub fn take_out(&self, name: &str) -> Option<Volume> {
        let mut table = self.write();
        let index = table.running.iter().position(|volume| volume.name.is(name))?;
        Some(table.running.remove(index))
    }

    /// Puts a removed array back.
    pub fn put_back(&self, volume: Volume) {
        self.write().running.push(volume);
    }

    /// Adds a running array and removes it from the waiting ones.
    pub(crate) fn start(&self, uuid: Uuid, volume: Volume) {
        volume.bytes.gateway().disk().set_number(DeviceNumber::md(volume.name.number));
        let mut table = self.write();
        if !broken(Rule::StartedArraysWaitNoMore) {
            table.waiting.retain(|waiting| waiting.uuid != uuid);
        }
        table.running.push(volume);
    }

    /// Adds a waiting array, or replaces its entry.
    pub(crate) fn wait(&self, waiting: WaitingArray) {
        let mut table = self.write();
        match table.waiting.iter_mut().find(|other| other.uuid == waiting.uuid) {
            Some(known) => *known = waiting,
            None => table.waiting.push(waiting),
        }
    }

    /// Forgets a waiting array.
    pub(crate) fn forget(&self, uuid: Uuid) {
        self.write().waiting.retain(|waiting| waiting.uuid != uuid);
    }

    fn read(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Table> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}
