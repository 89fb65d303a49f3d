//! The disks that a stack has, with their names.
//!
//! Disks may be added while the stack runs. A member that was taken out of its array keeps its name,
//! and is still there to be taken in again.

use std::path::Path;
use std::sync::{PoisonError, RwLock};

use ashlar_block::Gateway;

use crate::names::unique_name;

/// A disk and what it is called.
#[derive(Clone)]
pub struct Held {
    /// Where the user has it.
    pub path: String,
    /// Its name under `sys/block`, unique among these.
    pub name: String,
    /// The device.
    pub gateway: Gateway,
}

/// See the module text.
#[derive(Default)]
pub struct Disks {
    table: RwLock<Vec<Held>>,
}

impl Disks {
    /// Adds a disk; its name.
    pub fn add(&self, path: &str, gateway: Gateway) -> String {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let taken = |name: &str| table.iter().any(|held| held.name == name);
        let name = unique_name(Path::new(path), taken);
        table.push(Held { path: path.to_owned(), name: name.clone(), gateway });
        name
    }

    /// Forgets the disk with this path.
    pub fn remove(&self, path: &str) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        table.retain(|held| held.path != path);
    }

    /// The name of the disk with this path.
    pub fn name(&self, path: &str) -> Option<String> {
        self.read(|table| table.iter().find(|held| held.path == path).map(|held| held.name.clone()))
    }

    /// All disks, in the order they were added.
    pub fn all(&self) -> Vec<Held> {
        self.read(<[Held]>::to_vec)
    }

    fn read<T>(&self, look: impl FnOnce(&[Held]) -> T) -> T {
        look(&self.table.read().unwrap_or_else(PoisonError::into_inner))
    }
}
