//! Somebody who fails, removes, adds and replaces members while there is work.

use ashlar_block::Runtime;
use ashlar_md::manage::AddOptions;
use ashlar_md::sync::Request;
use ashlar_md::{Array, MemberStatus};
use ashlar_sim::{Rng, SimDisk, SimRuntime};
use uuid::Uuid;

use super::World;
use super::script::{Act, Script};

impl World {
    /// Does what the script says. Refusals are answers too.
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
                // While copies may differ one that failed may have been read last.
                if array.is_unsynced() {
                    return Err("unsynced".to_owned());
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
            Act::Check => {
                array.request_sync(Request::Check).map_err(|e| e.to_string()).map(|()| nobody())
            }
            Act::Idle => {
                array.request_sync(Request::Idle).map_err(|e| e.to_string()).map(|()| nobody())
            }
            Act::Wait => {
                array.sync_ended().await;
                Ok(nobody())
            }
        }
    }
}
