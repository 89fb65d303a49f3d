//! Drives a sync: concurrent windows that complete in order, with checkpoints between.
//!
//! A started window always completes, and the sync ends only after it. A window must not be
//! dropped: its writes would continue without the barrier.

use std::collections::VecDeque;
use std::future::Future;
use std::ops::Range;
use std::pin::pin;
use std::time::Duration;

use ashlar_block::sync::lock;
use ashlar_block::{BioResult, LocalFuture, Sector, Sectors, Status};
use futures_util::StreamExt;
use futures_util::future::{Either, select};
use futures_util::stream::FuturesUnordered;
use tracing::warn;

use super::Engine;
use super::pace::Pace;
use crate::level::Trouble;

/// Minimum number of sectors in flight.
const IN_FLIGHT: Sectors = Sectors(32 * 1024);
/// Minimum number of windows in flight.
const MIN_WINDOWS: usize = 4;
/// The longest sleep, so that the end of regular I/O is noticed.
const SLICE: Duration = Duration::from_millis(100);
/// Limit of the queue of windows from the first unfinished one on, as a multiple of the windows in
/// flight, so that one slow window does not keep others from beginning.
const AHEAD: usize = 4;
/// Checkpoints in a whole sync that are due to progress, not to time.
const CHECKPOINTS: u64 = 16;
/// Pause after a checkpoint, as a multiple of its duration: on a hard disk it is a few long seeks.
const CHECKPOINT_SHARE: u64 = 50;
/// The longest time without a checkpoint, as in the kernel (`UPDATE_FREQUENCY`): five minutes.
const CHECKPOINT_NS: u64 = 300 * 1_000_000_000;
/// Steps without I/O before other tasks get a turn.
const STEPS_AT_ONCE: usize = 1024;

/// What a sync does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// Nothing to do up to here.
    Skip(Sector),
    /// A window up to here.
    Window(Sector),
}

/// How a sync ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SyncEnd {
    /// Everything is done.
    Complete,
    /// It was asked to end.
    Interrupted,
    /// The array has changed: the sync must begin again.
    Overtaken,
    /// Part of it failed. The error of a member that may be online again soon, if there was one; else the first error.
    Failed(Status),
}

impl SyncEnd {
    /// The overall result, with the result of the final work.
    pub(super) fn with(self, result: BioResult) -> Self {
        match (self, result) {
            (Self::Complete, Err(status)) => Self::Failed(status),
            (ended, _) => ended,
        }
    }
}

/// A sync that [`Engine::drive`] drives. Its sectors are the array's or a member's.
pub(super) trait Job {
    /// The range to sync.
    fn range(&self) -> Range<Sector>;
    /// The next step from `at` on. Windows are at most [`Self::window_len`] long.
    fn next(&self, at: Sector) -> Step;
    /// The longest window.
    fn window_len(&self) -> Sectors;
    /// Performs a window; returns the number of sectors moved.
    fn window(&self, range: Range<Sector>) -> impl Future<Output = Result<Sectors, Trouble>>;
    /// Everything up to `to` is done; false if the array has changed, so that this no longer counts.
    fn advance(&self, to: Sector) -> bool;
    /// Whether recording the progress of the sync is useful.
    fn wants_checkpoints(&self) -> bool;
}

/// Windows in order.
struct Queue {
    /// Number of the first window in the queue.
    first: u64,
    /// The end of each window, and whether it is done.
    windows: VecDeque<(Sector, bool)>,
    completed: Sector,
}

impl Queue {
    fn push(&mut self, end: Sector, ended: bool) -> u64 {
        self.windows.push_back((end, ended));
        self.collect();
        self.first + self.windows.len() as u64 - 1
    }

    fn skip(&mut self, to: Sector) {
        match self.windows.back_mut() {
            Some((end, true)) => *end = to,
            Some((_, false)) | None => {
                self.push(to, true);
            }
        }
    }

    fn end(&mut self, number: u64) {
        if let Some(window) = self.windows.get_mut((number - self.first) as usize) {
            window.1 = true;
        }
        self.collect();
    }

    fn collect(&mut self) {
        while let Some((end, true)) = self.windows.front() {
            self.completed = *end;
            self.windows.pop_front();
            self.first += 1;
        }
    }
}

/// Decides when the progress of a sync is recorded.
struct Checkpoints {
    /// Progress after which a checkpoint is due.
    step: Sectors,
    /// The position recorded last, or being recorded.
    recorded: Sector,
    /// When that checkpoint began.
    begun_ns: u64,
    recording: bool,
    not_before_ns: u64,
}

impl Checkpoints {
    fn new(range: Range<Sector>, now_ns: u64) -> Self {
        Self {
            step: Sectors(((range.end - range.start).0 / CHECKPOINTS).max(1)),
            recorded: range.start,
            begun_ns: now_ns,
            recording: false,
            not_before_ns: now_ns,
        }
    }

    fn is_due(&self, now_ns: u64, reached: Sector) -> bool {
        if self.recording || now_ns < self.not_before_ns || reached <= self.recorded {
            return false;
        }
        reached - self.recorded >= self.step || now_ns >= self.begun_ns + CHECKPOINT_NS
    }

    fn begin(&mut self, now_ns: u64, reached: Sector) {
        (self.recorded, self.begun_ns, self.recording) = (reached, now_ns, true);
    }

    fn end(&mut self, now_ns: u64) {
        self.recording = false;
        self.not_before_ns = now_ns + CHECKPOINT_SHARE * (now_ns - self.begun_ns);
    }
}

enum Event {
    Window(u64, Sector, Result<Sectors, Trouble>),
    Checkpoint(BioResult),
}

impl Engine {
    /// Runs a job until it is done or must end.
    pub(super) async fn drive(&self, job: &impl Job) -> SyncEnd {
        let Range { start, end } = job.range();
        let window = job.window_len().0.max(1) * self.window_width();
        let depth = (IN_FLIGHT.0 / window) as usize;
        let depth = depth.max(MIN_WINDOWS);
        let settings = &self.settings;
        let mut queue = Queue { first: 0, windows: VecDeque::new(), completed: start };
        let mut flights: FuturesUnordered<LocalFuture<'_, Event>> = FuturesUnordered::new();
        let mut pace = Pace::default();
        let (mut at, mut steps) = (start, 0);
        let mut checkpoints = Checkpoints::new(start..end, self.core.runtime.now_ns());
        // Start of the first failed window: progress beyond it does not count.
        let mut undone = Sector(u64::MAX);
        let mut failure = None;
        let mut ended = SyncEnd::Complete;
        loop {
            let listener = settings.changed.listen();
            let mut wait = None;
            if self.is_interrupted() && ended == SyncEnd::Complete && at < end {
                ended = SyncEnd::Interrupted;
            }
            let bound = settings.sync_max().as_end();
            while ended == SyncEnd::Complete
                && at < end.min(bound)
                && flights.len() - usize::from(checkpoints.recording) < depth
                && queue.windows.len() < AHEAD * depth
            {
                steps += 1;
                match job.next(at) {
                    Step::Skip(to) => {
                        queue.skip(to);
                        at = to;
                    }
                    Step::Window(to) => {
                        let to = to.min(bound);
                        let now = self.core.runtime.now_ns();
                        pace.look(now, &self.core.disk.stats().totals());
                        wait = pace.delay(now, settings);
                        if wait.is_some() {
                            break;
                        }
                        pace.begin(now, to - at, settings);
                        let number = queue.push(to, false);
                        let window = at..to;
                        flights.push(Box::pin(async move {
                            Event::Window(number, window.start, job.window(window).await)
                        }));
                        at = to;
                    }
                }
                if steps % STEPS_AT_ONCE == 0 {
                    // Let other tasks run; poll the windows in flight.
                    wait = Some(Duration::ZERO);
                    break;
                }
            }
            let reached = queue.completed.min(undone);
            if !job.advance(reached) && ended == SyncEnd::Complete {
                ended = SyncEnd::Overtaken;
            }
            self.note_progress(queue.completed, end);
            let now = self.core.runtime.now_ns();
            let due = reached < end && checkpoints.is_due(now, reached);
            if due && ended == SyncEnd::Complete && job.wants_checkpoints() {
                checkpoints.begin(now, reached);
                flights.push(Box::pin(async { Event::Checkpoint(self.core.checkpoint().await) }));
            }
            if flights.is_empty() && (at >= end || ended != SyncEnd::Complete) {
                break;
            }
            match self.next_event(&mut flights, listener, wait).await {
                None => {}
                Some(Event::Checkpoint(result)) => {
                    checkpoints.end(self.core.runtime.now_ns());
                    if let Err(status) = result {
                        warn!(array = self.core.name(), %status, "a sync's progress is not recorded");
                        // A failed flush counts as a change of the array. Don't restart the sync for it:
                        // it would restart forever.
                        if matches!(ended, SyncEnd::Complete | SyncEnd::Overtaken) {
                            ended = SyncEnd::Failed(status);
                        }
                    }
                }
                Some(Event::Window(number, _, Ok(moved))) => {
                    self.note_moved(moved);
                    queue.end(number);
                }
                Some(Event::Window(number, start, Err(trouble))) => {
                    undone = undone.min(start);
                    if let Trouble::Incomplete(status) = trouble
                        && failure.is_none_or(|first: Status| !first.may_pass())
                    {
                        failure = Some(status);
                    }
                    queue.end(number);
                    if let Some(found) = self.end_after(trouble)
                        && ended == SyncEnd::Complete
                    {
                        ended = found;
                    }
                }
            }
        }
        match failure {
            Some(status) if ended == SyncEnd::Complete && undone < end => SyncEnd::Failed(status),
            _ => ended,
        }
    }

    /// How a trouble ends the sync, if it does.
    fn end_after(&self, trouble: Trouble) -> Option<SyncEnd> {
        match trouble {
            Trouble::Interrupted => Some(SyncEnd::Interrupted),
            Trouble::Overtaken => Some(SyncEnd::Overtaken),
            Trouble::Incomplete(status) => {
                warn!(array = self.core.name(), %status, "part of the array could not be synced");
                None
            }
            Trouble::Failed(status) => {
                warn!(array = self.core.name(), %status, "the sync cannot continue");
                Some(SyncEnd::Failed(status))
            }
        }
    }

    /// Waits for the end of a window, a change of the settings, or the time for the next window.
    async fn next_event(
        &self,
        flights: &mut FuturesUnordered<LocalFuture<'_, Event>>,
        changed: event_listener::EventListener,
        wait: Option<Duration>,
    ) -> Option<Event> {
        let window = pin!(async {
            match flights.next().await {
                Some(event) => event,
                // None in flight.
                None => std::future::pending().await,
            }
        });
        let time = pin!(async {
            match wait {
                Some(wait) => self.core.runtime.sleep(wait.min(SLICE)).await,
                None => std::future::pending().await,
            }
        });
        match select(window, select(changed, time)).await {
            Either::Left((event, _)) => Some(event),
            Either::Right(_) => None,
        }
    }

    fn note_progress(&self, done: Sector, end: Sector) {
        let mut progress = lock(&self.progress);
        progress.done = done - Sector::ZERO;
        progress.total = end - Sector::ZERO;
    }

    fn note_moved(&self, moved: Sectors) {
        let now = self.core.runtime.now_ns();
        let mut progress = lock(&self.progress);
        progress.moved += moved;
        let moved = progress.moved;
        progress.marks.note(now, moved);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_take_a_small_part_of_the_time_and_do_not_stay_away() {
        const SECOND: u64 = 1_000_000_000;
        let mut checkpoints = Checkpoints::new(Sector(100)..Sector(1700), SECOND);
        assert!(!checkpoints.is_due(SECOND, Sector(199)));
        assert!(checkpoints.is_due(SECOND, Sector(200)));
        checkpoints.begin(2 * SECOND, Sector(200));
        assert!(!checkpoints.is_due(100 * SECOND, Sector(400)), "one at a time");
        checkpoints.end(3 * SECOND);
        assert!(!checkpoints.is_due(52 * SECOND, Sector(400)));
        assert!(checkpoints.is_due(53 * SECOND, Sector(400)));
        assert!(!checkpoints.is_due(301 * SECOND, Sector(299)));
        assert!(checkpoints.is_due(302 * SECOND, Sector(201)));
        assert!(!checkpoints.is_due(302 * SECOND, Sector(200)), "nothing is new");
    }

    #[test]
    fn windows_count_as_done_in_order_only() {
        let mut queue = Queue { first: 0, windows: VecDeque::new(), completed: Sector(5) };
        queue.skip(Sector(8));
        assert_eq!(queue.completed, Sector(8));
        let (a, b) = (queue.push(Sector(10), false), queue.push(Sector(20), false));
        queue.skip(Sector(30));
        queue.skip(Sector(40));
        let c = queue.push(Sector(50), false);
        queue.end(b);
        queue.end(c);
        assert_eq!(queue.completed, Sector(8));
        queue.end(a);
        assert_eq!((queue.completed, queue.windows.len()), (Sector(50), 0));
        let d = queue.push(Sector(60), false);
        queue.end(d);
        assert_eq!(queue.completed, Sector(60));
    }
}
