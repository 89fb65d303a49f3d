//! A stop flag that any number of tasks on any threads can await.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

#[derive(Default)]
struct State {
    stopped: bool,
    waiting: Vec<Waker>,
}

/// A future that ends after [`Stop::stop`]; its clones end with it.
#[derive(Clone, Default)]
pub(crate) struct Stop(Arc<Mutex<State>>);

impl Stop {
    /// Sets the flag, permanently.
    pub(crate) fn stop(&self) {
        let mut state = self.lock();
        state.stopped = true;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Whether the flag is set.
    pub(crate) fn is_stopped(&self) -> bool {
        self.lock().stopped
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Future for Stop {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        if state.stopped {
            return Poll::Ready(());
        }
        if !state.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            state.waiting.push(cx.waker().clone());
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::task::Wake;

    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, SeqCst);
        }
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
        assert_eq!(count.0.load(SeqCst), 1);
        for clone in &mut clones {
            assert!(Pin::new(clone).poll(&mut cx).is_ready());
        }
        assert!(Pin::new(&mut stop.clone()).poll(&mut cx).is_ready());
    }
}
