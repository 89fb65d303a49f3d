//! Disks with the timing of a device model: `--model`.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};

use ashlar_block::Gateway;
use ashlar_block::sync::lock;
use ashlar_client::disk_path::is_same;
use ashlar_control::error::{Error, Result};
use ashlar_engine::EngineRuntime;
use ashlar_sim::model::NamedModel;
use ashlar_sim::{ModelledDevice, modelled};
use ashlar_stack::assemble::Disk;

use crate::decorator::Decorator;

mod assignment;

pub use assignment::Assignment;

/// The model assignments, and the disks that use one.
#[derive(Debug, Default)]
pub struct Models {
    assignments: Vec<Assignment>,
    used: Mutex<Vec<ModelledDisk>>,
}

/// A disk with a model, while it is open.
#[derive(Debug)]
struct ModelledDisk {
    disk: String,
    model: String,
    device: Weak<ModelledDevice>,
}

impl Models {
    /// For `assignments`: a disk gets the last one for it, or else the last one for all disks.
    pub fn new(assignments: Vec<Assignment>) -> Self {
        Self { assignments, used: Mutex::default() }
    }

    /// The model of the disk at `path`.
    fn of(&self, path: &Path) -> Option<&NamedModel> {
        let last = |wanted: &dyn Fn(&Assignment) -> bool| {
            self.assignments.iter().rev().find(|assignment| wanted(assignment))
        };
        let own = last(&|a| a.disk.as_deref().is_some_and(|disk| is_same(disk, path)));
        own.or_else(|| last(&|a| a.disk.is_none())).map(|assignment| &assignment.model)
    }

    /// The disks with a model, and the models.
    pub fn used(&self) -> Vec<(String, String)> {
        let mut used = lock(&self.used);
        used.retain(|used| used.device.strong_count() > 0);
        let mut named = Vec::new();
        for ModelledDisk { disk, model, .. } in used.iter() {
            let found = (disk.clone(), model.clone());
            // It may be opened once more, to look whether it is there.
            if !named.contains(&found) {
                named.push(found);
            }
        }
        named
    }
}

impl Decorator for Models {
    fn check(&self, disks: &[PathBuf]) -> Result<()> {
        for assignment in &self.assignments {
            let Some(wanted) = &assignment.disk else { continue };
            if !disks.iter().any(|disk| is_same(disk, wanted)) {
                let text = format!("a model for {}, which is not served", wanted.display());
                let all: Vec<_> = disks.iter().map(|disk| disk.display().to_string()).collect();
                return Err(Error::usage(text).hint(format!("the disks are {}", all.join(", "))));
            }
        }
        Ok(())
    }

    /// The disk has the timing of its model, if it has one.
    fn over(&self, disk: Disk) -> Result<Disk> {
        let Some(named) = self.of(&disk.path) else { return Ok(disk) };
        let unreadable = named.unreadable.clone();
        let device = modelled(disk.gateway, named.model, unreadable, Arc::new(EngineRuntime));
        let device = Arc::new(device);
        let used = ModelledDisk {
            disk: disk.path.display().to_string(),
            model: named.to_string(),
            device: Arc::downgrade(&device),
        };
        tracing::info!(disk = used.disk, model = used.model, "modelled");
        lock(&self.used).push(used);
        Ok(Disk { path: disk.path, gateway: Gateway::new(device) })
    }

    fn is_for_lent(&self) -> bool {
        !self.assignments.is_empty()
    }

    /// The daemon gives the disk a model if it has one for it.
    fn may_lend(&self, _: &Path) -> Result<()> {
        Ok(())
    }

    /// No command that calls a daemon takes a model.
    fn may_call(&self) -> Result<()> {
        Ok(())
    }
}
