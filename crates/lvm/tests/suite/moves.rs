//! Moves of extents: those that LVM has begun (tests/images/lvm-tables), and those of random groups.

use ashlar_lvm::activate::{DeviceSource, Options, plan};
use ashlar_lvm::alloc::{Policy, PvPart, Wish};
use ashlar_lvm::change::{ChangeError, NewVolume};
use ashlar_lvm::metadata::{Area, AreaVolume, LvFlag, SegmentKind, StripeAreas};
use ashlar_lvm::moving::NewMove;
use ashlar_lvm::text::Form;
use ashlar_lvm::{LogicalVolume, Metadata, Segment, VolumeGroup};
use ashlar_sim::{Rng, seeds};

use super::common::{lvm_tables, metadata, with_author};

fn from(pv: usize) -> NewMove {
    let from = PvPart { pv, ranges: Vec::new() };
    NewMove { from, volume: None, to: Vec::new(), policy: Policy::Normal }
}

fn start(group: &mut VolumeGroup, new: &NewMove) -> Result<(String, Vec<String>), ChangeError> {
    with_author(|author| group.start_move(new, author))
}

/// Where each extent of a volume is: physical volume and extent. What is being moved is where it counts.
fn places(group: &VolumeGroup, lv: &LogicalVolume) -> Vec<(usize, u32)> {
    let mut all = Vec::new();
    for segment in &lv.segments {
        let SegmentKind::Striped(striped) = &segment.kind else {
            all.extend((0..segment.count).map(|_| (usize::MAX, 0)));
            continue;
        };
        for at in 0..segment.area_extents() {
            for area in &striped.areas {
                let at = area.start + at;
                all.push(match &area.on {
                    AreaVolume::Pv(pv) => (*pv, at),
                    AreaVolume::Lv(name) => {
                        let moving =
                            group.moves().find(|moving| moving.name() == name).expect("a move");
                        let within =
                            |segment: &Segment| (segment.start..segment.end()).contains(&at);
                        let piece =
                            moving.pieces().find(|piece| within(piece.segment())).expect("a piece");
                        let AreaVolume::Pv(pv) = piece.place().on else { panic!("a place") };
                        (pv, piece.place().start + at - piece.segment().start)
                    }
                });
            }
        }
    }
    all
}

fn all_places(group: &VolumeGroup) -> Vec<(String, Vec<(usize, u32)>)> {
    let own = group.lvs.iter().filter(|lv| !lv.flags.contains(&LvFlag::PvMove));
    own.map(|lv| (lv.name.clone(), places(group, lv))).collect()
}

fn assert_sound(of: &Metadata, group: &VolumeGroup) {
    group.check().expect("a possible group");
    let mut changed = of.clone();
    changed.group = group.clone();
    let text = changed.print(Form::Disk);
    let again = Metadata::parse(&text).expect("a text that can be read");
    assert_eq!(again.print(Form::Disk), text);
}

#[test]
fn a_move_that_lvm_has_begun_has_its_tables_and_goes_on() {
    let before = metadata("pvmove");
    let made = plan(&before.group, Options::default(), &|index| Some(format!("PV{index}")));
    assert!(made.refused.is_empty(), "{:?}", made.refused);
    let mut tables = Vec::new();
    for device in &made.devices {
        let DeviceSource::Table(lines) = &device.made_of else { panic!("a table") };
        tables.extend(lines.iter().map(|line| format!("{}: {line}", device.name)));
    }
    tables.sort();
    assert_eq!(tables, lvm_tables("pvmove"));
    // Without writing nothing is copied.
    let options = Options { read_only: true, ..Options::default() };
    let made = plan(&before.group, options, &|index| Some(format!("PV{index}")));
    let copies = |device: &&ashlar_lvm::activate::PlannedDevice| matches!(&device.made_of, DeviceSource::Table(lines) if lines.iter().any(|line| line.kind == "mirror"));
    assert_eq!(made.devices.iter().filter(copies).count(), 0);

    let mut group = before.group.clone();
    let moving = group.moves().next().expect("a move");
    assert_eq!((moving.name(), moving.source()), ("pvmove0", Some(0)));
    assert_eq!((moving.moved(), moving.extents()), (12, 24));
    let mut given_up = group.clone();
    given_up.end_move("pvmove0").expect("an abort");
    assert_sound(&before, &given_up);
    assert_eq!(all_places(&given_up), all_places(&group));
    for is_last in [false, false, true] {
        assert_eq!(group.advance_move("pvmove0"), Ok(is_last));
        assert_sound(&before, &group);
    }
    assert!(group.lvs.iter().flat_map(|lv| lv.pv_extents()).all(|on| on.pv != 0));
    for group in [&group, &given_up] {
        assert!(group.lvs.iter().all(|lv| !lv.flags.contains(&LvFlag::Locked)));
        assert!(group.moves().next().is_none());
    }
    assert!(matches!(group.advance_move("pvmove0"), Err(ChangeError::NotFound { .. })));
}

#[test]
fn volumes_may_have_smaller_pieces_than_the_move() {
    let before = metadata("pvmove");
    let mut group = before.group.clone();
    let first = group.lv_mut("first").expect("a volume");
    let [whole, ..] = &first.segments[..] else { panic!("segments") };
    let area = |start| Area { on: AreaVolume::Lv("pvmove0".into()), start };
    assert_eq!((whole.areas(), whole.count), (&[area(0)][..], 12));
    let piece = |start, count| {
        let striped = StripeAreas { stripe_size: None, areas: vec![area(start)] };
        Segment::new(start, count, SegmentKind::Striped(striped))
    };
    first.segments.splice(..1, [piece(0, 5), piece(5, 7)]);
    assert_eq!(all_places(&group), all_places(&before.group));
    group.end_move("pvmove0").expect("an abort");
    assert_sound(&before, &group);
    assert_eq!(all_places(&group), all_places(&before.group));
}

#[test]
fn a_move_is_written_as_lvm_writes_it() {
    // The group as LVM had it before, and the same command.
    let lvms = metadata("pvmove");
    let mut group = lvms.group.clone();
    // As if nothing had been moved.
    let pieces = group.lv_mut("pvmove0").expect("the move");
    for segment in &mut pieces.segments {
        let SegmentKind::Mirror(mirror) = &mut segment.kind else { panic!("a mirror") };
        mirror.extents_moved = Some(0);
    }
    let begun = group.clone();
    group.end_move("pvmove0").expect("an abort");
    start(&mut group, &from(0)).expect("a move");
    let text = |group: &VolumeGroup| {
        let mut one = lvms.clone();
        one.group = group.clone();
        let text = String::from_utf8(one.print(Form::Disk)).unwrap();
        let own = |line: &&str| !line.contains("id = ") && !line.contains("creation_");
        text.lines().filter(own).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(text(&group), text(&begun));
}

#[test]
fn every_extent_is_at_its_old_place_until_it_counts_at_the_new_one() {
    let (mut moved, mut refused, mut pieces) = (0, 0, 0);
    for seed in seeds(400) {
        let mut rng = Rng::new(seed);
        let of = metadata("pvmove");
        let mut group = of.group.clone();
        group.end_move("pvmove0").expect("an abort");
        for name in ["first", "str-ipes"] {
            if rng.chance(1, 4) {
                group.remove(name).expect("a removal");
            }
        }
        for number in 0..rng.below(8) {
            let stripes = 1 + rng.below(3) as u32;
            let extents = stripes * (1 + rng.below(9) as u32);
            let wish = Wish {
                only: Vec::new(),
                ..Wish::striped(extents, stripes, ashlar_block::Sectors(128))
            };
            let name = format!("v{number}");
            let new =
                NewVolume { name: Some(name.clone()), wish, tags: Vec::new(), writable: true };
            with_author(|author| group.create(&new, author)).ok();
            if rng.chance(1, 3) {
                group.remove(&name).ok();
            }
        }
        let before = all_places(&group);
        let pv = rng.index(3);
        let range = |rng: &mut Rng| {
            let at = rng.below(50) as u32;
            at..at + 1 + rng.below(30) as u32
        };
        let ranges = |rng: &mut Rng| (0..rng.below(3)).map(|_| range(rng)).collect::<Vec<_>>();
        let source =
            PvPart { pv, ranges: if rng.chance(1, 2) { ranges(&mut rng) } else { vec![] } };
        let other = PvPart { pv: (pv + 1) % 3, ranges: ranges(&mut rng) };
        let to = if rng.chance(1, 3) { vec![other.clone()] } else { vec![] };
        let policy = if rng.chance(1, 4) { Policy::Contiguous } else { Policy::Normal };
        let new = NewMove { from: source.clone(), volume: None, to: to.clone(), policy };
        let is_meant = |at: &(usize, u32)| {
            let ranges = &source.ranges;
            at.0 == pv && (ranges.is_empty() || ranges.iter().any(|range| range.contains(&at.1)))
        };
        let untouched = group.clone();
        let name = match start(&mut group, &new) {
            Ok((name, left_out)) => {
                assert!(left_out.is_empty(), "{left_out:?}");
                name
            }
            Err(error) => {
                assert_eq!(group, untouched);
                let nothing = !before.iter().flat_map(|(_, places)| places).any(is_meant);
                assert_eq!(nothing, matches!(error, ChangeError::NothingToMove(_)), "{error}");
                refused += 1;
                continue;
            }
        };
        moved += 1;
        assert_sound(&of, &group);
        assert_eq!(all_places(&group), before, "seed {seed}");
        let mut given_up = group.clone();
        given_up.end_move(&name).expect("an abort");
        assert_eq!(given_up, untouched, "seed {seed}");
        loop {
            pieces += 1;
            let is_last = group.advance_move(&name).expect("a piece");
            assert_sound(&of, &group);
            // Aborted now, the move leaves what has moved.
            let mut given_up = group.clone();
            given_up.end_move(&name).ok();
            assert_eq!(all_places(&given_up), all_places(&group), "seed {seed}");
            if is_last {
                break;
            }
        }
        let after = all_places(&group);
        for ((_, before), (_, after)) in before.iter().zip(&after) {
            for (before, after) in before.iter().zip(after) {
                if is_meant(before) {
                    assert_ne!(before.0, after.0, "seed {seed}");
                    let is_there = |part: &PvPart| {
                        let ranges = &part.ranges;
                        part.pv == after.0
                            && (ranges.is_empty()
                                || ranges.iter().any(|range| range.contains(&after.1)))
                    };
                    assert!(to.is_empty() || to.iter().any(is_there), "seed {seed}");
                } else {
                    assert_eq!(before, after, "seed {seed}");
                }
            }
        }
    }
    assert!(moved > 80 && refused > 20 && pieces > 200, "{moved} {refused} {pieces}");
}
