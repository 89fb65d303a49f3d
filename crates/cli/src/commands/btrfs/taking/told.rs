//! Progress reports while files are copied out: how much is done, and, once it was counted, of how much.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::time::{Duration, Instant};

use ashlar_btrfs::files::{FileError, Files, Name, kind_of};
use ashlar_btrfs::ondisk::items::{FileType, InodeItem};
use ashlar_engine::sleep;
use ashlar_host::error::Result;
use futures_util::future::{Either, pending, select};
use serde_json::json;

use super::{Counts, Wanted};
use crate::commands::btrfs::scrub::report::{human, rate};
use crate::output;
use crate::progress::{Display, Moment, Shown, clock};

/// How often the progress bar is updated.
const TICK: Duration = Duration::from_millis(200);

/// What is reported.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Telling {
    /// Only failures.
    Failures,
    /// Progress, and the result.
    Progress(Shown),
}

/// A number of files and bytes.
#[derive(Clone, Copy, Default, Debug)]
struct Amount {
    files: u64,
    bytes: u64,
}

/// The state of the progress report.
pub(super) struct Told {
    display: RefCell<Option<Display>>,
    path: Name,
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
pub(super) fn weight(stat: &InodeItem) -> u64 {
    stat.size.get().min(stat.nbytes.get())
}

impl Told {
    pub(super) fn new(wanted: &Wanted) -> Self {
        let display = match wanted.telling {
            Telling::Failures => None,
            Telling::Progress(shown) => Some(Display::patient(shown)),
        };
        Self {
            display: RefCell::new(display),
            path: Name(wanted.path.clone()),
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
    pub(super) fn file_ended(&self, stat: &InodeItem) {
        let Amount { files, bytes } = self.done.get();
        self.done.set(Amount { files: files + 1, bytes: bytes.saturating_add(weight(stat)) });
        self.current.set(0);
    }

    /// Prints other output while a bar is shown.
    pub(super) fn beside<T>(&self, print: impl FnOnce() -> T) -> T {
        match &*self.display.borrow() {
            Some(display) => display.beside(print),
            None => print(),
        }
    }

    /// Prints a line to standard output.
    pub(super) fn line(&self, text: &str) -> Result<()> {
        self.beside(|| output::print(&format!("{text}\n")))
    }

    /// Counts the files, and reports progress until this is dropped.
    ///
    /// # Errors
    /// Standard output failed.
    pub(super) async fn run(&self, files: &Files, path: &[u8]) -> Result<Infallible> {
        if self.display.borrow().is_none() {
            return pending().await;
        }
        let count = std::pin::pin!(async {
            match count(files, path).await {
                Ok(total) => self.total.set(Some(total)),
                // Copying the files reports this error.
                Err(why) => tracing::debug!(%why, "cannot count"),
            }
            pending::<Infallible>().await
        });
        match select(count, std::pin::pin!(self.tick())).await {
            Either::Left((never, _)) => match never {},
            Either::Right((result, _)) => result,
        }
    }

    async fn tick(&self) -> Result<Infallible> {
        loop {
            sleep(TICK).await;
            let moment = self.moment();
            if let Some(display) = &mut *self.display.borrow_mut() {
                display.show(&moment)?;
            }
        }
    }

    fn moment(&self) -> Moment {
        let Amount { files, bytes } = self.done.get();
        let bytes = bytes.saturating_add(self.current.get());
        let rate = rate(self.read.get(), self.since.elapsed().as_secs_f64());
        let speed = human(rate);
        let path = self.path.to_string();
        let Some(total) = self.total.get() else {
            return Moment {
                title: "get:".to_owned(),
                parts: 0,
                words: format!("{files} files, {}, {speed}/s", human(bytes as f64)),
                json: json!({
                    "path": path, "files": files, "bytes": bytes, "bytes_per_second": rate as u64,
                }),
            };
        };
        let bytes = bytes.min(total.bytes);
        let parts = (u128::from(bytes) * 1000 / u128::from(total.bytes.max(1))) as u64;
        let seconds_left = (rate >= 1.0).then(|| ((total.bytes - bytes) as f64 / rate) as u64);
        let left = seconds_left.map(|left| format!(", {} left", clock(left))).unwrap_or_default();
        Moment {
            title: "get:".to_owned(),
            parts,
            words: format!(
                "{}% ({files}/{} files, {}/{}), {speed}/s{left}",
                parts / 10,
                total.files,
                human(bytes as f64),
                human(total.bytes as f64),
            ),
            json: json!({
                "path": path, "files": files, "bytes": bytes, "bytes_per_second": rate as u64,
                "total_files": total.files, "total_bytes": total.bytes, "seconds_left": seconds_left,
            }),
        }
    }

    /// Reports the result.
    ///
    /// # Errors
    /// Standard output failed.
    pub(super) fn end(&self, counts: &Counts) -> Result<()> {
        let Some(display) = self.display.take() else { return Ok(()) };
        let Counts { files, directories, links, bytes, there, special, privileged, failures } =
            *counts;
        let files_words = format!("{} ({})", number(files, "file", "files"), human(bytes as f64));
        let mut all = vec![
            files_words,
            number(directories, "directory", "directories"),
            number(links, "link", "links"),
        ];
        if there > 0 {
            all.push(format!("{there} there already"));
        }
        if failures > 0 {
            all.push(number(failures, "failure", "failures"));
        }
        let words = format!("taken out: {}", all.join(", "));
        let json = json!({
            "path": self.path.to_string(), "ended": true, "files": files,
            "directories": directories, "links": links, "bytes": bytes, "there": there,
            "special": special, "privileged_attributes": privileged, "failures": failures,
        });
        display.end(words, &json)
    }
}

/// `1 file`, `2 files`.
fn number(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// The files below a path and their bytes. Unreadable files are left out.
async fn count(files: &Files, path: &[u8]) -> std::result::Result<Amount, FileError> {
    let top = files.resolve(path).await?;
    let mut total = Amount::default();
    let mut add = |stat: &InodeItem| {
        if kind_of(stat.mode.get()) == FileType::Regular {
            total.files += 1;
            total.bytes = total.bytes.saturating_add(weight(stat));
        }
    };
    if files.kind(top).await? != FileType::Directory {
        files.stat(top).await?.iter().for_each(add);
        return Ok(total);
    }
    let mut open = vec![files.list(top).await?];
    // At most as many nested directories as a path can have names.
    while let Some(listing) = open.last_mut() {
        match listing.next().await {
            Ok(Some(entry)) if entry.kind == FileType::Directory => {
                if open.len() < ashlar_btrfs::files::PATH_BYTES_MAX / 2 {
                    open.extend(files.list(entry.place).await);
                }
            }
            Ok(Some(entry)) if entry.kind == FileType::Regular => {
                if let Ok(Some(stat)) = files.stat(entry.place).await {
                    add(&stat);
                }
            }
            Ok(Some(_)) | Err(_) => {}
            Ok(None) => {
                open.pop();
            }
        }
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_reads_as_a_sentence() {
        let told = Told {
            display: RefCell::new(None),
            path: Name(b"/home".to_vec()),
            since: Instant::now(),
            done: Cell::new(Amount { files: 2, bytes: 3 << 20 }),
            current: Cell::new(1 << 20),
            read: Cell::new(0),
            total: Cell::new(None),
        };
        assert_eq!(told.moment().words, "2 files, 4.00MiB, 0.00B/s");
        told.total.set(Some(Amount { files: 7, bytes: 16 << 20 }));
        let moment = told.moment();
        assert_eq!(moment.words, "25% (2/7 files, 4.00MiB/16.00MiB), 0.00B/s");
        assert_eq!((moment.parts, &moment.json["total_files"]), (250, &json!(7)));
        // Progress never exceeds the total, even if the counted sizes are wrong.
        told.current.set(1 << 40);
        assert_eq!(told.moment().parts, 1000);
        told.total.set(Some(Amount::default()));
        assert_eq!(told.moment().parts, 0);
    }
}
