//! Changes of volume groups whose volumes are in use: on simulated disks, with power cuts.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ashlar_block::{Buffer, Flags, Gateway, Runtime, Sector, Sectors};
use ashlar_lvm::Uuid;
use ashlar_lvm::alloc::Wish;
use ashlar_lvm::change::Author;
use ashlar_lvm::command::{Amount, Command, Create, Direction, NewSize, Resize, Sign};
use ashlar_lvm::format::{Layout, format_pv};
use ashlar_lvm::metadata::{Creation, Header};
use ashlar_sim::scheduler::{Stop, start};
use ashlar_sim::{Media, Rng, Sim, SimRuntime, seeds};
use ashlar_stack::assemble::{Options, Stack};
use ashlar_stack::incremental::Collector;
use ashlar_stack::volume_groups::{ChangeResult, Request, ServedGroup, ServedMerge, left_to_merge};

use crate::common::{boot, device, media, notes, plain};
use crate::volume_groups::{GroupRig, named, names, read, write};

/// A stack whose groups can be changed.
pub(crate) struct LiveStack {
    pub(crate) stack: Stack,
    pub(crate) collector: Collector,
}

thread_local! {
    /// The UUIDs given so far.
    static GIVEN: Cell<u64> = const { Cell::new(1) };
}

impl LiveStack {
    pub(crate) async fn boot(sim: &Sim, media: &[Media]) -> Self {
        Self::with(sim, media, plain()).await
    }

    async fn with(sim: &Sim, media: &[Media], options: Options) -> Self {
        let mut stack = boot(sim, media, options.clone()).await;
        let collector = Collector::new(&mut stack, options, sim.runtime());
        Self { stack, collector }
    }

    /// Changes `vg`, as the daemon does.
    pub(crate) async fn run(&mut self, command: Command) -> Result<ChangeResult, String> {
        self.run_in("vg", command).await
    }

    /// Changes a group.
    pub(crate) async fn run_in(
        &mut self,
        group: &str,
        command: Command,
    ) -> Result<ChangeResult, String> {
        let mut new_uuid = || {
            let number = GIVEN.replace(GIVEN.get() + 1);
            Uuid::from_random(std::array::from_fn(|at| 1 + (number >> (4 * (at % 16)) & 15) as u8))
        };
        let creation = Creation { time: 1_700_000_000, host: "host".into() };
        let mut author = Author { creation, new_uuid: &mut new_uuid };
        let physical = |path: &str| Some(path.to_owned());
        let request = Request { group, command: &command, physical: &physical };
        let change = self.collector.prepare(&request, &mut author)?;
        let shut = change.shut.clone();
        for name in &shut {
            let device = self.stack.devices.find(name).ok_or("no device")?;
            if !device.bytes.withdraw() {
                self.offer(&shut);
                return Err(format!("{} is open", device.export_name()));
            }
        }
        let applied = self.collector.apply(change, Header::default()).await;
        self.offer(&shut);
        applied
    }

    /// Lets clients open devices again.
    fn offer(&self, shut: &[String]) {
        for device in shut.iter().filter_map(|name| self.stack.devices.find(name)) {
            device.bytes.offer();
        }
    }

    /// The description of `vg`.
    pub(crate) fn text(&self) -> String {
        self.collector.groups().1.remove(0).text
    }

    /// Waits until nothing is merged any more, as the daemon does.
    pub(crate) async fn end_merges(&mut self) {
        let merging = |group: &ServedGroup| {
            group.volumes.iter().any(|volume| left_to_merge(&volume.status).is_some())
        };
        while self.collector.groups().1.iter().any(merging) {
            let merging = self.collector.merging();
            for ended in merging.into_iter().filter(ServedMerge::has_ended) {
                let change = self.collector.prepare_end(&ended.merged).unwrap();
                self.collector.apply(change, Header::default()).await.unwrap();
            }
            SimRuntime.sleep(Duration::from_millis(1)).await;
        }
    }

    /// Has the third disk join `vg`, or leave it, as the daemon does.
    pub(crate) async fn turn_third(&mut self) -> Result<ChangeResult, String> {
        let third = ("d2.img".to_owned(), "d2.img".to_owned());
        let gateway = device(&self.stack, &third.0);
        let is_member = self.collector.groups().1.iter().any(|group| group.members.len() == 3);
        let change = if is_member {
            self.collector.prepare_reduce("vg", &[third])?.0
        } else {
            self.collector.prepare_extend("vg", &[])?;
            if !self.collector.has_free_physical(&third.0, &third.1)? {
                let uuid = Uuid::from_random([7; 32]);
                format_pv(&gateway, uuid, &Layout::default()).await.map_err(|e| e.to_string())?;
                self.collector.adopt_physical(&third.0).await?;
            }
            self.collector.prepare_extend("vg", &[third])?
        };
        self.collector.apply(change, Header::default()).await
    }

    pub(crate) fn has(&self, volume: &str) -> bool {
        names(&self.stack).contains(&format!("vg/{volume}"))
    }
}

pub(crate) fn create(name: &str, extents: u32) -> Command {
    Command::Create(Create {
        name: Some(name.into()),
        origin: None,
        amount: Amount::Extents(extents),
        chunk_sectors: 8,
        stripes: 1,
        stripe_sectors: None,
        policy: None,
        writable: true,
        tags: Vec::new(),
        zero: true,
        physical: Vec::new(),
    })
}

pub(crate) fn snapshot(name: &str, origin: &str, extents: u32) -> Command {
    let Command::Create(new) = create(name, extents) else { unreachable!() };
    Command::Create(Create { origin: Some(origin.into()), ..new })
}

pub(crate) fn resize(volume: &str, sign: Sign, extents: u32) -> Command {
    let size = NewSize { sign, amount: Amount::Extents(extents) };
    let direction = if sign == Sign::Minus { Direction::Reduce } else { Direction::Extend };
    let volume = volume.into();
    Command::Resize(Resize { volume, size, direction, force: true, physical: Vec::new() })
}

pub(crate) fn remove(name: &str) -> Command {
    Command::Remove { volumes: vec![name.into()] }
}

pub(crate) fn merge(name: &str) -> Command {
    Command::Merge { snapshot: name.into() }
}

pub(crate) fn rename(from: &str, to: &str) -> Command {
    Command::Rename { from: from.into(), to: to.into() }
}

/// A group on two disks with the volumes `data` and `other`, of 4 MiB each.
pub(crate) async fn group(sim: &Sim) -> Vec<Media> {
    let media = media(2, 24);
    let stack = boot(sim, &media, plain()).await;
    let mut made = GroupRig::new(vec![device(&stack, "d0.img"), device(&stack, "d1.img")]).await;
    made.add("data", Wish::linear(4)).await;
    made.add("other", Wish::linear(4)).await;
    media
}

#[test]
fn a_volume_is_made_extended_renamed_reduced_and_removed_while_others_are_in_use() {
    let sim = Sim::new(1);
    let media = sim.block_on(group(&sim));
    sim.block_on(async {
        let mut live = LiveStack::boot(&sim, &media).await;
        // What an earlier volume left there.
        live.run(create("old", 8)).await.unwrap();
        for at in 0..16384 / 8 {
            write(&live.stack, "vg/old", at * 8, 9).await;
        }
        live.run(remove("old")).await.unwrap();
        assert_eq!(names(&live.stack), ["vg/data", "vg/other"]);

        let applied = live.run(create("new", 2)).await.unwrap();
        assert_eq!(applied.volumes.len(), 1);
        assert_eq!(read(&live.stack, "vg/new", 0).await, 0, "its start is zeroed");
        write(&live.stack, "vg/new", 100, 7).await;
        let open = named(&live.stack, "vg/new");
        live.run(resize("new", Sign::Plus, 3)).await.unwrap();
        assert_eq!(open.capacity(), Sectors(5 * 2048));
        write(&live.stack, "vg/new", 5 * 2048 - 1, 8).await;
        live.run(rename("new", "name-of-two")).await.unwrap();
        assert_eq!(names(&live.stack), ["vg/data", "vg/other", "vg/name-of-two"]);
        assert_eq!(read(&live.stack, "vg/name-of-two", 100).await, 7);
        live.run(resize("name-of-two", Sign::Minus, 1)).await.unwrap();
        assert_eq!(open.capacity(), Sectors(4 * 2048));
        assert!(open.read(Sector(4 * 2048), Sectors(1)).await.is_err());

        // After the rename, a snapshot is made of the new name, and everything continues after a boot.
        live.run(snapshot("snap", "name-of-two", 2)).await.unwrap();
        write(&live.stack, "vg/name-of-two", 100, 1).await;
        live.run(rename("name-of-two", "again")).await.unwrap();
        live.run(rename("snap", "before")).await.unwrap();
        live.run(Command::RenameGroup { to: "wg".into() }).await.unwrap();
        live.stack.stop().await.unwrap();
        let live = LiveStack::boot(&sim, &media).await;
        assert_eq!(names(&live.stack), ["wg/data", "wg/other", "wg/before", "wg/again"]);
        assert_eq!(read(&live.stack, "wg/again", 100).await, 1);
        assert_eq!(read(&live.stack, "wg/before", 100).await, 7);
        assert_eq!(notes(&live.stack), [""; 0]);
        live.stack.stop().await.unwrap();
    });
}

#[test]
fn a_change_that_is_refused_or_fails_changes_nothing() {
    let sim = Sim::new(2);
    let media = sim.block_on(group(&sim));
    sim.block_on(async {
        let mut live = LiveStack::boot(&sim, &media).await;
        live.run(snapshot("snap", "data", 2)).await.unwrap();
        let before = names(&live.stack);
        for (command, why) in [
            (create("data", 1), "already exists"),
            (create("huge", 1000), "free"),
            (resize("data", Sign::Plus, 1), "an origin keeps its size"),
            (resize("other", Sign::Minus, 4), "at least one extent"),
            (resize("nothing", Sign::Plus, 1), "Failed to find logical volume \"vg/nothing\""),
            (remove("nothing"), "no logical volume"),
            (merge("data"), "it is not a snapshot"),
            (rename("data", "other"), "already exists"),
            (rename("data", "x_rimage_0"), "parts of volumes"),
            (Command::RenameGroup { to: "-".into() }, "not a name for a volume group"),
        ] {
            let refused = live.run(command).await.err().unwrap();
            assert!(refused.contains(why), "{refused}");
        }
        let devices = Arc::clone(&live.stack.devices);
        let device = |name: &str| {
            let all = devices.volumes();
            all.into_iter().find(|device| device.export_name() == name).unwrap()
        };
        let open =
            [device("vg/snap"), device("vg/data")].map(|device| device.bytes.open().unwrap());
        for command in [remove("snap"), remove("data"), merge("snap")] {
            assert!(live.run(command).await.err().unwrap().contains("is open"));
        }
        drop(open);

        // The metadata of a disk cannot be written: the new devices are removed again, and the others continue.
        write(&live.stack, "vg/other", 3, 5).await;
        // The first one fails in the commit; then the disk has lost something, and the others fail where they flush.
        let devices = live.stack.devices.all().len();
        let extend = resize("other", Sign::Plus, 1);
        for command in [extend, snapshot("s2", "other", 2), create("new", 1)] {
            media[0].fail_writes(0..2048);
            media[1].fail_writes(0..2048);
            let failed = live.run(command).await.err().unwrap();
            assert!(failed.contains("cannot "), "{failed}");
            media.iter().for_each(Media::heal);
            assert_eq!(names(&live.stack), before);
            assert_eq!(live.stack.devices.all().len(), devices);
            write(&live.stack, "vg/other", 4, 6).await;
            assert_eq!(read(&live.stack, "vg/other", 3).await, 5);
            assert_eq!(named(&live.stack, "vg/other").capacity(), Sectors(4 * 2048));
        }
        // A disk's loss is reported once, to the next commit.
        let mut tries = 0;
        while live.run(create("new", 1)).await.is_err() {
            tries += 1;
            assert!(tries <= media.len());
        }
        // And to each other opener of the disk.
        let (Ok(()) | Err(_)) = live.stack.stop().await;

        let read_only = ashlar_md::Options { run: false, read_only: true, force: false };
        let options = Options { md: read_only, ..plain() };
        let mut live = LiveStack::with(&sim, &media, options).await;
        let refused = live.run(create("late", 1)).await.err().unwrap();
        assert!(refused.contains("read-only"), "{refused}");
    });
}

#[test]
fn a_removed_volume_writes_nothing_more_whatever_still_holds_it() {
    let sim = Sim::new(3);
    let media = sim.block_on(group(&sim));
    sim.block_on(async {
        let mut live = LiveStack::boot(&sim, &media).await;
        live.run(snapshot("snap", "data", 5)).await.unwrap();
        // A view that was made before the removal, of attributes for example.
        let held = live.stack.devices.all();
        let snap = named(&live.stack, "vg/snap");
        live.run(remove("snap")).await.unwrap();
        assert!(snap.read(Sector(0), Sectors(1)).await.is_err());
        // The new volume is where the store was.
        live.run(create("new", 5)).await.unwrap();
        for at in 0..5 * 2048 / 8 {
            write(&live.stack, "vg/new", at * 8, 7).await;
        }
        for at in 0..4 * 2048 / 8 {
            write(&live.stack, "vg/data", at * 8, 3).await;
        }
        for at in 0..5 * 2048 / 8 {
            assert_eq!(read(&live.stack, "vg/new", at * 8).await, 7, "{at}");
        }
        drop(held);
        live.stack.stop().await.unwrap();
    });
}

/// Chains of writes, each write begun when the one before it is acknowledged: what is read later must be a prefix.
struct Chains {
    span: u64,
    /// How many writes of each chain were acknowledged.
    acknowledged: Rc<RefCell<Vec<u64>>>,
    is_over: Rc<Cell<bool>>,
}

impl Chains {
    const COUNT: u64 = 6;

    fn start(gateway: &Gateway) -> Self {
        let span = gateway.capacity().0 / Self::COUNT;
        let acknowledged = Rc::new(RefCell::new(vec![0; Self::COUNT as usize]));
        let is_over = Rc::new(Cell::new(false));
        for chain in 0..Self::COUNT {
            let (gateway, is_over) = (gateway.clone(), Rc::clone(&is_over));
            let acknowledged = Rc::clone(&acknowledged);
            drop(start(async move {
                for n in 0..span {
                    if is_over.get() {
                        return;
                    }
                    let mut data = Buffer::from_slice(&[1 + chain as u8; 512]);
                    let at = Sector(chain * span + n);
                    gateway.write(at, &mut data, Flags::empty()).await.unwrap();
                    acknowledged.borrow_mut()[chain as usize] = n + 1;
                }
            }));
        }
        Self { span, acknowledged, is_over }
    }

    fn now(&self) -> Vec<u64> {
        self.acknowledged.borrow().clone()
    }

    /// The length of each chain on a volume.
    async fn on(&self, gateway: &Gateway) -> Vec<u64> {
        let mut lengths = Vec::new();
        for chain in 0..Self::COUNT {
            let at = Sector(chain * self.span);
            let data = gateway.read(at, Sectors(self.span)).await.unwrap();
            let has = |n: u64| data.as_slice()[n as usize * 512] == 1 + chain as u8;
            let len = (0..self.span).take_while(|n| has(*n)).count() as u64;
            assert!((len..self.span).all(|n| !has(n)), "chain {chain} has a hole after {len}");
            lengths.push(len);
        }
        lengths
    }
}

#[test]
fn a_snapshot_of_a_volume_in_use_is_the_volume_at_one_moment() {
    for seed in seeds(60) {
        let sim = Sim::new(seed);
        let media = sim.block_on(group(&sim));
        sim.block_on(async {
            let mut live = LiveStack::boot(&sim, &media).await;
            let chains = Chains::start(&named(&live.stack, "vg/data"));
            let mut taken: Vec<(String, Vec<u64>)> = Vec::new();
            for round in 0..4 {
                SimRuntime.sleep(Duration::from_micros(50 + 300 * (seed % 7))).await;
                let name = format!("snap{round}");
                let before = chains.now();
                live.run(snapshot(&name, "data", 3)).await.unwrap();
                let after = chains.now();
                let len = chains.on(&named(&live.stack, &format!("vg/{name}"))).await;
                for chain in 0..len.len() {
                    // One write of each chain may be in flight when the command ends.
                    assert!(before[chain] <= len[chain] && len[chain] <= after[chain] + 1);
                }
                taken.push((name, len));
                // The second one goes again: the others must not notice.
                if round == 2 {
                    live.run(remove("snap1")).await.unwrap();
                    taken.remove(1);
                }
            }
            SimRuntime.sleep(Duration::from_millis(1)).await;
            chains.is_over.set(true);
            for (name, len) in &taken {
                assert_eq!(chains.on(&named(&live.stack, &format!("vg/{name}"))).await, *len);
            }
            live.stack.stop().await.unwrap();
            let live = LiveStack::boot(&sim, &media).await;
            for (name, len) in &taken {
                assert_eq!(chains.on(&named(&live.stack, &format!("vg/{name}"))).await, *len);
            }
            assert_eq!(chains.on(&named(&live.stack, "vg/data")).await, chains.now());
            live.stack.stop().await.unwrap();
        });
    }
}

#[test]
fn a_snapshot_that_was_acknowledged_survives_a_power_cut_with_all_that_was_written_before() {
    let mut cut = 0;
    for seed in seeds(80) {
        let sim = Sim::new(seed);
        let media = sim.block_on(group(&sim));
        drop(sim);
        let sim = Sim::new(seed ^ 77);
        let found = Rc::new(RefCell::new(None));
        let told = Rc::clone(&found);
        let steps = Rng::new(seed).below(6000);
        let running = sim.block_on_until(
            async {
                let mut live = LiveStack::boot(&sim, &media).await;
                let chains = Chains::start(&named(&live.stack, "vg/data"));
                SimRuntime.sleep(Duration::from_micros(100 + 100 * (seed % 9))).await;
                let before = chains.now();
                live.run(snapshot("snap", "data", 4)).await.unwrap();
                *told.borrow_mut() = Some(before);
                std::future::pending::<()>().await;
            },
            Stop::AfterSteps(steps),
        );
        assert!(running.is_none());
        sim.power_cut();
        let sim = Sim::new(seed ^ 78);
        sim.block_on(async {
            let live = LiveStack::boot(&sim, &media).await;
            let before = found.borrow().clone();
            assert!(live.has("snap") || before.is_none(), "an acknowledged snapshot is lost");
            if let Some(before) = before {
                cut += 1;
                let span = named(&live.stack, "vg/data").capacity().0 / Chains::COUNT;
                let chains = Chains { span, acknowledged: Rc::default(), is_over: Rc::default() };
                let len = chains.on(&named(&live.stack, "vg/snap")).await;
                assert!(
                    before.iter().zip(&len).all(|(before, len)| before <= len),
                    "{before:?} {len:?}"
                );
            }
            live.stack.stop().await.unwrap();
        });
    }
    assert!(cut > 10, "{cut} of them after the snapshot");
}

/// The disks of a group whose volume `data` has 1 in 64 chunks, a snapshot, and since then 2 in the first `rewritten` of them.
pub(super) fn with_snapshot(seed: u64, rewritten: u64) -> Vec<Media> {
    let sim = Sim::new(seed);
    let media = sim.block_on(group(&sim));
    sim.block_on(async {
        let mut live = LiveStack::boot(&sim, &media).await;
        for at in 0..64 {
            write(&live.stack, "vg/data", at * 16, 1).await;
        }
        live.run(snapshot("snap", "data", 3)).await.unwrap();
        for at in 0..rewritten {
            write(&live.stack, "vg/data", at * 16, 2).await;
        }
        live.stack.stop().await.unwrap();
    });
    media
}

#[test]
fn a_merge_of_a_served_snapshot_ends_whatever_cuts_it() {
    let (mut merged, mut kept) = (0, 0);
    for seed in seeds(60) {
        let media = with_snapshot(seed, 64);
        let sim = Sim::new(seed ^ 5);
        let steps = if seed % 8 == 0 { u64::MAX } else { Rng::new(seed).below(1200) };
        let mut acknowledged = false;
        let done = sim.block_on_until(
            async {
                let mut live = LiveStack::boot(&sim, &media).await;
                live.run(merge("snap")).await.unwrap();
                acknowledged = true;
                assert!(!live.has("snap"));
                // What is written meanwhile stays.
                write(&live.stack, "vg/data", 5 * 16, 3).await;
                assert_eq!(read(&live.stack, "vg/data", 6 * 16).await, 1);
                live.end_merges().await;
                live.run(create("snap", 3)).await.unwrap();
                live.stack.stop().await.unwrap();
            },
            Stop::AfterSteps(steps),
        );
        let done = done.is_some();
        sim.power_cut();
        let sim = Sim::new(seed ^ 6);
        sim.block_on(async {
            let mut live = LiveStack::boot(&sim, &media).await;
            let is_kept = live.has("snap") && !done && {
                let all = live.stack.devices.volumes();
                all.iter().any(|device| device.export_name() == "vg/snap")
                    && named(&live.stack, "vg/snap").capacity() == Sectors(4 * 2048)
            };
            assert!(!(is_kept && acknowledged), "the merge was acknowledged");
            kept += u32::from(is_kept);
            merged += u32::from(!is_kept);
            live.end_merges().await;
            for at in (0..64).filter(|at| *at != 5) {
                let wanted = if is_kept { 2 } else { 1 };
                assert_eq!(read(&live.stack, "vg/data", at * 16).await, wanted, "{at}");
            }
            if done {
                assert_eq!(read(&live.stack, "vg/data", 5 * 16).await, 3);
            }
            live.stack.stop().await.unwrap();
        });
    }
    assert!(merged > 10 && kept > 10, "{merged} merged, {kept} kept");
}
