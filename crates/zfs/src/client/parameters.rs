//! The OpenZFS module parameters that ashlar supports: `sys/module/zfs/parameters`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Where a parameter takes effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// In the queues of this process, when a volume is opened.
    Queue,
    /// In workers, at once.
    Worker,
}

/// A module parameter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parameter {
    /// Its name, as in `sys/module/zfs/parameters`.
    pub name: &'static str,
    /// Its initial value.
    default: u64,
    /// Its largest value.
    max: u64,
    place: Place,
}

const fn queue(name: &'static str, default: u64, max: u64) -> Parameter {
    Parameter { name, default, max, place: Place::Queue }
}

const fn worker(name: &'static str, default: u64, max: u64) -> Parameter {
    Parameter { name, default, max, place: Place::Worker }
}

const UINT_MAX: u64 = u32::MAX as u64;

/// All parameters (`man 4 zfs`), with the workers' defaults.
const ALL: [Parameter; 11] = [
    worker("zfs_arc_max", 0, u64::MAX),
    worker("zfs_arc_min", 0, u64::MAX),
    worker("zfs_txg_timeout", 5, UINT_MAX),
    worker("zvol_blk_mq_threads", 0, UINT_MAX),
    worker("zvol_num_taskqs", 0, UINT_MAX),
    worker("zvol_request_sync", 0, 1),
    worker("zvol_threads", 0, UINT_MAX),
    queue("zvol_blk_mq_blocks_per_thread", 8, UINT_MAX),
    queue("zvol_blk_mq_queue_depth", 128, UINT_MAX),
    queue("zvol_max_discard_blocks", 16384, u64::MAX),
    queue("zvol_use_blk_mq", 0, 1),
];

/// The values of all parameters, shared by all pools.
#[derive(Debug)]
pub struct Parameters {
    values: [AtomicU64; ALL.len()],
}

impl Default for Parameters {
    fn default() -> Self {
        Self { values: ALL.map(|parameter| AtomicU64::new(parameter.default)) }
    }
}

impl Parameters {
    /// All parameters.
    pub fn all() -> &'static [Parameter] {
        &ALL
    }

    fn value(&self, name: &str) -> Option<(&'static Parameter, &AtomicU64)> {
        let index = ALL.iter().position(|parameter| parameter.name == name)?;
        Some((&ALL[index], &self.values[index]))
    }

    /// The value of a parameter; `None` if the name is unknown.
    pub fn get(&self, name: &str) -> Option<u64> {
        Some(self.value(name)?.1.load(Relaxed))
    }

    /// Whether workers must be told before a parameter is set to this value.
    ///
    /// # Errors
    /// `None` if the name is unknown; the maximum if the value is too large.
    pub fn check(&self, name: &str, value: u64) -> Result<bool, Option<u64>> {
        let (parameter, _) = self.value(name).ok_or(None)?;
        if value > parameter.max {
            Err(Some(parameter.max))
        } else {
            Ok(parameter.place == Place::Worker)
        }
    }

    /// Sets a parameter; returns whether workers must be told.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn set(&self, name: &str, value: u64) -> Result<bool, Option<u64>> {
        let of_worker = self.check(name, value)?;
        if let Some((_, at)) = self.value(name) {
            at.store(value, Relaxed);
        }
        Ok(of_worker)
    }

    /// The parameters for the start of a worker: those that differ from the default.
    pub(super) fn of_worker(&self) -> BTreeMap<String, u64> {
        let values = ALL.iter().zip(self.values.iter().map(|value| value.load(Relaxed)));
        let changed = values.filter(|(parameter, value)| {
            parameter.place == Place::Worker && *value != parameter.default
        });
        changed.map(|(parameter, value)| (parameter.name.to_owned(), value)).collect()
    }

    pub(super) fn use_blk_mq(&self) -> bool {
        self.get("zvol_use_blk_mq") == Some(1)
    }

    pub(super) fn blocks_per_thread(&self) -> u64 {
        self.get("zvol_blk_mq_blocks_per_thread").unwrap_or_default()
    }

    pub(super) fn queue_depth(&self) -> u64 {
        self.get("zvol_blk_mq_queue_depth").unwrap_or_default()
    }

    pub(super) fn max_discard_blocks(&self) -> u64 {
        self.get("zvol_max_discard_blocks").unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_bounded_and_workers_get_theirs() {
        let parameters = Parameters::default();
        assert_eq!(parameters.get("zvol_blk_mq_blocks_per_thread"), Some(8));
        assert_eq!(parameters.set("zvol_use_blk_mq", 2), Err(Some(1)));
        assert_eq!(parameters.set("zvol_use_blk_mq", 1), Ok(false));
        assert_eq!(parameters.set("zvol_no_such", 1), Err(None));
        assert_eq!(parameters.set("zfs_arc_max", 1 << 30), Ok(true));
        assert!(parameters.use_blk_mq());
        assert_eq!(parameters.of_worker(), BTreeMap::from([("zfs_arc_max".to_owned(), 1 << 30)]));
    }
}
