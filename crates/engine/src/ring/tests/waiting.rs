//! Polls, cancels and sleep.

use std::thread;

use rustix::event::{EventfdFlags, eventfd};

use super::*;
use crate::ring::STREAM;

const RDHUP: i32 = libc::POLLRDHUP as i32;
const HUP: i32 = libc::POLLHUP as i32;

#[test]
fn polls_end_with_their_events() {
    on_both(|rig| {
        let (one, other) = pair();
        rig.poll(1, &one, IN | OUT);
        assert_eq!(rig.wait(1), OUT);
        rig.poll(2, &one, IN);
        rig.poll(3, &one, IN);
        assert!(!rig.look(Some(2)));
        write(&other, b"a");
        assert_eq!((rig.wait(2), rig.wait(3)), (IN, IN));
        rig.poll(4, &one, IN | OUT);
        assert_eq!(rig.wait(4), IN | OUT);
        assert_eq!(drain(&one), 1);
        rig.poll(5, &one, IN);
        assert!(!rig.look(Some(5)));
        drop(other);
        assert_eq!(rig.wait(5), IN | RDHUP | HUP);
        // The end of one direction, which the poll did not ask for.
        let (one, other) = pair();
        rig.poll(7, &one, libc::POLLPRI.into());
        assert!(!rig.look(Some(7)));
        rustix::net::shutdown(&other, rustix::net::Shutdown::Write).unwrap();
        assert_eq!(rig.wait(7), RDHUP);
        // A hangup ends what waits for something else, too.
        let (from, to) = std::io::pipe().unwrap();
        rig.poll(6, &from, libc::POLLPRI.into());
        assert!(!rig.look(Some(6)));
        drop(to);
        assert_eq!(rig.wait(6), HUP);
    });
}

/// Of those that wait exclusively, one is woken at least; and what waits beside it is not lost.
#[test]
fn exclusive_polls() {
    on_both(|rig| {
        let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let exclusive = IN | libc::EPOLLEXCLUSIVE;
        rig.poll(1, &event, exclusive);
        assert!(!rig.look(Some(1)));
        // It cannot be changed while it is exclusive.
        rig.poll(2, &event, OUT);
        assert_eq!(rig.wait(2), OUT);
        rig.poll(3, &event, IN);
        assert!(!rig.look(Some(1)) && !rig.posted.contains_key(&3));
        rig.cancel(3);
        assert_eq!(rig.wait(3), -libc::ECANCELED);
        assert!(!rig.look(Some(1)));
        write(&event, &1_u64.to_ne_bytes());
        assert_eq!(rig.wait(1), IN);
        rig.poll(4, &event, exclusive);
        assert_eq!(rig.wait(4), IN);
    });
}

/// One of two that read the same counter gets it. The other must continue to wait, and not stop the thread.
#[test]
fn two_readers_of_a_stream() {
    on_both(|rig| {
        let (event, mut counts) = (eventfd(0, EventfdFlags::CLOEXEC).unwrap(), [[0; 8]; 2]);
        let read = |into: &mut [u8; 8]| {
            opcode::Read::new(fd(&event), into.as_mut_ptr(), 8).offset(STREAM).build()
        };
        rig.push(0, read(&mut counts[0]));
        rig.push(1, read(&mut counts[1]));
        rig.enter(None);
        // Ends the test should the thread stop.
        let copy = event.try_clone().unwrap();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let rescue = thread::spawn(move || {
            let is_stuck = stopped.recv_timeout(LONG / 4).is_err();
            write(&copy, &1_u64.to_ne_bytes());
            is_stuck
        });
        write(&event, &1_u64.to_ne_bytes());
        let end = Instant::now() + LONG / 8;
        while rig.posted.is_empty() && Instant::now() < end {
            rig.enter(Some(Some(SHORT)));
        }
        assert!(!rig.look(None));
        assert_eq!(rig.posted.len(), 1, "one of them");
        stop.send(()).unwrap();
        assert!(!rescue.join().unwrap(), "the thread stood still");
        assert_eq!((rig.wait(0), rig.wait(1)), (8, 8));
    });
}

#[test]
fn what_waits_is_cancelled() {
    on_both(|rig| {
        let ((one, other), mut four) = (pair(), [[0; 4]; 2]);
        // In one batch.
        rig.recv(1, &one, &mut four[0]);
        rig.cancel(1);
        assert_eq!(rig.wait(1), -libc::ECANCELED);
        rig.recv(2, &one, &mut four[0]);
        rig.recv(3, &one, &mut four[1]);
        rig.poll(4, &one, IN);
        assert!(!rig.look(Some(2)));
        rig.cancel(2);
        rig.cancel(4);
        assert_eq!((rig.wait(2), rig.wait(4)), (-libc::ECANCELED, -libc::ECANCELED));
        // The other one has not been lost, and nothing else has taken its bytes.
        write(&other, b"abc");
        assert_eq!(rig.wait(3), 3);
        // Cancels of an operation that has ended, and of one that never began.
        rig.cancel(3);
        rig.cancel(12345);
        rig.look(None);
    });
}

#[test]
fn other_threads_wake_a_sleeper() {
    on_both(|rig| {
        let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let copy = event.try_clone().unwrap();
        let mut count = [0; 8];
        let read = opcode::Read::new(fd(&event), count.as_mut_ptr(), 8).offset(STREAM).build();
        rig.push(1, read);
        let start = Instant::now();
        let writer = thread::spawn(move || {
            thread::sleep(SHORT);
            write(&copy, &5_u64.to_ne_bytes());
        });
        while !rig.posted.contains_key(&1) {
            rig.enter(Some(None));
        }
        assert!(start.elapsed() >= SHORT);
        assert_eq!((rig.wait(1), u64::from_ne_bytes(count)), (8, 5));
        writer.join().unwrap();
    });
}

/// A ring with operations that wait sleeps: also after the threads have woken it.
#[test]
fn a_sleep_lasts_as_long_as_nothing_happens() {
    on_both(|rig| {
        let ((one, other), mut four) = (pair(), [0; 4]);
        let file = tempfile::tempfile().unwrap();
        rig.recv(1, &one, &mut four);
        for _ in 0..20 {
            assert_eq!(rig.run(opcode::Fsync::new(fd(&file)).build()), 0);
        }
        rig.poll(2, &one, OUT);
        assert_eq!(rig.wait(2), OUT);
        let start = Instant::now();
        // One may end early: a thread may write to the event after the completion has been seen.
        for _ in 0..5 {
            rig.enter(Some(Some(SHORT)));
        }
        assert!(start.elapsed() >= 4 * SHORT, "{:?}", start.elapsed());
        assert!(rig.posted.is_empty());
        drop(other);
        assert_eq!(rig.wait(1), 0);
    });
}

/// Deadlines are shorter than a millisecond, too.
#[test]
fn a_short_sleep_is_short() {
    on_both(|rig| {
        let slept = (0..100).map(|_| {
            let start = Instant::now();
            rig.enter(Some(Some(Duration::from_micros(50))));
            start.elapsed()
        });
        let shortest = slept.min().unwrap();
        assert!(shortest >= Duration::from_micros(50), "{shortest:?}");
        assert!(shortest < Duration::from_micros(900), "{shortest:?}");
    });
}
