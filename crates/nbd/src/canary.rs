//! Rules that a test breaks on purpose: see [`ashlar_block::canary`].

/// A rule of this crate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rule {
    /// A late request ends no connection but the one that has it.
    AbortReachesItsConnectionOnly,
}
