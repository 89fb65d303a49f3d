//! A disk that a change takes, and the file or device that its path means meanwhile.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::{Deref, DerefMut};

use ashlar_disks::Identity;
use ashlar_stack::canary::{Rule, broken};
use ashlar_stack::devices::Claim;

/// The files and devices that were opened by their paths.
pub(crate) type Identities = RefCell<HashMap<String, Identity>>;

/// A [`Claim`] with the identity of its disk. When it is dropped before it was kept, the path means what it meant before, as the
/// registry has what it had before.
pub(crate) struct Claimed<'a> {
    claim: Claim,
    identities: &'a Identities,
    /// What the path meant; `None` if nothing, or if that has not changed.
    before: Option<Identity>,
    /// The path has got another meaning.
    is_changed: bool,
}

impl<'a> Claimed<'a> {
    /// Notes that the claimed disk has `identity`, as far as that is known.
    pub(crate) fn new(
        claim: Claim,
        identity: Option<Identity>,
        identities: &'a Identities,
    ) -> Self {
        let identity = identity.filter(|_| !broken(Rule::IdentitiesAreKept));
        let is_changed = identity.is_some();
        let path = claim.path().to_owned();
        let before = identity.and_then(|identity| identities.borrow_mut().insert(path, identity));
        Self { claim, identities, before, is_changed }
    }
}

impl Deref for Claimed<'_> {
    type Target = Claim;

    fn deref(&self) -> &Claim {
        &self.claim
    }
}

impl DerefMut for Claimed<'_> {
    fn deref_mut(&mut self) -> &mut Claim {
        &mut self.claim
    }
}

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        if self.claim.is_kept() || !self.is_changed {
            return;
        }
        let mut identities = self.identities.borrow_mut();
        match self.before.take() {
            Some(before) => identities.insert(self.claim.path().to_owned(), before),
            None => identities.remove(self.claim.path()),
        };
    }
}
