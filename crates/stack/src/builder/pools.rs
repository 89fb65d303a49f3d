//! Pools: their members, and their import.

use ashlar_zfs::ondisk::label::Label;

use super::Builder;
use crate::devices::Device;
use crate::pool_members::MEMBER;
use crate::probe::Contents;
use crate::refusals::{Refusal, Refused};

impl Builder {
    /// Adds a member of a pool to that pool, if pools are imported.
    pub(super) fn join_pool(&mut self, device: &Device, contents: &Contents, depth: usize) {
        if self.options.whole || self.options.pools.is_none() {
            return;
        }
        let Some(labels) = &contents.zfs else { return };
        let member = match labels.label() {
            Some(Label { member: Some(member), .. }) => member,
            Some(Label { member: None, state, .. }) => {
                return self.note(&device.name, format!("is a {state} of a ZFS pool"));
            }
            None if labels.is_any() => {
                return self.note(&device.name, "has labels of ZFS, all of them damaged");
            }
            None => return,
        };
        if member.txg == 0 {
            let pool = &member.pool_name;
            let why = format!("was removed from the ZFS pool {pool}, or never completely added");
            return self.note(&device.name, why);
        }
        let is_confined = self.options.pools.as_ref().is_some_and(|pools| pools.launcher.is_some());
        match self.pool_members.add(device, depth, labels, &self.devices, is_confined) {
            Ok(()) => self.devices.set_role(&device.name, MEMBER),
            Err(why) => self.note(&device.name, why),
        }
    }

    /// Imports a pool whose members are all present, or any pool if `any` is set. Returns whether
    /// there was one.
    pub(super) async fn import(&mut self, any: bool) -> bool {
        let Some(options) = self.options.pools.clone() else { return false };
        let Some(ready) = self.pool_members.next(any) else { return false };
        for problem in ready.problems() {
            self.note(ready.name(), problem);
        }
        let read_only = self.options.md.read_only;
        let served = match self.pools.import(&ready, read_only, &options).await {
            Ok(served) => served,
            Err(refused) => {
                self.refusals.push(refused);
                return true;
            }
        };
        for problem in ready.missing() {
            let name = ready.name();
            let text = "the pool was imported without this log device: data that is only in the log is missing";
            self.note(name, format!("{problem}; {text}"));
        }
        match served.pool.changes().await {
            Ok(changes) => {
                let followed = self.pools.open_new(&served, changes.new, &self.devices).await;
                for (dataset, error) in followed.failed {
                    let (why, below) = (error.to_string(), ready.below.clone());
                    let (what, name, hint) = (Refused::Volume, dataset, None);
                    self.refusals.push(Refusal { what, name, why, hint, below });
                }
                for opened in followed.opened.into_iter().filter(|opened| opened.may_hold_others) {
                    self.add(opened.device, ready.depth + 1);
                }
            }
            Err(error) => {
                let hint = error.hint().map(str::to_owned);
                let (name, why) = (served.pool.name().to_owned(), error.to_string());
                let (what, below) = (Refused::Pool, ready.below);
                self.refusals.push(Refusal { what, name, why, hint, below });
            }
        }
        true
    }
}
