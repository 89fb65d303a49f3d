//! The members of an array that is not assembled yet.

use std::collections::BTreeSet;

use ashlar_md::Candidate;

/// The present members of an array, and the depth of the deepest.
#[derive(Default)]
pub(super) struct Members {
    pub(super) candidates: Vec<Candidate>,
    /// The paths of those that may have another owner, in a part that cannot be read.
    pub(super) unsure: BTreeSet<String>,
    pub(super) depth: usize,
}

impl Members {
    /// The members that the array may start with. A member that may have another owner counts only if others certainly have none,
    /// and none of those is fresher: a disk that got another owner has not followed the array since.
    pub(super) fn usable(&self) -> Vec<Candidate> {
        let is_sure = |member: &&Candidate| !self.unsure.contains(&member.path);
        let newest = self.candidates.iter().filter(is_sure).map(|member| member.sb.events).max();
        let is_usable = |member: &&Candidate| {
            is_sure(member)
                || newest.is_some_and(|events| member.sb.events.saturating_add(1) >= events)
        };
        self.candidates.iter().filter(is_usable).cloned().collect()
    }
}
