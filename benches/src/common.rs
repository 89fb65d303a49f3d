//! Shared by the benches.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use ashlar_block::Gateway;
use ashlar_engine::{OpenOptions, open};
use rustix::fs::{Advice, fadvise};
use rustix::time::{ClockId, clock_gettime};

/// The result of a bench. An error is a malfunction; a slow machine is not an error.
pub(crate) type Outcome<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The user's settings.
#[derive(Clone, Copy)]
pub(crate) struct Settings {
    /// How long each configuration runs per round.
    pub(crate) run: Duration,
    /// The number of rounds; each runs all configurations.
    pub(crate) rounds: usize,
}

/// CPU time of the process.
pub(crate) fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The median; NaN if there are no values.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// A file as a disk.
pub(crate) fn open_disk(path: &Path, direct: bool) -> Gateway {
    let options = OpenOptions { direct, ..Default::default() };
    let device = open(path, &options).expect("opening the file");
    assert!(device.driver().is_direct() == direct, "a file system without direct I/O");
    Gateway::new(Arc::new(device))
}

/// Files in the temporary directory, removed at the end.
pub(crate) struct Files(Vec<PathBuf>);

impl Files {
    /// Creates `count` files of `bytes` (whole MiB) with incompressible contents.
    pub(crate) fn make(count: usize, bytes: u64) -> std::io::Result<Self> {
        let name =
            |i| std::env::temp_dir().join(format!("ashlar-bench-{}-{i}.img", std::process::id()));
        let files = Self((0..count).map(name).collect());
        for path in &files.0 {
            let mut file = File::create(path)?;
            let mut block = vec![0_u8; 1 << 20];
            for i in 0..bytes >> 20 {
                block.iter_mut().enumerate().for_each(|(j, b)| *b = (i as usize + j) as u8);
                file.write_all(&block)?;
            }
            file.sync_all()?;
            // Otherwise direct writes would have to invalidate it first.
            fadvise(&file, 0, None, Advice::DontNeed)?;
        }
        Ok(files)
    }

    pub(crate) fn paths(&self) -> &[PathBuf] {
        &self.0
    }

    /// All files as disks with direct I/O.
    pub(crate) fn disks(&self) -> Vec<Gateway> {
        self.0.iter().map(|path| open_disk(path, true)).collect()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        for path in &self.0 {
            if let Err(error) = std::fs::remove_file(path) {
                eprintln!("{}: {error}", path.display());
            }
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a future that another thread completes.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}
