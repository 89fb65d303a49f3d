//! The types of targets: a new one is a line of the table.

use ashlar_block::LocalFuture;

use super::{
    Delay, Flakey, Linear, LogWrites, Mirror, Striped, TableTarget, Target, TargetError,
    TargetParameters, Zero, zero,
};
use crate::snapshot::{MergeTarget, OriginTarget, SnapshotTarget};

type TargetFuture<'a> = LocalFuture<'a, Result<Box<dyn Target>, TargetError>>;
type Constructor = for<'a> fn(TargetParameters<'a>) -> TargetFuture<'a>;

fn make<T: TableTarget>(parameters: TargetParameters<'_>) -> TargetFuture<'_> {
    Box::pin(async move { Ok(Box::new(T::construct(parameters).await?) as Box<dyn Target>) })
}

/// Every type of target.
const TYPES: &[(&str, Constructor)] = &[
    (Delay::NAME, make::<Delay>),
    (zero::Error::NAME, make::<zero::Error>),
    (Flakey::NAME, make::<Flakey>),
    (Linear::NAME, make::<Linear>),
    (LogWrites::NAME, make::<LogWrites>),
    (MergeTarget::NAME, make::<MergeTarget>),
    (Mirror::NAME, make::<Mirror>),
    (OriginTarget::NAME, make::<OriginTarget>),
    (SnapshotTarget::NAME, make::<SnapshotTarget>),
    (Striped::NAME, make::<Striped>),
    (Zero::NAME, make::<Zero>),
];

/// The available types.
pub fn type_names() -> impl Iterator<Item = &'static str> {
    TYPES.iter().map(|(name, _)| *name)
}

/// Constructs the target of a line, if the type exists.
pub(crate) fn construct<'a>(
    kind: &str,
    parameters: TargetParameters<'a>,
) -> Option<TargetFuture<'a>> {
    let (_, make) = TYPES.iter().find(|(name, _)| *name == kind)?;
    Some(make(parameters))
}
