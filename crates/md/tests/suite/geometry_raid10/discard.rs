//! Long RAID 10 discards: every layout on 2 to 7 members, every start, every length. The sectors that
//! the plan touches on the members are compared with the oracle's.

use crate::geometry_raid10::oracle::{Case, Oracle};
use ashlar_block::units::{Sector, Sectors};
use ashlar_md::internals::raid0::{MemberRange, Span};
use ashlar_md::internals::raid10::discard::{plan, stripe};
use ashlar_md::internals::raid10::{DiscardPlan, Geometry, StripedDiscard};

fn span(start: u64, len: u64) -> Span {
    Span { start: Sector(start), len: Sectors(len) }
}

/// Marks the sectors that a discard touches; fails at the first sector that it must not touch.
struct DiscardMarks<'o> {
    oracle: &'o Oracle,
    /// The number of the last discard that touched each sector of each member.
    marks: Vec<Vec<u32>>,
    discard: u32,
}

impl<'o> DiscardMarks<'o> {
    fn new(oracle: &'o Oracle) -> Self {
        let marks = oracle.owner.iter().map(|o| vec![0; o.len()]).collect();
        Self { oracle, marks, discard: 0 }
    }

    /// Checks that `discard` of `wanted` touches every copy once, and nothing else.
    fn check(&mut self, geometry: &Geometry, wanted: Span) {
        self.discard += 1;
        let mut count = 0;
        match plan(geometry, wanted) {
            DiscardPlan::Ordinary => count += self.ordinary(geometry, wanted, wanted),
            DiscardPlan::Striped(striped) => {
                count += self.ordinary(geometry, striped.head(), wanted);
                for range in striped.ranges() {
                    count += self.touch(range, wanted);
                }
                count += self.ordinary(geometry, striped.tail(), wanted);
            }
        }
        assert_eq!(count, wanted.len.0 * copies(geometry), "{wanted:?}: copies missed");
    }

    /// The ordinary path: chunk by chunk, copy by copy.
    fn ordinary(&mut self, geometry: &Geometry, part: Span, wanted: Span) -> u64 {
        let mut count = 0;
        let mut at = part.start;
        while at < part.end() {
            let len = geometry.chunk_left(at).min(part.end() - at);
            for copy in geometry.map(at) {
                let span = Span { start: copy.sector, len };
                count += self.touch(MemberRange { disk: copy.disk, span }, wanted);
            }
            at += len;
        }
        count
    }

    fn touch(&mut self, range: MemberRange, wanted: Span) -> u64 {
        for sector in range.span.start.0..range.span.end().0 {
            let owner = self.oracle.owner[range.disk][sector as usize];
            assert!(
                owner.is_some_and(|o| wanted.start.0 <= o && o < wanted.end().0),
                "{wanted:?}: {range:?} also discards array sector {owner:?}"
            );
            let mark = &mut self.marks[range.disk][sector as usize];
            assert_ne!(*mark, self.discard, "{wanted:?}: {range:?} touches twice");
            *mark = self.discard;
        }
        range.span.len.0
    }
}

fn every_discard(case: Case, chunk: u64, rows: u64, rest: u64) {
    let dev = rows * case.far as u64 * chunk + rest;
    let geometry = case.geometry(chunk, dev).expect("a legal layout");
    let oracle = case.oracle(chunk, dev);
    let mut touched = DiscardMarks::new(&oracle);
    let size = geometry.size().0;
    for start in 0..size {
        for len in 1..=size - start {
            touched.check(&geometry, span(start, len));
        }
    }
}

#[test]
fn every_discard_touches_all_copies_of_its_range_and_nothing_else() {
    for case in Case::legal(7) {
        every_discard(case, 2, 5, 1);
    }
}

#[test]
fn every_discard_is_exact_with_larger_chunks_too() {
    for case in Case::legal(4) {
        every_discard(case, 8, 4, 0);
    }
}

#[test]
fn discards_that_wrap_over_many_rows_are_exact_when_members_are_no_multiple_of_near_copies() {
    for disks in 2..=9 {
        for near in 1..=disks {
            for far in (1..=disks / near).filter(|far| near * far > 1) {
                let case = Case { disks, near, far, offset: false, mode: 0 };
                every_discard(case, 1, 9, 0);
            }
        }
    }
}

fn striped(geometry: &Geometry, wanted: Span) -> StripedDiscard<'_> {
    match plan(geometry, wanted) {
        DiscardPlan::Striped(striped) => striped,
        DiscardPlan::Ordinary => panic!("{wanted:?} is planned as ordinary"),
    }
}

#[test]
fn head_body_and_tail_are_the_discard_and_the_ends_are_shorter_than_a_stripe() {
    for case in Case::legal(5) {
        let geometry = case.geometry(2, 10 * case.far as u64).expect("a legal layout");
        let stripe = stripe(&geometry).0;
        let size = geometry.size().0;
        for start in 0..size {
            for len in 1..=size - start {
                let wanted = span(start, len);
                let DiscardPlan::Striped(s) = plan(&geometry, wanted) else {
                    assert!(len < 2 * stripe, "{case:?} {wanted:?}");
                    continue;
                };
                assert!(len >= 2 * stripe, "{case:?} {wanted:?}");
                assert_eq!(s.head().start, wanted.start);
                assert_eq!(s.head().end(), s.body().start);
                assert_eq!(s.body().end(), s.tail().start);
                assert_eq!(s.tail().end(), wanted.end());
                assert!(s.head().len.0 < stripe && s.tail().len.0 < stripe);
                assert!(s.body().len.0 >= stripe && s.body().len.0.is_multiple_of(stripe));
            }
        }
    }
}

#[test]
fn a_discard_that_leaves_the_array_is_not_planned() {
    let n2 = Geometry::new(0x102, 4, Sectors(8), Sectors(800)).expect("n2");
    assert!(matches!(plan(&n2, span(0, 1600)), DiscardPlan::Striped(_)));
    assert!(matches!(plan(&n2, span(0, 1601)), DiscardPlan::Ordinary));
    assert!(matches!(plan(&n2, span(8, u64::MAX)), DiscardPlan::Ordinary));
    assert!(matches!(plan(&n2, span(u64::MAX, 1600)), DiscardPlan::Ordinary));
}

/// The ranges in sectors of the members' devices, member `i` with data offset `offsets[i]`.
fn on_members(striped: &StripedDiscard<'_>, offsets: &[u64]) -> Vec<(usize, u64, u64)> {
    striped.ranges().map(|r| (r.disk, r.span.start.0 + offsets[r.disk], r.span.len.0)).collect()
}

/// 512 KiB.
const CHUNK: u64 = 1024;

#[test]
fn discard_start_offset_is_right_on_the_second_and_later_members() {
    // Launchpad 1907262: the array of its reproducer, two members with near copies. The discard
    // begins in the middle of chunk 2; whole stripes (here: chunks) begin with chunk 3.
    let n2 = Geometry::new(0x102, 2, Sectors(CHUNK), Sectors(100 * CHUNK)).expect("n2");
    let plan = striped(&n2, span(2 * CHUNK + 300, 10 * CHUNK));
    assert_eq!(plan.head(), span(2 * CHUNK + 300, CHUNK - 300));
    assert_eq!(plan.tail(), span(12 * CHUNK, 300));
    assert_eq!(
        on_members(&plan, &[2048, 264_192]),
        [(0, 2048 + 3 * CHUNK, 9 * CHUNK), (1, 264_192 + 3 * CHUNK, 9 * CHUNK)]
    );

    // Three members: edges within a row. Chunks 2 to 7 are places 4 to 15.
    let n2 = Geometry::new(0x102, 3, Sectors(CHUNK), Sectors(100 * CHUNK)).expect("n2 of 3");
    let plan = striped(&n2, span(2 * CHUNK, 6 * CHUNK));
    assert_eq!(
        on_members(&plan, &[2048, 4096, 8192]),
        [
            (0, 2048 + 2 * CHUNK, 4 * CHUNK),
            (1, 4096 + CHUNK, 4 * CHUNK),
            (2, 8192 + CHUNK, 4 * CHUNK)
        ]
    );

    // Four members, striped mirrors: the second pair begins in the same row as the first.
    let n2 = Geometry::new(0x102, 4, Sectors(CHUNK), Sectors(100 * CHUNK)).expect("n2 of 4");
    let plan = striped(&n2, span(6 * CHUNK, 20 * CHUNK));
    let expected: Vec<_> = (0..4).map(|d| (d, 2048 + 3 * CHUNK, 10 * CHUNK)).collect();
    assert_eq!(on_members(&plan, &[2048; 4]), expected);
}

#[test]
fn discard_stripe_size_is_right_for_far_layouts() {
    // Launchpad 1907262: far copies do not shorten a stripe. Four members hold four chunks in a row
    // of the far and offset layouts, two in a row of the near layout.
    let stripes = [(0x102, 2), (0x201, 4), (0x1_0201, 4), (0x301, 4), (0x401, 4), (0x202, 2)];
    for (bits, chunks) in stripes {
        let geometry = Geometry::new(bits, 4, Sectors(CHUNK), Sectors(120 * CHUNK)).expect("4");
        assert_eq!(stripe(&geometry), Sectors(chunks * CHUNK), "{bits:#x}");
        let shortest = 2 * chunks * CHUNK;
        let plan = |len| plan(&geometry, span(0, len));
        assert!(matches!(plan(shortest - 1), DiscardPlan::Ordinary), "{bits:#x}");
        assert!(matches!(plan(shortest), DiscardPlan::Striped(_)), "{bits:#x}");
    }

    // f2 on four members of 100 chunks: chunks 3 to 13, of which 4 to 11 are whole rows 1 and 2,
    // once in the first half of the members and once in the second.
    let f2 = Geometry::new(0x201, 4, Sectors(CHUNK), Sectors(100 * CHUNK)).expect("f2");
    let plan = striped(&f2, span(3 * CHUNK, 11 * CHUNK));
    assert_eq!(plan.head(), span(3 * CHUNK, CHUNK));
    assert_eq!(plan.tail(), span(12 * CHUNK, 2 * CHUNK));
    assert_eq!(plan.passes(), 2);
    let half = |row| (0..4).map(move |d| (d, 2048 + row * CHUNK, 2 * CHUNK));
    let expected: Vec<_> = half(1).chain(half(51)).collect();
    assert_eq!(on_members(&plan, &[2048; 4]), expected);

    // o2: the same rows, each followed by its repetition, in one pass.
    let o2 = Geometry::new(0x1_0201, 4, Sectors(CHUNK), Sectors(100 * CHUNK)).expect("o2");
    let plan = striped(&o2, span(3 * CHUNK, 11 * CHUNK));
    assert_eq!(plan.passes(), 1);
    let expected: Vec<_> = (0..4).map(|d| (d, 2048 + 2 * CHUNK, 4 * CHUNK)).collect();
    assert_eq!(on_members(&plan, &[2048; 4]), expected);
}

#[test]
fn mkfs_on_the_whole_array_takes_one_range_per_member_and_pass() {
    // 4 x 1.9 TB, the array of Launchpad 1896578: 7,421,880 chunk bios on the ordinary path.
    let dev = 3_711_000_000;
    for (bits, ranges) in [(0x102, 4), (0x201, 8), (0x1_0201, 4), (0x301, 12)] {
        let geometry = Geometry::new(bits, 4, Sectors(CHUNK), Sectors(dev)).expect("array");
        let plan = striped(&geometry, span(0, geometry.size().0));
        assert_eq!(plan.ranges().count(), ranges, "{bits:#x}");
        let total: u64 = plan.ranges().map(|r| r.span.len.0).sum();
        assert_eq!(total, plan.body().len.0 * copies(&geometry));
        assert!(plan.ranges().all(|r| r.span.end().0 <= geometry.used_dev_sectors().0));
    }
}

#[test]
fn ranges_of_discards_far_out_on_large_members_begin_and_end_at_the_right_chunks() {
    let mut seed = 1u64;
    let mut random = move |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 20) % below
    };
    for case in Case::legal(7) {
        let geometry = case.geometry(CHUNK, (1 << 42) + 12345).expect("a legal layout");
        for _ in 0..50 {
            let start = random(geometry.size().0);
            let wanted = span(start, random(geometry.size().0 - start));
            let DiscardPlan::Striped(plan) = plan(&geometry, wanted) else {
                continue;
            };
            let body = plan.body();
            let inside = |disk, at: u64| {
                let owner = geometry.unmap(disk, Sector(at));
                owner.is_some_and(|o| body.start <= o && o < body.end())
            };
            let mut total = 0;
            for MemberRange { disk, span } in plan.ranges() {
                let (first, end) = (span.start.0, span.end().0);
                assert!(inside(disk, first) && inside(disk, end - 1), "{case:?} {wanted:?}");
                assert!(!inside(disk, end) || is_next_area(&geometry, end), "{case:?} {wanted:?}");
                total += span.len.0;
            }
            assert_eq!(total, body.len.0 * copies(&geometry), "{case:?} {wanted:?}");
        }
    }
}

/// Copies of each chunk.
fn copies(geometry: &Geometry) -> u64 {
    u64::from(geometry.layout().near) * u64::from(geometry.layout().far)
}

/// Whether `sector` begins a repetition of the far layout, which follows the one before without a gap.
fn is_next_area(geometry: &Geometry, sector: u64) -> bool {
    !geometry.layout().offset && sector.is_multiple_of(geometry.stride().0)
}
