//! The attributes that only levels with parity have.

use std::ops::Range;

use ashlar_block::Sector;
use ashlar_md::{PARITY_SETTINGS, SettingError};
use ashlar_stack::view::ArrayView;

use crate::attributes::{AttributeError, Row, number};

/// Memory of parts of rows is held only while they are written, so that no stripes are in a cache.
pub(super) const ROWS: &[Row<ArrayView>] = &[
    setting::<0>(),
    setting::<1>(),
    setting::<2>(),
    setting::<3>(),
    setting::<4>(),
    Row::ro("stripe_cache_active", |_| "0".to_owned()),
    setting::<5>(),
    // Not the kernel's. Lines as those of bad_blocks: first sector, length.
    Row::ro("suspect", |view| {
        let line = |range: Range<Sector>| format!("{} {}", range.start, range.end - range.start);
        view.suspects().into_iter().map(line).collect::<Vec<_>>().join("\n")
    }),
];

/// The row of the setting with this place among them.
const fn setting<const PLACE: usize>() -> Row<ArrayView> {
    Row::rw(
        PARITY_SETTINGS[PLACE].name,
        |view| view.parity_settings().map_or_else(String::new, |all| all.get(PLACE).to_string()),
        |view, text| {
            let value = number(text)?;
            view.parity_settings().map_or(Ok(()), |all| Ok(all.set(PLACE, value)?))
        },
    )
}

impl From<SettingError> for AttributeError {
    fn from(error: SettingError) -> Self {
        Self::Invalid(error.to_string())
    }
}
