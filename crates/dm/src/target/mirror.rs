//! `mirror LOG #ARGS ARG... #LEGS [DEVICE OFFSET]... [#FEATURES FEATURE...]`: copies of the first leg.
//!
//! The only log is `core`, in memory: `core 1 REGION` or `core 2 REGION sync|nosync`. All legs get the contents of the first one
//! from its start to its end, while I/O continues; `nosync` says that they have them already. LVM's `pvmove` is made of this.
//!
//! ```text
//!   0                      synced               window_end                        the end
//!   +------------------------+----------------------+-------------------------------+
//!   | changes go to all legs | being copied:        | changes go to the first leg:  |
//!   |                        | changes are held     | the copy comes later          |
//!   +------------------------+----------------------+-------------------------------+
//! ```
//!
//! Each change passes a gate whose value is this `CopyProgress`, and keeps its pass until it ends. The window moves while the gate is
//! closed: so no change that went to the first leg alone is in flight when its region is copied. No bio crosses the end of a
//! region, and a window consists of whole regions.
//!
//! A change succeeds if the first leg took it. Another leg that fails a change, a copy or a flush is no longer used, and the status
//! says so: `D` after a change, `S` after a copy, `F` after a flush. Reads go to the first leg; if it fails (`R`), to another one that
//! has the data.
//!
//! The messages are ours: `pause` and `resume` stop the copying between two windows, `is_paused` is answered with 1 or 0, and
//! `verify` succeeds if every leg has everything, durably. `has_failed` is answered with 1 if the copying has ended early.
//!
//! Source: the kernel's `drivers/md/dm-raid1.c` and `dm-log.c` for arguments and status.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::SeqCst};

use ashlar_block::sync::gate::Gate;
use ashlar_block::zeroes::all_or_none;
use ashlar_block::{
    Bio, BioResult, CopyNumber, Disk, Extents, Flags, Gateway, IoFuture, Limits, LocalFuture, Op,
    Runtime, Sector, Sectors, Status,
};
use futures_util::future::join_all;
use tracing::{error, info, warn};

use super::{Lower, MessageError, Reply, TableTarget, Target, TargetError, TargetParameters};
use crate::copy::pieces;
use crate::task::Task;
use crate::text::QuotedArgument;

/// Sectors that are copied at a time, unless a region has more. All of them are in memory, and changes of them wait.
const WINDOW: Sectors = Sectors(16_384);
/// The kernel's maximum of legs.
const MOST_LEGS: usize = 9;
/// The kernel's features. Errors are always handled.
const FEATURES: [&str; 2] = ["handle_errors", "keep_log"];

const ALIVE: u8 = b'A';
const FAILED_CHANGE: u8 = b'D';
const FAILED_COPY: u8 = b'S';
const FAILED_FLUSH: u8 = b'F';
const FAILED_READ: u8 = b'R';

struct Leg {
    lower: Lower,
    /// What it failed at first.
    health: AtomicU8,
}

impl Leg {
    fn is_alive(&self) -> bool {
        self.health.load(SeqCst) == ALIVE
    }

    fn fail(&self, at: u8, status: Status) {
        if self.health.compare_exchange(ALIVE, at, SeqCst, SeqCst).is_ok() {
            let at = char::from(at);
            warn!(leg = self.lower.name(), %status, %at, "a leg of a mirror has failed");
        }
    }
}

/// What the legs have in common; see the module text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct CopyProgress {
    synced: Sector,
    window_end: Sector,
}

/// The legs that a change goes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    All,
    First,
    /// None yet: the range is being copied.
    Held,
}

impl CopyProgress {
    const fn done(to: Sector) -> Self {
        Self { synced: to, window_end: to }
    }

    fn way(&self, bio: &Bio) -> Way {
        if bio.end() <= self.synced {
            Way::All
        } else if bio.sector >= self.window_end {
            Way::First
        } else {
            Way::Held
        }
    }
}

/// See the module text.
pub struct Mirror(Arc<MirrorCore>);

struct MirrorCore {
    first: Leg,
    others: Box<[Leg]>,
    len: Sectors,
    region: Sectors,
    /// The third argument of the log, if there is one.
    sync: Option<&'static str>,
    features: Vec<&'static str>,
    gate: Gate<CopyProgress>,
    /// [`Task::changed`] is notified when the window has moved, too.
    task: Task,
    /// Whether copying has ended early.
    failed: AtomicBool,
    runtime: Arc<dyn Runtime>,
}

impl MirrorCore {
    fn legs(&self) -> impl Iterator<Item = &Leg> {
        std::iter::once(&self.first).chain(&self.others)
    }

    fn healthy(&self) -> impl Iterator<Item = &Leg> {
        self.others.iter().filter(|leg| leg.is_alive())
    }

    fn has_synced(&self) -> bool {
        self.gate.get().synced == self.len.as_end()
    }

    async fn change(&self, bio: Bio) -> BioResult {
        let mut moves = None;
        loop {
            let pass = self.gate.enter().await;
            match pass.way(&bio) {
                Way::All => return self.submit_to_all(bio, FAILED_CHANGE).await,
                Way::First => return self.first.lower.submit(bio).await,
                Way::Held if bio.flags.contains(Flags::NOWAIT) => return Err(Status::Again),
                Way::Held => {}
            }
            drop(pass);
            // Checked again after the first time, lest a move in between is missed.
            match moves.take() {
                None => moves = Some(self.task.changed.listen()),
                Some(moved) => moved.await,
            }
        }
    }

    /// Submits a change or a flush to all legs that work; those that fail it are no longer used, with `at` as the reason.
    async fn submit_to_all(&self, bio: Bio, at: u8) -> BioResult {
        let others: Vec<&Leg> = self.healthy().collect();
        let legs = std::iter::once(&self.first).chain(others.iter().copied());
        let legs: Vec<&Leg> = legs.collect();
        let send =
            async |bio: Bio| join_all(legs.iter().map(|leg| leg.lower.submit(bio.clone()))).await;
        let disks = legs.iter().map(|leg| leg.lower.gateway().disk());
        let op = bio.op;
        let results = all_or_none(disks, bio, send).await;
        let (first, results) = results.split_first().ok_or(Status::Io)?;
        // A leg that does not support the operation has not failed: the submitter then writes zeroes to all legs.
        if op != Op::Flush && results.contains(&Err(Status::NotSupported)) {
            return Err(Status::NotSupported);
        }
        for (leg, result) in others.iter().zip(results) {
            if let Err(status) = result {
                leg.fail(at, *status);
            }
        }
        *first
    }

    async fn read(&self, bio: Bio) -> BioResult {
        let result = self.first.lower.submit(bio.clone()).await;
        let Err(status) = result else { return result };
        if bio.copy != CopyNumber::ANY || bio.flags.contains(Flags::RAHEAD) {
            return result;
        }
        self.first.fail(FAILED_READ, status);
        let pass = self.gate.enter().await;
        if pass.way(&bio) == Way::All {
            for leg in self.healthy() {
                if leg.lower.submit(bio.clone()).await.is_ok() {
                    return Ok(());
                }
            }
        }
        result
    }

    /// Whether every leg has everything, durably.
    async fn verify(&self) -> Result<(), String> {
        if !self.has_synced() {
            return Err("the legs are not in sync yet".to_owned());
        }
        for leg in &self.others {
            if leg.is_alive()
                && let Err(status) = leg.lower.submit(Bio::flush()).await
            {
                leg.fail(FAILED_FLUSH, status);
            }
            if !leg.is_alive() {
                return Err(format!("{} has failed", leg.lower.name()));
            }
        }
        Ok(())
    }

    async fn move_window(&self, to: CopyProgress) {
        self.gate.close().await.replace(to);
        self.task.changed.notify(usize::MAX);
    }

    /// Waits while the copying is paused at `at`, with no change held; false if its task must end.
    async fn goes_on(&self, at: Sector) -> bool {
        loop {
            let listener = self.task.changed.listen();
            if !self.task.goes_on() {
                return false;
            }
            if !self.task.is_paused() {
                return true;
            }
            if self.gate.get() == CopyProgress::done(at) {
                listener.await;
            } else {
                self.move_window(CopyProgress::done(at)).await;
            }
        }
    }

    /// Copies window after window, until all is copied, the task must end, or an error occurs.
    async fn recover(&self) {
        let (mut at, end) = (self.gate.get().synced, self.len.as_end());
        let window = Sectors(WINDOW.0.max(self.region.0) / self.region.0 * self.region.0);
        while at < end && self.goes_on(at).await {
            let window_end = (at + window).min(end);
            self.move_window(CopyProgress { synced: at, window_end }).await;
            if let Err(status) = self.copy(at, window_end - at).await {
                error!(from = self.first.lower.name(), at = at.0, %status, "a mirror cannot be copied");
                self.failed.store(true, SeqCst);
                break;
            }
            at = window_end;
        }
        self.move_window(CopyProgress::done(at)).await;
        if at == end {
            info!(from = self.first.lower.name(), len = self.len.0, "a mirror is in sync");
        }
        self.task.ended();
    }

    async fn copy(&self, at: Sector, len: Sectors) -> BioResult {
        let copies = pieces(len).map(|(done, len)| self.copy_piece(at + done, len));
        join_all(copies).await.into_iter().collect::<BioResult>()?;
        // Without another leg there is nothing to copy to.
        self.healthy().next().map(drop).ok_or(Status::Io)
    }

    async fn copy_piece(&self, at: Sector, len: Sectors) -> BioResult {
        let read = self.first.lower.read(at, len).await;
        let mut data = read.inspect_err(|status| self.first.fail(FAILED_READ, *status))?;
        let bio = Bio::write_from(at, &mut data);
        let copies = self.healthy().map(|leg| {
            let written = leg.lower.submit(bio.clone());
            async move {
                if let Err(status) = written.await {
                    leg.fail(FAILED_COPY, status);
                }
            }
        });
        join_all(copies).await;
        Ok(())
    }
}

impl TableTarget for Mirror {
    const NAME: &'static str = "mirror";

    async fn construct(mut parameters: TargetParameters<'_>) -> Result<Self, TargetError> {
        let invalid = |text: String| Err(TargetError::Invalid(text));
        let (args, len) = (&mut parameters.args, parameters.len);
        let log = args.word("the log")?;
        if log != "core" {
            return invalid(format!("the log '{log}' is not supported, only core, in memory"));
        }
        let count: u32 = args.number("the number of the log's arguments")?;
        let region = Sectors(u64::from(args.number::<u32>("the region size")?));
        if region.0 < 2 || !region.0.is_power_of_two() || region > len {
            return invalid(format!(
                "a region is a power of two of at least 2 sectors, and no longer than the piece of {len}, not {region}"
            ));
        }
        let sync = match count {
            1 => None,
            2 => match args.word("sync or nosync")? {
                "sync" => Some("sync"),
                "nosync" => Some("nosync"),
                other => return invalid(format!("'{other}' is neither sync nor nosync")),
            },
            _ => return invalid(format!("the log core has 1 or 2 arguments, not {count}")),
        };
        let count: usize = args.number("the number of legs")?;
        if !(1..=MOST_LEGS).contains(&count) {
            return invalid(format!("a mirror has 1 to {MOST_LEGS} legs, not {count}"));
        }
        let mut leg = || {
            let lower = Lower::take(args, parameters.context, len)?;
            lower.check_aligned("the region size", region.0)?;
            Ok(Leg { lower, health: AtomicU8::new(ALIVE) })
        };
        let (first, others) = (leg()?, (1..count).map(|_| leg()).collect::<Result<_, _>>()?);
        let mut features = Vec::new();
        if args.left() > 0 {
            for _ in 0..args.number::<u32>("the number of features")? {
                let word = args.word("a feature")?;
                match FEATURES.into_iter().find(|known| *known == word) {
                    Some(known) => features.push(known),
                    None => return invalid(format!("there is no feature '{word}'")),
                }
            }
        }
        parameters.args.end()?;
        let synced = sync == Some("nosync") || count == 1;
        let start = CopyProgress::done(if synced { len.as_end() } else { Sector::ZERO });
        Ok(Self(Arc::new(MirrorCore {
            first,
            others,
            len,
            region,
            sync,
            features,
            gate: Gate::new(start),
            task: Task::default(),
            failed: AtomicBool::new(false),
            runtime: Arc::clone(&parameters.context.runtime),
        })))
    }
}

impl Target for Mirror {
    fn type_name(&self) -> &'static str {
        Self::NAME
    }

    fn arguments(&self) -> String {
        let core = &self.0;
        let sync = core.sync.map(|word| format!(" {word}")).unwrap_or_default();
        let count = 1 + usize::from(core.sync.is_some());
        let legs: String = core.legs().map(|leg| format!(" {}", leg.lower)).collect();
        let mut text =
            format!("core {count} {}{sync} {}{legs}", core.region, core.others.len() + 1);
        if !core.features.is_empty() {
            text += &format!(" {} {}", core.features.len(), core.features.join(" "));
        }
        text
    }

    /// The names; the regions in sync and all of them; for each leg whether it is alive; the log. After an early end of the copying,
    /// the regions are those that were copied before.
    fn status(&self) -> String {
        let core = &self.0;
        let names: String =
            core.legs().map(|leg| format!("{} ", QuotedArgument(leg.lower.name()))).collect();
        let all = core.len.0.div_ceil(core.region.0);
        let synced = core.gate.get().synced;
        let done = if synced == core.len.as_end() { all } else { synced.0 / core.region.0 };
        let health: String = core.legs().map(|leg| char::from(leg.health.load(SeqCst))).collect();
        format!("{} {names}{done}/{all} 1 {health} 1 core", core.others.len() + 1)
    }

    fn max_io_len(&self) -> Sectors {
        self.0.region
    }

    fn iterate_devices(&self, seen: &mut dyn FnMut(&Gateway)) {
        self.0.legs().for_each(|leg| seen(leg.lower.gateway()));
    }

    fn stack_limits(&self, limits: &mut Limits) {
        Lower::stack_all(self.0.legs().map(|leg| &leg.lower), limits);
    }

    fn copies(&self, at: Sector, len: Sectors) -> u16 {
        self.0.first.lower.copies(at, len)
    }

    fn extents(&self, at: Sector, len: Sectors) -> LocalFuture<'_, Result<Extents, Status>> {
        Box::pin(self.0.first.lower.extents(at, len))
    }

    fn submit(&self, bio: Bio) -> IoFuture<'_> {
        match bio.op {
            Op::Read => IoFuture::boxed(self.0.read(bio)),
            Op::Write | Op::Discard | Op::WriteZeroes => IoFuture::boxed(self.0.change(bio)),
            Op::Flush => IoFuture::boxed(self.0.submit_to_all(bio, FAILED_FLUSH)),
        }
    }

    fn remaps(&self, bio: &Bio, seen: &mut dyn FnMut(&Disk, &Bio)) {
        self.0.first.lower.remaps(bio, seen);
        if bio.op != Op::Read && self.0.gate.get().way(bio) == Way::All {
            self.0.others.iter().for_each(|leg| leg.lower.remaps(bio, seen));
        }
    }

    fn suspended(&self) -> LocalFuture<'_, BioResult> {
        Box::pin(async {
            self.0.task.stop().await;
            Ok(())
        })
    }

    fn resumed(&self) -> LocalFuture<'_, ()> {
        Box::pin(async {
            if !self.0.has_synced() && self.0.task.begin().await {
                self.0.failed.store(false, SeqCst);
                let core = Arc::clone(&self.0);
                self.0.runtime.spawn(Box::pin(async move { core.recover().await }));
            }
        })
    }

    fn message<'a>(&'a self, words: &'a [&'a str]) -> Reply<'a> {
        Box::pin(async move {
            if let Some(reply) = self.0.task.answer(words) {
                return Ok(reply);
            }
            match words {
                ["has_failed"] => Ok(u8::from(self.0.failed.load(SeqCst)).to_string()),
                ["verify"] => {
                    self.0.verify().await.map_err(MessageError::Invalid)?;
                    Ok(String::new())
                }
                _ => Err(MessageError::Unknown { target: Self::NAME, message: words.join(" ") }),
            }
        })
    }
}
