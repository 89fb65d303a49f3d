//! Copying files and directories out of a file system, to a mounted one.
//!
//! Each file and link is created completely under a temporary name beside its final name, and is renamed once it is
//! durable ([`store`]). So every file under its final name is complete, whenever the program or the machine stops;
//! leftovers are called `.NAME.ashlar-XXXXXX`.

mod copy;
mod filter;
mod options;
mod progress;
mod store;

use ashlar_engine::signal;
use ashlar_files::Tree;
use futures_util::future::{Either, select};

use self::copy::Copy;
pub use self::filter::PathFilter;
pub use self::options::{
    Amount, ExistingFiles, RestoreAdvice, RestoreCounts, RestoreEvent, RestoreObserver,
    RestoreOptions, RestoreProgress,
};
use self::progress::Meter;
use super::SIGNALS;
use crate::error::{Error, Result};

/// Copies what `options` says out of a tree of files. SIGINT, SIGTERM and SIGHUP, which
/// [`block_signals`](super::block_signals) has blocked, end it early.
///
/// # Errors
/// Nothing could be copied, the target accepts no more data, the observer failed, or a signal ended it.
pub async fn restore(
    files: &dyn Tree,
    options: &RestoreOptions,
    observer: &dyn RestoreObserver,
) -> Result<RestoreCounts> {
    let meter = Meter::new();
    let mut copy = Copy::new(files, options, observer, &meter);
    let ended = {
        let work = std::pin::pin!(copy.run());
        let ends = std::pin::pin!(signal::wait(&SIGNALS));
        let beside = std::pin::pin!(meter.run(files, options, observer));
        match select(select(work, beside), ends).await {
            Either::Left((Either::Left((result, _)), _)) => result,
            Either::Left((Either::Right((Err(error), _)), _)) => Err(error),
            Either::Left((Either::Right((Ok(never), _)), _)) => match never {},
            // The file being written is dropped, together with its temporary file.
            Either::Right((Ok(_), _)) => {
                Err(Error::failed("interrupted").hint(options.advice.go_on))
            }
            Either::Right((Err(why), _)) => Err(Error::plain("cannot wait for signals", why)),
        }
    };
    // Complete files are kept, however it ended.
    let stored = copy.end().await;
    ended.and(stored)
}
