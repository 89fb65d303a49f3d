//! The answers that the clients got: which disks were added, which failed and which were removed.

use std::collections::BTreeMap;

/// What a call does with a disk, if it succeeds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Effect {
    /// Nothing.
    None,
    /// It is handed in, or put back into its slot.
    Gives,
    /// It fails.
    Fails,
    /// It is removed.
    Removes,
}

/// The calls about one disk.
#[derive(Default)]
struct Calls {
    /// Calls under way that hand it in.
    giving: usize,
    /// When such a call last began or ended.
    given: u64,
    /// The answer that it has failed or was removed, with none of those under way, or since.
    gone: Option<Effect>,
    /// Calls that are under way.
    under_way: usize,
    /// When a call last began or ended.
    last: u64,
}

/// See the module text.
#[derive(Default)]
pub(super) struct Record {
    moment: u64,
    disks: BTreeMap<String, Calls>,
}

impl Record {
    /// A call about the disk at `path` begins; returns the moment.
    pub(super) fn begin(&mut self, path: &str, effect: Effect) -> u64 {
        self.moment += 1;
        let calls = self.disks.entry(path.to_owned()).or_default();
        calls.under_way += 1;
        calls.last = self.moment;
        if effect == Effect::Gives {
            calls.giving += 1;
            (calls.given, calls.gone) = (self.moment, None);
        }
        self.moment
    }

    /// A call that began at `begun` was answered. Returns whether no other call about the disk was under way meanwhile.
    pub(super) fn end(&mut self, path: &str, effect: Effect, is_done: bool, begun: u64) -> bool {
        self.moment += 1;
        let calls = self.disks.entry(path.to_owned()).or_default();
        calls.under_way -= 1;
        let was_alone = calls.under_way == 0 && calls.last == begun;
        calls.last = self.moment;
        match effect {
            Effect::None => {}
            Effect::Gives => {
                calls.giving -= 1;
                calls.given = self.moment;
            }
            Effect::Fails | Effect::Removes => {
                if is_done && calls.giving == 0 && calls.given < begun {
                    calls.gone = Some(effect);
                }
            }
        }
        was_alone
    }

    /// Whether the disk at `path` has failed or was removed, and nobody has handed it in since.
    pub(super) fn gone(&self, path: &str) -> Option<Effect> {
        self.disks.get(path)?.gone
    }

    /// The daemon may take the disk at `path` again.
    pub(super) fn forget(&mut self, path: &str) {
        if let Some(calls) = self.disks.get_mut(path) {
            calls.gone = None;
        }
    }

    /// The daemon has ended, and with it the calls.
    pub(super) fn clear(&mut self) {
        self.disks.clear();
    }
}
