//! Lost members of arrays that are online again: re-adds them by the bitmap, as a user would with `mdadm --re-add`.
//!
//! A member is *lost* if it failed because its device did not respond or disappeared ([`MemberStatus::lost`]): a server
//! restarted, a network was cut. A member that failed for another reason, or that a user failed, stays failed.
//!
//! ```text
//! lost --a wait--> its superblock is read, each second --answers--> re-added --> recovery by the bitmap
//!                                                     \--refused--> logged; a user has to add it
//! ```
//!
//! A disk on the network that was out of date when the daemon started was lost while the previous daemon ran; it is re-added in
//! the same way, once its array is not read-only. A local disk that is out of date may have failed: a user has to add it.
//!
//! The first wait is a second. Each loss within ten minutes of the previous one doubles it, up to five minutes: an unstable
//! device does not keep the array busy with recoveries.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ashlar_block::Presence;
use ashlar_md::{ArrayState, Index, ManageError, MemberStatus, ProbeError};
use ashlar_stack::arrays::Volume;
use ashlar_stack::turn::NoTurn;
use uuid::Uuid;

use crate::machine::now;
use crate::service::Service;

/// How often to check the arrays.
const INTERVAL: Duration = Duration::from_secs(1);
/// The wait before the first attempt for a lost member, and the longest one.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(300);
/// After so long without a loss, the next one counts as the first.
const CALM: Duration = Duration::from_secs(600);

/// Re-adds members that are online again, forever.
pub(crate) async fn re_add_members(service: Rc<Service>) {
    let mut started = HashMap::new();
    let losses = Rc::new(RefCell::new(Losses::default()));
    let runtime = Arc::clone(service.machine.runtime());
    loop {
        // Of each running array, whether it was started without disks that are still to be tried. (A user may have removed disks
        // that it lacks later.)
        let mut before = std::mem::take(&mut started);
        for volume in service.stack.arrays.running() {
            let (name, is_degraded) = (volume.name.device(), volume.view.degraded() > 0);
            let lacks_some = before.remove(&name).unwrap_or(is_degraded);
            let lacks_some = started.entry(name).or_insert(lacks_some);
            if !is_degraded {
                continue;
            }
            let status = volume.view.status();
            // Re-adding would write to an array that a user has not written to yet.
            if matches!(status.state, ArrayState::ReadOnly | ArrayState::ReadAuto) {
                continue;
            }
            if std::mem::take(lacks_some) {
                let (service, volume) = (Rc::clone(&service), volume.clone());
                runtime.spawn(Box::pin(async move { service.re_add_left_out(&volume).await }));
            }
            for member in status.members.into_iter().filter(|member| member.lost) {
                let Some(key) = Key::of(status.uuid, &member) else { continue };
                if losses.borrow_mut().begin(&key, now(&runtime)) {
                    let (volume, losses) = (volume.clone(), Rc::clone(&losses));
                    let (service, clock) = (Rc::clone(&service), Arc::clone(&runtime));
                    // A device that does not respond must not keep others waiting.
                    runtime.spawn(Box::pin(async move {
                        if !re_add(&service, &volume, &key).await {
                            losses.borrow_mut().ask_again(&key, now(&clock));
                        }
                    }));
                }
            }
        }
        runtime.sleep(INTERVAL).await;
    }
}

/// Tries to re-add a member; false if its device does not respond yet. If the member cannot be re-added, logs why: a user has
/// to decide.
async fn re_add(service: &Service, volume: &Volume, key: &Key) -> bool {
    let (array, member) = (&volume.view, &key.path);
    let Some(device) = array.members().get(key.index).map(|rdev| rdev.gateway().clone()) else {
        return true;
    };
    // Asking it would wait until its deadline.
    if device.disk().presence() == Presence::Silent || device.holds_changes() {
        return false;
    }
    // Changes of other arrays must not wait for a device that may not respond.
    if ashlar_md::probe(&device).await.is_err_and(|error| matches!(error, ProbeError::Read(_))) {
        return false;
    }
    let turn = match service.turns.take().await {
        Ok(turn) => turn,
        Err(NoTurn::Busy) => return false,
        Err(NoTurn::Ending | NoTurn::NotServed) => return true,
    };
    // A user may have failed or removed it meanwhile.
    if !array.status().members.iter().any(|it| it.lost && it.index == Some(key.index)) {
        return true;
    }
    let name = volume.name.device();
    match array.re_add_lost(&turn, key.index).await {
        Ok(_) => {
            tracing::info!(array = name, member, "is online again: copying what the bitmap marks");
            true
        }
        Err(
            ManageError::Probe { error: ProbeError::Read(_), .. }
            | ManageError::Device { .. }
            | ManageError::Record { .. },
        ) => false,
        Err(error) => {
            tracing::warn!(array = name, member, %error, "is online again, but cannot be re-added");
            true
        }
    }
}

/// A member that was lost.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Key {
    array: Uuid,
    path: String,
    /// Another one after each re-add.
    index: Index,
}

impl Key {
    fn of(array: Uuid, member: &MemberStatus) -> Option<Self> {
        Some(Self { array, path: member.path.clone()?, index: member.index? })
    }
}

/// The losses of one device.
struct Loss {
    index: Index,
    /// How many there were, each within [`CALM`] of the previous one.
    count: u32,
    /// On the machine's clock, as `due`.
    noticed: Duration,
    due: Duration,
    /// Whether an attempt is under way, or was the last one for this loss.
    is_closed: bool,
}

impl Loss {
    fn wait(&self) -> Duration {
        FIRST_WAIT.saturating_mul(1 << (self.count - 1).min(16)).min(LONGEST_WAIT)
    }
}

/// The losses of all devices, by array and path.
#[derive(Default)]
struct Losses(HashMap<(Uuid, String), Loss>);

impl Losses {
    /// Records that a member is lost; true if it is to be tried now.
    fn begin(&mut self, key: &Key, now: Duration) -> bool {
        let first =
            || Loss { index: key.index, count: 0, noticed: now, due: now, is_closed: false };
        let loss = self.0.entry((key.array, key.path.clone())).or_insert_with(first);
        if loss.count == 0 || loss.index != key.index {
            let is_calm = now.saturating_sub(loss.noticed) >= CALM;
            loss.count = if is_calm { 1 } else { loss.count.saturating_add(1) };
            (loss.index, loss.noticed, loss.is_closed) = (key.index, now, false);
            loss.due = now + loss.wait();
        }
        let begins = !loss.is_closed && now >= loss.due;
        loss.is_closed |= begins;
        begins
    }

    /// Schedules another attempt for a member whose device did not respond.
    fn ask_again(&mut self, key: &Key, now: Duration) {
        if let Some(loss) = self.0.get_mut(&(key.array, key.path.clone())) {
            (loss.is_closed, loss.due) = (false, now + INTERVAL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(index: Index) -> Key {
        Key { array: Uuid::nil(), path: "disk".to_owned(), index }
    }

    /// Seconds from `start` on until a loss that is noticed then is to be tried.
    fn wait(losses: &mut Losses, index: Index, start: Duration) -> u64 {
        (0..).find(|s| losses.begin(&key(index), start + Duration::from_secs(*s))).unwrap()
    }

    #[test]
    fn a_device_that_comes_and_goes_waits_longer_each_time() {
        let (mut losses, mut now) = (Losses::default(), Duration::ZERO);
        for (index, expected) in
            [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300].into_iter().enumerate()
        {
            let index = index as Index;
            assert_eq!(wait(&mut losses, index, now), expected);
            now += Duration::from_secs(expected);
            assert!(!losses.begin(&key(index), now), "it is a member");
        }
        assert_eq!(wait(&mut losses, 99, now + CALM), 1);
    }

    #[test]
    fn a_device_is_asked_until_it_answers() {
        let (mut losses, now) = (Losses::default(), Duration::ZERO);
        assert_eq!(wait(&mut losses, 0, now), 1);
        let later = now + CALM * 2;
        assert!(!losses.begin(&key(0), later), "one attempt at a time");
        losses.ask_again(&key(0), later);
        assert_eq!(wait(&mut losses, 0, later), 1);
        assert!(!losses.begin(&key(0), later + CALM), "a user has to decide");
    }
}
