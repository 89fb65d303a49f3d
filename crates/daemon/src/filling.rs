//! Snapshots that fill while they are served: warnings in the log, and more space by policy.
//!
//! Like LVM's dmeventd: a warning when 80 % of a snapshot's space are in use, and at each further 5 %; an error when the snapshot
//! is lost; and with `snapshot_autoextend_threshold` the extension that `lvextend --use-policies` makes. A snapshot with room for
//! all of its origin cannot overflow, and needs neither.
//!
//! The task sleeps until a snapshot uses another percent of its space, and also looks every ten seconds, because a group may
//! get free extents. An extension is a change like a user's `lvextend`: it takes the turn of the stack, and commits the new size
//! before the device grows. Only I/O to the snapshot's space waits for it, while its table is replaced.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ashlar_block::Sectors;
use ashlar_commands::lvm::{archive, new_uuid};
use ashlar_dm::snapshot::Status;
use ashlar_lvm::Uuid;
use ashlar_lvm::change::Author;
use ashlar_lvm::report::{Percent, long};
use ashlar_lvm::snapshots::{AutoExtend, used_percent};
use ashlar_stack::turn::NoTurn;
use ashlar_stack::volume_groups::{Request, ServedSnapshot};
use futures_util::future::select;

use crate::groups::apply;
use crate::incremental::log_notes;
use crate::machine::now;
use crate::service::Service;

/// How often to check the snapshots although none has filled.
const INTERVAL: Duration = Duration::from_secs(10);
/// After this time the log repeats that a snapshot cannot be extended.
const LOGGED_AGAIN: Duration = Duration::from_secs(600);
/// The used part of its space from which on the log warns, and the steps after which it warns again.
const FIRST_WARNING: u64 = 80;
const STEP: u64 = 5;

/// Watches the snapshots until the daemon is about to end.
pub(crate) async fn watch_snapshots(service: Rc<Service>, policy: AutoExtend) {
    let runtime = Arc::clone(service.machine.runtime());
    let mut watch = Watch::default();
    loop {
        let (fills, snapshots, due) = {
            let look = service.turns.look().await;
            // Before the look: what fills later ends the wait.
            let fills = look.snapshot_fills();
            let snapshots = look.snapshots();
            let is_due = |it: &&ServedSnapshot| !matches!(look.autoextension(it, policy), Ok(None));
            let due = snapshots.iter().filter(|_| policy.is_on()).filter(is_due);
            let due: Vec<ServedSnapshot> = due.cloned().collect();
            (fills, snapshots, due)
        };
        watch.keep(&snapshots);
        for snapshot in &snapshots {
            if let Some(warning) = watch.look(snapshot) {
                warning.log(&snapshot.full_name());
            }
        }
        for snapshot in due {
            let name = snapshot.full_name();
            match extend(&service, &snapshot, policy).await {
                Ok(Some(size)) => tracing::info!("snapshot {name} was extended to {}", long(size)),
                Ok(None) => {}
                Err(Failure::Ending) => return,
                Err(Failure::Refused(why)) => {
                    if watch.is_to_be_logged(&snapshot, &why, now(&runtime)) {
                        tracing::warn!("snapshot {name} cannot be extended: {why}");
                    }
                }
            }
        }
        select(fills, runtime.sleep(INTERVAL)).await;
    }
}

/// Why a snapshot was not extended.
enum Failure {
    /// The daemon is about to end.
    Ending,
    /// For this reason.
    Refused(String),
}

/// Extends a snapshot if the policy still wants that; returns the new size.
async fn extend(
    service: &Service,
    snapshot: &ServedSnapshot,
    policy: AutoExtend,
) -> Result<Option<Sectors>, Failure> {
    let mut turn = match service.turns.take().await {
        Ok(turn) => turn,
        Err(NoTurn::Busy) => return Err(Failure::Refused(NoTurn::Busy.to_string())),
        Err(NoTurn::Ending | NoTurn::NotServed) => return Err(Failure::Ending),
    };
    let refused = |why: String| Failure::Refused(why);
    let command = turn.autoextension(snapshot, policy);
    let Some(command) = command.map_err(|error| refused(error.to_string()))? else {
        return Ok(None);
    };
    let mut author = Author { creation: archive::creation(), new_uuid: &mut new_uuid };
    let group = snapshot.group_id.to_string();
    let request = Request { group: &group, command: &command, physical: &|_| None };
    let change = turn.prepare(&request, &mut author).map_err(refused)?;
    let applied = apply(&*service.machine, &mut turn, change, (&archive::command(), true)).await;
    log_notes(&turn.take_notes());
    let applied = applied.map_err(refused)?;
    if let Some(why) = applied.unsure {
        return Err(Failure::Refused(why));
    }
    let group = &applied.metadata.group;
    let lv = group.lvs.iter().find(|lv| lv.id == snapshot.id);
    Ok(lv.map(|lv| group.size(lv)))
}

/// An entry of the log about a snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FillWarning {
    /// This much of its space is in use.
    Full(Percent),
    /// It accepts no more writes.
    Overflow,
    /// It is lost.
    Invalid,
}

impl FillWarning {
    fn log(self, name: &str) {
        match self {
            Self::Full(percent) => tracing::warn!(
                "snapshot {name} is {} % full, and is lost once it is full: ashlar lvm lvextend gives it more space",
                percent.show()
            ),
            Self::Overflow => tracing::error!(
                "snapshot {name} is full: its writes fail, and it is lost with the next write to its origin"
            ),
            Self::Invalid => tracing::error!(
                "snapshot {name} is invalid, because its space is full or could not be written: all its I/O fails. ashlar lvm lvremove removes it"
            ),
        }
    }
}

/// What was logged of a snapshot.
struct Logged {
    /// The size of its space then.
    size: Sectors,
    /// The use that is logged next.
    next: Percent,
    /// The loss that was logged.
    lost: Option<FillWarning>,
    /// Why it could not be extended, and when that was logged.
    refused: Option<(String, Duration)>,
}

/// What was logged of each snapshot, by its group's identity and its own.
#[derive(Default)]
struct Watch(HashMap<(Uuid, Uuid), Logged>);

const fn percent(whole: u64) -> Percent {
    Percent(Percent::ALL.0 / 100 * whole)
}

impl Watch {
    fn of(&mut self, snapshot: &ServedSnapshot) -> &mut Logged {
        let size = snapshot.size;
        let first = || Logged { size, next: percent(FIRST_WARNING), lost: None, refused: None };
        self.0.entry((snapshot.group_id, snapshot.id)).or_insert_with(first)
    }

    /// Forgets all but these.
    fn keep(&mut self, snapshots: &[ServedSnapshot]) {
        self.0.retain(|key, _| snapshots.iter().any(|it| (it.group_id, it.id) == *key));
    }

    /// What is to be logged of a snapshot now.
    fn look(&mut self, snapshot: &ServedSnapshot) -> Option<FillWarning> {
        let logged = self.of(snapshot);
        let lost = match snapshot.status {
            Status::Invalid => Some(FillWarning::Invalid),
            Status::Overflow => Some(FillWarning::Overflow),
            Status::Valid(_) | Status::Unknown | Status::MergeFailed => None,
        };
        if lost.is_some() || logged.lost.is_some() {
            let is_new = lost != logged.lost;
            logged.lost = lost;
            return lost.filter(|_| is_new);
        }
        if logged.size != snapshot.size {
            (logged.size, logged.next) = (snapshot.size, percent(FIRST_WARNING));
        }
        let used = used_percent(snapshot.status).filter(|_| !snapshot.covers_origin)?;
        if used < logged.next {
            return None;
        }
        let step = percent(STEP).0;
        logged.next = Percent((used.0 / step + 1) * step);
        Some(FillWarning::Full(used))
    }

    /// Whether to log now why a snapshot cannot be extended.
    fn is_to_be_logged(&mut self, snapshot: &ServedSnapshot, why: &str, now: Duration) -> bool {
        let logged = self.of(snapshot);
        let is_known = |(known, at): &(String, Duration)| {
            known == why && now.saturating_sub(*at) < LOGGED_AGAIN
        };
        let is_new = !logged.refused.as_ref().is_some_and(is_known);
        if is_new {
            logged.refused = Some((why.to_owned(), now));
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use ashlar_dm::snapshot::Usage;

    use super::*;

    const SIZE: u64 = 1000;

    fn snapshot(status: Status) -> ServedSnapshot {
        ServedSnapshot {
            group_id: Uuid::from_random([1; 32]),
            group: "vg".to_owned(),
            id: Uuid::from_random([2; 32]),
            name: "snap".to_owned(),
            status,
            size: Sectors(SIZE),
            covers_origin: false,
        }
    }

    /// A snapshot with this many of a thousand sectors in use.
    fn used(allocated: u64) -> ServedSnapshot {
        let (total, metadata) = (Sectors(SIZE), Sectors(16));
        snapshot(Status::Valid(Usage { allocated: Sectors(allocated), total, metadata }))
    }

    fn full(thousandths: u64) -> Option<FillWarning> {
        Some(FillWarning::Full(Percent(Percent::ALL.0 / SIZE * thousandths)))
    }

    #[test]
    fn each_step_from_eighty_percent_on_is_told_once() {
        let mut watch = Watch::default();
        let logged: Vec<u64> = (0..=1000).filter(|it| watch.look(&used(*it)).is_some()).collect();
        assert_eq!(logged, [800, 850, 900, 950, 1000]);
        // Steps that were passed between two looks are one.
        let mut watch = Watch::default();
        assert_eq!(watch.look(&used(930)), full(930));
        assert_eq!((watch.look(&used(949)), watch.look(&used(950))), (None, full(950)));
        // A larger one is another matter.
        let larger = ServedSnapshot { size: Sectors(SIZE + 1), ..used(810) };
        assert_eq!((watch.look(&larger), watch.look(&larger)), (full(810), None));
        // One that has gone and one that cannot overflow.
        watch.keep(&[]);
        assert_eq!(watch.look(&used(801)), full(801));
        let covers = ServedSnapshot { covers_origin: true, ..used(999) };
        assert_eq!(watch.look(&covers), None);
    }

    #[test]
    fn a_loss_is_told_once() {
        let mut watch = Watch::default();
        let (overflow, invalid) = (snapshot(Status::Overflow), snapshot(Status::Invalid));
        assert_eq!(
            (watch.look(&overflow), watch.look(&overflow)),
            (Some(FillWarning::Overflow), None)
        );
        assert_eq!(
            (watch.look(&invalid), watch.look(&invalid)),
            (Some(FillWarning::Invalid), None)
        );
    }

    #[test]
    fn a_refusal_is_told_seldom() {
        let mut watch = Watch::default();
        let (one, minutes) = (used(900), |count: u64| Duration::from_secs(60 * count));
        assert!(watch.is_to_be_logged(&one, "full", minutes(0)));
        assert!(!watch.is_to_be_logged(&one, "full", minutes(9)));
        assert!(watch.is_to_be_logged(&one, "busy", minutes(9)));
        assert!(!watch.is_to_be_logged(&one, "busy", minutes(18)));
        assert!(watch.is_to_be_logged(&one, "busy", minutes(19)));
    }
}
