//! Attributes of arrays: `sys/block/NAME/md/`.
//!
//! Names, units and formats: kernel documentation `admin-guide/md.rst`. As in the kernel the group of
//! redundancy attributes exists only for levels that have any.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use ashlar_md::ondisk::Level;
use ashlar_md::{Array, ArrayStatus, MemberStatus};

use super::{Attributes, Row};

/// An array as its attributes see it.
pub struct ArrayView {
    array: Arc<Array>,
    /// The last status that could be had at once.
    last: Mutex<ArrayStatus>,
    /// Names under `sys/block` of the members, by slot.
    names: Vec<Option<String>>,
}

impl ArrayView {
    /// A view of `array`, whose members have these names, by slot.
    pub async fn new(array: Arc<Array>, names: Vec<Option<String>>) -> Arc<Self> {
        let last = Mutex::new(array.status().await);
        Arc::new(Self { array, last, names })
    }

    /// The array.
    pub fn array(&self) -> &Arc<Array> {
        &self.array
    }

    /// The name of the member in `slot`.
    pub fn member_name(&self, member: &MemberStatus) -> Option<&str> {
        self.names.get(usize::from(member.slot?))?.as_deref()
    }

    /// The status now. It never waits: while the superblocks are being written, what is in them is
    /// that of a moment ago.
    pub fn status(&self) -> ArrayStatus {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let mut status = Box::pin(self.array.status());
        match status.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(now) => *last = now,
            Poll::Pending => {
                last.state = self.array.state();
                last.degraded = self.array.degraded();
            }
        }
        last.clone()
    }
}

/// A slot of an array.
struct Member {
    view: Arc<ArrayView>,
    slot: usize,
}

impl Member {
    fn show(&self, text: impl Fn(&MemberStatus) -> String) -> String {
        self.view.status().members.get(self.slot).map(text).unwrap_or_default()
    }
}

/// `array_state`, where the kernel says `readonly` for arrays that are only read.
const ROWS: &[Row<ArrayView>] = &[
    Row::ro("array_size", |_| "default".to_owned()),
    Row::ro("array_state", |view| view.array.state().name().to_owned()),
    Row::ro("chunk_size", |view| view.status().chunk.bytes().to_string()),
    Row::ro("component_size", |view| (view.status().used_dev_size.0 / 2).to_string()),
    Row::ro("consistency_policy", |view| policy(view.status().level).to_owned()),
    Row::ro("layout", |view| view.status().layout.to_string()),
    Row::ro("level", |view| view.status().level.to_string()),
    Row::ro("metadata_version", |view| view.status().version.to_string()),
    Row::ro("raid_disks", |view| view.status().raid_disks.to_string()),
    Row::ro("reshape_position", |_| "none".to_owned()),
    Row::ro("resync_start", |view| if view.status().unsynced { "0" } else { "none" }.to_owned()),
    Row::ro("safe_mode_delay", |view| {
        let redundant = view.status().level.is_redundant();
        let delay = ashlar_md::array::SAFE_MODE_DELAY;
        let millis = if redundant { delay.as_millis() } else { 0 };
        format!("{}.{:03}", millis / 1000, millis % 1000)
    }),
    Row::ro("uuid", |view| view.status().uuid.hyphenated().to_string()),
];

/// For levels with redundancy.
const REDUNDANCY_ROWS: &[Row<ArrayView>] = &[
    Row::ro("degraded", |view| view.array.degraded().to_string()),
    Row::ro("last_sync_action", |_| "none".to_owned()),
    Row::ro("mismatch_cnt", |_| "0".to_owned()),
    Row::ro("sync_action", |_| "idle".to_owned()),
    Row::ro("sync_completed", |_| "none".to_owned()),
    Row::ro("sync_speed", |_| "none".to_owned()),
];

/// For each member, in `dev-NAME`.
const MEMBER_ROWS: &[Row<Member>] = &[
    Row::ro("errors", |member| member.show(|m| m.corrected.to_string())),
    Row::ro("offset", |member| member.show(|m| m.data_offset.to_string())),
    Row::ro("recovery_start", |member| {
        member.show(|m| if m.in_sync { "none" } else { "0" }.to_owned())
    }),
    Row::ro("size", |member| member.show(|m| (m.data_size.0 / 2).to_string())),
    Row::ro("slot", |member| {
        member.show(|m| match m.slot.filter(|_| !m.faulty) {
            Some(slot) => slot.to_string(),
            None => "none".to_owned(),
        })
    }),
    Row::ro("state", |member| member.show(member_state)),
];

/// The kernel's words for a member, in its order.
fn member_state(member: &MemberStatus) -> String {
    let words = [
        ("faulty", member.faulty),
        ("in_sync", member.in_sync),
        ("write_mostly", member.write_mostly),
        ("spare", !member.faulty && !member.in_sync),
    ];
    words.iter().filter(|(_, is)| *is).map(|(word, _)| *word).collect::<Vec<_>>().join(",")
}

/// How the copies are kept the same after a crash: by a full resync.
pub(crate) fn policy(level: Level) -> &'static str {
    if level.is_redundant() { "resync" } else { "none" }
}

impl Attributes {
    /// Adds `sys/block/NAME/md` and the links between an array and its members, which are devices
    /// that were added.
    pub fn add_array(&mut self, name: &str, view: &Arc<ArrayView>) {
        let directory = format!("sys/block/{name}/md");
        self.add_rows(&directory, view, ROWS);
        if view.status().level.is_redundant() {
            self.add_rows(&directory, view, REDUNDANCY_ROWS);
        }
        for (slot, member_name) in view.names.iter().enumerate() {
            let Some(member_name) = member_name else { continue };
            let member = Arc::new(Member { view: Arc::clone(view), slot });
            let device = format!("{directory}/dev-{member_name}");
            self.add_rows(&device, &member, MEMBER_ROWS);
            self.add_symlink(&format!("{device}/block"), &format!("../../../{member_name}"));
            self.add_symlink(&format!("{directory}/rd{slot}"), &format!("dev-{member_name}"));
            let slaves = format!("sys/block/{name}/slaves/{member_name}");
            self.add_symlink(&slaves, &format!("../../{member_name}"));
            let holders = format!("sys/block/{member_name}/holders/{name}");
            self.add_symlink(&holders, &format!("../../{name}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_members_state_is_in_the_kernels_words_and_order() {
        let member = |in_sync, faulty, write_mostly| MemberStatus {
            in_sync,
            faulty,
            write_mostly,
            ..MemberStatus::empty(0)
        };
        assert_eq!(member_state(&member(true, false, false)), "in_sync");
        assert_eq!(member_state(&member(true, false, true)), "in_sync,write_mostly");
        assert_eq!(member_state(&member(false, true, false)), "faulty");
        assert_eq!(member_state(&member(false, false, false)), "spare");
    }
}
