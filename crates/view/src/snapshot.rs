//! An array at one moment, for texts about it.

use ashlar_md::{ArrayStatus, BitmapKind};
use ashlar_stack::view::ArrayView;

use crate::progress::Progress;

/// An array's bitmap.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BitmapStatus {
    /// Classic or lockless.
    pub kind: BitmapKind,
    /// Its text in `proc/mdstat`.
    pub mdstat: String,
}

/// An array at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Its configuration and state.
    pub status: ArrayStatus,
    /// The array's own I/O.
    pub progress: Progress,
    /// Its bitmap.
    pub bitmap: Option<BitmapStatus>,
}

impl Snapshot {
    /// The current state of everything.
    pub fn of(view: &ArrayView) -> Self {
        let bitmap = view.bitmap().map(|b| BitmapStatus { kind: b.kind(), mdstat: b.mdstat() });
        Self { status: view.status(), progress: Progress::of(view), bitmap }
    }

    /// How redundancy is made consistent after a crash, in the kernel's word.
    pub fn consistency_policy(&self) -> &'static str {
        match (&self.bitmap, self.status.level.is_redundant()) {
            (Some(_), _) => "bitmap",
            (None, _) if self.status.has_ppl => "ppl",
            (None, true) => "resync",
            (None, false) => "none",
        }
    }
}
