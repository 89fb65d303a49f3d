//! What the connections of a disk to one life of its server have acknowledged, and may have lost.
//!
//! A session begins with the connection of the [link](crate::link); [lanes](crate::lanes) join it. All of them end together: if one
//! ends, the server may have crashed, and a successor of it would neither have what it had only acknowledged, nor lose it again.
//! So the session ends first, which reports the loss, and then the link connects again, which begins the next session.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};

use event_listener::Event;

/// Tells the disk of a loss.
pub(crate) type Report = Box<dyn Fn() + Send + Sync>;

/// What all sessions of a disk may have lost.
#[derive(Default)]
pub(crate) struct Losses {
    /// Whether a session has ended with changes that were not flushed: the next flush fails.
    is_untold: AtomicBool,
    /// Tells the disk at once: what is read from now on may be older than what was acknowledged.
    report: OnceLock<Report>,
}

impl Losses {
    /// Has `report` called at each loss from now on.
    pub(crate) fn set_report(&self, report: Report) {
        let (Ok(()) | Err(_)) = self.report.set(report);
    }

    fn note(&self) {
        self.is_untold.store(true, SeqCst);
        if let Some(report) = self.report.get() {
            report();
        }
    }
}

/// See the module text.
pub(crate) struct Session {
    /// Changes that were acknowledged and are not durable by themselves.
    acknowledged: AtomicU64,
    /// How many of them flushes cover.
    settled: AtomicU64,
    has_ended: AtomicBool,
    /// Whether it ended because the disk is not used any more.
    has_left: AtomicBool,
    ended: Event,
    losses: Arc<Losses>,
}

impl Session {
    pub(crate) fn new(losses: Arc<Losses>) -> Arc<Self> {
        Arc::new(Self {
            acknowledged: AtomicU64::new(0),
            settled: AtomicU64::new(0),
            has_ended: AtomicBool::new(false),
            has_left: AtomicBool::new(false),
            ended: Event::new(),
            losses,
        })
    }

    /// Counts a change that the server has acknowledged. To be called when the reply comes, before its submitter sees it.
    pub(crate) fn acknowledge(&self) {
        self.acknowledged.fetch_add(1, SeqCst);
        // Whichever thread comes second, this one or the one that ends the session, sees the other one.
        if self.has_ended() {
            self.losses.note();
        }
    }

    /// What a flush covers that is sent now.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged.load(SeqCst)
    }

    /// The server has executed a flush that covers so many changes.
    pub(crate) fn settle(&self, covers: u64) {
        self.settled.fetch_max(covers, SeqCst);
    }

    /// Whether a flush must fail, because a session has lost changes since the last one.
    pub(crate) fn must_fail_flush(&self) -> bool {
        self.losses.is_untold.swap(false, SeqCst)
    }

    /// No connection may send anything more.
    pub(crate) fn end(&self) {
        if self.has_ended.swap(true, SeqCst) {
            return;
        }
        // The server may have crashed, and a flush of the next session need not cover these.
        if self.acknowledged() > self.settled.load(SeqCst) {
            self.losses.note();
        }
        self.ended.notify(usize::MAX);
    }

    /// Ends it because the disk is not used any more.
    pub(crate) fn leave(&self) {
        self.has_left.store(true, SeqCst);
        self.end();
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(SeqCst)
    }

    pub(crate) fn has_left(&self) -> bool {
        self.has_left.load(SeqCst)
    }

    /// Returns once the session has ended.
    pub(crate) async fn ended(&self) {
        while !self.has_ended() {
            let ended = self.ended.listen();
            if !self.has_ended() {
                ended.await;
            }
        }
    }
}
