//! A logical volume that copies of its group share.
//!
//! A change works on a copy of the group and prints the whole of it, in both forms, although it touches one or two volumes of perhaps a
//! thousand. So a copy of the group shares its volumes until it changes them, and a volume keeps the text that was printed of it
//! until it changes.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, OnceLock};

use ashlar_block::Sectors;

use super::logical_volume::LogicalVolume;
use crate::text::Form;

/// See the module text. It is equal to another if the volumes are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SharedVolume(Arc<PrintedVolume>);

/// What the text of a volume depends on besides the volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TextParameters {
    /// The form of the text.
    pub(super) form: Form,
    /// The extent size of the group, for comments.
    pub(super) extent_size: Sectors,
}

struct PrintedVolume {
    volume: LogicalVolume,
    /// In each form, as it was printed first.
    disk: OnceLock<(TextParameters, String)>,
    backup: OnceLock<(TextParameters, String)>,
}

impl SharedVolume {
    /// The text of the volume: `print` returns it if it is not known.
    pub(super) fn text<T>(
        &self,
        parameters: TextParameters,
        print: impl Fn(&LogicalVolume) -> String,
        text: impl FnOnce(&str) -> T,
    ) -> T {
        let printed = &*self.0;
        let kept = match parameters.form {
            Form::Disk => &printed.disk,
            Form::Backup { .. } => &printed.backup,
        };
        match kept.get_or_init(|| (parameters, print(&printed.volume))) {
            (of, known) if *of == parameters => text(known),
            _ => text(&print(&printed.volume)),
        }
    }

    /// The volume, for a group that it no longer belongs to.
    pub(super) fn into_volume(self) -> LogicalVolume {
        Arc::unwrap_or_clone(self.0).volume
    }
}

impl From<LogicalVolume> for SharedVolume {
    fn from(volume: LogicalVolume) -> Self {
        Self(Arc::new(PrintedVolume { volume, disk: OnceLock::new(), backup: OnceLock::new() }))
    }
}

impl Deref for SharedVolume {
    type Target = LogicalVolume;

    fn deref(&self) -> &LogicalVolume {
        &self.0.volume
    }
}

impl DerefMut for SharedVolume {
    fn deref_mut(&mut self) -> &mut LogicalVolume {
        let printed = Arc::make_mut(&mut self.0);
        (printed.disk, printed.backup) = (OnceLock::new(), OnceLock::new());
        &mut printed.volume
    }
}

/// Copies are made to be changed: they have no text.
impl Clone for PrintedVolume {
    fn clone(&self) -> Self {
        let volume = self.volume.clone();
        Self { volume, disk: OnceLock::new(), backup: OnceLock::new() }
    }
}

impl PartialEq for PrintedVolume {
    fn eq(&self, other: &Self) -> bool {
        self.volume == other.volume
    }
}

impl Eq for PrintedVolume {}

impl std::fmt::Debug for PrintedVolume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.volume.fmt(f)
    }
}
