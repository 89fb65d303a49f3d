//! Attributes of arrays: `sys/block/NAME/md/`.
//!
//! Names, units and formats: kernel documentation `admin-guide/md.rst`, and where that is silent
//! `drivers/md/md.c`. As in the kernel the group of redundancy attributes exists only for levels that
//! have any.

mod bitmap;
mod member;
mod sync;

use std::sync::Arc;

use super::{Row, Tree};
use crate::view::{ArrayShape, ArrayView};

/// For all levels.
const ROWS: &[Row<ArrayView>] = &[
    Row::ro("array_size", |_| "default".to_owned()),
    Row::ro("array_state", |view| view.array().state().name().to_owned()),
    Row::ro("chunk_size", |view| view.status().chunk.bytes().to_string()),
    Row::ro("component_size", |view| (view.status().used_dev_size.0 / 2).to_string()),
    Row::ro("consistency_policy", |view| view.snapshot().consistency_policy().to_owned()),
    Row::ro("layout", |view| view.status().layout.to_string()),
    Row::ro("level", |view| view.status().level.to_string()),
    Row::ro("metadata_version", |view| view.status().version.to_string()),
    Row::ro("raid_disks", |view| view.status().raid_disks.to_string()),
    Row::ro("reshape_position", |_| "none".to_owned()),
    Row::ro("resync_start", |view| {
        let to = view.array().in_sync_to();
        if view.array().is_unsynced() { to.to_string() } else { "none".to_owned() }
    }),
    Row::ro("safe_mode_delay", |view| {
        let redundant = view.status().level.is_redundant();
        let delay = ashlar_md::array::SAFE_MODE_DELAY;
        let millis = if redundant { delay.as_millis() } else { 0 };
        format!("{}.{:03}", millis / 1000, millis % 1000)
    }),
    Row::ro("uuid", |view| view.status().uuid.hyphenated().to_string()),
];

impl Tree {
    /// Adds `sys/block/NAME/md` and the links between an array and its members, which are devices
    /// that were added.
    pub(crate) fn add_array(&mut self, name: &str, view: &Arc<ArrayView>, shape: &ArrayShape) {
        let directory = format!("sys/block/{name}/md");
        self.add_rows(&directory, view, ROWS);
        if view.status().level.is_redundant() {
            self.add_rows(&directory, view, sync::ROWS);
        }
        self.add_bitmap(&directory, view, shape.bitmap);
        for member in &shape.members {
            self.add_member(name, view, member);
        }
    }
}
