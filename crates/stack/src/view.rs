//! A running array seen from outside: its status, which never waits, and its members' names.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use ashlar_md::{Array, ArrayStatus, BitmapKind, Index, MemberStatus};

use crate::devices::Devices;
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
    /// How redundancy is made consistent after a crash, in the kernel's word.
    pub fn consistency_policy(&self) -> &'static str {
        match (&self.bitmap, self.status.level.is_redundant()) {
            (Some(_), _) => "bitmap",
            (None, true) => "resync",
            (None, false) => "none",
        }
    }
}

/// The state that determines the names below an array's directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ArrayShape {
    pub(crate) members: Vec<MemberShape>,
    pub(crate) bitmap: Option<BitmapKind>,
}

/// The part of a member's state that determines names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct MemberShape {
    pub(crate) index: Index,
    /// Its name under `sys/block`.
    pub(crate) name: String,
    /// The slot it is in; none for a failed member.
    pub(crate) slot: Option<u16>,
    pub(crate) replacement: bool,
}

/// A running array, seen from outside.
pub struct ArrayView {
    array: Arc<Array>,
    devices: Arc<Devices>,
    /// The last status that was available without waiting.
    last: Mutex<ArrayStatus>,
}

impl ArrayView {
    /// A view of `array`, whose members are among `devices`.
    pub async fn new(array: Arc<Array>, devices: Arc<Devices>) -> Arc<Self> {
        let last = Mutex::new(array.status().await);
        Arc::new(Self { array, devices, last })
    }

    /// The array.
    pub fn array(&self) -> &Arc<Array> {
        &self.array
    }

    /// The name under `sys/block` of a member.
    pub fn member_name(&self, member: &MemberStatus) -> Option<String> {
        self.devices.name(member.path.as_deref()?)
    }

    /// The current status. It never waits: while the superblocks are being written, what they alone hold is slightly old.
    pub fn status(&self) -> ArrayStatus {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let mut status = Box::pin(self.array.status());
        match status.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(now) => *last = now,
            Poll::Pending => self.array.refresh(&mut last),
        }
        last.clone()
    }

    /// The array's own I/O.
    pub fn progress(&self) -> Progress {
        Progress::of(&self.array)
    }

    /// The current state of everything.
    pub fn snapshot(&self) -> Snapshot {
        let bitmap = self.array.bitmap();
        let bitmap = bitmap.map(|b| BitmapStatus { kind: b.kind(), mdstat: b.mdstat() });
        Snapshot { status: self.status(), progress: self.progress(), bitmap }
    }

    /// The state that determines the names.
    pub(crate) fn shape(&self) -> ArrayShape {
        let status = self.status();
        let members = status.members.iter().filter_map(|member| {
            Some(MemberShape {
                index: member.index?,
                name: self.member_name(member)?,
                slot: member.slot.filter(|_| !member.faulty),
                replacement: member.replacement,
            })
        });
        let bitmap = self.array.bitmap().map(|bitmap| bitmap.kind());
        ArrayShape { members: members.collect(), bitmap }
    }
}
