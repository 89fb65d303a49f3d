//! Commands that change a group, as users give them: `lvcreate`, `lvextend`, `lvremove`, ...
//!
//! A command is data, so that it can be carried out on disks or sent to the daemon that serves the group.
//! [`Command::apply`] resolves its sizes and names against a group, and changes the description. Messages are LVM's. [`Command`] lists
//! the commands of several files, which use the types here: so they all lead to each other.

mod amount;
mod attributes;
mod membership;
mod moving;
mod resizing;
pub mod restoring;

use ashlar_block::Sectors;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::activate::dm_name;
use crate::alloc::{Policy, Wish};
use crate::change::{Author, ChangeError, NewVolume};
use crate::metadata::{Allocation, VolumeGroup};
use crate::report::long;

pub use amount::{Amount, Base, NewSize, Sign};
pub use attributes::{AllocatableChange, TagChange, TagOwners};
pub use membership::{LayoutOptions, Membership, NewGroup, resize_question, too_large};
pub use moving::{Move, PhysicalPart};
pub use resizing::{Direction, Resize};
pub use restoring::{Restore, RestoreError};

/// How many bytes of a new volume are zeroed, so that no signature of an earlier one is found there.
const ZEROED: u64 = 4096;
/// LVM's default stripe size, and the smallest.
const STRIPE: Sectors = Sectors(128);
const MIN_STRIPE: Sectors = Sectors(8);

/// A change of a group.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Command {
    /// `lvcreate`.
    Create(Create),
    /// `lvextend`, `lvreduce` and `lvresize`.
    Resize(Resize),
    /// `lvremove`.
    Remove {
        /// The volumes; none: all of the group's.
        volumes: Vec<String>,
    },
    /// `lvrename`.
    Rename {
        /// The volume.
        from: String,
        /// Its new name.
        to: String,
    },
    /// `lvconvert --merge`: from the commit on, reads of the origin return the snapshot's data.
    Merge {
        /// The snapshot.
        snapshot: String,
    },
    /// `pvmove`: the copying begins with the commit.
    Move(Move),
    /// `pvmove --abort`.
    AbortMove {
        /// The physical volume whose extents are being moved; `None`: all.
        from: Option<String>,
    },
    /// `vgrename`.
    RenameGroup {
        /// The new name.
        to: String,
    },
    /// `vgcfgrestore`.
    Restore(Restore),
    /// `lvchange`, `vgchange` and `pvchange` with `--addtag` and `--deltag`.
    Tag(TagChange),
    /// `pvchange --allocatable`.
    Allocatable(AllocatableChange),
}

/// A new volume, or a snapshot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Create {
    /// Its name; `None`: `lvol0`, or the next free number.
    pub name: Option<String>,
    /// The origin, if it is a snapshot.
    pub origin: Option<String>,
    /// Its size; for a snapshot, that of its store.
    pub amount: Amount,
    /// The chunk size of a snapshot.
    pub chunk_sectors: u64,
    /// The number of stripes.
    pub stripes: u32,
    /// The stripe size; `None`: LVM's default.
    pub stripe_sectors: Option<u64>,
    /// The allocation policy; `None`: the group's.
    pub policy: Option<PolicyName>,
    /// Whether it is writable.
    pub writable: bool,
    /// Tags.
    pub tags: Vec<String>,
    /// Whether its start is zeroed. That of a snapshot's store always is.
    pub zero: bool,
    /// The physical volumes to use; none: all.
    pub physical: Vec<String>,
}

/// The allocation policies that can be requested.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyName {
    /// In one piece.
    Contiguous,
    /// On the physical volumes at the volume's end.
    Cling,
    /// Anywhere.
    Normal,
}

/// The start of a device that must be zeroed before the volume appears in the metadata.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Zeroes {
    /// The name of the device, as [`crate::activate::plan`] calls it.
    pub device: String,
    /// How many bytes.
    pub bytes: u64,
}

/// A question to the user before the change.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Question {
    /// The question.
    pub text: String,
    /// The error if the answer is no.
    pub refusal: String,
}

/// What a command does beside changing the description.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Effect {
    /// What must be zeroed first.
    pub zeroes: Vec<Zeroes>,
    /// Lines to print before the change.
    pub notes: Vec<String>,
    /// What the user must confirm.
    pub questions: Vec<Question>,
    /// Lines to print after it.
    pub done: Vec<String>,
    /// The volume that gets smaller, and its new size.
    pub reduces: Option<(String, Sectors)>,
    /// The origin into which a snapshot will be merged.
    pub merges_into: Option<String>,
}

/// Why a command was not carried out. The group is then unchanged, or must be discarded.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum CommandError {
    /// A size is beyond what a group can have.
    #[error("The size is too large")]
    TooLarge,
    /// A share of something that the command is not about.
    #[error("that share is of nothing here")]
    NoBase,
    /// A stripe size that is not possible.
    #[error("A stripe size is a power of two from 4 KiB to the extent size of {most}, not {size}")]
    StripeSize {
        /// The extent size.
        most: String,
        /// The requested one.
        size: String,
    },
    /// The volume does not exist.
    #[error("Failed to find logical volume \"{group}/{volume}\"")]
    NotFound {
        /// The group.
        group: String,
        /// The volume.
        volume: String,
    },
    /// The physical volume is not in the group.
    #[error(
        "Physical volume \"{path}\" not found in volume group \"{group}\"{}",
        about_ranges(path)
    )]
    NoPhysical {
        /// Its path.
        path: String,
        /// The group.
        group: String,
    },
    /// The new size is not in the command's direction.
    #[error(
        "New size given ({wanted} extents) not {} than existing size ({before} extents)",
        match .direction { Direction::Extend => "larger", Direction::Reduce | Direction::Any => "less" }
    )]
    WrongDirection {
        /// The requested extents.
        wanted: u32,
        /// The present extents.
        before: u32,
        /// The direction.
        direction: Direction,
    },
    /// The new size is the present one.
    #[error("New size ({extents} extents) matches existing size ({extents} extents)")]
    SameSize {
        /// The extents.
        extents: u32,
    },
    /// Extents are being moved from there already.
    #[error("Detected pvmove in progress for {path}.")]
    IsMoving {
        /// The path.
        path: String,
    },
    /// Source and target are the same.
    #[error("the extents of {path} cannot be moved to {path} itself")]
    MoveToItself {
        /// The path.
        path: String,
    },
    /// The copy is not restored.
    #[error("{0}")]
    Restore(RestoreError),
    /// The move is not possible.
    #[error("{error}")]
    Move {
        /// The reason.
        error: ChangeError,
    },
    /// The change is not possible.
    #[error("{what}: {error}")]
    Change {
        /// What cannot be done.
        what: String,
        /// The reason.
        error: ChangeError,
    },
}

type Result<T> = std::result::Result<T, CommandError>;

impl CommandError {
    /// Whether the command is wrong whatever the group has.
    pub const fn is_usage(&self) -> bool {
        matches!(self, Self::NoBase)
    }

    fn change(what: impl Into<String>) -> impl FnOnce(ChangeError) -> Self {
        move |error| Self::Change { what: what.into(), error }
    }
}

impl PolicyName {
    const fn policy(self) -> Policy {
        match self {
            Self::Contiguous => Policy::Contiguous,
            Self::Cling => Policy::Cling,
            Self::Normal => Policy::Normal,
        }
    }

    const fn allocation(self) -> Allocation {
        match self {
            Self::Contiguous => Allocation::Contiguous,
            Self::Cling => Allocation::Cling,
            Self::Normal => Allocation::Normal,
        }
    }
}

/// The placement of new extents for the policy of a volume or group.
fn placement(allocation: Option<&Allocation>) -> Policy {
    match allocation {
        Some(Allocation::Contiguous) => Policy::Contiguous,
        Some(Allocation::Cling | Allocation::ClingByTags) => Policy::Cling,
        Some(Allocation::Normal | Allocation::Anywhere | Allocation::Other(_)) | None => {
            Policy::Normal
        }
    }
}

/// Finds the index of a group's physical volume by its path.
pub type VolumeIndex<'a> = &'a dyn Fn(&str) -> Option<usize>;

/// What LVM says of a merge that the next activation of its origin begins.
pub fn merges_later(group: &str, origin: &str, snapshot: &str) -> String {
    format!(
        "  Merging of snapshot {group}/{snapshot} will occur on next activation of {group}/{origin}."
    )
}

impl Command {
    /// Whether a server that applied this is right even if the metadata turns out to be unchanged, and a server that did not
    /// would not be if it turns out to be changed; `effect` is what [`Self::apply`] returned. The reverse holds for the others. Both are right for a move that begins or is
    /// aborted: writes go to the old place in any case.
    ///
    /// A snapshot that is kept up although no text names it does no harm, one that is not kept up although the text names it
    /// shows wrong data; so a removed one must be kept up. What was written to an origin would be lost by a merge that
    /// begins later, and what was written to the end of a volume, by a reduction. A restored description may both give
    /// space and take it: what is written goes where it went before.
    pub const fn is_safe_ahead(&self, effect: &Effect) -> bool {
        match self {
            Self::Create(create) => create.origin.is_some(),
            Self::Resize(_) => effect.reduces.is_some(),
            Self::Remove { .. } | Self::Restore(_) => false,
            Self::Rename { .. }
            | Self::Merge { .. }
            | Self::Move(_)
            | Self::AbortMove { .. }
            | Self::RenameGroup { .. }
            | Self::Tag(_)
            | Self::Allocatable(_) => true,
        }
    }

    /// Changes `group`; `physical` returns the index of the physical volume at a path.
    ///
    /// # Errors
    /// See [`CommandError`].
    pub fn apply(
        &self,
        group: &mut VolumeGroup,
        physical: VolumeIndex<'_>,
        author: &mut Author<'_>,
    ) -> Result<Effect> {
        match self {
            Self::Create(create) => create.apply(group, physical, author),
            Self::Resize(resize) => resize.apply(group, physical),
            Self::Remove { volumes } => remove(group, volumes),
            Self::Rename { from, to } => {
                let of = group.name.clone();
                let what = "Cannot rename the volume";
                group.rename(from, to).map_err(CommandError::change(what))?;
                let line = format!("  Renamed \"{from}\" to \"{to}\" in volume group \"{of}\"");
                Ok(Effect { done: vec![line], ..Effect::default() })
            }
            Self::Merge { snapshot } => {
                let what = "Cannot merge";
                let origin = group.start_merge(snapshot).map_err(CommandError::change(what))?;
                let line = format!("  Merging of volume {}/{snapshot} started.", group.name);
                let merges_into = Some(origin);
                Ok(Effect { done: vec![line], merges_into, ..Effect::default() })
            }
            Self::Move(start) => start.apply(group, physical, author),
            Self::AbortMove { from } => moving::abort(from.as_deref(), group, physical),
            Self::RenameGroup { to } => {
                let from = group.name.clone();
                let what = "Cannot rename the volume group";
                group.rename_group(to).map_err(CommandError::change(what))?;
                let line = format!("  Volume group \"{from}\" successfully renamed to \"{to}\"");
                Ok(Effect { done: vec![line], ..Effect::default() })
            }
            Self::Restore(restore) => restore.apply(group),
            Self::Tag(change) => change.apply(group, physical),
            Self::Allocatable(change) => change.apply(group, physical),
        }
    }
}

/// What to say of a path that is not found, and ends with a range of extents.
fn about_ranges(path: &str) -> &'static str {
    let has_ranges = path.rsplit_once(':').is_some_and(|(_, last)| {
        last.contains(['-', '+']) && last.starts_with(|first: char| first.is_ascii_digit())
    });
    if has_ranges {
        ": only pvmove takes ranges of extents, name the physical volume alone"
    } else {
        ""
    }
}

/// The indices of the physical volumes at `paths`.
fn indices(group: &VolumeGroup, paths: &[String], physical: VolumeIndex<'_>) -> Result<Vec<usize>> {
    paths.iter().map(|path| index_at(group, path, physical)).collect()
}

/// The index of the physical volume at a path.
fn index_at(group: &VolumeGroup, path: &str, physical: VolumeIndex<'_>) -> Result<usize> {
    physical(path).ok_or_else(|| {
        let (path, group) = (path.to_owned(), group.name.clone());
        CommandError::NoPhysical { path, group }
    })
}

impl Create {
    fn apply(
        &self,
        group: &mut VolumeGroup,
        physical: VolumeIndex<'_>,
        author: &mut Author<'_>,
    ) -> Result<Effect> {
        let mut effect = Effect::default();
        let only = indices(group, &self.physical, physical)?;
        let wish = self.wish(group, only, &mut effect.notes)?;
        let new = NewVolume {
            name: self.name.clone(),
            wish,
            tags: self.tags.clone(),
            writable: self.writable,
        };
        let chunk = Sectors(self.chunk_sectors);
        let made = match &self.origin {
            None => group.create(&new, author),
            Some(origin) => group.create_snapshot(origin, chunk, &new, author),
        };
        let name = made.map_err(CommandError::change("Cannot make the volume"))?;
        if let Some(lv) = group.lv_mut(&name) {
            lv.allocation = self.policy.map(PolicyName::allocation);
        }
        let device = |layer| dm_name(&group.name, &name, layer);
        // An empty store: the first chunk, its header, has no magic number.
        let zeroes = match &self.origin {
            Some(_) => Some((device(Some("cow")), chunk.bytes())),
            None => self.zero.then(|| (device(None), ZEROED)),
        };
        effect.zeroes.extend(zeroes.map(|(device, bytes)| Zeroes { device, bytes }));
        effect.done.push(format!("  Logical volume \"{name}\" created."));
        Ok(effect)
    }

    fn wish(&self, group: &VolumeGroup, only: Vec<usize>, notes: &mut Vec<String>) -> Result<Wish> {
        let (extents, is_share) = match self.amount {
            Amount::Sectors(sectors) => (amount::of_size(group, sectors, notes)?, false),
            Amount::Extents(count) => (count, false),
            Amount::Share(percent, base) => {
                let of_origin = || match (base, &self.origin) {
                    (Base::Origin, Some(origin)) => {
                        let lv = group.lv(origin).map_or(0, |lv| lv.extents());
                        Ok(amount::share(percent, lv.into(), true))
                    }
                    _ => Err(CommandError::NoBase),
                };
                let share = amount::of_group(group, percent, base, &only, false);
                (share.map_or_else(of_origin, Ok)?, true)
            }
        };
        let stripe_size = self.stripe_sectors.map_or(STRIPE, Sectors);
        let fits = stripe_size.0.is_power_of_two() && stripe_size >= MIN_STRIPE;
        if self.stripes > 1 && (!fits || stripe_size > group.extent_size) {
            let (most, size) = (long(group.extent_size), long(stripe_size));
            return Err(CommandError::StripeSize { most, size });
        }
        if self.stripes > 1 && self.stripe_sectors.is_none() {
            notes.push(format!("  Using default stripesize {}.", long(STRIPE)));
        }
        let stripes = self.stripes.max(1);
        let extents = amount::whole_rows(group, extents, stripes, is_share, notes)?;
        let policy = match self.policy {
            Some(policy) => policy.policy(),
            None => placement(group.allocation.as_ref()),
        };
        Ok(Wish { extents, stripes, stripe_size, policy, only })
    }
}

fn remove(group: &mut VolumeGroup, volumes: &[String]) -> Result<Effect> {
    let mut wanted = volumes.to_vec();
    if wanted.is_empty() {
        wanted = group.visible_names();
    }
    let mut gone: Vec<String> = Vec::new();
    for name in wanted {
        // Removing an origin removes its snapshots.
        if !gone.contains(&name) {
            let what = "Cannot remove the volume";
            gone.extend(group.remove(&name).map_err(CommandError::change(what))?);
        }
    }
    let of = &group.name;
    let question = |name: &String| Question {
        text: format!("Do you really want to remove logical volume {of}/{name}?"),
        refusal: format!("Logical volume {of}/{name} not removed"),
    };
    let line = |name: &String| format!("  Logical volume \"{name}\" successfully removed.");
    Ok(Effect {
        questions: gone.iter().map(question).collect(),
        done: gone.iter().map(line).collect(),
        ..Effect::default()
    })
}
