//! A defect for tests, in builds with debug assertions only: a reactor's thread panics on request.

use std::path::PathBuf;
use std::time::Duration;

use ashlar_engine::{Engine, sleep, spawn};

/// Names the file whose appearance makes the first reactor panic.
const ORDER: &str = "ASHLAR_PANIC_AT";
/// How often the file is looked for.
const INTERVAL: Duration = Duration::from_millis(10);

/// Waits for the file, if the environment names one.
pub(crate) fn await_order(engine: &Engine) {
    let (Some(path), Some(handle)) = (std::env::var_os(ORDER), engine.handles().first()) else {
        return;
    };
    let (path, handle) = (PathBuf::from(path), handle.clone());
    spawn(async move {
        while !path.exists() {
            sleep(INTERVAL).await;
        }
        // Not in a task, so that the panic ends the thread.
        let panics = || -> std::future::Ready<()> { panic!("ordered by {ORDER}") };
        handle.spawn_on(panics).await
    })
    .detach();
}
