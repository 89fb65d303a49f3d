//! The oracle's rules, one by one.

use std::cell::Cell;

use super::*;
use ashlar_block::Status;

const PLAIN: Flags = Flags::empty();
use Value::{Anything, Stamp, Zeroes};

fn write(oracle: &Oracle, flags: Flags) -> u64 {
    let (ticket, _) = oracle.begin_write(0..1, flags);
    let id = ticket.id;
    oracle.end(ticket, Ok(()));
    id
}

fn flush(oracle: &Oracle) {
    let ticket = oracle.begin_flush();
    oracle.end(ticket, Ok(()));
}

#[test]
fn an_acknowledged_write_is_the_only_thing_to_read() {
    let oracle = Oracle::new(1, Zeroes);
    assert_eq!(oracle.allowed(0), [Zeroes]);
    let a = write(&oracle, PLAIN);
    assert_eq!(oracle.allowed(0), [Stamp(a)]);
    let (b, _) = oracle.begin_write(0..1, PLAIN);
    let (c, _) = oracle.begin_write(0..1, PLAIN);
    let in_flight = [Stamp(a), Stamp(b.id), Stamp(c.id)];
    assert_eq!(oracle.allowed(0), in_flight);
    let overwritten = [Stamp(b.id), Stamp(c.id)];
    oracle.end(c, Ok(()));
    oracle.end(b, Ok(()));
    assert_eq!(oracle.allowed(0), overwritten);
}

#[test]
fn a_read_that_began_earlier_may_return_the_old_value() {
    let oracle = Oracle::new(1, Zeroes);
    let a = write(&oracle, PLAIN);
    let early = oracle.begin_read(0..1);
    write(&oracle, PLAIN);
    flush(&oracle);
    write(&oracle, PLAIN);
    let late = oracle.begin_read(0..1);
    assert_eq!(oracle.check_read(early, &stamp(1, 0, a)), Ok(()));
    assert!(oracle.check_read(late, &stamp(1, 0, a)).is_err());
}

#[test]
fn only_what_was_flushed_must_survive() {
    let oracle = Oracle::new(1, Zeroes);
    let a = write(&oracle, PLAIN);
    flush(&oracle);
    let b = write(&oracle, PLAIN);
    let c = write(&oracle, PLAIN);
    oracle.power_cut();
    assert_eq!(oracle.allowed(0), [Stamp(a), Stamp(b), Stamp(c)]);
    oracle.check_contents(0..1, &stamp(1, 0, b)).unwrap();
    assert_eq!(oracle.allowed(0), [Stamp(b)]);
    oracle.power_cut();
    assert_eq!(oracle.allowed(0), [Stamp(b)]);
}

#[test]
fn a_flush_does_not_cover_what_was_in_flight_when_it_began() {
    let oracle = Oracle::new(1, Zeroes);
    let (a, _) = oracle.begin_write(0..1, PLAIN);
    let a_id = a.id;
    let early = oracle.begin_flush();
    oracle.end(a, Ok(()));
    oracle.end(early, Ok(()));
    oracle.power_cut();
    assert_eq!(oracle.allowed(0), [Zeroes, Stamp(a_id)]);
}

#[test]
fn fua_is_durable_and_preflush_makes_the_others_so() {
    let oracle = Oracle::new(1, Zeroes);
    write(&oracle, PLAIN);
    let a = write(&oracle, Flags::FUA);
    oracle.power_cut();
    assert_eq!(oracle.allowed(0), [Stamp(a)]);
    let b = write(&oracle, PLAIN);
    let (other, _) = oracle.begin_write(9..10, Flags::PREFLUSH);
    oracle.end(other, Ok(()));
    oracle.power_cut();
    assert_eq!(oracle.allowed(0), [Stamp(b)]);
}

#[test]
fn a_failed_write_may_have_happened_and_supersedes_nothing() {
    let oracle = Oracle::new(1, Zeroes);
    let a = write(&oracle, Flags::FUA);
    let (b, _) = oracle.begin_write(0..1, Flags::FUA);
    let b_id = b.id;
    oracle.end(b, Err(Status::Io));
    assert_eq!(oracle.allowed(0), [Stamp(a), Stamp(b_id)]);
    flush(&oracle);
    oracle.power_cut();
    assert_eq!(oracle.allowed(0), [Stamp(a), Stamp(b_id)]);
}

#[test]
fn discarded_sectors_hold_anything_until_written() {
    let oracle = Oracle::new(1, Zeroes);
    write(&oracle, Flags::FUA);
    let ticket = oracle.begin_discard(0..1, PLAIN);
    oracle.end(ticket, Ok(()));
    assert_eq!(oracle.allowed(0), [Anything]);
    assert_eq!(oracle.check_contents(0..1, &[77; 512]), Ok(()));
    let zeroes = oracle.begin_write_zeroes(0..1, PLAIN);
    oracle.end(zeroes, Ok(()));
    assert!(oracle.check_contents(0..1, &[77; 512]).is_err());
    assert_eq!(oracle.check_contents(0..1, &[0; 512]), Ok(()));
}

#[test]
fn killing_the_process_loses_nothing_acknowledged() {
    let oracle = Oracle::new(1, Zeroes);
    let a = write(&oracle, PLAIN);
    let (b, _) = oracle.begin_write(0..1, PLAIN);
    oracle.kill();
    assert_eq!(oracle.allowed(0), [Stamp(a), Stamp(b.id)]);
}

#[test]
fn a_newer_write_of_the_same_value_decides_nothing_about_the_older_ones() {
    let oracle = Oracle::new(1, Zeroes);
    let discard = oracle.begin_discard(0..1, PLAIN);
    oracle.end(discard, Ok(()));
    let zeroes = oracle.begin_write_zeroes(0..1, PLAIN);
    oracle.end(zeroes, Ok(()));
    oracle.power_cut();
    let newer = oracle.begin_write_zeroes(0..1, PLAIN);
    oracle.end(newer, Ok(()));
    oracle.check_contents(0..1, &[0; 512]).unwrap();
    // The newer zeroes are lost: the sector holds what the discard left.
    oracle.power_cut();
    assert_eq!(oracle.check_contents(0..1, &stamp(1, 0, 7)), Ok(()));
}

#[test]
fn what_a_kill_left_in_the_cache_may_be_lost_by_a_later_power_cut() {
    let oracle = Oracle::new(1, Zeroes);
    let a = write(&oracle, Flags::FUA);
    let b = write(&oracle, PLAIN);
    let (c, _) = oracle.begin_write(0..1, PLAIN);
    let c_id = c.id;
    oracle.kill();
    assert_eq!(oracle.allowed(0), [Stamp(b), Stamp(c_id)]);
    oracle.check_contents(0..1, &stamp(1, 0, c_id)).unwrap();
    assert_eq!(oracle.allowed(0), [Stamp(c_id)]);
    oracle.power_cut();
    assert_eq!(oracle.allowed(0), [Stamp(a), Stamp(b), Stamp(c_id)]);
}

#[test]
fn misplaced_sectors_and_foreign_bytes_are_told_apart() {
    let oracle = Oracle::new(1, Zeroes);
    let a = write(&oracle, PLAIN);
    let misplaced = oracle.check_contents(0..1, &stamp(1, 5, a)).unwrap_err();
    assert_eq!(misplaced.found, format!("generation {a} of sector 5"));
    let mut torn = stamp(1, 0, a);
    torn[511] ^= 1;
    assert_eq!(oracle.check_contents(0..1, &torn).unwrap_err().found, "bytes that nobody wrote");
}

#[test]
fn what_is_seen_after_a_kill_decides_nothing_about_an_earlier_cut() {
    let oracle = Oracle::new(1, Zeroes);
    let a = write(&oracle, PLAIN);
    oracle.power_cut();
    let b = write(&oracle, PLAIN);
    oracle.kill();
    oracle.check_contents(0..1, &stamp(1, 0, b)).unwrap();
    oracle.power_cut();
    assert_eq!(oracle.allowed(0), [Zeroes, Stamp(a), Stamp(b)]);
}

/// An oracle of a device that reports losses, and the number of those.
fn that_loses() -> (Oracle, Rc<Cell<u64>>) {
    let (oracle, losses) = (Oracle::new(1, Zeroes), Rc::new(Cell::new(0)));
    let reported = Rc::clone(&losses);
    oracle.expect_losses(Some(Box::new(move || reported.get())));
    (oracle, losses)
}

#[test]
fn a_reported_loss_may_bring_back_what_was_durable_until_it_is_written_again() {
    let (oracle, losses) = that_loses();
    write(&oracle, PLAIN);
    let a = write(&oracle, PLAIN);
    flush(&oracle);
    let b = write(&oracle, PLAIN);
    let c = write(&oracle, PLAIN);
    assert_eq!(oracle.allowed(0), [Stamp(c)]);
    losses.set(1);
    assert_eq!(oracle.allowed(0), [Stamp(a), Stamp(b), Stamp(c)]);
    // One read decides nothing: a copy may change late.
    for seen in [a, c, b] {
        oracle.check_contents(0..1, &stamp(1, 0, seen)).unwrap();
    }
    // A flush makes durable whatever is there.
    flush(&oracle);
    oracle.power_cut();
    assert_eq!(oracle.allowed(0), [Stamp(a), Stamp(b), Stamp(c)]);
    let d = write(&oracle, PLAIN);
    assert_eq!(oracle.allowed(0), [Stamp(d)]);
}

#[test]
fn what_is_durable_is_not_lost_whatever_is_reported() {
    let (oracle, losses) = that_loses();
    let a = write(&oracle, PLAIN);
    let cover = oracle.begin_flush();
    // The flush has succeeded before the loss, and is seen after it.
    losses.set(1);
    oracle.end(cover, Ok(()));
    assert_eq!(oracle.allowed(0), [Stamp(a)]);
    write(&oracle, PLAIN);
    let b = write(&oracle, Flags::FUA);
    losses.set(2);
    assert_eq!(oracle.allowed(0), [Stamp(b)]);
}

#[test]
fn a_write_that_a_loss_overtakes_may_be_lost_and_a_later_one_may_not() {
    let (oracle, losses) = that_loses();
    let (early, _) = oracle.begin_write(0..1, PLAIN);
    let early_id = early.id;
    losses.set(1);
    oracle.end(early, Ok(()));
    assert_eq!(oracle.allowed(0), [Zeroes, Stamp(early_id)]);
    let late = write(&oracle, PLAIN);
    assert_eq!(oracle.allowed(0), [Stamp(late)]);
}

#[test]
fn without_a_report_nothing_is_lost() {
    let (oracle, losses) = that_loses();
    let a = write(&oracle, PLAIN);
    oracle.expect_losses(None);
    losses.set(1);
    assert_eq!(oracle.allowed(0), [Stamp(a)]);
}

#[test]
fn a_copy_has_what_was_acknowledged_before_and_perhaps_what_was_in_flight() {
    let oracle = Oracle::new(1, Zeroes);
    let a = write(&oracle, PLAIN);
    let (b, _) = oracle.begin_write(0..1, PLAIN);
    let copying = oracle.begin_read(0..1);
    let c = write(&oracle, PLAIN);
    oracle.end(b, Ok(()));
    let copy = oracle.copy_since(copying);
    let b = c - 1;
    assert_eq!(copy.allowed(0), [Stamp(a), Stamp(b), Stamp(c)]);
    // It stays as it is, whatever is written to the other; and it was durable at once.
    let d = write(&oracle, PLAIN);
    assert_eq!(copy.allowed(0), [Stamp(a), Stamp(b), Stamp(c)]);
    assert_eq!(copy.check_contents(0..1, &stamp(1, 0, b)), Ok(()));
    copy.power_cut();
    assert_eq!(copy.allowed(0), [Stamp(b)]);
    assert!(copy.check_contents(0..1, &stamp(1, 0, a)).is_err());
    // Generations tell the writes to the two apart.
    assert_eq!(write(&copy, PLAIN), d + 1);
    assert_eq!(oracle.allowed(0), [Stamp(d)]);
}
