//! From disks to running arrays.
//!
//! Reads only: an array writes its superblocks with its first write, so a stack that was assembled
//! and dropped has changed nothing.

use std::path::PathBuf;
use std::sync::Arc;

use ashlar_block::{ByteVolume, Gateway, Runtime, Status};
use ashlar_md::ondisk::MdadmUuid;
use ashlar_md::{AssembleError, Candidate};
use thiserror::Error;
use uuid::Uuid;

use crate::arrays::Arrays;
use crate::attributes::{Attributes, Shown};
use crate::disks::Disks;
use crate::incremental;
use crate::names::Names;
use crate::probe::{Contents, Md, probe};

/// A disk at hand.
pub struct Disk {
    /// Where the user has it.
    pub path: PathBuf,
    /// The device.
    pub gateway: Gateway,
}

/// A disk and what is on it.
pub struct Probed {
    /// The disk.
    pub disk: Disk,
    /// What is on it, or why that cannot be known.
    pub contents: Result<Contents, Status>,
}

/// A disk that is no member of anything: a volume as it is.
#[derive(Clone)]
pub struct Plain {
    /// What it is called.
    pub name: String,
    /// Its bytes, for exports: all of them must share this.
    pub bytes: Arc<ByteVolume>,
}

/// An array that could not be started.
pub struct Failure {
    /// Its name in the superblocks.
    pub set_name: String,
    /// Its identity.
    pub uuid: Uuid,
    /// Why.
    pub error: AssembleError,
    /// Its members, as far as they are there.
    pub candidates: Vec<Candidate>,
}

/// What was made of some disks.
pub struct Stack {
    /// All disks that are used.
    pub disks: Arc<Disks>,
    /// Those that hold no member.
    pub plain: Vec<Plain>,
    /// The arrays.
    pub arrays: Arc<Arrays>,
    /// The arrays that did not start.
    pub failures: Vec<Failure>,
    /// The names that are given.
    pub(crate) names: Names,
}

/// A disk that is part of nothing.
#[derive(Debug, Error)]
pub enum NotAMember {
    /// It cannot be read.
    #[error("cannot be read: {0}")]
    Unreadable(Status),
    /// Its md superblock is damaged.
    #[error("{0}")]
    Damaged(ashlar_md::ondisk::SuperblockError),
    /// There is no md superblock.
    #[error("holds no array{}", found(.0))]
    Foreign(Vec<String>),
}

fn found(claims: &[String]) -> String {
    if claims.is_empty() { String::new() } else { format!(" (found: {})", claims.join(", ")) }
}

impl Probed {
    /// The disk as a candidate for an array.
    ///
    /// # Errors
    /// It is none.
    pub fn candidate(&self) -> Result<Candidate, NotAMember> {
        match &self.contents {
            Err(status) => Err(NotAMember::Unreadable(*status)),
            Ok(Contents { md: Md::Member(sb), .. }) => Ok(Candidate {
                gateway: self.disk.gateway.clone(),
                path: self.disk.path.display().to_string(),
                sb: sb.clone(),
            }),
            Ok(Contents { md: Md::Damaged(error), .. }) => Err(NotAMember::Damaged(error.clone())),
            Ok(contents @ Contents { md: Md::None, .. }) => {
                Err(NotAMember::Foreign(contents.claims()))
            }
        }
    }
}

/// Looks at all `disks`.
pub async fn probe_all(disks: Vec<Disk>) -> Vec<Probed> {
    let mut probed = Vec::new();
    for disk in disks {
        let contents = probe(&disk.gateway).await;
        probed.push(Probed { disk, contents });
    }
    probed
}

/// Starts the arrays that the members among `probed` make. Disks that hold something else or nothing
/// are volumes themselves; those whose metadata are damaged are passed over: see
/// [`Probed::candidate`]. With `rename` the first array gets that name, not its superblock's.
pub async fn assemble(
    probed: &[Probed],
    options: &ashlar_md::Options,
    rename: Option<&str>,
    runtime: &Arc<dyn Runtime>,
) -> Stack {
    let disks = Arc::new(Disks::default());
    let mut candidates = Vec::new();
    let mut plain = Vec::new();
    for probed in probed {
        let gateway = probed.disk.gateway.clone();
        let path = probed.disk.path.display().to_string();
        match probed.candidate() {
            Ok(candidate) => {
                disks.add(&path, gateway);
                candidates.push(candidate);
            }
            Err(NotAMember::Foreign(_)) => {
                let name = disks.add(&path, gateway.clone());
                plain.push(Plain { name, bytes: Arc::new(ByteVolume::new(gateway)) });
            }
            Err(NotAMember::Unreadable(_) | NotAMember::Damaged(_)) => {}
        }
    }
    let (mut names, arrays, mut failures) = (Names::default(), Arrays::default(), Vec::new());
    let mut rename = rename;
    for (uuid, candidates) in ashlar_md::group(candidates) {
        let set_name = candidates.first().map_or_else(String::new, |c| c.sb.name.clone());
        let kept = candidates.clone();
        match ashlar_md::plan(candidates, options).await {
            Ok(plan) => {
                let name = names.give(rename.take().unwrap_or(&set_name));
                arrays.start(uuid, incremental::start(plan, name, &disks, runtime).await);
            }
            Err(error) => failures.push(Failure { set_name, uuid, error, candidates: kept }),
        }
    }
    Stack { disks, plain, arrays: Arc::new(arrays), failures, names }
}

impl Stack {
    /// The attributes of all that runs, the member disks' too.
    pub fn attributes(&self) -> Attributes {
        Attributes::new(Shown {
            disks: Arc::clone(&self.disks),
            plain: self.plain.clone(),
            arrays: Arc::clone(&self.arrays),
        })
    }

    /// Stops every array: I/O under way ends, members are flushed, superblocks say clean; flushes the
    /// other disks. All are stopped whatever becomes of the others.
    ///
    /// # Errors
    /// The names of those that could not be marked clean or flushed, and why.
    pub async fn stop(&self) -> Result<(), Vec<(String, Status)>> {
        let mut failed = Vec::new();
        for volume in self.arrays.running() {
            if let Err(status) = volume.view.array().stop().await {
                failed.push((volume.name.device(), status));
            }
        }
        for Plain { name, bytes } in &self.plain {
            if !bytes.gateway().disk().is_read_only()
                && let Err(status) = bytes.flush().await
            {
                failed.push((name.clone(), status));
            }
        }
        if failed.is_empty() { Ok(()) } else { Err(failed) }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let uuid = MdadmUuid(self.uuid);
        match self.set_name.as_str() {
            "" => write!(f, "array {uuid}"),
            name => write!(f, "array {name} ({uuid})"),
        }
    }
}
