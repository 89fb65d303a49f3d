//! Logs the progress of the arrays' background work. (The arrays log its start and end themselves.)

use std::sync::Arc;
use std::time::Duration;

use ashlar_engine::sleep;
use ashlar_stack::assemble::Stack;
use ashlar_view::detail::Detail;
use ashlar_view::events::Monitor;

/// How often the arrays are checked.
const INTERVAL: Duration = Duration::from_secs(1);

/// Logs progress, forever.
pub(crate) async fn log_progress(stack: Arc<Stack>) {
    let mut monitor = Monitor::default();
    loop {
        let now: Vec<Detail> = stack.arrays.running().iter().map(Detail::of).collect();
        for event in monitor.look(&now) {
            let seen = now.iter().find(|detail| detail.device == event.array);
            let is_progress = event.event.starts_with("Rebuild");
            if let Some(Detail { device, sync_action, sync: Some(sync), .. }) = seen
                && is_progress
            {
                let (percent, speed_kib) = (sync.percent, sync.speed_kib);
                let seconds_left = sync.seconds_left;
                tracing::info!(array = device, percent, speed_kib, seconds_left, "{sync_action}");
            }
        }
        sleep(INTERVAL).await;
    }
}
