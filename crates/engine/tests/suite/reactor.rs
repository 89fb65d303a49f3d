//! The reactor from outside: order, wake-ups across threads, time, shutdown.

use std::cell::{Cell, RefCell};
use std::future::{Pending, poll_fn};
use std::io::PipeWriter;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::task::{Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use ashlar_block::{Gateway, Sector, Sectors};
use ashlar_engine::fd::Fd;
use ashlar_engine::{
    Engine, Handle, OpenOptions, Reactor, ReactorConfig, ReceiveError, ThreadPanic, now_ns, open,
    signal, sleep, spawn, timeout, yield_now,
};

fn reactor() -> Reactor {
    Reactor::new(ReactorConfig::default()).unwrap()
}

#[test]
fn tasks_run_in_the_order_in_which_they_became_runnable() {
    let log = Rc::new(RefCell::new(Vec::new()));
    reactor().block_on(async {
        let tasks: Vec<_> = (0..10)
            .map(|id| {
                let log = Rc::clone(&log);
                spawn(async move {
                    for round in 0..5 {
                        log.borrow_mut().push((round, id));
                        yield_now().await;
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await;
        }
    });
    let expected: Vec<_> = (0..5).flat_map(|round| (0..10).map(move |id| (round, id))).collect();
    assert_eq!(*log.borrow(), expected);
}

/// A task that always wakes itself held the plug, and with it the I/O of all others, for as long as it ran.
#[test]
fn a_task_that_wakes_itself_does_not_hold_back_the_io_of_others() {
    let image = tempfile::NamedTempFile::new().unwrap();
    image.as_file().set_len(1 << 20).unwrap();
    for in_a_task in [false, true] {
        reactor().block_on(async {
            let device = open(image.path(), &OpenOptions::default()).unwrap();
            let disk = Gateway::new(Arc::new(device));
            let done = Rc::new(Cell::new(false));
            let ended = Rc::clone(&done);
            let io = spawn(async move {
                disk.read(Sector(8), Sectors(8)).await.unwrap();
                ended.set(true);
            });
            let wait = async move {
                for _ in 0..1_000_000 {
                    if done.get() {
                        return;
                    }
                    yield_now().await;
                }
                panic!("the read was held back");
            };
            if in_a_task {
                spawn(wait).await
            } else {
                wait.await
            }
            io.await;
        });
    }
}

#[test]
fn a_busy_task_does_not_starve_io() {
    let (mut write, read) = std::io::pipe().map(|(r, w)| (w, r)).unwrap();
    reactor().block_on(async {
        let done = Rc::new(Cell::new(false));
        let spin = {
            let done = Rc::clone(&done);
            spawn(async move {
                while !done.get() {
                    yield_now().await;
                }
            })
        };
        let fd = Fd::new(read.into());
        std::io::Write::write_all(&mut write, b"x").unwrap();
        let (got, buf) = fd.read(vec![0; 4], None).await;
        assert_eq!((got.unwrap(), buf[0]), (1, b'x'));
        done.set(true);
        spin.await;
    });
}

#[test]
fn sleeps_end_in_order_and_not_early() {
    reactor().block_on(async {
        let start = now_ns();
        let log = Rc::new(RefCell::new(Vec::new()));
        let tasks: Vec<_> = [30_u64, 10, 20, 0, 10]
            .into_iter()
            .map(|ms| {
                let log = Rc::clone(&log);
                spawn(async move {
                    sleep(Duration::from_millis(ms)).await;
                    assert!(now_ns() >= start + ms * 1_000_000);
                    log.borrow_mut().push(ms);
                })
            })
            .collect();
        for task in tasks {
            task.await;
        }
        assert_eq!(*log.borrow(), [0, 10, 10, 20, 30]);
    });
}

#[test]
fn a_timeout_gives_up_and_a_fast_future_does_not_wait_for_it() {
    reactor().block_on(async {
        let never = std::future::pending::<()>();
        assert_eq!(timeout(Duration::from_millis(5), never).await, None);
        assert_eq!(timeout(Duration::from_secs(3600), async { 7 }).await, Some(7));
    });
}

#[test]
fn wakers_work_from_other_threads() {
    // A flag set and a waker called by another thread, many times, with the reactor asleep, awake
    // or falling asleep: each wake-up must be seen.
    const ROUNDS: usize = 3000;
    struct SharedCount {
        count: AtomicUsize,
        waker: std::sync::Mutex<Option<Waker>>,
    }
    let shared = Arc::new(SharedCount { count: AtomicUsize::new(0), waker: None.into() });
    let other = Arc::clone(&shared);
    let sender = thread::spawn(move || {
        for round in 1..=ROUNDS {
            let waker = loop {
                if let Some(waker) = other.waker.lock().unwrap().take() {
                    break waker;
                }
                thread::yield_now();
            };
            if round % 7 == 0 {
                thread::sleep(Duration::from_micros(50));
            }
            other.count.store(round, Ordering::Release);
            waker.wake();
        }
    });
    let task = async move {
        for round in 1..=ROUNDS {
            std::future::poll_fn(|cx| {
                if shared.count.load(Ordering::Acquire) >= round {
                    return Poll::Ready(());
                }
                *shared.waker.lock().unwrap() = Some(cx.waker().clone());
                Poll::Pending
            })
            .await;
        }
    };
    let all = async { spawn(task).await };
    assert!(reactor().block_on(async { timeout(Duration::from_secs(60), all).await }).is_some());
    sender.join().unwrap();
}

#[test]
fn reactors_call_each_other_back_and_forth() {
    let engine = Engine::start(2).unwrap();
    let [a, b] = [0, 1].map(|i| engine.handles()[i].clone());
    let back = a.clone();
    let sum = a.spawn_on(move || async move {
        let mut sum = 0;
        for i in 0..2000_u64 {
            let back = back.clone();
            sum += b
                .spawn_on(move || async move { back.spawn_on(move || async move { i }).await })
                .await
                .unwrap()
                .unwrap();
        }
        sum
    });
    let sum = reactor().block_on(async { timeout(Duration::from_secs(60), sum).await });
    assert_eq!(sum, Some(Ok(1999 * 2000 / 2)));
    engine.shutdown();
}

#[test]
fn futures_on_a_reactor_need_not_be_send() {
    let engine = Engine::start(1).unwrap();
    let result = engine.handles()[0].spawn_on(|| async {
        let cell = Rc::new(Cell::new(1));
        yield_now().await;
        cell.set(cell.get() + 1);
        cell.get()
    });
    assert_eq!(reactor().block_on(result), Ok(2));
}

#[test]
fn work_on_an_ended_reactor_is_cancelled() {
    let engine = Engine::start(1).unwrap();
    let handle = engine.handles()[0].clone();
    let pending = handle.spawn_on(std::future::pending::<()>);
    engine.shutdown();
    let reactor = reactor();
    assert_eq!(reactor.block_on(pending), Err(ReceiveError));
    assert_eq!(reactor.block_on(handle.spawn_on(|| async {})), Err(ReceiveError));
    assert!(!handle.is_current() && Handle::current().is_current());
}

#[test]
fn a_panic_in_a_task_reaches_whoever_awaits_it_and_nobody_else() {
    let engine = Engine::start(1).unwrap();
    let handle = &engine.handles()[0];
    let panicked = handle.spawn_on(|| async {
        if now_ns() > 0 {
            panic!("on purpose");
        }
    });
    let reactor = reactor();
    assert_eq!(reactor.block_on(panicked), Err(ReceiveError));
    assert_eq!(reactor.block_on(handle.spawn_on(|| async { 5 })), Ok(5));
}

#[test]
fn a_panic_of_a_reactor_is_told_and_what_it_had_under_way_stays_under_way() {
    let mut engine = Engine::start(2).unwrap();
    let handles = engine.handles().to_vec();
    let reactor = reactor();
    let dropped = Arc::new(AtomicBool::new(false));
    let guard = SetOnDrop(Arc::clone(&dropped));
    let begun = handles[1].spawn_on(|| async move {
        spawn(async move {
            sleep(Duration::from_secs(3600)).await;
            drop(guard);
        })
        .detach();
    });
    assert_eq!(reactor.block_on(begun), Ok(()));
    // Not in a task: in the call of the closure.
    let closure = handles[1].spawn_on(|| {
        if now_ns() > 0 {
            panic!("on purpose, by {}", 1);
        }
        async {}
    });
    let told = reactor.block_on(engine.panicked());
    let ThreadPanic { thread, message } = &told;
    assert_eq!((thread.as_str(), message.as_str()), ("ashlar-1", "on purpose, by 1"));
    assert_eq!(reactor.block_on(closure), Err(ReceiveError));
    assert_eq!(reactor.block_on(handles[1].spawn_on(|| async {})), Err(ReceiveError));
    assert_eq!(reactor.block_on(handles[0].spawn_on(|| async { 5 })), Ok(5));
    engine.shutdown();
    assert!(!dropped.load(Ordering::Acquire), "what was under way looks as if it had ended");
}

#[test]
fn a_panic_of_the_thread_that_has_an_engine_drops_no_task_of_it() {
    let dropped = Arc::new(AtomicBool::new(false));
    let guard = SetOnDrop(Arc::clone(&dropped));
    let owner = std::thread::spawn(move || {
        let engine = Engine::start(1).unwrap();
        let begun = engine.handles()[0].spawn_on(|| async move {
            let waits = async move {
                sleep(Duration::from_secs(3600)).await;
                drop(guard);
            };
            spawn(waits).detach();
        });
        reactor().block_on(begun).unwrap();
        panic!("on purpose");
    });
    assert!(owner.join().is_err());
    assert!(!dropped.load(Ordering::Acquire));
}

struct SetOnDrop(Arc<AtomicBool>);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn the_end_of_a_reactor_drops_tasks_that_wait_for_anything() {
    let flags: Vec<_> = (0..4).map(|_| Arc::new(AtomicBool::new(false))).collect();
    let (read, _write) = std::io::pipe().unwrap();
    let reactor = reactor();
    let guard = |i: usize| SetOnDrop(Arc::clone(&flags[i]));
    reactor.block_on(async {
        let (on_io, on_time, on_nothing, never_run) = (guard(0), guard(1), guard(2), guard(3));
        let fd = Fd::new(read.into());
        spawn(async move {
            let _guard = on_io;
            fd.read(vec![0; 64], None).await.0.unwrap();
        })
        .detach();
        spawn(async move {
            let _guard = on_time;
            sleep(Duration::from_secs(3600)).await;
        })
        .detach();
        spawn(async move {
            let _guard = on_nothing;
            std::future::pending::<()>().await;
        })
        .detach();
        yield_now().await;
        spawn(async move { drop(never_run) }).detach();
    });
    let start = Instant::now();
    drop(reactor);
    assert!(start.elapsed() < Duration::from_secs(10), "waits must be cancelled");
    assert!(flags.iter().all(|flag| flag.load(Ordering::Acquire)));
}

/// A task that waits for data of a pipe, and for whatever has its waker.
struct WaitingTask {
    waker: Waker,
    is_dropped: Arc<AtomicBool>,
    _pipe: PipeWriter,
}

async fn waiting_task() -> WaitingTask {
    let (from, pipe) = std::io::pipe().unwrap();
    let (waker, is_dropped) = (Rc::new(Cell::new(None)), Arc::new(AtomicBool::new(false)));
    let (out, guard) = (Rc::clone(&waker), SetOnDrop(Arc::clone(&is_dropped)));
    spawn(async move {
        let _guard = guard;
        let mut read = Fd::new(from.into()).read(vec![0; 64], None);
        let woken = poll_fn(|cx| {
            out.set(Some(cx.waker().clone()));
            Pin::new(&mut read).poll(cx)
        });
        woken.await.0.unwrap();
    })
    .detach();
    yield_now().await;
    WaitingTask { waker: waker.take().unwrap(), is_dropped, _pipe: pipe }
}

/// Of the end of a reactor, dropped with a task that has not run.
struct WakeFromAnotherThread(Waker);

impl Drop for WakeFromAnotherThread {
    fn drop(&mut self) {
        let waker = self.0.clone();
        thread::spawn(move || waker.wake()).join().unwrap();
    }
}

/// The end of a daemon waited for the read of such a task, a connection to a server of which another thread had told that it was not
/// needed any more.
#[test]
fn a_task_that_another_thread_wakes_while_its_reactor_ends_is_dropped() {
    let reactor = reactor();
    let waiting = reactor.block_on(async {
        let waiting = waiting_task().await;
        let at_the_end = WakeFromAnotherThread(waiting.waker.clone());
        spawn(async move { drop(at_the_end) }).detach();
        waiting
    });
    drop(reactor);
    assert!(waiting.is_dropped.load(Ordering::Acquire));
}

/// Such as threads of the pool for blocking work, at any moment of the end.
#[test]
fn tasks_that_another_thread_wakes_one_by_one_while_their_reactor_ends_are_dropped() {
    for _ in 0..50 {
        let reactor = reactor();
        let mut waiting = Vec::new();
        for _ in 0..100 {
            waiting.push(reactor.block_on(waiting_task()));
        }
        let begin = Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                begin.wait();
                waiting.iter().rev().for_each(|task| task.waker.wake_by_ref());
            });
            begin.wait();
            drop(reactor);
        });
        assert!(waiting.iter().all(|task| task.is_dropped.load(Ordering::Acquire)));
    }
}

/// The mail after the call was lost, and with it the tasks: the end waited for them.
#[test]
fn a_reactor_that_ends_by_a_panic_drops_the_tasks_that_were_handed_to_it() {
    let reactor = reactor();
    let (handle, waiting) = (reactor.handle(), reactor.block_on(waiting_task()));
    let waker = waiting.waker.clone();
    let hand_over = move || {
        drop(handle.spawn_on(|| -> Pending<()> { panic!("on purpose") }));
        waker.wake();
    };
    thread::spawn(hand_over).join().unwrap();
    let run = AssertUnwindSafe(|| reactor.block_on(std::future::pending::<()>()));
    assert!(catch_unwind(run).is_err());
    drop(reactor);
    assert!(waiting.is_dropped.load(Ordering::Acquire));
}

#[test]
fn a_waker_that_outlives_its_reactor_does_nothing() {
    let waker = Rc::new(Cell::new(None));
    let reactor = reactor();
    reactor.block_on(async {
        let out = Rc::clone(&waker);
        spawn(std::future::poll_fn(move |cx| -> Poll<()> {
            out.set(Some(cx.waker().clone()));
            Poll::Pending
        }))
        .detach();
        yield_now().await;
        yield_now().await;
    });
    drop(reactor);
    let waker = waker.take().unwrap();
    waker.wake_by_ref();
    thread::spawn(move || waker.wake()).join().unwrap();
}

#[test]
fn a_dropped_read_keeps_its_buffer_until_the_kernel_is_done() {
    // The orphan's memory must not be reused while the kernel may write to it.
    reactor().block_on(async {
        for round in 0..50 {
            let (read, write) = std::io::pipe().unwrap();
            let (read, write) = (Fd::new(read.into()), Fd::new(write.into()));
            let mut orphan = Box::pin(read.read(vec![0; 4096], None));
            let polled = std::future::poll_fn(|cx| {
                Poll::Ready(Future::poll(orphan.as_mut(), cx).is_pending())
            })
            .await;
            assert!(polled);
            if round % 2 == 0 {
                yield_now().await;
            }
            drop(orphan);
            let others: Vec<_> = (0..32).map(|_| vec![0_u8; 4096]).collect();
            // Whether the cancel or the data come first, the bytes of other buffers do not change.
            write.write(vec![0xff; 4096], None).await.0.unwrap();
            sleep(Duration::from_micros(200)).await;
            assert!(others.iter().flatten().all(|byte| *byte == 0));
        }
    });
}

#[test]
fn a_cancelled_wait_leaves_the_data_to_the_next_reader() {
    reactor().block_on(async {
        let (read, write) = std::io::pipe().unwrap();
        let (read, write) = (Fd::new(read.into()), Fd::new(write.into()));
        assert!(timeout(Duration::from_millis(5), read.read(vec![0; 8], None)).await.is_none());
        sleep(Duration::from_millis(5)).await;
        write.write(b"kept".to_vec(), None).await.0.unwrap();
        let (got, buf) = read.read(vec![0; 8], None).await;
        assert_eq!(&buf[..got.unwrap()], b"kept");
    });
}

#[test]
fn more_operations_than_the_ring_holds_all_end() {
    let config = ReactorConfig { entries: 8, submit_every: 1000, ..Default::default() };
    Reactor::new(config).unwrap().block_on(async {
        let file = Fd::new(tempfile::tempfile().unwrap().into());
        let writes: Vec<_> =
            (0..500_u64).map(|i| file.write(vec![i as u8; 16], Some(i * 16))).collect();
        for write in writes {
            assert_eq!(write.await.0.unwrap(), 16);
        }
        for i in 0..500_u64 {
            let (got, buf) = file.read(vec![0; 16], Some(i * 16)).await;
            assert_eq!((got.unwrap(), buf), (16, vec![i as u8; 16]));
        }
    });
}

#[test]
fn a_thread_has_one_reactor_and_may_have_another_after_it() {
    let first = reactor();
    let second = Reactor::new(ReactorConfig::default());
    assert!(second.is_err_and(|e| e.kind() == std::io::ErrorKind::AlreadyExists));
    drop(first);
    reactor().block_on(async {});
}

#[test]
fn a_thread_may_wait_for_signals_and_see_which_are_ignored() {
    signal::block(&[signal::Signal::USR2]).unwrap();
    // SAFETY: as below.
    unsafe {
        libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::gettid(), libc::SIGUSR2);
    }
    assert_eq!(signal::receive(&[signal::Signal::USR2]).unwrap(), libc::SIGUSR2);
    assert!(!signal::is_ignored(signal::Signal::XFSZ).unwrap());
    signal::ignore(signal::Signal::XFSZ).unwrap();
    assert!(signal::is_ignored(signal::Signal::XFSZ).unwrap());
}

#[test]
fn signals_arrive_as_futures() {
    signal::block(&[signal::Signal::USR1]).unwrap();
    reactor().block_on(async {
        let signals = signal::Signals::new(&[signal::Signal::USR1]).unwrap();
        // Sent to this thread, where it is blocked; the other test threads do not block it. SAFETY: tgkill with our own
        // ids is an ordinary signal to ourselves.
        unsafe {
            libc::syscall(
                libc::SYS_tgkill,
                libc::getpid(),
                libc::gettid(),
                signal::Signal::USR1.as_raw(),
            )
        };
        let got = timeout(Duration::from_secs(10), signals.next()).await;
        assert_eq!(got.unwrap().unwrap(), signal::Signal::USR1.as_raw());
    });
}
