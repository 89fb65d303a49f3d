//! Buffers and segments.

use super::*;

#[test]
fn buffers_are_aligned_and_recycled() {
    let mut first = Buffer::alloc(5000);
    let at = first.whole().as_ptr();
    assert_eq!(at as usize % BUFFER_ALIGN, 0);
    drop(first);
    assert_eq!(Buffer::alloc(8192).whole().as_ptr(), at);
}

#[test]
#[cfg_attr(miri, ignore = "Miri takes memory for it, and is killed")]
fn memory_that_there_is_not_is_refused() {
    assert!(Buffer::try_alloc(1 << 46).is_none());
    assert_eq!((footprint(1), footprint(4097)), (4096, 8192));
}

#[test]
fn kept_blocks_are_given_back() {
    drop(Buffer::alloc(1 << 20));
    drop_kept();
    FREE.with(|free| assert!(free.borrow().iter().all(Vec::is_empty)));
}

#[test]
fn segments_split_and_slice_their_bytes() {
    let mut buffer = Buffer::from_slice(b"0123456789");
    let mut tail = buffer.whole();
    let front = tail.split_to(4);
    let (mut a, mut b) = ([0; 4], [0; 3]);
    front.copy_to(&mut a);
    tail.slice(1..4).copy_to(&mut b);
    assert_eq!((&a, &b), (b"0123", b"567"));
    assert!(front.is_followed_by(&tail) && !tail.is_followed_by(&front));
    tail.copy_from(b"xyz");
    drop((front, tail));
    assert_eq!(buffer.as_mut_slice(), b"0123xyz789");
}

#[test]
#[should_panic(expected = "in flight")]
fn bytes_of_a_buffer_in_flight_cannot_be_seen() {
    let mut buffer = Buffer::zeroed(512);
    let _in_flight = buffer.whole();
    buffer.as_slice();
}

/// Miri reports a race where an access is not atomic.
#[test]
fn threads_may_fill_and_copy_out_the_same_bytes() {
    let mut buffer = Buffer::zeroed(80);
    let segment = buffer.whole();
    std::thread::scope(|threads| {
        for (byte, range) in [(1, 0..41), (2, 7..80)] {
            let part = segment.slice(range);
            threads.spawn(move || part.copy_from(&vec![byte; part.len()]));
        }
        let middle = segment.slice(30..50);
        threads.spawn(move || middle.fill_zero());
        let mut seen = [9; 80];
        segment.copy_to(&mut seen);
        assert!(seen.iter().all(|byte| *byte <= 2), "{seen:?}");
    });
    drop(segment);
    assert_eq!((buffer.as_slice()[0], buffer.as_slice()[79]), (1, 2));
}

/// The count of the segments alone orders the accesses of the two threads.
#[test]
fn bytes_of_another_thread_are_seen_when_its_segment_is_gone() {
    let mut buffer = Buffer::zeroed(64);
    let segment = buffer.whole();
    std::thread::scope(|threads| {
        threads.spawn(move || segment.copy_from(&[7; 64]));
        while Arc::strong_count(&buffer.inner) > 1 {
            std::thread::yield_now();
        }
        assert_eq!(buffer.as_slice(), [7; 64]);
        buffer.as_mut_slice().fill(8);
    });
}

#[test]
fn a_buffer_goes_on_without_the_memory_that_was_left_behind() {
    for look_first in [false, true] {
        let mut buffer = Buffer::from_slice(b"0123456789");
        buffer.truncate(8);
        let driver = buffer.segment(2..6);
        driver.leave();
        if look_first {
            assert_eq!(buffer.as_slice(), b"01234567");
        }
        buffer.as_mut_slice()[3] = b'x';
        let mut theirs = [0; 4];
        driver.copy_to(&mut theirs);
        assert_eq!((buffer.as_slice(), &theirs), (&b"012x4567"[..], b"2345"));
        // The new memory is guarded as any is.
        let segment = buffer.whole();
        let used = std::panic::AssertUnwindSafe(|| buffer.as_slice().len());
        assert!(std::panic::catch_unwind(used).is_err());
        drop(segment);
    }
}

#[test]
fn a_new_segment_shares_no_memory_with_one_left_behind() {
    let mut buffer = Buffer::from_slice(b"0123");
    let driver = buffer.whole();
    driver.leave();
    let at = driver.as_ptr();
    let next = buffer.whole();
    assert_ne!(next.as_ptr(), at);
    next.copy_from(b"abcd");
    let mut theirs = [0; 4];
    driver.copy_to(&mut theirs);
    drop(next);
    assert_eq!((buffer.as_slice(), &theirs), (&b"abcd"[..], b"0123"));
    // Once the driver has given it up, the memory is used on, and what was seen meanwhile is forgotten.
    let driver = buffer.whole();
    driver.leave();
    assert_eq!(buffer.as_slice(), b"abcd");
    drop(driver);
    buffer.as_mut_slice().fill(7);
    let driver = buffer.whole();
    driver.leave();
    assert_eq!(buffer.as_slice(), [7; 4]);
}

#[test]
fn the_free_lists_are_bounded() {
    let many: Vec<_> = (0..20).map(|_| Buffer::alloc(1 << 20)).collect();
    drop(many);
    let kept = FREE.with(|free| free.borrow()[8].len());
    assert!(kept <= 8, "{kept} blocks of 1 MiB kept");
}
