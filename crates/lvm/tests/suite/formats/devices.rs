//! Physical volumes on simulated disks: reading, creating, updating.

use ashlar_block::{Gateway, Sector, Sectors};
use ashlar_lvm::commit::{CommitResult, Member, commit};
use ashlar_lvm::format::{FormatError, Layout, erase_pv, format_pv, plan, write_label};
use ashlar_lvm::group::assemble;
use ashlar_lvm::metadata::Header;
use ashlar_lvm::ondisk::{MdaError, MdaHeader};
use ashlar_lvm::text::Form;
use ashlar_lvm::{Metadata, PhysicalVolume, PvOnDisk, Uuid, VolumeGroup, read_pv};
use ashlar_sim::{Media, Model, Sim, SimDisk};

use crate::formats::cases::{CASES, case};

pub(crate) fn uuid(number: u8) -> Uuid {
    Uuid::from_random([number; 32])
}

pub(crate) async fn read(gateway: &Gateway) -> PvOnDisk {
    read_pv(gateway).await.expect("readable").expect("a physical volume")
}

/// A group of these physical volumes.
pub(crate) fn group_of(pvs: &[PvOnDisk]) -> Metadata {
    let mut group = VolumeGroup::new("vg", uuid(200), Sectors(2048));
    for pv in pvs {
        let pv = PhysicalVolume::of_label(&pv.label, group.extent_size).expect("fits");
        group.pvs.push(pv);
    }
    let header = Header { generator: "a test".into(), ..Header::default() };
    Metadata::new(group, header)
}

/// Increments the sequence number and commits.
pub(crate) async fn write(
    gateways: &[Gateway],
    pvs: &mut [PvOnDisk],
    metadata: &mut Metadata,
) -> CommitResult {
    metadata.group.seqno += 1;
    let mut members: Vec<Member<'_>> =
        gateways.iter().zip(pvs).map(|(gateway, pv)| Member { gateway, pv }).collect();
    commit(&mut members, metadata).await.expect("committed")
}

#[test]
fn what_lvm_wrote_is_read_from_the_disks() {
    for case in CASES {
        let sim = Sim::new(1);
        for (i, disk) in case.disks().iter().enumerate() {
            let pv = sim.block_on(read(&disk.gateway()));
            assert_eq!(pv.label.uuid, case.label(i).1.uuid);
            assert_eq!(pv.defects().count(), 0, "{} {i}", case.name);
            let expected = pv.areas.iter().filter_map(|area| area.state.as_ref().ok());
            let expected = expected.filter(|contents| !contents.header.ignored).count();
            assert_eq!(pv.texts().filter(|text| *text == case.disk).count(), expected);
        }
    }
}

#[test]
fn a_new_physical_volume_is_laid_out_as_lvm_lays_it_out() {
    let case = case("areas");
    let layouts = [
        Layout { metadata_copies: 2, ..Layout::default() },
        Layout { bootloader: Sectors(4096), ..Layout::default() },
        Layout { metadata_copies: 0, ..Layout::default() },
        Layout { data_alignment: Sectors(512), metadata_size: Sectors(1000), ..Layout::default() },
    ];
    for (i, layout) in layouts.iter().enumerate() {
        let (_, mut expected) = case.label(i);
        expected.set_used(false);
        let ours = plan(expected.uuid, expected.device_size, layout).expect("fits");
        assert_eq!(ours, expected, "{i}");
    }
}

#[test]
fn every_layout_that_is_accepted_keeps_areas_apart_and_within_the_device() {
    for size in [2 << 20, (2 << 20) + 512, 3 << 20, 5 << 20, 100 << 20] {
        for data_alignment in [8, 128, 1536, 2048, 6144].map(Sectors) {
            for metadata_copies in 0..=2 {
                for metadata_size in [64, 2040, 3000].map(Sectors) {
                    for bootloader in [0, 1, 3000].map(Sectors) {
                        let layout =
                            Layout { data_alignment, metadata_copies, metadata_size, bootloader };
                        let Ok(label) = plan(uuid(1), size, &layout) else { continue };
                        let data = label.data_areas[0].offset;
                        let boot =
                            label.extension.as_ref().expect("written").bootloader_areas.clone();
                        let mut ranges = [label.metadata_areas.clone(), boot].concat();
                        ranges.sort_by_key(|range| range.offset);
                        let mut at = 2048;
                        for range in ranges {
                            assert!(range.offset >= at, "{layout:?} {label:?}");
                            at = range.offset + range.size;
                            assert!(at <= data || range.offset >= data, "{layout:?} {label:?}");
                        }
                        assert!(at <= size && data < size, "{layout:?} {label:?}");
                        assert!(data.is_multiple_of(data_alignment.bytes()));
                    }
                }
            }
        }
    }
}

#[test]
fn a_device_that_is_too_small_is_refused() {
    let disk = SimDisk::new("small", Sectors(4095));
    let refused = Sim::new(1).block_on(format_pv(&disk.gateway(), uuid(1), &Layout::default()));
    assert!(matches!(refused, Err(FormatError::TooSmall(_))));
}

#[test]
fn a_group_is_made_changed_two_hundred_times_and_read_again() {
    for block in [512, 4096] {
        let mut limits = Model::nvme().limits();
        limits.logical_block_bytes = block;
        limits.physical_block_bytes = block;
        let media: Vec<Media> = (0..3).map(|i| Media::noisy(Sectors(16 << 11), i)).collect();
        let disks: Vec<SimDisk> = media
            .iter()
            .map(|media| SimDisk::with("disk", media.clone(), limits, Model::nvme()))
            .collect();
        let gateways: Vec<Gateway> = disks.iter().map(SimDisk::gateway).collect();
        let sim = Sim::new(u64::from(block));
        let layout = |i: u8| Layout {
            // Areas of different, small sizes, so that their rings wrap around often.
            data_alignment: Sectors(8),
            metadata_size: Sectors(64 + 17 * u64::from(i)),
            metadata_copies: if i == 2 { 2 } else { 1 },
            bootloader: Sectors(0),
        };
        sim.block_on(async {
            let mut pvs = Vec::new();
            for (i, gateway) in (0..).zip(&gateways) {
                let pv = format_pv(gateway, uuid(i), &layout(i)).await.expect("made");
                assert_eq!(read(gateway).await.metadata().expect("none"), None);
                pvs.push(pv);
            }
            let mut metadata = group_of(&pvs);
            for round in 0..200 {
                metadata.group.tags = (0..round % 90).map(|tag| format!("tag{tag}")).collect();
                let done = write(&gateways, &mut pvs, &mut metadata).await;
                assert_eq!(done, CommitResult::default());
                for gateway in &gateways {
                    let pv = read(gateway).await;
                    assert_eq!(pv.defects().count(), 0);
                    assert_eq!(pv.texts().count(), pv.areas.len());
                    let expected = metadata.print(Form::Disk);
                    assert!(pv.texts().all(|text| text == expected), "{round}");
                }
            }
        });
    }
}

#[test]
fn the_label_says_whether_a_volume_is_used_and_can_be_erased() {
    let disk = SimDisk::new("disk", Sectors(8192));
    let gateway = disk.gateway();
    Sim::new(1).block_on(async {
        let mut pv = format_pv(&gateway, uuid(1), &Layout::default()).await.expect("made");
        assert!(!read(&gateway).await.label.is_used());
        pv.label.set_used(true);
        write_label(&gateway, &pv).await.expect("written");
        assert!(read(&gateway).await.label.is_used());
        erase_pv(&gateway, &pv).await.expect("written");
        assert!(read_pv(&gateway).await.expect("readable").is_none());
    });
}

#[test]
fn one_damaged_area_is_named_and_the_other_one_used() {
    for damaged in [0, 1] {
        let case = case("areas");
        let disk = &case.disks()[0];
        let place = case.label(0).1.metadata_areas[damaged];
        let head = Sector::from_bytes_floor(place.offset);
        let header = MdaHeader::parse(&case.headers(0)[damaged], place).expect("read");
        let text = header.current.expect("a text");
        let text = head + Sectors::from_bytes_floor(text.offset);
        for (sector, expected) in [(text, "text's checksum"), (head, "no metadata area")] {
            disk.media().poke(sector, &[b'!'; 512]);
            let pv = Sim::new(1).block_on(read(&disk.gateway()));
            let defects: Vec<String> = pv.defects().collect();
            assert_eq!(defects.len(), 1, "{defects:?}");
            assert!(defects[0].contains(expected), "{defects:?}");
            assert_eq!(pv.metadata().expect("the other one").expect("a group"), case.metadata());
        }
        disk.media().fail_reads(head.0..head.0 + 1);
        let pv = Sim::new(1).block_on(read(&disk.gateway()));
        assert!(matches!(pv.areas[damaged].state, Err(MdaError::Read(_))));
    }
}

#[test]
fn a_volume_without_a_good_area_is_known_by_the_others_and_a_damaged_label_is_an_error() {
    let case = case("linear");
    let disks = case.disks();
    let disk = &disks[0];
    disk.media().poke(Sector(8), &[0; 512]);
    let pvs = [0, 1].map(|n| Sim::new(1).block_on(read(&disks[n].gateway())));
    assert!(pvs[0].is_mute() && !pvs[1].is_mute());
    assert_eq!(pvs[0].defects().count(), 1);
    let found = assemble(&[&pvs[0]]);
    assert!(found.groups.is_empty() && found.orphans == [0], "{found:?}");
    let found = assemble(&[&pvs[0], &pvs[1]]);
    assert!(found.groups[0].is_complete(), "{found:?}");
    let mut label = disk.media().peek(Sector(1));
    label[100] ^= 1;
    disk.media().poke(Sector(1), &label);
    let error = Sim::new(1).block_on(read_pv(&disk.gateway())).expect_err("damaged");
    assert!(error.to_string().contains("checksum"), "{error}");
}
