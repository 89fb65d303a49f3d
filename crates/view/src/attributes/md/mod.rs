//! Attributes of arrays: `sys/block/NAME/md/`.
//!
//! Names, units and formats: kernel documentation `admin-guide/md.rst`, and where it is silent,
//! `drivers/md/md.c`. As in the kernel, the group of redundancy attributes exists only for levels with
//! redundancy.

mod bitmap;
mod member;
mod parity;
mod shape;
mod state;
mod sync;
mod waiting;

use std::sync::Arc;

use ashlar_block::Sectors;
use ashlar_md::{GrowOptions, ManageError, ReshapeStatus};
use ashlar_stack::view::ArrayView;

pub(super) use shape::ArrayShape;

use super::{AttributeError, EnderSource, Row, Tree, number};
use crate::snapshot::Snapshot;

impl From<ManageError> for AttributeError {
    fn from(error: ManageError) -> Self {
        let text = error.to_string();
        match error {
            ManageError::InUse(_)
            | ManageError::Needed { .. }
            | ManageError::IsMember(_)
            | ManageError::BeingReplaced(_)
            | ManageError::SlotInUse { .. }
            | ManageError::Writing(_)
            | ManageError::BitmapPresent(_) => Self::Busy(text),
            ManageError::ReadOnly(_)
            | ManageError::Stopped(_)
            | ManageError::Level { .. }
            | ManageError::Version(_)
            | ManageError::NoMember { .. }
            | ManageError::Removed { .. }
            | ManageError::TooSmall(_)
            | ManageError::ReadOnlyDevice(_)
            | ManageError::Misfit { .. }
            | ManageError::ArrayFailed { .. }
            | ManageError::ReAdd { .. }
            | ManageError::NotActive(_)
            | ManageError::FaultyReplacement(_)
            | ManageError::ActiveReplacement(_)
            | ManageError::Word(_)
            | ManageError::Reshape { .. }
            | ManageError::Devices(_)
            | ManageError::State { .. }
            | ManageError::Inactive { .. }
            | ManageError::BadBlocks { .. }
            | ManageError::NoRoom { .. }
            | ManageError::Shrinks { .. }
            | ManageError::FarLayout
            | ManageError::Geometry(_)
            | ManageError::Size(_)
            | ManageError::NoBitmap(_)
            | ManageError::Metadata(_)
            | ManageError::Bitmap(_)
            | ManageError::Probe { .. }
            | ManageError::Superblock(_)
            | ManageError::Device { .. }
            | ManageError::Record { .. } => Self::Invalid(text),
        }
    }
}

/// A value that a reshape changes, as in the kernel: the new one and the old one.
fn reshaped<T: PartialEq + std::fmt::Display>(new: Option<T>, old: T) -> String {
    match new {
        Some(new) if new != old => format!("{new} ({old})"),
        Some(_) | None => old.to_string(),
    }
}

/// Attributes of all levels.
const ROWS: &[Row<ArrayView>] = &[
    Row::ro("array_size", |_| "default".to_owned()),
    Row::ro("chunk_size", |view| {
        let status = view.status();
        let new = status.reshape.map(|reshape| reshape.new_chunk.bytes());
        reshaped(new, status.chunk.bytes())
    }),
    Row::change(
        "component_size",
        |view| (view.status().used_dev_size.0 / 2).to_string(),
        |view, text, turn| {
            Box::pin(async move {
                let kib = number::<u64>(text)?.checked_mul(2).map(Sectors);
                let size = kib.ok_or_else(|| AttributeError::Invalid("too large".to_owned()))?;
                view.grow_size(&turn, Some(size), GrowOptions::default()).await?;
                Ok(())
            })
        },
    ),
    Row::ro("consistency_policy", |view| Snapshot::of(view).consistency_policy().to_owned()),
    Row::ro("layout", |view| {
        let status = view.status();
        reshaped(status.reshape.map(|reshape| reshape.new_layout), status.layout)
    }),
    Row::ro("level", |view| view.status().level.to_string()),
    Row::rw(
        "max_read_errors",
        |view| view.members().max_read_errors().to_string(),
        |view, text| {
            view.members().set_max_read_errors(number(text)?);
            Ok(())
        },
    ),
    Row::ro("metadata_version", |view| view.status().version.to_string()),
    Row::change(
        "raid_disks",
        |view| {
            let status = view.status();
            let old = |of: ReshapeStatus| i64::from(of.raid_disks) - i64::from(of.delta_disks);
            let now = status.raid_disks as i64;
            reshaped(Some(now), status.reshape.map_or(now, old))
        },
        |view, text, turn| {
            Box::pin(async move { Ok(view.grow_devices(&turn, number(text)?).await?) })
        },
    ),
    Row::ro("reshape_direction", |view| {
        let position = view.status().reshape.map(|reshape| reshape.position);
        let backwards = position.is_some_and(|position| position.backwards);
        if backwards { "backwards" } else { "forwards" }.to_owned()
    }),
    Row::ro("reshape_position", |view| {
        let position = view.status().reshape.map(|reshape| reshape.position.at);
        position.map_or_else(|| "none".to_owned(), |at| at.to_string())
    }),
    Row::ro("resync_start", |view| {
        let to = view.in_sync_to();
        if view.is_unsynced() { to.to_string() } else { "none".to_owned() }
    }),
    Row::ro("safe_mode_delay", |view| {
        let redundant = view.status().level.is_redundant();
        let delay = ashlar_md::SAFE_MODE_DELAY;
        let millis = if redundant { delay.as_millis() } else { 0 };
        format!("{}.{:03}", millis / 1000, millis % 1000)
    }),
    Row::ro("uuid", |view| view.status().uuid.hyphenated().to_string()),
];

impl Tree {
    /// Adds `sys/block/NAME/md`, and links between the array and its members, whose devices are added
    /// separately.
    pub(crate) fn add_array(
        &mut self,
        name: &str,
        view: &Arc<ArrayView>,
        shape: &ArrayShape,
        ender: &Arc<EnderSource>,
    ) {
        let directory = format!("sys/block/{name}/md");
        self.add_state(&directory, name, Some(view), ender);
        self.add_rows(&directory, view, ROWS);
        if view.status().level.is_redundant() {
            self.add_rows(&directory, view, sync::ROWS);
        }
        if view.status().level.has_parity() {
            self.add_rows(&directory, view, parity::ROWS);
        }
        self.add_bitmap(&directory, view, shape.bitmap);
        for member in &shape.members {
            self.add_member(name, view, member);
        }
    }
}
