//! Tables written by a user: never a panic, and a table that is parsed and printed is parsed to the same table again. A
//! table that loads, on devices of several sizes and block sizes, prints itself so that it loads again.
//!
//! Input: the text of a table, which uses the devices `a`, `b` and `c`.

use std::pin::pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use ashlar_block::{Disk, Gateway, Limits, LocalFuture, Runtime, Sectors};
use ashlar_dm::{Context, Devices, Table, text};

use crate::memory::Memory;

struct DeviceList([Gateway; 3]);

impl Devices for DeviceList {
    fn find(&self, name: &str) -> Option<Gateway> {
        self.0.iter().find(|gateway| gateway.disk().name() == name).cloned()
    }
}

static DEVICES: LazyLock<DeviceList> = LazyLock::new(|| {
    let device = |name, sectors, logical_block_bytes| {
        let limits = Limits { logical_block_bytes, ..Limits::default() };
        Gateway::new(Memory::writable(Disk::new(name, Sectors(sectors), limits), Vec::new()))
    };
    DeviceList([device("a", 64, 512), device("b", 1 << 20, 512), device("c", 1 << 40, 4096)])
});

/// A runtime where time stands still and nothing is spawned.
struct StillRuntime;

impl Runtime for StillRuntime {
    fn now_ns(&self) -> u64 {
        0
    }

    fn wall_clock(&self) -> Duration {
        Duration::ZERO
    }

    fn sleep(&self, _duration: Duration) -> LocalFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    fn spawn(&self, task: LocalFuture<'static, ()>) {
        drop(task);
    }
}

fn load(text: &str) -> Option<Table> {
    let lines = text::parse(text).ok()?;
    let context =
        Context { devices: &*DEVICES, runtime: Arc::new(StillRuntime), origins: Arc::default() };
    let mut load = pin!(Table::load(&lines, &context));
    match load.as_mut().poll(&mut TaskContext::from_waker(Waker::noop())) {
        Poll::Ready(result) => {
            if let Err(error) = &result {
                assert!(!error.to_string().is_empty());
            }
            result.ok()
        }
        // It waits for something that never happens.
        Poll::Pending => None,
    }
}

/// Checks one input against the module text; returns whether part of it was accepted.
pub fn run(bytes: &[u8]) -> bool {
    let Ok(table) = std::str::from_utf8(bytes) else { return false };
    match text::parse(table) {
        Ok(lines) => {
            let printed: Vec<String> = lines.iter().map(ToString::to_string).collect();
            assert_eq!(text::parse(&printed.join("\n")).as_ref(), Ok(&lines));
        }
        Err(error) => assert!(error.line <= table.split('\n').count()),
    }
    let loaded = load(table);
    if let Some(table) = &loaded {
        let again = load(&table.to_string()).expect("what is printed can be loaded");
        assert_eq!(again.to_string(), table.to_string());
        assert!(!table.capacity().is_zero() && !table.status().is_empty());
    }
    loaded.is_some()
}
