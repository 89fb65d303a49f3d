//! What an array does by itself: the group of attributes that levels with redundancy have.

use crate::attributes::Row;
use crate::progress::Step;
use crate::view::ArrayView;

pub(super) const ROWS: &[Row<ArrayView>] = &[
    Row::ro("degraded", |view| view.array().degraded().to_string()),
    Row::ro("last_sync_action", |view| {
        view.progress().last.map_or("none", |action| action.name()).to_owned()
    }),
    Row::ro("mismatch_cnt", |view| view.progress().mismatches.to_string()),
    Row::ro("sync_action", |view| view.progress().action.name().to_owned()),
    Row::ro("sync_completed", completed),
    Row::ro("sync_speed", |view| match view.progress().step {
        Step::Running(run) => run.speed_kib.to_string(),
        Step::None | Step::Pending | Step::Delayed => "none".to_owned(),
    }),
];

fn completed(view: &ArrayView) -> String {
    match view.progress().step {
        Step::None | Step::Pending => "none".to_owned(),
        Step::Delayed => "delayed".to_owned(),
        Step::Running(run) => format!("{} / {}", run.done, run.total),
    }
}
