//! Resync, recovery, checks, hedged reads: the attributes that only levels with redundancy have.

use ashlar_block::Sectors;
use ashlar_md::{SyncError, SyncRequest, SyncSettings};
use ashlar_stack::view::ArrayView;

use crate::attributes::{AttributeError, Row, number};
use crate::progress::{Progress, Step, last_name};

pub(super) const ROWS: &[Row<ArrayView>] = &[
    // Not the kernel's, these three.
    Row::ro("barrier_freezes", |view| view.barrier_totals().freezes.to_string()),
    Row::ro("barrier_raises", |view| view.barrier_totals().raises.to_string()),
    Row::ro("barrier_waits", |view| view.barrier_totals().waits.to_string()),
    Row::ro("degraded", |view| view.degraded().to_string()),
    Row::ro("last_sync_action", |view| last_name(&Progress::of(view)).to_owned()),
    Row::ro("mismatch_cnt", |view| Progress::of(view).mismatches.to_string()),
    // Not the kernel's.
    Row::rw(
        "read_hedge_us",
        |view| view.members().read_hedge_us().to_string(),
        |view, text| {
            view.members().set_read_hedge_us(number(text)?);
            Ok(())
        },
    ),
    Row::rw(
        "sync_action",
        |view| Progress::of(view).action.name().to_owned(),
        |view, word| Ok(view.request_sync(word.parse::<SyncRequest>()?)?),
    ),
    Row::ro("sync_completed", |view| match Progress::of(view).step {
        Step::None | Step::Pending => "none".to_owned(),
        Step::Running(run) => format!("{} / {}", run.done, run.total),
    }),
    Row::rw(
        "sync_max",
        |view| match settings(view).sync_max() {
            Sectors::MAX => "max".to_owned(),
            at => at.to_string(),
        },
        |view, text| {
            let max = if text == "max" { Sectors::MAX } else { Sectors(number(text)?) };
            Ok(view.set_sync_bounds(settings(view).sync_min(), max)?)
        },
    ),
    Row::rw(
        "sync_min",
        |view| settings(view).sync_min().to_string(),
        |view, text| {
            let min = Sectors(number(text)?);
            Ok(view.set_sync_bounds(min, settings(view).sync_max())?)
        },
    ),
    Row::ro("sync_speed", |view| match Progress::of(view).step {
        Step::Running(run) => run.speed_kib.to_string(),
        Step::None | Step::Pending => "none".to_owned(),
    }),
    Row::rw(
        "sync_speed_max",
        |view| speed(settings(view).speed_max_kib(), settings(view).own_speed_max_kib()),
        |view, text| {
            settings(view).set_speed_max_kib(own_speed(text)?);
            Ok(())
        },
    ),
    Row::rw(
        "sync_speed_min",
        |view| speed(settings(view).speed_min_kib(), settings(view).own_speed_min_kib()),
        |view, text| {
            settings(view).set_speed_min_kib(own_speed(text)?);
            Ok(())
        },
    ),
];

fn settings(view: &ArrayView) -> &SyncSettings {
    view.sync_settings()
}

impl From<SyncError> for AttributeError {
    fn from(error: SyncError) -> Self {
        match error {
            SyncError::Busy => Self::Busy(error.to_string()),
            SyncError::Reshape
            | SyncError::Unknown
            | SyncError::ReadOnly
            | SyncError::NotRedundant
            | SyncError::Stopped
            | SyncError::Range => Self::Invalid(error.to_string()),
        }
    }
}

/// A speed, marked `local` if it is set for the array, or `system`.
fn speed(kib: u64, own: Option<u64>) -> String {
    format!("{kib} ({})", if own.is_some() { "local" } else { "system" })
}

/// A speed for the array alone, or `None` for `system`. The kernel keeps speeds in 31 bits.
fn own_speed(text: &str) -> Result<Option<u64>, AttributeError> {
    if text == "system" {
        return Ok(None);
    }
    match number(text)? {
        kib @ 1..=0x7fff_ffff => Ok(Some(kib)),
        _ => Err(AttributeError::Invalid(format!("`{text}` is not a speed in KiB/s"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_say_whose_they_are() {
        assert_eq!(speed(1000, None), "1000 (system)");
        assert_eq!(speed(5, Some(5)), "5 (local)");
        assert_eq!(own_speed("system"), Ok(None));
        assert_eq!(own_speed("70000"), Ok(Some(70_000)));
        for bad in ["0", "-1", "", "max", "2147483648"] {
            assert_eq!(own_speed(bad).unwrap_err().errno(), 22, "{bad}");
        }
    }
}
