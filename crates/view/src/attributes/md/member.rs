//! Members of arrays: `md/dev-NAME/`, and the links to and from them.

use std::sync::Arc;

use ashlar_block::Sectors;
use ashlar_md::{Index, MemberStatus, Rdev};
use ashlar_stack::view::ArrayView;

use super::shape::MemberShape;
use crate::attributes::{Row, Tree};

/// A member of an array.
struct Member {
    view: Arc<ArrayView>,
    index: Index,
}

impl Member {
    fn show(&self, text: impl Fn(&MemberStatus) -> String) -> String {
        let status = self.view.status();
        status.members.iter().find(|m| m.index == Some(self.index)).map(text).unwrap_or_default()
    }

    /// Reads what the status does not contain.
    fn rdev<T: Default>(&self, look: impl FnOnce(&Rdev) -> T) -> T {
        self.view.members().get(self.index).map(look).unwrap_or_default()
    }
}

const ROWS: &[Row<Member>] = &[
    Row::act(
        "bad_blocks",
        |member| member.rdev(|rdev| rdev.bad_blocks().text()),
        |member, line| {
            Box::pin(async move { Ok(member.view.add_bad_blocks(member.index, line).await?) })
        },
    ),
    Row::ro("errors", |member| member.show(|m| m.corrected.to_string())),
    Row::ro("offset", |member| member.show(|m| m.data_offset.to_string())),
    // Not the kernel's. Zero: not probed.
    Row::ro("latency_us", |member| member.rdev(|rdev| (rdev.latency_ns() / 1000).to_string())),
    Row::ro("recovery_start", |member| {
        member.show(|m| match m.recovered {
            Sectors::MAX => "none".to_owned(),
            done => done.to_string(),
        })
    }),
    Row::ro("size", |member| member.show(|m| (m.data_size.0 / 2).to_string())),
    Row::ro("slot", |member| {
        member.show(|m| match m.slot.filter(|_| !m.faulty) {
            Some(slot) => slot.to_string(),
            None => "none".to_owned(),
        })
    }),
    Row::change(
        "state",
        |member| member.show(state),
        |member, word, turn| {
            Box::pin(
                async move { Ok(member.view.set_member_state(&turn, member.index, word).await?) },
            )
        },
    ),
    Row::ro("unacknowledged_bad_blocks", |member| {
        member.rdev(|rdev| rdev.bad_blocks().unacknowledged_text())
    }),
];

/// The kernel's words for a member's state, in the kernel's order.
fn state(member: &MemberStatus) -> String {
    let words = [
        ("faulty", member.faulty),
        ("in_sync", member.in_sync),
        ("write_mostly", member.write_mostly),
        ("spare", !member.faulty && !member.in_sync),
        ("want_replacement", member.want_replacement),
        ("replacement", member.replacement),
        ("failfast", member.failfast),
    ];
    words.iter().filter(|(_, is)| *is).map(|(word, _)| *word).collect::<Vec<_>>().join(",")
}

impl Tree {
    /// Adds a member's directory to the array `name`, and links in both directions.
    pub(super) fn add_member(&mut self, name: &str, view: &Arc<ArrayView>, shape: &MemberShape) {
        let MemberShape { index, name: member_name, slot, replacement } = shape;
        let directory = format!("sys/block/{name}/md");
        let member = Arc::new(Member { view: Arc::clone(view), index: *index });
        let device = format!("{directory}/dev-{member_name}");
        self.add_rows(&device, &member, ROWS);
        self.add_symlink(&format!("{device}/block"), &format!("../../../{member_name}"));
        if let Some(slot) = slot
            && !replacement
        {
            self.add_symlink(&format!("{directory}/rd{slot}"), &format!("dev-{member_name}"));
        }
        let slaves = format!("sys/block/{name}/slaves/{member_name}");
        self.add_symlink(&slaves, &format!("../../{member_name}"));
        let holders = format!("sys/block/{member_name}/holders/{name}");
        self.add_symlink(&holders, &format!("../../{name}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_members_state_is_in_the_kernels_words_and_order() {
        let none = MemberStatus::empty(0);
        let in_sync = MemberStatus { in_sync: true, ..none.clone() };
        let cases = [
            (in_sync.clone(), "in_sync"),
            (MemberStatus { write_mostly: true, ..in_sync.clone() }, "in_sync,write_mostly"),
            (MemberStatus { faulty: true, ..none.clone() }, "faulty"),
            (none.clone(), "spare"),
            (MemberStatus { replacement: true, ..none }, "spare,replacement"),
            (
                MemberStatus { want_replacement: true, failfast: true, ..in_sync },
                "in_sync,want_replacement,failfast",
            ),
        ];
        for (member, words) in cases {
            assert_eq!(state(&member), words);
        }
    }
}
