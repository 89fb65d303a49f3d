//! The categories of events, which are blktrace's filters (`blktrace -a`).

use ashlar_block::trace::Action;
use ashlar_block::{Flags, Op};
use bitflags::bitflags;
use thiserror::Error;

bitflags! {
    /// A set of categories, with the kernel's bits (`BLK_TC_*` in `linux/blktrace_api.h`). An event
    /// is in several: for the action, and for the kind of I/O.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Categories: u16 {
        /// Reads.
        const READ = 1;
        /// Operations that change data.
        const WRITE = 1 << 1;
        /// Flushes, and writes with a preflush.
        const FLUSH = 1 << 2;
        /// Synchronous I/O: a caller waits for it.
        const SYNC = 1 << 3;
        /// Queued, merged, inserted; plugs and remaps.
        const QUEUE = 1 << 4;
        /// Requeued.
        const REQUEUE = 1 << 5;
        /// Sent to the driver.
        const ISSUE = 1 << 6;
        /// Ended.
        const COMPLETE = 1 << 7;
        /// Requests for data, not commands.
        const FS = 1 << 8;
        /// Commands passed through to the device. Not used.
        const PC = 1 << 9;
        /// Notes about the trace itself.
        const NOTIFY = 1 << 10;
        /// Read-ahead.
        const AHEAD = 1 << 11;
        /// Metadata.
        const META = 1 << 12;
        /// Discards.
        const DISCARD = 1 << 13;
        /// Driver data. Not used.
        const DRV_DATA = 1 << 14;
        /// Writes that are durable when they complete.
        const FUA = 1 << 15;
    }
}

/// A word that is not a category.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("`{0}` is not a kind of action; use one of {names}", names = Categories::names())]
pub struct UnknownCategory(String);

impl Categories {
    /// The category with blktrace's `name`, in any case.
    ///
    /// # Errors
    /// There is no such category.
    pub fn named(name: &str) -> Result<Self, UnknownCategory> {
        let found = Self::all().iter_names().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, category)| category).ok_or_else(|| UnknownCategory(name.to_owned()))
    }

    /// All names, for an error message.
    pub fn names() -> String {
        let names: Vec<_> = Self::all().iter_names().map(|(name, _)| name.to_lowercase()).collect();
        names.join(", ")
    }

    /// The categories of an event (the kernel's `__blk_add_trace` and its callers).
    pub fn of(action: Action, op: Op, flags: Flags) -> Self {
        let mut all = match action {
            Action::Split => Self::empty(),
            Action::Remap
            | Action::Queue
            | Action::GetRequest
            | Action::Plug
            | Action::Unplug
            | Action::BackMerge
            | Action::FrontMerge => Self::QUEUE,
            Action::Insert => Self::QUEUE | Self::FS,
            Action::Issue => Self::ISSUE | Self::FS,
            Action::Requeue => Self::REQUEUE | Self::FS,
            Action::Complete => Self::COMPLETE | Self::FS,
        };
        all |= match op {
            Op::Read => Self::READ,
            Op::Write | Op::WriteZeroes => Self::WRITE,
            Op::Discard => Self::WRITE | Self::DISCARD,
            // As the kernel's flush bios: empty writes.
            Op::Flush => Self::WRITE | Self::FLUSH,
        };
        for (flag, category) in [
            (Flags::SYNC, Self::SYNC),
            (Flags::RAHEAD, Self::AHEAD),
            (Flags::META, Self::META),
            (Flags::PREFLUSH, Self::FLUSH),
            (Flags::FUA, Self::FUA),
        ] {
            all.set(category, all.contains(category) || flags.contains(flag));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_blktrace() {
        assert_eq!(Categories::named("read"), Ok(Categories::READ));
        assert_eq!(Categories::named("DRV_DATA"), Ok(Categories::DRV_DATA));
        let error = Categories::named("reads").unwrap_err().to_string();
        assert!(error.contains("`reads`") && error.contains("requeue, issue, complete"), "{error}");
        assert_eq!(Categories::all().bits(), u16::MAX);
    }

    #[test]
    fn events_have_the_kernels_categories() {
        let of = |action, op, flags| Categories::of(action, op, flags);
        let plain = Flags::empty();
        assert_eq!(of(Action::Queue, Op::Read, plain), Categories::QUEUE | Categories::READ);
        assert_eq!(of(Action::Split, Op::Write, Flags::NOMERGE), Categories::WRITE);
        let fua = of(Action::Issue, Op::Write, Flags::FUA | Flags::SYNC);
        let expected = Categories::ISSUE | Categories::FS | Categories::WRITE;
        assert_eq!(fua, expected | Categories::FUA | Categories::SYNC);
        let flush = of(Action::Complete, Op::Flush, plain);
        assert!(flush.contains(Categories::FLUSH | Categories::WRITE));
        let discard = of(Action::Queue, Op::Discard, plain);
        assert!(discard.contains(Categories::DISCARD | Categories::WRITE));
    }
}
