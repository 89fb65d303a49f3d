//! The RAID 0 and RAID 10 maps and planners against a real kernel.
//!
//! `table.txt` is what `record.py` recorded on Linux 6.1: for every RAID 10 layout on 2 to 6 members
//! and some RAID 0 arrays, where each chunk lies, and which sectors some discards zero. Sizes and
//! positions are in sectors of 512 bytes, layouts as in the superblock:
//!
//! ```text
//! raid10 0x201 8 88,88 = 80: 0,2,4,...,- 1,3,5,...,-     level, layout, chunk, members' sizes,
//!                                                        the array's size, for each member the
//!                                                        array chunk in each of its chunks
//!   discard 8+64: 8+64 0+32,48+32                        start and length on the array, and the
//!                                                        same of what it zeroed on each member
//! raid10 0x101 8 48,48 refused: Invalid argument
//! ```

use std::collections::BTreeSet;

use ashlar_block::units::{Sector, Sectors};
use ashlar_md::internals::raid0::{self, MemberRange, Span, Zones};
use ashlar_md::internals::raid10::{self, DiscardPlan, Geometry, GeometryError};

const TABLE: &str = include_str!("table.txt");

/// Members and sectors on them.
type Places = BTreeSet<(usize, u64)>;

/// An array as the kernel runs it.
struct RecordedArray {
    head: String,
    level: String,
    layout: u32,
    chunk: u64,
    members: Vec<Sectors>,
    /// The size, and for each member the array chunk in each of its chunks. `None`: refused.
    runs: Option<(u64, Vec<Vec<Option<u64>>>)>,
    discards: Vec<(Span, Places)>,
}

fn number(text: &str) -> u64 {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).expect("a number"),
        None => text.parse().expect("a number"),
    }
}

fn span(text: &str) -> Span {
    let (start, len) = text.split_once('+').expect("start+length");
    Span { start: Sector(number(start)), len: Sectors(number(len)) }
}

fn sectors(disk: usize, span: Span) -> impl Iterator<Item = (usize, u64)> {
    (span.start.0..span.end().0).map(move |sector| (disk, sector))
}

fn discard(line: &str) -> (Span, Places) {
    let (wanted, zeroed) = line.split_once(": ").expect("what was zeroed");
    let runs = zeroed.split(' ').enumerate().flat_map(|(disk, runs)| {
        runs.split(',').filter(|r| *r != "-").map(move |r| (disk, span(r)))
    });
    let places = runs.flat_map(|(disk, run)| sectors(disk, run)).collect();
    (span(wanted), places)
}

fn array(line: &str) -> RecordedArray {
    let (head, rest) = line.split_once(" = ").or(line.split_once(" refused")).expect("an answer");
    let fields: Vec<&str> = head.split(' ').collect();
    let [level, layout, chunk, members] = fields[..] else { panic!("{head}") };
    let runs = rest.split_once(": ").filter(|_| line.contains(" = ")).map(|(size, places)| {
        let chunk_in = |c: &str| (c != "-").then(|| number(c));
        let member = |m: &str| m.split(',').map(chunk_in).collect();
        (number(size), places.split(' ').map(member).collect())
    });
    RecordedArray {
        head: head.into(),
        level: level.into(),
        layout: number(layout) as u32,
        chunk: number(chunk),
        members: members.split(',').map(|m| Sectors(number(m))).collect(),
        runs,
        discards: Vec::new(),
    }
}

fn recorded(level: &str) -> Vec<RecordedArray> {
    let mut arrays: Vec<RecordedArray> = Vec::new();
    for line in TABLE.lines().filter(|l| !l.starts_with('#')) {
        match line.strip_prefix("  discard ") {
            Some(line) => arrays.last_mut().expect("an array").discards.push(discard(line)),
            None => arrays.push(array(line)),
        }
    }
    arrays.retain(|a| a.level == level);
    arrays
}

impl RecordedArray {
    fn raid10(&self) -> Result<Geometry, GeometryError> {
        let disks = self.members.len();
        Geometry::new(self.layout, disks, Sectors(self.chunk), self.members[0])
    }

    /// Compares the places with `unmap`.
    fn assert_places(&self, unmap: impl Fn(usize, Sector) -> Option<Sector>) {
        let (size, members) = self.runs.as_ref().expect("runs");
        for (disk, chunks) in members.iter().enumerate() {
            for (at, chunk) in (0..).zip(chunks) {
                for i in 0..self.chunk {
                    let expected = chunk.map(|c| c * self.chunk + i).filter(|s| s < size);
                    let found = unmap(disk, Sector(at * self.chunk + i)).map(|s| s.0);
                    assert_eq!(found, expected, "{} member {disk} chunk {at}+{i}", self.head);
                }
            }
        }
    }
}

/// The places that the plan and the ordinary path touch.
fn touched(geometry: &Geometry, wanted: Span) -> Places {
    let ordinary = |part: Span| {
        (part.start.0..part.end().0)
            .flat_map(|s| geometry.map(Sector(s)))
            .map(|copy| (copy.disk, copy.sector.0))
            .collect::<Places>()
    };
    match raid10::discard::plan(geometry, wanted) {
        DiscardPlan::Ordinary => ordinary(wanted),
        DiscardPlan::Striped(plan) => {
            let ranges = plan.ranges();
            let body = ranges.flat_map(|MemberRange { disk, span }| sectors(disk, span));
            let ends = [ordinary(plan.head()), ordinary(plan.tail())];
            body.chain(ends.into_iter().flatten()).collect()
        }
    }
}

#[test]
fn raid10_sizes_and_places_are_the_kernels() {
    let (mut same, mut unsafe_layouts) = (0, 0);
    for recorded in recorded("raid10") {
        let geometry = recorded.raid10();
        let Some((size, members)) = &recorded.runs else {
            assert!(geometry.is_err(), "{} is refused by the kernel", recorded.head);
            continue;
        };
        match geometry {
            Ok(geometry) => {
                assert_eq!(geometry.size().0, *size, "{}", recorded.head);
                recorded.assert_places(|disk, at| geometry.unmap(disk, at));
                same += 1;
            }
            Err(GeometryError::OffsetRunsOver { .. } | GeometryError::FarSetsCollide { .. }) => {
                // The kernel accepts these layouts, ashlar does not: copies of some chunks were overwritten.
                let [near, far, ..] = recorded.layout.to_le_bytes().map(u64::from);
                let places = members.iter().flatten().flatten().count() as u64;
                assert!(places < size / recorded.chunk * near * far, "{}", recorded.head);
                unsafe_layouts += 1;
            }
            Err(e) => panic!("{}: {e}", recorded.head),
        }
    }
    assert!(same > 100 && unsafe_layouts > 0, "{same} {unsafe_layouts}");
}

/// Whether the kernel's discards are wrong (found by this test): with near copies that continue in
/// the next row the edges lie within a row, and its far passes then trim the members of the base
/// area instead of those that hold its repetition. No tool creates such arrays.
fn kernel_discards_wrongly(geometry: &Geometry) -> bool {
    let layout = geometry.layout();
    let runs_over = !geometry.disks().is_multiple_of(usize::from(layout.near));
    layout.far > 1 && runs_over
}

#[test]
fn raid10_discards_zero_what_the_kernels_do_but_for_its_fault_with_mixed_layouts() {
    let (mut same, mut destroyed) = (0, 0);
    for recorded in recorded("raid10") {
        let Ok(geometry) = recorded.raid10() else {
            continue;
        };
        for (wanted, zeroed) in &recorded.discards {
            let touched = touched(&geometry, *wanted);
            if touched == *zeroed {
                same += 1;
                continue;
            }
            assert!(kernel_discards_wrongly(&geometry), "{} {wanted:?}", recorded.head);
            let owner = |&(disk, at): &(usize, u64)| geometry.unmap(disk, Sector(at));
            let ours = |s: Sector| wanted.start <= s && s < wanted.end();
            assert!(touched.iter().all(|place| owner(place).is_some_and(ours)));
            destroyed += zeroed.iter().filter_map(owner).filter(|&s| !ours(s)).count();
        }
    }
    assert!(same > 400 && destroyed > 0, "{same} {destroyed}");
}

#[test]
fn raid0_sizes_places_and_discards_are_the_kernels() {
    let mut compared = 0;
    for recorded in recorded("raid0") {
        let zones = Zones::new(&recorded.members, Sectors(recorded.chunk), recorded.layout);
        let Some((size, _)) = &recorded.runs else {
            assert!(zones.is_err(), "{} is refused by the kernel", recorded.head);
            continue;
        };
        let zones = zones.expect(&recorded.head);
        assert_eq!(zones.size().0, *size, "{}", recorded.head);
        recorded.assert_places(|disk, at| zones.unmap(disk, at));
        for (wanted, zeroed) in &recorded.discards {
            let ranges = raid0::discard::plan(&zones, *wanted);
            let touched: Places = ranges.flat_map(|r| sectors(r.disk, r.span)).collect();
            assert_eq!(&touched, zeroed, "{} {wanted:?}", recorded.head);
            compared += 1;
        }
    }
    assert!(compared > 100, "{compared}");
}
