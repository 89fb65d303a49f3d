//! Device-mapper devices for the measurements, created from textual tables.

use std::sync::{Arc, Mutex, PoisonError};

use ashlar_block::Gateway;
use ashlar_dm::snapshot::Origins;
use ashlar_dm::{Context, Device, Devices, Table, text};
use ashlar_engine::{Engine, EngineRuntime};

use crate::common::{Outcome, block_on};

/// Devices by name.
#[derive(Clone, Default)]
struct DeviceList(Arc<Mutex<Vec<(String, Gateway)>>>);

impl Devices for DeviceList {
    fn find(&self, name: &str) -> Option<Gateway> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().find(|(known, _)| known == name).map(|(_, gateway)| gateway.clone())
    }
}

/// Creates devices on top of devices.
#[derive(Default)]
pub(crate) struct Mapper {
    named: DeviceList,
    origins: Arc<Origins>,
}

impl Mapper {
    /// Makes `gateway` available to tables under `name`.
    pub(crate) fn add(&self, name: &str, gateway: &Gateway) {
        let mut all = self.named.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push((name.to_owned(), gateway.clone()));
    }

    /// Creates a device from a table; later tables may use it.
    ///
    /// # Errors
    /// The table is invalid, or could not be started.
    pub(crate) fn map(&self, engine: &Engine, name: &str, table: &str) -> Outcome<Gateway> {
        let gateway = Gateway::new(self.device(engine, name, table)?);
        self.add(name, &gateway);
        Ok(gateway)
    }

    /// The same, without a name for later tables: the device itself.
    ///
    /// # Errors
    /// As [`Self::map`].
    pub(crate) fn device(&self, engine: &Engine, name: &str, table: &str) -> Outcome<Arc<Device>> {
        let (named, origins) = (self.named.clone(), Arc::clone(&self.origins));
        let (device, lines) = (name.to_owned(), text::parse(table)?);
        let made = engine.handles()[0].spawn_on(move || async move {
            let context = Context { devices: &named, runtime: Arc::new(EngineRuntime), origins };
            let table = Table::load(&lines, &context).await.map_err(|error| error.to_string())?;
            let started = Device::start(&device, table, Arc::new(EngineRuntime)).await;
            started.map_err(|status| status.to_string())
        });
        Ok(block_on(made)??)
    }
}
