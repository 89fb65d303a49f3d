//! Commands on disks that lose power at any step, on the simulator: the groups are as before the command or as after it, no volume is
//! lost, none is in two groups, and what a cut left unfinished can be completed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use ashlar_block::{Gateway, Sectors};
use ashlar_lvm::command::{Command, LayoutOptions, Membership};
use ashlar_lvm::commit::{Member, commit};
use ashlar_lvm::format::{Layout, format_pv, write_label};
use ashlar_lvm::group::{Group, MemberState};
use ashlar_lvm::metadata::{Header, PvExtents, PvFlag, SystemIds};
use ashlar_lvm::{LogicalVolume, Metadata, PhysicalVolume, PvOnDisk, Segment, Uuid, VolumeGroup};
use ashlar_sim::runs::{RunReminder, wanted};
use ashlar_sim::{Media, Sim, SimDisk, Stop};
use ashlar_stack::assemble::Disk;

use super::archive::Archives;
use super::dialogue::Dialogue;
use super::regrouping::Moved;
use super::session::{Pv, Session};
use crate::error::Result;

/// Physical volumes 0 to 3 are in `vg`: `kept` is on the first, `gone` on the others. 4 is in `other`, with `there` on it; 5 is in no group.
const DISKS: u8 = 6;
const SECTORS: Sectors = Sectors(8192);
const EXTENT: Sectors = Sectors(128);
/// The metadata areas of each: the last one of `vg` has none.
const AREAS: [u8; DISKS as usize] = [1, 2, 1, 0, 1, 1];

/// The seeds among which the steps are divided, and how many of them run without other wishes.
const SHARES: u64 = 8;
const RUNS: u64 = 2;

/// The layout of a new physical volume.
const LAYOUT: LayoutOptions = LayoutOptions {
    alignment_sectors: 8,
    metadata_copies: 1,
    metadata_sectors: 64,
    bootloader_sectors: 0,
};

/// A user who agrees to everything.
struct Agrees;

impl Dialogue for Agrees {
    fn warn(&self, _: &dyn Display) {}

    fn tell(&self, _: &[String]) -> Result<()> {
        Ok(())
    }

    fn confirm(&self, _: &str) -> Result<bool> {
        Ok(true)
    }
}

/// A physical volume, its first extent and their number.
type Run = (Uuid, u32, u32);

/// What a user sees.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Seen {
    /// Each group: its physical volumes with their states and extents.
    groups: BTreeMap<String, Vec<String>>,
    exported: BTreeSet<String>,
    /// Physical volumes without a group, with their sizes.
    free: BTreeSet<(String, u64)>,
    /// Each logical volume: its group, and the extents of physical volumes that it has.
    volumes: BTreeMap<String, (String, Vec<Run>)>,
}

fn path(disk: usize) -> String {
    format!("d{disk}")
}

fn gateways(media: &[Media]) -> Vec<Gateway> {
    media.iter().map(|media| SimDisk::over("disk", media.clone()).gateway()).collect()
}

fn archives() -> Archives {
    Archives::new(false, "a test").unwrap()
}

/// A command's session with these disks, but for one that is away.
async fn session(media: &[Media], away: Option<usize>) -> Session {
    let disks = gateways(media).into_iter().enumerate().filter(|(at, _)| Some(*at) != away);
    let disks = disks.map(|(at, gateway)| Disk { path: path(at).into(), gateway }).collect();
    Session::new(disks, false, SystemIds::default(), Box::new(Agrees)).await
}

/// A new group of these physical volumes, with a volume on each set of them.
async fn make(
    name: &str,
    number: u8,
    gateways: &[Gateway],
    pvs: &mut [PvOnDisk],
    volumes: &[(&str, &[usize])],
) {
    let id = |number| Uuid::from_random([number; 32]);
    let mut group = VolumeGroup::new(name, id(number), EXTENT);
    for (gateway, pv) in gateways.iter().zip(&mut *pvs) {
        group.pvs.push(PhysicalVolume::of_label(&pv.label, EXTENT).unwrap());
        pv.label.set_used(true);
        write_label(gateway, pv).await.unwrap();
    }
    for (at, (name, on)) in (1..).zip(volumes) {
        let mut lv = LogicalVolume::new(*name, id(number + at), true, Vec::new());
        lv.extend(
            on.iter().map(|pv| Segment::linear(0, PvExtents { pv: *pv, start: 1, count: 3 })),
        );
        group.add_lv(lv);
    }
    group.seqno = u32::from(number);
    let mut members: Vec<Member<'_>> =
        gateways.iter().zip(pvs).map(|(gateway, pv)| Member { gateway, pv }).collect();
    let header = Header { generator: "a test".into(), ..Header::default() };
    commit(&mut members, &Metadata::new(group, header)).await.unwrap();
}

fn prepare(seed: u64) -> Vec<Media> {
    let media: Vec<Media> = (0..DISKS).map(|at| Media::noisy(SECTORS, at.into())).collect();
    let sim = Sim::new(seed);
    let gateways = gateways(&media);
    sim.block_on(async {
        let mut pvs = Vec::new();
        for ((number, metadata_copies), gateway) in (1..).zip(AREAS).zip(&gateways) {
            let (data_alignment, metadata_size) = (Sectors(8), Sectors(64));
            let bootloader = Sectors(0);
            let layout = Layout { data_alignment, metadata_copies, metadata_size, bootloader };
            pvs.push(format_pv(gateway, Uuid::from_random([number; 32]), &layout).await.unwrap());
        }
        // The one that is merged or gets volumes has the lower sequence number for some seeds, and the higher one for others.
        let (one, other) = if seed.is_multiple_of(2) { (60, 20) } else { (20, 60) };
        let volumes: [(&str, &[usize]); 2] = [("kept", &[0]), ("gone", &[1, 2, 3])];
        make("vg", one, &gateways[..4], &mut pvs[..4], &volumes).await;
        make("other", other, &gateways[4..5], &mut pvs[4..5], &[("there", &[0])]).await;
        for gateway in &gateways {
            gateway.flush().await.unwrap();
        }
    });
    media
}

/// What is on the disks; checks that each physical volume is in one group at most, and that no two volumes have the same extents.
fn seen(media: &[Media], away: Option<usize>) -> Seen {
    Sim::new(7).block_on(async {
        let session = session(media, away).await;
        let mut seen = Seen::default();
        let (mut placed, mut used) = (BTreeSet::new(), BTreeSet::new());
        for found in &session.found.groups {
            let group = &found.metadata.group;
            let name = group.name.clone();
            let mut members = Vec::new();
            for (pv, member) in group.pvs.iter().zip(&found.members) {
                let state = match member {
                    MemberState::Present(_) | MemberState::Stale(_) => "usable",
                    MemberState::Returned(_) => "returned",
                    MemberState::Missing => "missing",
                };
                let path = member.index().map(|index| &*session.pvs[index].path);
                let path = path.unwrap_or_default();
                assert!(path.is_empty() || placed.insert(path), "{path} is in two groups");
                members.push(format!("{path} {state} {}", pv.pe_count));
            }
            members.sort();
            for lv in &group.lvs {
                let mut extents = Vec::new();
                for on in lv.pv_extents() {
                    let pv = group.pvs[on.pv].id;
                    for extent in on.start..on.start + on.count {
                        assert!(used.insert((pv, extent)), "{name}/{} shares extents", lv.name);
                    }
                    extents.push((pv, on.start, on.count));
                }
                let known = seen.volumes.insert(lv.name.clone(), (name.clone(), extents));
                assert!(known.is_none(), "{} is in two groups", lv.name);
            }
            if found.is_exported() {
                seen.exported.insert(name.clone());
            }
            assert!(seen.groups.insert(name, members).is_none(), "two groups of one name");
        }
        for pv in session.found.free.iter().map(|index| &session.pvs[*index]) {
            seen.free.insert((pv.path.clone(), pv.on_disk.label.device_size));
        }
        seen
    })
}

/// Does what a user does after a power cut: imports what is exported, completes what `vgck` finds unfinished. Then all texts of complete
/// groups are current, and list no physical volume of another group.
fn complete(media: &[Media], away: Option<usize>) {
    Sim::new(8).block_on(async {
        let mut session = session(media, away).await;
        let groups = session.found.groups.iter().filter(|group| group.is_complete());
        let state = |group: &Group| (group.metadata.group.name.clone(), group.is_exported());
        let names: Vec<(String, bool)> = groups.map(state).collect();
        for (name, _) in names.iter().filter(|(_, is_exported)| *is_exported) {
            session.import_group(name, &archives()).await.unwrap();
        }
        for (name, _) in &names {
            session.update_metadata(name, &archives()).await.unwrap();
        }
        session.look().await;
        for group in &session.found.groups {
            let lists = |pv: &Pv| group.metadata.group.pv_index(&pv.on_disk.label.uuid).is_some();
            let (id, seqno) = (group.metadata.group.id, group.metadata.group.seqno);
            assert!(group.outdated.is_empty() && !group.has_given);
            for pv in session.pvs.iter().filter(|pv| lists(pv) && group.is_complete()) {
                let texts = pv.on_disk.texts().map(|text| Metadata::parse(text).unwrap().group);
                assert!(texts.into_iter().all(|text| (text.id, text.seqno) == (id, seqno)));
            }
        }
        assert_eq!(session.found.damaged.len(), 0);
    });
}

/// Cuts the power at every step of `work`, which begins after `setup`, with one disk `away`. The outcomes are the groups as they are
/// before and after it, apart from marks as exported.
fn cut_everywhere(
    away: Option<usize>,
    setup: impl AsyncFn(&mut Session) -> Result<()>,
    work: impl AsyncFn(&mut Session) -> Result<()>,
) {
    let seeds = wanted(|name| std::env::var(name).ok()).unwrap_or(0..RUNS);
    let (mut befores, mut afters) = (0, 0);
    for seed in seeds {
        let _reminder = RunReminder::new("power cuts of commands on groups", seed);
        let start = prepare(seed);
        let sim = Sim::new(seed);
        sim.block_on(async { setup(&mut session(&start, None).await).await }).unwrap();
        drop(sim);
        let before = seen(&start, away);
        let end: Vec<Media> = start.iter().map(Media::copy).collect();
        let sim = Sim::new(seed);
        sim.block_on(async { work(&mut session(&end, away).await).await }).unwrap();
        drop(sim);
        let after = seen(&end, away);
        assert_ne!(before, after, "the command changes something");
        // Other seeds have the other steps.
        for steps in (seed % SHARES..).step_by(SHARES as usize) {
            let media: Vec<Media> = start.iter().map(Media::copy).collect();
            let sim = Sim::new(seed ^ (steps << 8));
            let mut session = sim.block_on(session(&media, away));
            let done = sim.block_on_until(work(&mut session), Stop::AfterSteps(steps));
            drop(session);
            sim.power_cut();
            let now = seen(&media, away);
            let is = |other: &Seen| (&now.groups, &now.volumes) == (&other.groups, &other.volumes);
            assert!(is(&before) || is(&after), "step {steps}: {now:#?}\n{before:#?}\n{after:#?}");
            befores += u32::from(now == before);
            afters += u32::from(now != before && is(&after));
            if let Some(done) = done {
                done.unwrap();
                assert_eq!(now, after, "acknowledged");
                break;
            }
            complete(&media, away);
            let completed = seen(&media, away);
            assert_eq!((&completed.groups, &completed.volumes), (&now.groups, &now.volumes));
        }
    }
    assert!(befores > 0 && afters > 0, "{befores} before, {afters} after");
}

async fn nothing(_: &mut Session) -> Result<()> {
    Ok(())
}

async fn split(session: &mut Session, to: &str) -> Result<()> {
    let moved: Vec<String> = (1..4).map(path).collect();
    session.split_group("vg", to, Moved::Physical(&moved), &archives()).await.map(drop)
}

async fn export(session: &mut Session) -> Result<()> {
    session.export_group("vg", &archives()).await
}

/// Marks a physical volume of `vg` as one that was missing when the group changed.
async fn miss(session: &mut Session) -> Result<()> {
    let mut draft = session.draft("vg").await?;
    draft.group.pvs[2].flags.insert(PvFlag::Missing);
    session.commit(draft, &[], &archives()).await
}

#[test]
fn a_split_into_a_new_group_happens_or_does_not() {
    cut_everywhere(None, nothing, async |session| split(session, "new").await);
}

#[test]
fn a_split_into_another_group_happens_or_does_not() {
    cut_everywhere(None, nothing, async |session| split(session, "other").await);
}

#[test]
fn a_merge_happens_or_does_not() {
    for [to, from] in [["other", "vg"], ["vg", "other"]] {
        let merge = async |session: &mut Session| session.merge_groups(to, from, &archives()).await;
        cut_everywhere(None, nothing, merge);
    }
}

#[test]
fn an_export_an_import_and_another_name_happen_or_do_not() {
    cut_everywhere(None, nothing, export);
    cut_everywhere(None, export, async |session| session.import_group("vg", &archives()).await);
    let rename = Command::RenameGroup { to: "renamed".to_owned() };
    cut_everywhere(None, nothing, async |session| session.change("vg", &rename, &archives()).await);
}

#[test]
fn missing_physical_volumes_leave_their_group_or_return_to_it_or_do_not() {
    let remove = async |session: &mut Session| {
        session.remove_missing("vg", true, &archives()).await.map(drop)
    };
    cut_everywhere(Some(2), nothing, remove);
    // One that was missing, and is there, is freed.
    cut_everywhere(None, miss, remove);
    let restore =
        async |session: &mut Session| session.restore_missing("vg", &[path(2)], &archives()).await;
    cut_everywhere(None, miss, restore);
}

#[test]
fn other_changes_of_physical_volumes_happen_or_do_not() {
    let resize = |disk| Membership::Resize { physical: path(disk), sectors: Some(4096) };
    let changes = [
        ("other", resize(4)),
        ("other", resize(5)),
        ("other", Membership::Extend { physical: vec![path(5)], layout: LAYOUT }),
        ("vg", Membership::Remove { force: false }),
    ];
    // The removal of a group with volumes is two changes: the volumes are removed first.
    let empty = Command::Remove { volumes: Vec::new() };
    let empty = async |session: &mut Session| session.change("vg", &empty, &archives()).await;
    for (group, change) in changes {
        let work = async |session: &mut Session| {
            session.change_members(group, &change, &archives()).await.map(drop)
        };
        cut_everywhere(None, empty, work);
    }
    let extend = Membership::Extend { physical: vec![path(5)], layout: LAYOUT };
    let extend = async |session: &mut Session| {
        session.change_members("vg", &extend, &archives()).await.map(drop)
    };
    let reduce = Membership::Reduce { physical: vec![path(5)] };
    let reduce = async |session: &mut Session| {
        session.change_members("vg", &reduce, &archives()).await.map(drop)
    };
    cut_everywhere(None, extend, reduce);
}
