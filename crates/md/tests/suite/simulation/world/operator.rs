//! An operator that fails, removes, adds and replaces members during the workload.

use ashlar_block::{Runtime, Sectors};
use ashlar_md::ondisk::Level;
use ashlar_md::ondisk::create::NewBitmap;
use ashlar_md::{AddOptions, Array, MemberStatus, SyncRequest};
use ashlar_sim::{Rng, SimDisk, SimRuntime};
use uuid::Uuid;

use super::World;
use super::script::{Act, Script};

/// Whether a working member in a slot lists bad blocks.
pub(super) fn lists_bad_blocks(array: &Array) -> bool {
    let mut members = array.members().placed();
    members.any(|(_, rdev)| !rdev.is_faulty() && !rdev.bad_blocks().is_empty())
}

impl World {
    /// Performs the script's acts. Refusals are allowed.
    pub(crate) async fn operate(
        &self,
        array: &Array,
        disks: &[SimDisk],
        script: &Script,
        mut rng: Rng,
    ) {
        for (delay, act) in &script.acts {
            SimRuntime.sleep(*delay).await;
            let done = self.act(array, disks, *act, &mut rng).await;
            if std::env::var_os("ASHLAR_SEED").is_some() {
                eprintln!("{act:?}: {done:?}");
            }
        }
    }

    /// Resets operator settings that would keep a sync from ending.
    pub(crate) fn let_go(array: &Array) {
        if array.set_sync_bounds(Sectors::ZERO, Sectors::MAX).is_ok() {
            array.sync_settings().set_speed_max_kib(None);
        }
        // Refused by arrays that are never synced.
        if array.request_sync(SyncRequest::Idle).is_err() {
            assert!(array.is_stopped() || array.personality().level() == Level::Raid0);
        }
    }

    async fn act(
        &self,
        array: &Array,
        disks: &[SimDisk],
        act: Act,
        rng: &mut Rng,
    ) -> Result<String, String> {
        let members = array.status().await.members;
        let mut pick = |wanted: &dyn Fn(&MemberStatus) -> bool| {
            let able: Vec<_> = members.iter().filter(|m| m.index.is_some() && wanted(m)).collect();
            let picked = (!able.is_empty()).then(|| able[rng.index(able.len())])?;
            Some((picked.index?, picked.path.clone()?))
        };
        let nobody = || "nobody".to_owned();
        match act {
            Act::Fail => {
                // While copies may differ, the member with the first copy must not fail.
                if array.is_unsynced() || lists_bad_blocks(array) {
                    return Err("others may not have it all".to_owned());
                }
                let (index, path) = pick(&|m| m.in_sync).ok_or_else(nobody)?;
                array.fail(index).await.map_err(|e| e.to_string()).map(|()| path)
            }
            Act::Remove => {
                let (index, path) = pick(&|m| m.faulty || m.is_spare()).ok_or_else(nobody)?;
                array.remove(index).await.map_err(|e| e.to_string()).map(|()| path)
            }
            Act::Replace => {
                let (index, path) = pick(&|m| m.in_sync).ok_or_else(nobody)?;
                array.replace(index, None).await.map_err(|e| e.to_string()).map(|()| path)
            }
            Act::Add => {
                let known = |path: &str| members.iter().any(|m| m.path.as_deref() == Some(path));
                let out: Vec<_> =
                    (0..disks.len()).filter(|at| !known(disks[*at].disk().name())).collect();
                if out.is_empty() {
                    return Err(nobody());
                }
                let disk = out[rng.index(out.len())];
                let options = AddOptions {
                    device_uuid: Uuid::from_u128(rng.next_u64().into()),
                    write_mostly: None,
                    failfast: None,
                    spare_only: rng.chance(1, 3),
                };
                self.added.borrow_mut().insert(disk);
                let path = disks[disk].disk().name();
                let added = array.add(disks[disk].gateway(), path, options).await;
                added.map_err(|e| e.to_string()).map(|added| format!("{path} {added:?}"))
            }
            Act::ReAdd => {
                let (index, path) = pick(&|m| m.faulty).ok_or_else(nobody)?;
                self.added.borrow_mut().insert(self.disk_at(&path));
                let done = array.set_member_state(index, "re-add").await;
                done.map_err(|e| e.to_string()).map(|()| path)
            }
            Act::Bitmap => {
                let new = [NewBitmap::Internal { chunk: Some(8192) }, NewBitmap::Lockless];
                let kinds = if self.shape.level.has_parity() { 1 } else { 2 };
                let wanted =
                    if array.bitmap().is_some() { NewBitmap::None } else { new[rng.index(kinds)] };
                let done = array.set_bitmap(wanted).await;
                done.map_err(|e| e.to_string()).map(|()| format!("{wanted:?}"))
            }
            Act::WriteMostly | Act::Failfast => {
                // While copies may differ, this would change which copy is read.
                if array.is_unsynced() {
                    return Err("unsynced".to_owned());
                }
                let (index, path) = pick(&|m| m.in_sync).ok_or_else(nobody)?;
                let word = if act == Act::Failfast { "failfast" } else { "writemostly" };
                let word = if rng.chance(1, 2) { format!("-{word}") } else { word.to_owned() };
                let done = array.set_member_state(index, &word).await;
                done.map_err(|e| e.to_string()).map(|()| format!("{word} {path}"))
            }
            Act::Speed => {
                let speed = [None, Some(1), Some(1000)][rng.index(3)];
                array.sync_settings().set_speed_max_kib(speed);
                Ok(format!("{speed:?}"))
            }
            Act::Bounds => {
                let chunk = array.personality().chunk().0.max(8);
                let bound = |rng: &mut Rng| Sectors(rng.below(self.size / chunk + 1) * chunk);
                let (from, to) = (bound(rng), bound(rng));
                let to = if rng.chance(1, 2) { Sectors::MAX } else { to };
                let done = array.set_sync_bounds(from.min(to), from.max(to));
                done.map_err(|e| e.to_string()).map(|()| format!("{from} {to}"))
            }
            Act::Wait if array.sync_settings().sync_max() != Sectors::MAX => {
                Err("it would be for ever".to_owned())
            }
            Act::Wait => {
                array.sync_ended().await;
                Ok(nobody())
            }
            Act::Check | Act::Repair | Act::Idle | Act::Frozen => {
                let request = match act {
                    Act::Check => SyncRequest::Check,
                    Act::Repair => SyncRequest::Repair,
                    Act::Frozen => SyncRequest::Frozen,
                    Act::Idle
                    | Act::Fail
                    | Act::Remove
                    | Act::Add
                    | Act::ReAdd
                    | Act::Replace
                    | Act::Bitmap
                    | Act::WriteMostly
                    | Act::Failfast
                    | Act::Speed
                    | Act::Bounds
                    | Act::Wait => SyncRequest::Idle,
                };
                array.request_sync(request).map_err(|e| e.to_string()).map(|()| nobody())
            }
        }
    }
}
