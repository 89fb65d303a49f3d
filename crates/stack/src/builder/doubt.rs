//! Devices that cannot be read everywhere: whether they may have another owner, and what ashlar does with them.
//!
//! The rules are in docs/internals/stack.md; [`crate::unread`] says which owner may be hidden.

use ashlar_block::Status;
use ashlar_md::Candidate;
use uuid::Uuid;

use super::Builder;
use crate::arrays::Volume;
use crate::devices::Device;
use crate::mapped::INVALID_SNAPSHOT;
use crate::probe::{Contents, Md};

impl Builder {
    /// Whether an array runs without some members, or does not start.
    pub(super) fn lacks_members(&self) -> bool {
        let is_degraded = |volume: &Volume| volume.view.degraded() > 0;
        !self.failures.is_empty() || self.arrays.running().iter().any(is_degraded)
    }

    /// Refuses a device that cannot be read.
    pub(super) fn refuse_unreadable(
        &mut self,
        device: &Device,
        status: Status,
    ) -> Option<&'static str> {
        self.refuse_unread(device, format!("cannot be read: {status}"))
    }

    /// Refuses a device because what is on it cannot be read, unless the user wants it as it is.
    pub(super) fn refuse_unread(&mut self, device: &Device, why: String) -> Option<&'static str> {
        // A merge that began with its origin may have filled it by now.
        if device.is_invalid_snapshot() {
            return self.refuse(device, INVALID_SNAPSHOT.to_owned());
        }
        // The option with which the user gets the readable part.
        let (option, is_given) = match &device.kind {
            kind if kind.is_logical() => ("--partial", self.options.partial),
            kind if kind.is_array() => ("--whole", self.options.whole),
            _ => ("", false),
        };
        if is_given {
            self.note(&device.name, why);
            return None;
        }
        self.unreadable.insert(device.name.clone());
        match option {
            "" => self.refuse(device, why),
            _ => self.refuse(device, format!("{why}; {option} serves it as it is")),
        }
    }

    /// Refuses a device that holds what cannot be used.
    pub(super) fn refuse_contents(
        &mut self,
        device: &Device,
        contents: &Contents,
        why: String,
    ) -> Option<&'static str> {
        match (&contents.md, &contents.unread) {
            (Md::None | Md::Member(_), Some(_)) => self.refuse_unread(device, why),
            _ => self.refuse(device, why),
        }
    }

    /// Takes the members of an array that it may start with; refuses the others.
    pub(super) fn take_members(&mut self, uuid: Uuid) -> Vec<Candidate> {
        let Some(members) = self.members.remove(&uuid) else { return Vec::new() };
        let usable = members.usable();
        for member in &members.candidates {
            let is_used = usable.iter().any(|used| used.path == member.path);
            let name = self.devices.name(&member.path).filter(|_| !is_used);
            if let Some(device) = name.and_then(|name| self.devices.find(&name)) {
                let why = "the signature of another owner may be there, and no member of its array says that it is still one; \
                           ashlar serve --read-only uses it";
                self.refuse_unread(&device, why.to_owned());
            }
        }
        usable
    }
}
