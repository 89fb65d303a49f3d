//! Pools, datasets and their properties in the words of zpool and zfs.

mod columns;
mod importable;
mod status;
mod values;

pub use columns::{dataset_cell, has_column, is_kind, is_pool_property, pool_properties};
pub use importable::importable_pool;
pub use status::{pool_status, scan_status};
pub use values::{
    DATASET_NAMES, POOL_NAMES, ShortNames, dataset_value, is_number, nice_bytes, pool_value,
};
