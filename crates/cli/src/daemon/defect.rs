//! A defect that a test can order, in builds with debug assertions only: the thread of a reactor panics.

use std::path::PathBuf;
use std::time::Duration;

use ashlar_engine::{Engine, sleep, spawn};

/// Names the file at whose appearance the first reactor panics.
const ORDER: &str = "ASHLAR_PANIC_AT";
/// How often it is looked for.
const INTERVAL: Duration = Duration::from_millis(10);

/// Waits for the order, if the environment says where it will be.
pub(super) fn await_order(engine: &Engine) {
    let (Some(path), Some(handle)) = (std::env::var_os(ORDER), engine.handles().first()) else {
        return;
    };
    let (path, handle) = (PathBuf::from(path), handle.clone());
    spawn(async move {
        while !path.exists() {
            sleep(INTERVAL).await;
        }
        // In no task, so that the thread dies of it.
        let panics = || -> std::future::Ready<()> { panic!("ordered by {ORDER}") };
        handle.spawn_on(panics).await
    })
    .detach();
}
