//! Changes of the superblocks of an array that does not run (`mdadm --assemble --update`).
//!
//! All new superblocks are computed and checked before the first is written. Then they are written durably,
//! one member after the other: first members without a slot or out of date, then the others, the first slot
//! last. A member's bitmap, if it changes, is written before its superblock. The event count stays.
//!
//! A crash in between leaves some members changed. The freshest member's name or other value applies;
//! repeating the update completes it. A half-changed UUID leaves two sets of members; a set that lacks active
//! members does not start by itself. [`update`] accepts members with the new UUID together with members of
//! one other UUID, so repeating it completes this, too.

use ashlar_block::Status;
use thiserror::Error;
use zerocopy::IntoBytes;

use crate::assemble::{AssembleError, Options, plan};
use crate::metadata::{write_superblock, write_within};
use crate::ondisk::homehost::with_host;
use crate::ondisk::update::updated;
use crate::ondisk::{MdadmUuid, Role, Superblock, Version};
use crate::probe::Candidate;
use crate::probe::read_bitmap;

pub use crate::ondisk::update::{Update, UpdateError as Refusal};

/// Why superblocks were not changed. Unless stated otherwise, none was.
#[derive(Debug, Error)]
pub enum UpdateError {
    /// The array could not be assembled from these members.
    #[error(transparent)]
    Assemble(#[from] AssembleError),
    /// Members have different UUIDs.
    #[error(
        "{path} has UUID {found}, others have {other}: if a change of the UUID was interrupted, repeat it with the new \
         UUID"
    )]
    Uuids {
        /// The member.
        path: String,
        /// Its UUID.
        found: MdadmUuid,
        /// The UUID of others.
        other: MdadmUuid,
    },
    /// A member's superblock cannot record the change.
    #[error("{path}: {why}")]
    Refused {
        /// The member.
        path: String,
        /// Why.
        why: Refusal,
    },
    /// A lockless bitmap cannot be marked entirely.
    #[error(
        "{0} has a lockless bitmap, which knows what was never written: use sync_action repair"
    )]
    Lockless(String),
    /// A member cannot be read or written.
    #[error("{path}: {status}; already changed: {changed}; repeat the change")]
    Device {
        /// The member.
        path: String,
        /// Why.
        status: Status,
        /// The members that have been changed, or `none`.
        changed: String,
    },
}

/// What will be written to a member.
struct MemberUpdate<'a> {
    member: &'a Candidate,
    sb: Superblock,
    bitmap: Option<Vec<u8>>,
}

/// Changes the superblocks of `members`, all members of an array. See the module text for the order.
///
/// # Errors
/// [`UpdateError`]. Only [`UpdateError::Device`] can occur after a write; it names the changed members.
pub async fn update(members: &[Candidate], update: &Update) -> Result<(), UpdateError> {
    let update = &as_identity(members, update);
    check_uuids(members, update)?;
    // Treat them as one array, regardless of which UUIDs a crash left.
    let mut together = members.to_vec();
    if let (Update::Uuid(uuid), members) = (update, &mut together) {
        members.iter_mut().for_each(|member| member.sb.set_uuid = *uuid);
    }
    // The log that is removed need not be valid.
    let force = matches!(update, Update::NoBadBlockLog { force: true });
    plan(together, &Options { run: true, read_only: true, force }).await?;
    if let Some(locked) = members.iter().find(|member| member.gateway.disk().is_read_only()) {
        return Err(failed(locked, Status::ReadOnly, &[]));
    }
    let mut all = Vec::new();
    for member in members {
        all.push(prepare(member, update).await?);
    }
    all.sort_by_key(|new| match new.member.sb.role() {
        Role::Spare | Role::Faulty | Role::Journal => (0, new.member.sb.events),
        Role::Active(slot) => (1, new.member.sb.events.saturating_sub(slot.into())),
    });
    let mut changed: Vec<&str> = Vec::new();
    for new in &all {
        let written = new.write().await;
        written.map_err(|status| failed(new.member, status, &changed))?;
        changed.push(&new.member.path);
    }
    Ok(())
}

/// The host of an array of version 0.90 is part of its identity. The new identity is the same whether a member already has
/// it or not, so repeating the change completes an interrupted one.
fn as_identity(members: &[Candidate], update: &Update) -> Update {
    match (update, members.first()) {
        (Update::HomeHost(host), Some(Candidate { sb, .. })) if sb.version == Version::V0_90 => {
            Update::Uuid(with_host(sb.set_uuid, host))
        }
        (update, _) => update.clone(),
    }
}

/// Checks that all are members of one array; some may already have the new UUID.
fn check_uuids(members: &[Candidate], update: &Update) -> Result<(), UpdateError> {
    let target = if let Update::Uuid(uuid) = update { Some(*uuid) } else { None };
    let mut others = members.iter().filter(|member| Some(member.sb.set_uuid) != target);
    let Some(first) = others.next() else { return Ok(()) };
    match others.find(|member| member.sb.set_uuid != first.sb.set_uuid) {
        Some(member) => {
            let (found, other) = (MdadmUuid(member.sb.set_uuid), MdadmUuid(first.sb.set_uuid));
            Err(UpdateError::Uuids { path: member.path.clone(), found, other })
        }
        None => Ok(()),
    }
}

async fn prepare<'a>(
    member: &'a Candidate,
    update: &Update,
) -> Result<MemberUpdate<'a>, UpdateError> {
    let bitmap = read_bitmap(&member.gateway, &member.sb).await;
    let bitmap = bitmap.map_err(|status| failed(member, status, &[]))?;
    let refused = |why| UpdateError::Refused { path: member.path.clone(), why };
    let sb = updated(&member.sb, update, bitmap.as_ref()).map_err(refused)?;
    let bitmap = match (update, bitmap) {
        (Update::Uuid(_), Some(mut bitmap)) => {
            bitmap.uuid = sb.bitmap_uuid();
            Some(bitmap.as_bytes().to_vec())
        }
        (Update::Resync, Some(bitmap)) if bitmap.is_lockless() => {
            return Err(UpdateError::Lockless(member.path.clone()));
        }
        (Update::Resync, Some(bitmap)) => Some(bitmap.all_marked()),
        (_, _) => None,
    };
    Ok(MemberUpdate { member, sb, bitmap })
}

impl MemberUpdate<'_> {
    async fn write(&self) -> Result<(), Status> {
        let gateway = &self.member.gateway;
        if let (Some(bytes), Some(at)) = (&self.bitmap, self.member.sb.bitmap_start()) {
            write_within(gateway, at, bytes).await?;
        }
        write_superblock(gateway, &self.sb).await
    }
}

fn failed(member: &Candidate, status: Status, changed: &[&str]) -> UpdateError {
    let changed = if changed.is_empty() { "none".to_owned() } else { changed.join(", ") };
    UpdateError::Device { path: member.path.clone(), status, changed }
}
