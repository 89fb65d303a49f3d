//! The use of a device, given everything found on it: the rules of docs/internals/stack.md.

use ashlar_block::{Gateway, Sectors, Status};
use ashlar_md::ondisk::{Superblock, Version};

use crate::partitions::{self, Entry, Table, TableState};
use crate::probe::{Contents, Md};

/// What a device is used for.
pub(crate) enum Claim {
    /// A member of an array.
    Member(Box<Superblock>),
    /// It has partitions.
    Table(Table),
    /// A physical volume of LVM.
    PhysicalVolume,
    /// Used as it is: it is not known to hold other devices.
    Volume,
    /// Damaged contents: the reason.
    Refused(String),
}

/// The use of a device, and messages for the user.
pub(crate) struct ClaimReport {
    pub(crate) claim: Claim,
    pub(crate) notes: Vec<String>,
}

impl From<Claim> for ClaimReport {
    fn from(claim: Claim) -> Self {
        Self { claim, notes: Vec::new() }
    }
}

/// Decides the use of a device with these `contents`; with `whole`, it may only be a member of an array.
///
/// # Errors
/// It cannot be read.
pub(crate) async fn read(
    gateway: &Gateway,
    contents: &Contents,
    whole: bool,
) -> Result<ClaimReport, Status> {
    match &contents.md {
        Md::Damaged(error) => return Ok(Claim::Refused(error.to_string()).into()),
        Md::Member(sb) if whole || sb.version != Version::V0_90 => {
            return Ok(Claim::Member(sb.clone()).into());
        }
        Md::None if whole => return Ok(Claim::Volume.into()),
        Md::Member(_) | Md::None => {}
    }
    let found = partitions::read(gateway, &contents.foreign).await?;
    if let Md::Member(sb) = &contents.md {
        return Ok(member_or_table(sb, found));
    }
    let is_pv = contents.foreign.iter().any(|signature| signature.name == "LVM2_member");
    Ok(match found {
        TableState::Table(mut table) if !table.is_empty => {
            let mut notes = std::mem::take(&mut table.notes);
            if is_pv {
                notes.push("there is an LVM label too: the partitions count".to_owned());
            }
            ClaimReport { claim: Claim::Table(table), notes }
        }
        TableState::Table(_) | TableState::Nothing(_) | TableState::Damaged(_) if is_pv => {
            Claim::PhysicalVolume.into()
        }
        TableState::Table(Table { notes, .. }) => ClaimReport { claim: Claim::Volume, notes },
        TableState::Nothing(note) => {
            ClaimReport { claim: Claim::Volume, notes: note.into_iter().collect() }
        }
        TableState::Damaged(why) => Claim::Refused(why).into(),
    })
}

/// A superblock of version 0.90 does not say which device it belongs to: at the end of a disk it
/// may belong to the last partition, which ends at the same place.
fn member_or_table(sb: &Superblock, found: TableState) -> ClaimReport {
    let inside = |entry: &&Entry| {
        let end = entry.end();
        entry.start <= sb.super_offset && end.is_some_and(|end| sb.super_offset < end)
    };
    let (table, number) = match found {
        TableState::Table(table) => {
            let holder = table.entries.iter().find(inside);
            match holder.map(|entry| (entry.number, fits(sb, entry))) {
                Some((number, true)) => (table, number),
                Some((_, false)) | None => return Claim::Member(Box::new(sb.clone())).into(),
            }
        }
        TableState::Nothing(_) | TableState::Damaged(_) => {
            return Claim::Member(Box::new(sb.clone())).into();
        }
    };
    let mut table = table;
    let mut notes = std::mem::take(&mut table.notes);
    notes.push(format!("the md superblock at the end is taken as that of partition {number}"));
    ClaimReport { claim: Claim::Table(table), notes }
}

/// Whether the superblock may belong to this partition: it is where this partition's superblock
/// would be, and the array uses no more of each member than the partition has.
fn fits(sb: &Superblock, entry: &Entry) -> bool {
    let Some(at) = Version::V0_90.super_offset(entry.len) else { return false };
    entry.start + Sectors(at.0) == sb.super_offset && sb.size.0 <= at.0
}
