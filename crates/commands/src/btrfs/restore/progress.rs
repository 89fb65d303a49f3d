//! The progress of a copy, and its total once the files are counted.

use std::cell::Cell;
use std::convert::Infallible;
use std::time::{Duration, Instant};

use ashlar_engine::sleep;
use ashlar_files::{FileError, FileType, Stat, Tree, Walk};
use futures_util::future::{Either, pending, select};

use super::options::{Amount, RestoreObserver, RestoreOptions, RestoreProgress};
use crate::error::Result;

/// How often the meter reports to the observer.
const TICK: Duration = Duration::from_millis(200);

/// Measures a copy.
pub(super) struct Meter {
    since: Instant,
    /// Files that are done, with their weights.
    done: Cell<Amount>,
    /// Bytes read of the current file.
    current: Cell<u64>,
    /// Bytes read of all files.
    read: Cell<u64>,
    /// The totals, once they are known.
    total: Cell<Option<Amount>>,
}

/// The bytes that a file counts for: its size without holes.
pub(super) fn weight(stat: &Stat) -> u64 {
    stat.size.min(stat.allocated)
}

impl Meter {
    pub(super) fn new() -> Self {
        Self {
            since: Instant::now(),
            done: Cell::default(),
            current: Cell::default(),
            read: Cell::default(),
            total: Cell::default(),
        }
    }

    /// Counts bytes read of the current file.
    pub(super) fn bytes(&self, more: u64) {
        self.current.set(self.current.get() + more);
        self.read.set(self.read.get() + more);
    }

    /// Counts a file as done.
    pub(super) fn file_ended(&self, stat: &Stat) {
        let Amount { files, bytes } = self.done.get();
        self.done.set(Amount { files: files + 1, bytes: bytes.saturating_add(weight(stat)) });
        self.current.set(0);
    }

    /// Counts the files, and tells the observer of the progress until this is dropped.
    ///
    /// # Errors
    /// The observer failed.
    pub(super) async fn run(
        &self,
        files: &dyn Tree,
        options: &RestoreOptions,
        observer: &dyn RestoreObserver,
    ) -> Result<Infallible> {
        if !options.progress {
            return pending().await;
        }
        let count = std::pin::pin!(async {
            // The size of what is left out is not known.
            let is_all = options.only.is_none() && options.except.is_empty() && options.snapshots;
            let mut total = Amount::default();
            for path in options.paths.iter().filter(|_| is_all) {
                match count(files, path).await {
                    Ok(Amount { files, bytes }) => {
                        total.files += files;
                        total.bytes = total.bytes.saturating_add(bytes);
                    }
                    // Copying the files reports this error.
                    Err(why) => tracing::debug!(%why, "cannot count"),
                }
            }
            self.total.set(is_all.then_some(total));
            pending::<Infallible>().await
        });
        match select(count, std::pin::pin!(self.tick(observer))).await {
            Either::Left((never, _)) => match never {},
            Either::Right((result, _)) => result,
        }
    }

    async fn tick(&self, observer: &dyn RestoreObserver) -> Result<Infallible> {
        loop {
            sleep(TICK).await;
            observer.progress(&self.progress())?;
        }
    }

    fn progress(&self) -> RestoreProgress {
        let Amount { files, bytes } = self.done.get();
        let bytes = bytes.saturating_add(self.current.get());
        let total = self.total.get();
        let bytes = total.map_or(bytes, |total| bytes.min(total.bytes));
        let seconds = self.since.elapsed().as_secs_f64();
        let rate = if seconds > 0.0 { self.read.get() as f64 / seconds } else { 0.0 };
        RestoreProgress { done: Amount { files, bytes }, total, rate }
    }
}

/// The files below a path and their bytes. Unreadable files are left out.
async fn count(files: &dyn Tree, path: &[u8]) -> std::result::Result<Amount, FileError> {
    let top = files.resolve(path).await?;
    let mut total = Amount::default();
    let mut add = |stat: &Stat| {
        if stat.kind() == FileType::Regular {
            total.files += 1;
            total.bytes = total.bytes.saturating_add(weight(stat));
        }
    };
    if files.kind(top).await? != FileType::Directory {
        files.stat(top).await?.iter().for_each(add);
        return Ok(total);
    }
    let mut walk = Walk::new(files, top, b"", true);
    loop {
        match walk.next().await {
            Ok(Some(entry)) if entry.kind == FileType::Regular => {
                if let Ok(Some(stat)) = files.stat(entry.place).await {
                    add(&stat);
                }
            }
            Ok(Some(_)) | Err(_) => {}
            Ok(None) => break,
        }
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_never_exceeds_the_total_even_if_the_counted_sizes_are_wrong() {
        let meter = Meter::new();
        meter.done.set(Amount { files: 2, bytes: 3 << 20 });
        meter.current.set(1 << 20);
        let progress = meter.progress();
        assert_eq!(progress.done, Amount { files: 2, bytes: 4 << 20 });
        assert_eq!((progress.parts(), progress.seconds_left()), (0, None));
        meter.total.set(Some(Amount { files: 7, bytes: 16 << 20 }));
        assert_eq!(meter.progress().parts(), 250);
        meter.current.set(1 << 40);
        assert_eq!(meter.progress().parts(), 1000);
        meter.total.set(Some(Amount::default()));
        assert_eq!(meter.progress().parts(), 0);
    }

    #[test]
    fn the_time_left_follows_the_rate() {
        let done = Amount { files: 1, bytes: 4 };
        let total = Some(Amount { files: 2, bytes: 24 });
        let progress = RestoreProgress { done, total, rate: 10.0 };
        assert_eq!(progress.seconds_left(), Some(2));
        assert_eq!(RestoreProgress { rate: 0.5, ..progress }.seconds_left(), None);
    }
}
