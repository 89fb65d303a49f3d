//! What happens to the arrays, in the daemon's log.

use std::sync::Arc;
use std::time::Duration;

use ashlar_engine::sleep;
use ashlar_stack::assemble::Stack;
use ashlar_stack::detail::Detail;
use ashlar_stack::events::Monitor;

/// How often the arrays are looked at.
const INTERVAL: Duration = Duration::from_secs(1);

/// Logs, for ever, what happens to the arrays.
pub(super) async fn log_events(stack: Arc<Stack>) {
    let mut monitor = Monitor::default();
    // They have been announced.
    let (Some(_) | None) = monitor.look(&details(&stack)).pop();
    loop {
        sleep(INTERVAL).await;
        let now = details(&stack);
        for event in monitor.look(&now) {
            let (array, device) = (event.array.as_str(), event.device.as_deref());
            let progress = now.iter().find(|detail| detail.device == array);
            let sync = progress.and_then(|detail| detail.sync.as_ref());
            let percent = sync.map(|sync| sync.percent);
            let seconds_left = sync.and_then(|sync| sync.seconds_left);
            let (name, info) = (event.event.as_str(), event.info.as_deref());
            if event.is_critical() {
                tracing::error!(array, device, info, "{name}");
            } else {
                tracing::info!(array, device, percent, seconds_left, info, "{name}");
            }
        }
    }
}

fn details(stack: &Stack) -> Vec<Detail> {
    let detail = |volume: &ashlar_stack::assemble::Volume| {
        Detail::new(&volume.view.snapshot(), format!("/dev/{}", volume.name.device()))
    };
    stack.volumes.iter().map(detail).collect()
}
