//! A stop flag that any number of tasks on any threads can await.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Context, Poll, Waker};

use event_listener::{Event, EventListener};

#[derive(Default)]
struct State {
    stopped: AtomicBool,
    event: Event,
}

/// A future that ends after [`Stop::stop`]; its clones end with it.
///
/// Each connection polls one with every step of its I/O: a further poll costs one load, and a dropped clone no longer waits.
#[derive(Default)]
pub struct Stop {
    state: Arc<State>,
    /// The task that waits for this clone.
    waiting: Option<(EventListener, Waker)>,
}

impl Clone for Stop {
    fn clone(&self) -> Self {
        Self { state: Arc::clone(&self.state), waiting: None }
    }
}

impl Stop {
    /// Sets the flag, permanently.
    pub fn stop(&self) {
        self.state.stopped.store(true, SeqCst);
        self.state.event.notify(usize::MAX);
    }

    /// Whether the flag is set.
    pub fn is_stopped(&self) -> bool {
        self.state.stopped.load(SeqCst)
    }
}

impl Future for Stop {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        if this.is_stopped() {
            return Poll::Ready(());
        }
        if this.waiting.as_ref().is_some_and(|(_, waker)| waker.will_wake(cx.waker())) {
            return Poll::Pending;
        }
        let known = this.waiting.take().map(|(listener, _)| listener);
        let mut listener = known.unwrap_or_else(|| this.state.event.listen());
        // Either stop() finds the listener, or this finds the flag.
        if Pin::new(&mut listener).poll(cx).is_ready() || this.is_stopped() {
            return Poll::Ready(());
        }
        this.waiting = Some((listener, cx.waker().clone()));
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, SeqCst);
        }
    }

    #[test]
    fn what_waits_no_longer_leaves_nothing_behind() {
        let stop = Stop::default();
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let waker = Waker::from(Arc::clone(&count));
        for _ in 0..3 {
            let mut clone = stop.clone();
            assert!(Pin::new(&mut clone).poll(&mut Context::from_waker(&waker)).is_pending());
        }
        drop(waker);
        // A waker would keep the memory of its task.
        assert_eq!(Arc::strong_count(&count), 1);
        stop.stop();
        assert_eq!(count.0.load(SeqCst), 0);
    }

    #[test]
    fn another_task_may_go_on_waiting() {
        let mut stop = Stop::default();
        let counts = [(); 2].map(|()| Arc::new(Count(AtomicUsize::new(0))));
        for count in &counts {
            let waker = Waker::from(Arc::clone(count));
            assert!(Pin::new(&mut stop).poll(&mut Context::from_waker(&waker)).is_pending());
        }
        stop.clone().stop();
        assert_eq!(counts[1].0.load(SeqCst), 1);
    }

    #[test]
    fn all_clones_end_and_stay_ended() {
        let stop = Stop::default();
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let waker = Waker::from(Arc::clone(&count));
        let mut cx = Context::from_waker(&waker);
        let mut clones = [stop.clone(), stop.clone()];
        for clone in &mut clones {
            assert!(Pin::new(&mut *clone).poll(&mut cx).is_pending());
            assert!(Pin::new(clone).poll(&mut cx).is_pending());
        }
        stop.stop();
        assert_eq!(count.0.load(SeqCst), 2);
        for clone in &mut clones {
            assert!(Pin::new(clone).poll(&mut cx).is_ready());
        }
        assert!(Pin::new(&mut stop.clone()).poll(&mut cx).is_ready());
    }
}
