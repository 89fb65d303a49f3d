//! A commit that is interrupted at any step, and one with failing writes: the result is the old
//! group or the new one.

use ashlar_block::{Gateway, Sectors};
use ashlar_lvm::commit::{CommitError, Member, commit};
use ashlar_lvm::format::{Layout, format_pv};
use ashlar_lvm::group::{MemberState, assemble};
use ashlar_lvm::text::Form;
use ashlar_lvm::{Metadata, PvOnDisk, read_pv};
use ashlar_sim::scheduler::Stop;
use ashlar_sim::{Media, Sim, SimDisk, seeds};

use crate::formats::devices::{group_of, read, uuid, write};

const DISKS: u8 = 3;

fn gateways(media: &[Media]) -> Vec<Gateway> {
    media.iter().map(|media| SimDisk::over("disk", media.clone()).gateway()).collect()
}

/// Small areas whose rings have wrapped around, a committed group, and the group to commit next.
fn prepare(seed: u64) -> (Vec<Media>, Metadata, Metadata) {
    let media: Vec<Media> = (0..DISKS).map(|i| Media::noisy(Sectors(8192), i.into())).collect();
    let sim = Sim::new(seed);
    let gateways = gateways(&media);
    let old = sim.block_on(async {
        let mut pvs = Vec::new();
        for (i, gateway) in (0..).zip(&gateways) {
            let layout = Layout {
                data_alignment: Sectors(8),
                metadata_size: Sectors(64),
                metadata_copies: 1 + i % 2,
                bootloader: Sectors(0),
            };
            pvs.push(format_pv(gateway, uuid(i), &layout).await.expect("made"));
        }
        let mut metadata = group_of(&pvs);
        // So that the next text wraps around for some seeds.
        for round in 0..1 + seed % 12 {
            metadata.group.tags = (0..60 + round).map(|tag| format!("old{tag}")).collect();
            write(&gateways, &mut pvs, &mut metadata).await;
        }
        for gateway in &gateways {
            gateway.flush().await.expect("flushed");
        }
        metadata
    });
    let mut new = old.clone();
    new.group.seqno += 1;
    new.group.tags = (0..70).map(|tag| format!("new{tag}")).collect();
    (media, old, new)
}

async fn read_all(gateways: &[Gateway]) -> Vec<PvOnDisk> {
    let mut pvs = Vec::new();
    for gateway in gateways {
        pvs.push(read(gateway).await);
    }
    pvs
}

async fn commit_all(
    gateways: &[Gateway],
    pvs: &mut [PvOnDisk],
    metadata: &Metadata,
) -> Result<ashlar_lvm::commit::CommitResult, CommitError> {
    let mut members: Vec<Member<'_>> =
        gateways.iter().zip(pvs).map(|(gateway, pv)| Member { gateway, pv }).collect();
    commit(&mut members, metadata).await
}

fn same(metadata: &Metadata, text: &[u8]) -> bool {
    metadata.print(Form::Disk) == text
}

/// The current group; checks that every area has the old text or the new one, undamaged.
fn what_counts(media: &[Media], old: &Metadata, new: &Metadata) -> Metadata {
    let gateways = gateways(media);
    let pvs = Sim::new(7).block_on(read_all(&gateways));
    for pv in &pvs {
        assert_eq!(pv.defects().collect::<Vec<_>>(), Vec::<String>::new());
        assert_eq!(pv.texts().count(), pv.areas.len());
        for text in pv.texts() {
            assert!([old, new].iter().any(|known| same(known, text)));
        }
    }
    let found = assemble(&pvs.iter().collect::<Vec<_>>());
    assert_eq!(found.groups.len(), 1);
    assert!(found.groups[0].is_complete());
    let now = found.groups[0].metadata.print(Form::Disk);
    [old, new].into_iter().find(|known| same(known, &now)).expect("one of them").clone()
}

/// The group can be changed again, and then no volume is stale.
fn goes_on(media: &[Media], now: &Metadata) {
    let gateways = gateways(media);
    let mut next = now.clone();
    next.group.seqno += 1;
    let found = Sim::new(8).block_on(async {
        let mut pvs = read_all(&gateways).await;
        commit_all(&gateways, &mut pvs, &next).await.expect("committed");
        let pvs = read_all(&gateways).await;
        assemble(&pvs.iter().collect::<Vec<_>>())
    });
    assert!(same(&next, &found.groups[0].metadata.print(Form::Disk)));
    let present = |member: &MemberState| matches!(member, MemberState::Present(_));
    assert!(found.groups[0].members.iter().all(present));
}

#[test]
fn a_commit_cut_at_every_step_leaves_the_old_group_or_the_new_one() {
    let (mut olds, mut news) = (0, 0);
    for seed in seeds(40) {
        let (media, old, new) = prepare(seed);
        for steps in (0..).step_by(1 + seed as usize % 3) {
            let media: Vec<Media> = media.iter().map(Media::copy).collect();
            let sim = Sim::new(seed ^ steps);
            let gateways = gateways(&media);
            let mut pvs = sim.block_on(read_all(&gateways));
            let done =
                sim.block_on_until(commit_all(&gateways, &mut pvs, &new), Stop::AfterSteps(steps));
            sim.power_cut();
            let now = what_counts(&media, &old, &new);
            if done.is_some() {
                assert_eq!(now, new, "acknowledged");
            }
            if now == old {
                olds += 1;
            } else {
                news += 1;
            }
            goes_on(&media, &now);
            if done.is_some() {
                break;
            }
        }
    }
    assert!(olds > 10 && news > 10, "{olds} old, {news} new");
}

#[test]
fn a_commit_whose_nth_write_or_flush_fails_says_what_counts() {
    let (mut failed, mut stale) = (0, 0);
    for seed in 0..12 {
        for victim in 0..usize::from(DISKS) {
            for nth in 1..8 {
                let (media, old, new) = prepare(seed);
                let sim = Sim::new(seed);
                let gateways = gateways(&media);
                let mut pvs = sim.block_on(read_all(&gateways));
                if nth == 7 {
                    media[victim].fail_nth_flush(1);
                } else {
                    media[victim].fail_nth_write(nth);
                }
                let done = sim.block_on(commit_all(&gateways, &mut pvs, &new));
                drop(sim);
                media[victim].heal();
                let now = what_counts(&media, &old, &new);
                match done {
                    Ok(done) => {
                        assert_eq!(now, new);
                        stale += done.stale.len();
                    }
                    Err(CommitError::Write { .. }) => {
                        assert_eq!(now, old);
                        failed += 1;
                    }
                    Err(error) => panic!("{error}"),
                }
                goes_on(&media, &now);
            }
        }
    }
    assert!(failed > 0 && stale > 0, "{failed} failed, {stale} stale");
}

#[test]
fn a_text_that_is_too_large_is_refused_and_nothing_is_written() {
    let (media, old, mut new) = prepare(3);
    new.group.tags = (0..4000).map(|tag| format!("tag{tag}")).collect();
    let gateways = gateways(&media);
    let sim = Sim::new(1);
    let mut pvs = sim.block_on(read_all(&gateways));
    media.iter().for_each(Media::clear_log);
    let error = sim.block_on(commit_all(&gateways, &mut pvs, &new)).expect_err("too large");
    drop(sim);
    assert!(matches!(error, CommitError::NoRoom { .. }), "{error}");
    assert!(media.iter().all(|media| media.log().is_empty()));
    assert_eq!(what_counts(&media, &old, &old), old);
}

#[test]
fn a_format_cut_at_every_step_leaves_no_volume_or_the_new_one() {
    let (mut none, mut made) = (0, 0);
    for seed in seeds(20) {
        for steps in 0.. {
            let media = Media::noisy(Sectors(8192), seed);
            // An old label that must not reappear with new areas.
            let sim = Sim::new(seed);
            let gateway = SimDisk::over("disk", media.clone()).gateway();
            let layout = Layout { metadata_copies: 2, ..Layout::default() };
            sim.block_on(async {
                format_pv(&gateway, uuid(1), &layout).await.expect("made");
                gateway.flush().await.expect("flushed");
            });
            let done =
                sim.block_on_until(format_pv(&gateway, uuid(2), &layout), Stop::AfterSteps(steps));
            let done = done.is_some();
            sim.power_cut();
            let gateway = SimDisk::over("disk", media).gateway();
            let found = Sim::new(seed).block_on(read_pv(&gateway)).expect("readable");
            match found {
                None => none += 1,
                Some(pv) => {
                    let old = pv.label.uuid == uuid(1);
                    assert!(!done || !old, "acknowledged");
                    assert!(old || pv.label.uuid == uuid(2));
                    assert_eq!(pv.defects().count(), 0);
                    made += u32::from(!old);
                }
            }
            if done {
                break;
            }
        }
    }
    assert!(none > 0 && made > 0, "{none} without, {made} with");
}
