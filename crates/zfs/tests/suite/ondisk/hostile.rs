//! Labels from a hostile disk: any contents give a result, in bounded time.

use ashlar_sim::Rng;
use ashlar_zfs::ondisk::label::{Label, LabelError};
use ashlar_zfs::ondisk::layout::{LABELS, PHYS_BYTES, PHYS_OFFSET, label_offset};
use ashlar_zfs::ondisk::nvlist::{NvList, RawValue, Value};

use crate::ondisk::support::{
    config, device, found, group, labels, leaf, write_label, write_uberblock,
};

fn mirror() -> NvList {
    group("mirror", 0, 10, vec![leaf(0, 20), leaf(1, 21)])
}

/// A list with random contents, nested up to `depth`.
fn any_list(rng: &mut Rng, depth: u64) -> NvList {
    let mut list = NvList::default();
    for n in 0..rng.below(6) {
        let name = format!("{}{n}", "x".repeat(rng.index(9)));
        let kinds = if depth == 0 { 5 } else { 7 };
        let value = match rng.below(kinds) {
            0 => Value::Flag,
            1 => Value::Number(rng.next_u64()),
            2 => Value::Numbers((0..rng.below(5)).map(|_| rng.next_u64()).collect()),
            3 => Value::Text("\u{e9}".repeat(rng.index(9))),
            4 => {
                let count = rng.below(4) as u32;
                let bytes = (0..count * 4).map(|_| rng.next_u64() as u8).collect();
                Value::Raw(RawValue { kind: 6, count, decoded_size: 40, bytes })
            }
            5 => Value::List(any_list(rng, depth - 1)),
            _ => Value::Lists((0..rng.below(4)).map(|_| any_list(rng, depth - 1)).collect()),
        };
        list.set(&name, value);
    }
    list
}

#[test]
fn what_is_encoded_is_read_again() {
    let mut rng = Rng::new(1);
    for _ in 0..3000 {
        let list = any_list(&mut rng, 4);
        assert_eq!(NvList::parse(&list.encode()), Ok(list));
    }
}

#[test]
fn a_list_that_is_cut_off_or_changed_is_refused_or_another() {
    let mut rng = Rng::new(2);
    let good = config(20, 5, 1, &mirror()).encode();
    for len in 0..good.len() {
        assert!(NvList::parse(&good[..len]).is_err(), "{len}");
    }
    let mut accepted = 0;
    for _ in 0..20_000 {
        let mut bytes = good.clone();
        for _ in 0..=rng.below(3) {
            let at = rng.index(bytes.len());
            bytes[at] =
                if rng.chance(1, 2) { rng.next_u64() as u8 } else { bytes[at] ^ 1 << rng.below(8) };
        }
        match NvList::parse(&bytes) {
            Ok(list) => {
                accepted += 1;
                assert_eq!(NvList::parse(&list.encode()), Ok(list));
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    assert!(accepted > 1000, "{accepted}");
}

#[test]
fn a_bit_that_flips_anywhere_in_a_label_is_seen() {
    let good = device(&config(20, 5, 1, &mirror()));
    let at = label_offset(good.len() as u64, 0).expect("a label") as usize + PHYS_OFFSET;
    let mut rng = Rng::new(3);
    let mut places: Vec<usize> = (0..60).map(|_| rng.index(PHYS_BYTES)).collect();
    // The list, its end, and the checksum.
    places.extend([0, 4, 40, PHYS_BYTES - 41, PHYS_BYTES - 32, PHYS_BYTES - 1]);
    for place in places {
        let mut phys: [u8; PHYS_BYTES] = good[at..at + PHYS_BYTES].try_into().expect("a label");
        phys[place] ^= 1 << rng.below(8);
        assert_eq!(Label::parse(&phys, at as u64), Err(LabelError::Checksum), "{place}");
    }
    let phys: [u8; PHYS_BYTES] = good[at..at + PHYS_BYTES].try_into().expect("a label");
    assert!(Label::parse(&phys, at as u64).is_ok());
    // The checksum's magic number: without it there is no label.
    let mut phys = phys;
    phys[PHYS_BYTES - 40] ^= 1;
    assert_eq!(Label::parse(&phys, at as u64), Err(LabelError::Absent));
}

#[test]
fn a_label_lacks_nothing_that_each_has() {
    let good = config(20, 5, 1, &mirror());
    for name in ["version", "name", "state", "txg", "pool_guid", "top_guid", "guid", "vdev_tree"] {
        let mut config = good.clone();
        config.remove(name).expect("it was there");
        let expected = Err(LabelError::Field(name));
        assert_eq!(Label::from_config(config.clone()), expected);
        config.set(name, Value::Flag);
        assert_eq!(Label::from_config(config), expected);
    }
    for (name, value) in [("state", 5), ("state", u64::MAX), ("guid", 0)] {
        let config = good.clone().with(name, value);
        assert_eq!(Label::from_config(config), Err(LabelError::Field(name)));
    }
    for name in ["type", "id", "guid"] {
        let mut tree = mirror();
        tree.remove(name);
        let error = Label::from_config(config_with(tree)).expect_err("a vdev lacks something");
        assert_eq!(error.to_string(), format!("a vdev has no usable {name:?}"));
    }
    for name in ["hostid", "hostname", "vdev_children", "features_for_read"] {
        let mut config = good.clone();
        config.remove(name).expect("it was there");
        assert!(Label::from_config(config).is_ok(), "{name}");
    }
}

fn config_with(tree: NvList) -> NvList {
    config(20, 5, 1, &mirror()).with("vdev_tree", tree)
}

#[test]
fn one_sound_label_is_enough_and_the_others_are_told_of() {
    for good in 0..LABELS {
        let mut device = device(&config(20, 5, 1, &mirror()));
        for index in (0..LABELS).filter(|index| *index != good) {
            let at = label_offset(device.len() as u64, index).expect("a label") as usize;
            device[at + PHYS_OFFSET + 100] ^= 1;
        }
        let labels = labels(&device);
        assert_eq!(labels.label().map(|label| label.guid), Some(20));
        let expected: Vec<String> = (0..LABELS)
            .filter(|index| *index != good)
            .map(|index| format!("label {index}: its checksum is wrong"))
            .collect();
        assert_eq!(labels.problems(), expected);
    }
}

#[test]
fn of_labels_that_a_crash_left_those_count_that_an_uberblock_was_written_for() {
    let mut device = device(&config(20, 5, 1, &mirror()));
    // A write updates labels 0 and 2 first, then the uberblocks, then labels 1 and 3.
    let new = config(20, 6, 2, &mirror()).encode();
    write_label(&mut device, 0, &new);
    write_label(&mut device, 2, &new);
    assert_eq!(labels(&device).label().map(|label| label.txg()), Some(5));
    write_uberblock(&mut device, 2, 6);
    assert_eq!(labels(&device).label().map(|label| label.txg()), Some(6));
    assert_eq!(labels(&device).problems(), [""; 0]);
}

#[test]
fn labels_of_two_vdevs_are_told_of() {
    let mut device = device(&config(20, 5, 1, &mirror()));
    write_label(&mut device, 3, &config(21, 9, 1, &mirror()).encode());
    let labels = labels(&device);
    assert_eq!(labels.label().map(|label| label.guid), Some(20));
    assert_eq!(labels.problems(), ["label 3 is of another vdev, 21"]);
}

#[test]
fn a_label_that_was_copied_elsewhere_does_not_count() {
    let good = device(&config(20, 5, 1, &mirror()));
    // A pool partition at the disk's start: the disk is longer, so the partition's last two labels
    // are in its middle.
    let mut disk = vec![0; 3 << 20];
    disk[4096..4096 + good.len()].copy_from_slice(&good);
    assert!(!labels(&disk).is_any());
    let mut disk = vec![0; 3 << 20];
    disk[(2 << 20)..].copy_from_slice(&good);
    let labels = labels(&disk);
    assert!(labels.is_any() && labels.label().is_none());
    assert_eq!(labels.problems().len(), 2 + 2 * 2, "{:?}", labels.problems());
    assert_eq!(found(&[labels]).damaged, [0]);
}

#[test]
fn devices_too_small_or_empty_have_nothing() {
    for size in [0, 1, 4096, (1 << 20) - 1, 1 << 20, (1 << 20) + 1] {
        let labels = labels(&vec![0; size]);
        assert!(!labels.is_any() && labels.label().is_none() && labels.uberblock().is_none());
        assert_eq!(labels.problems(), [""; 0]);
    }
}

#[test]
fn counts_that_a_label_makes_up_cost_nothing() {
    let top = leaf(u64::MAX, 20);
    let config = config(20, 5, u64::MAX, &top).with("hole_array", vec![u64::MAX, 3, 3]);
    let found = found(&[labels(&device(&config))]);
    let pool = &found.pools[0];
    assert!(pool.vdevs.len() <= 4096 && pool.import_config(&|_| String::new()).is_err());
    assert_eq!(pool.problems, ["/0 was in this pool, and no longer is"]);
}
