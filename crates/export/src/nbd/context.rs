//! Metadata contexts, of which `BLOCK_STATUS` tells: `base:allocation` of every export, and the changes of snapshots.

use std::fmt;
use std::sync::Arc;

use ashlar_block::{ExtentState, Extents, Sector, Sectors};
use ashlar_nbd::wire::ALLOCATION_CONTEXT;

/// The namespaces, which `LIST` answers with all their contexts.
const NAMESPACES: [&str; 3] = ["base:", "ashlar:", "ashlar:changed:"];

/// The context of where a snapshot differs from its origin. With a colon and a name behind it: where the export differs from the
/// snapshot of that name.
pub const CHANGED_CONTEXT: &str = "ashlar:changed";

/// Set in the state of a part that may have changed, as in QEMU's `qemu:dirty-bitmap`.
pub const STATE_CHANGED: u32 = 1;

/// The most contexts that a client can select for a connection.
pub const MOST_CONTEXTS: usize = 8;

type Same = dyn Fn(Sector, Sectors) -> Extents + Send + Sync;

/// Where the data of an export are the same as those of a snapshot. Two of one name are equal.
#[derive(Clone)]
pub struct ChangeMap {
    name: String,
    same: Arc<Same>,
}

impl ChangeMap {
    /// The context `name`. `same` has [all states](ExtentState::all) where the data are the same, and may answer for less than
    /// a range; it is called on the threads of connections, so it must not block.
    pub fn new(
        name: impl Into<String>,
        same: impl Fn(Sector, Sectors) -> Extents + Send + Sync + 'static,
    ) -> Self {
        Self { name: name.into(), same: Arc::new(same) }
    }

    /// The parts of a range: with [`ExtentState::all`] those that have not changed.
    pub(crate) fn same(&self, at: Sector, len: Sectors) -> Extents {
        (self.same)(at, len)
    }
}

impl PartialEq for ChangeMap {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for ChangeMap {}

impl fmt::Debug for ChangeMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.fmt(f)
    }
}

/// A metadata context of an export.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MetaContext {
    /// `base:allocation`: holes, and what reads as zeroes.
    Allocation,
    /// Where the data differ from those of a snapshot.
    Changes(ChangeMap),
}

impl MetaContext {
    /// The name.
    pub fn name(&self) -> &str {
        match self {
            Self::Allocation => ALLOCATION_CONTEXT,
            Self::Changes(map) => &map.name,
        }
    }

    /// The number for the state of a part.
    pub(crate) fn number(&self, state: ExtentState) -> u32 {
        match self {
            Self::Allocation => state.bits().into(),
            Self::Changes(_) if state.is_all() => 0,
            Self::Changes(_) => STATE_CHANGED,
        }
    }
}

/// Finds the snapshots of which an export can tell the changes, when a client asks for contexts.
#[derive(Clone, Default)]
pub struct ChangeMaps(Option<Arc<dyn Fn() -> Vec<ChangeMap> + Send + Sync>>);

impl ChangeMaps {
    /// Those that `find` finds.
    pub fn new(find: impl Fn() -> Vec<ChangeMap> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(find)))
    }

    /// The contexts of the export, as far as `queries` can name them.
    fn contexts(&self, queries: &[&str]) -> impl Iterator<Item = MetaContext> + use<> {
        let finds = queries.is_empty() || queries.iter().any(|query| query.starts_with("ashlar:"));
        let maps = self.0.as_ref().filter(|_| finds).map(|find| find()).unwrap_or_default();
        [MetaContext::Allocation].into_iter().chain(maps.into_iter().map(MetaContext::Changes))
    }

    /// The contexts that `LIST` answers `queries` with; without a query all of them.
    pub(crate) fn listed(&self, queries: &[&str]) -> Vec<MetaContext> {
        let is_listed = |context: &MetaContext| {
            let name = context.name();
            let lists = |query: &&str| {
                *query == name || NAMESPACES.contains(query) && name.starts_with(query)
            };
            queries.is_empty() || queries.iter().any(lists)
        };
        self.contexts(queries).filter(is_listed).collect()
    }

    /// The contexts that `SET` selects with `queries`.
    pub(crate) fn selected(&self, queries: &[&str]) -> Vec<MetaContext> {
        if queries.is_empty() {
            return Vec::new();
        }
        let is_selected = |context: &MetaContext| queries.contains(&context.name());
        self.contexts(queries).filter(is_selected).take(MOST_CONTEXTS).collect()
    }
}

impl PartialEq for ChangeMaps {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        }
    }
}

impl Eq for ChangeMaps {}

impl fmt::Debug for ChangeMaps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ChangeMaps")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn maps(names: &'static [&'static str]) -> ChangeMaps {
        let map = |name: &&str| ChangeMap::new(*name, Extents::data);
        ChangeMaps::new(move || names.iter().map(map).collect())
    }

    fn names(contexts: &[MetaContext]) -> Vec<&str> {
        contexts.iter().map(MetaContext::name).collect()
    }

    const NAMES: [&str; 4] =
        ["base:allocation", "ashlar:changed", "ashlar:changed:vg/a", "ashlar:changed:vg/b"];

    #[test]
    fn contexts_are_listed_by_name_and_by_namespace() {
        let maps = maps(&["ashlar:changed", "ashlar:changed:vg/a", "ashlar:changed:vg/b"]);
        for (queries, want) in [
            (&[][..], &NAMES[..]),
            (&["base:"], &NAMES[..1]),
            (&["ashlar:"], &NAMES[1..]),
            (&["ashlar:changed"], &NAMES[1..2]),
            (&["ashlar:changed:"], &NAMES[2..]),
            (&["x:", "ashlar:changed:vg/b", "base:"], &[NAMES[0], NAMES[3]]),
            (&["ashlar", "ashlar:changed:vg", "qemu:"], &[]),
        ] {
            assert_eq!(names(&maps.listed(queries)), want, "{queries:?}");
        }
        assert_eq!(names(&ChangeMaps::default().listed(&["ashlar:", "base:"])), &NAMES[..1]);
    }

    #[test]
    fn contexts_are_selected_by_name_only_and_so_many() {
        let maps = maps(&["ashlar:changed", "ashlar:changed:vg/a", "ashlar:changed:vg/b"]);
        for (queries, want) in [
            (&[][..], &[][..]),
            (&["base:", "ashlar:", "ashlar:changed:"], &[]),
            (&["base:allocation"], &NAMES[..1]),
            // Each once, whatever the order of the queries.
            (&[NAMES[2], NAMES[0], NAMES[2]], &[NAMES[0], NAMES[2]]),
        ] {
            assert_eq!(names(&maps.selected(queries)), want, "{queries:?}");
        }
        let many = || (0..20).map(|n| ChangeMap::new(format!("ashlar:{n}"), Extents::data));
        let queries: Vec<String> = (0..20).map(|n| format!("ashlar:{n}")).collect();
        let queries: Vec<&str> = queries.iter().map(String::as_str).collect();
        let selected = ChangeMaps::new(move || many().collect()).selected(&queries);
        assert_eq!(selected.len(), MOST_CONTEXTS);
    }

    #[test]
    fn snapshots_are_looked_for_only_if_a_query_can_mean_one() {
        let maps = ChangeMaps::new(|| panic!("looked for"));
        assert_eq!(names(&maps.selected(&["base:allocation", "qemu:x"])), &NAMES[..1]);
        assert_eq!(names(&maps.listed(&["base:"])), &NAMES[..1]);
    }
}
