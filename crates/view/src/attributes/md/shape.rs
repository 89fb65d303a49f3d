//! What determines the names below an array's directory.

use ashlar_md::{BitmapKind, Index};
use ashlar_stack::view::ArrayView;

/// The state that determines the names below an array's directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ArrayShape {
    pub(super) members: Vec<MemberShape>,
    pub(super) bitmap: Option<BitmapKind>,
}

/// The part of a member's state that determines names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct MemberShape {
    pub(super) index: Index,
    /// Its name under `sys/block`.
    pub(super) name: String,
    /// The slot it is in; none for a failed member.
    pub(super) slot: Option<u16>,
    pub(super) replacement: bool,
}

impl ArrayShape {
    /// The shape of an array.
    pub(crate) fn of(view: &ArrayView) -> Self {
        let status = view.status();
        let members = status.members.iter().filter_map(|member| {
            Some(MemberShape {
                index: member.index?,
                name: view.member_name(member)?,
                slot: member.slot.filter(|_| !member.faulty),
                replacement: member.replacement,
            })
        });
        let bitmap = view.bitmap().map(|bitmap| bitmap.kind());
        Self { members: members.collect(), bitmap }
    }
}
