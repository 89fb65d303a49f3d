//! How the parity of a cell is made.

/// What is known of a cell before it is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Facts {
    /// Data chunks that are overwritten, and can be read.
    pub(super) overwritten: usize,
    /// Data chunks that are overwritten, and cannot be read.
    pub(super) overwritten_lost: usize,
    /// Data chunks that stay, and can be read.
    pub(super) kept: usize,
    /// Data chunks that stay, and cannot be read.
    pub(super) kept_lost: usize,
    /// Chunks of parity that members take.
    pub(super) sums: usize,
    /// Those of them that can be read.
    pub(super) sums_read: usize,
    /// Chunks of parity that can be read, taken or not.
    pub(super) known_sums: usize,
    /// Whether the parity fits the data.
    pub(super) trusted: bool,
    /// Whether old parity may be changed.
    pub(super) modify: Modify,
}

/// When old parity is changed instead of made from all data, where both can be done (`rmw_level`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Modify {
    Never,
    IfLess,
    IfNotMore,
}

impl Modify {
    /// What the kernel's number says.
    pub(super) const fn of(rmw_level: u32) -> Self {
        match rmw_level {
            0 => Self::Never,
            1 => Self::IfLess,
            _ => Self::IfNotMore,
        }
    }
}

/// How the parity of a cell is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Plan {
    /// There is no parity to make.
    Nothing,
    /// From all data, of which those that stay are read.
    Reconstruct,
    /// From the old parity, the old data and the new.
    Modify,
    /// From all data, after what cannot be read was recovered.
    Recover,
    /// It cannot be made: too much is lost.
    Impossible,
}

impl Facts {
    /// The plan that reads the least of those that leave right parity right, and make it right where it may be wrong, if all data are there.
    ///
    /// Where data that stay are lost, parity holds them: old parity that may be wrong is then changed, and holds what it held before.
    pub(super) fn plan(&self) -> Plan {
        if self.sums == 0 {
            return Plan::Nothing;
        }
        let can_modify = self.overwritten_lost == 0 && self.sums_read == self.sums;
        if self.kept_lost == 0 {
            let reads = self.overwritten + self.sums;
            let is_wanted = match self.modify {
                Modify::Never => false,
                Modify::IfLess => reads < self.kept,
                Modify::IfNotMore => reads <= self.kept,
            };
            let modifies = can_modify && self.trusted && is_wanted;
            return if modifies { Plan::Modify } else { Plan::Reconstruct };
        }
        if can_modify {
            return Plan::Modify;
        }
        let lost = self.kept_lost + self.overwritten_lost;
        if self.trusted && lost <= self.known_sums { Plan::Recover } else { Plan::Impossible }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All that can be known of rows of up to six members.
    fn all() -> impl Iterator<Item = Facts> {
        let counts = (0..5usize).flat_map(|a| {
            (0..5 - a).flat_map(move |b| {
                (0..5 - a - b).flat_map(move |c| (0..5 - a - b - c).map(move |d| [a, b, c, d]))
            })
        });
        counts.flat_map(|[overwritten, overwritten_lost, kept, kept_lost]| {
            (0..3usize).flat_map(move |sums| {
                (0..=sums).flat_map(move |sums_read| {
                    (sums_read..3).flat_map(move |known_sums| {
                        [false, true].into_iter().flat_map(move |trusted| {
                            let ways = [Modify::Never, Modify::IfLess, Modify::IfNotMore];
                            ways.into_iter().map(move |modify| Facts {
                                overwritten,
                                overwritten_lost,
                                kept,
                                kept_lost,
                                sums,
                                sums_read,
                                known_sums,
                                trusted,
                                modify,
                            })
                        })
                    })
                })
            })
        })
    }

    #[test]
    fn no_plan_needs_what_is_lost_or_takes_wrong_parity_for_right() {
        for facts in all() {
            match facts.plan() {
                Plan::Nothing => assert_eq!(facts.sums, 0),
                Plan::Reconstruct => assert_eq!(facts.kept_lost, 0, "{facts:?}"),
                Plan::Modify => {
                    assert_eq!(facts.overwritten_lost, 0, "{facts:?}");
                    assert_eq!(facts.sums_read, facts.sums, "{facts:?}");
                    // Parity that may be wrong is made right if that is possible.
                    assert!(facts.trusted || facts.kept_lost > 0, "{facts:?}");
                }
                Plan::Recover => {
                    assert!(facts.trusted, "{facts:?}");
                    let lost = facts.kept_lost + facts.overwritten_lost;
                    assert!(lost <= facts.known_sums, "{facts:?}");
                }
                Plan::Impossible => assert!(facts.kept_lost > 0, "{facts:?}"),
            }
        }
    }

    #[test]
    fn what_can_be_done_is_done_with_the_fewest_reads() {
        let free = |facts: &Facts| facts.modify != Modify::Never;
        for facts in all().filter(|facts| facts.trusted && free(facts) && facts.sums > 0) {
            let reads = |plan| match plan {
                Plan::Reconstruct if facts.kept_lost == 0 => Some(facts.kept),
                Plan::Modify if facts.overwritten_lost == 0 && facts.sums_read == facts.sums => {
                    Some(facts.overwritten + facts.sums)
                }
                Plan::Reconstruct | Plan::Modify | Plan::Recover => None,
                Plan::Nothing | Plan::Impossible => None,
            };
            let least = [Plan::Reconstruct, Plan::Modify].into_iter().filter_map(reads).min();
            if let Some(least) = least {
                assert_eq!(reads(facts.plan()), Some(least), "{facts:?}");
            }
        }
    }
}
