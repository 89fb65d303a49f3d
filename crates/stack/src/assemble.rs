//! From disks to running arrays.
//!
//! Reads only: an array writes its superblocks with its first write, so a stack that was assembled
//! and dropped has changed nothing.

use std::path::PathBuf;
use std::sync::Arc;

use ashlar_block::{BlockDevice, ByteVolume, Gateway, Runtime, Status};
use ashlar_md::ondisk::MdadmUuid;
use ashlar_md::{Array, AssembleError, Candidate};
use thiserror::Error;
use uuid::Uuid;

use crate::attributes::md::ArrayView;
use crate::attributes::{Attributes, mdstat};
use crate::names::{ArrayName, Names, unique_names};
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

/// A running array.
pub struct Volume {
    /// What it is called.
    pub name: ArrayName,
    /// The array.
    pub view: Arc<ArrayView>,
    /// Its bytes, for exports: all of them must share this.
    pub bytes: Arc<ByteVolume>,
}

/// A disk that is no member of anything: a volume as it is.
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
}

/// What was made of some disks.
pub struct Stack {
    /// The disks that hold members, with their names under `sys/block`.
    pub members: Vec<(String, Gateway)>,
    /// The disks that hold no member.
    pub plain: Vec<Plain>,
    /// The running arrays.
    pub volumes: Vec<Volume>,
    /// The arrays that did not start.
    pub failures: Vec<Failure>,
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
    let names = unique_names(probed.iter().map(|probed| probed.disk.path.as_path()));
    let mut members = Vec::new();
    let mut candidates = Vec::new();
    let mut plain = Vec::new();
    for (name, probed) in names.into_iter().zip(probed) {
        match probed.candidate() {
            Ok(candidate) => {
                members.push((candidate.path.clone(), name, candidate.gateway.clone()));
                candidates.push(candidate);
            }
            Err(NotAMember::Foreign(_)) => {
                let bytes = Arc::new(ByteVolume::new(probed.disk.gateway.clone()));
                plain.push(Plain { name, bytes });
            }
            Err(NotAMember::Unreadable(_) | NotAMember::Damaged(_)) => {}
        }
    }
    let mut given = Names::default();
    let mut rename = rename;
    let (mut volumes, mut failures) = (Vec::new(), Vec::new());
    for (uuid, candidates) in ashlar_md::group(candidates) {
        let set_name = candidates.first().map_or_else(String::new, |c| c.sb.name.clone());
        let plan = match ashlar_md::plan(candidates, options).await {
            Ok(plan) => plan,
            Err(error) => {
                failures.push(Failure { set_name, uuid, error });
                continue;
            }
        };
        let name = given.give(rename.take().unwrap_or(&set_name));
        let array = Array::start(plan, &name.device(), Arc::clone(runtime));
        let member_names = array.status().await.members.into_iter().map(|member| {
            let path = member.path?;
            members.iter().find(|(other, ..)| *other == path).map(|(_, name, _)| name.clone())
        });
        let member_names = member_names.collect();
        let bytes = Arc::new(ByteVolume::new(Gateway::new(Arc::clone(&array) as _)));
        volumes.push(Volume { name, view: ArrayView::new(array, member_names).await, bytes });
    }
    let members = members.into_iter().map(|(_, name, gateway)| (name, gateway)).collect();
    Stack { members, plain, volumes, failures }
}

impl Stack {
    /// The attributes of all that runs, the member disks' too.
    pub fn attributes(&self) -> Attributes {
        let mut tree = Attributes::default();
        for volume in &self.volumes {
            let name = volume.name.device();
            let gateway = volume.bytes.gateway();
            tree.add_volume(&format!("dev/{name}"), gateway.clone());
            if let Some(alias) = &volume.name.alias {
                tree.add_symlink(&format!("dev/md/{alias}"), &format!("../{name}"));
            }
            tree.add_device(&name, gateway);
            let number = format!("9:{}", volume.name.number);
            tree.add_text(&format!("sys/block/{name}/dev"), move || number.clone());
            tree.add_array(&name, &volume.view);
        }
        for Plain { name, bytes } in &self.plain {
            tree.add_volume(&format!("dev/{name}"), bytes.gateway().clone());
            tree.add_device(name, bytes.gateway());
        }
        for (name, gateway) in &self.members {
            tree.add_device(name, gateway);
        }
        let views: Vec<Arc<ArrayView>> =
            self.volumes.iter().map(|volume| Arc::clone(&volume.view)).collect();
        tree.add_text("proc/mdstat", move || {
            mdstat::mdstat(views.iter().map(|view| view.status()), |array, member| {
                let view = views.iter().find(|view| view.array().disk().name() == array.name)?;
                view.member_name(member)
            })
        });
        tree
    }

    /// Stops every array: I/O under way ends, members are flushed, superblocks say clean; flushes the
    /// other disks. All are stopped whatever becomes of the others.
    ///
    /// # Errors
    /// The names of those that could not be marked clean or flushed, and why.
    pub async fn stop(&self) -> Result<(), Vec<(String, Status)>> {
        let mut failed = Vec::new();
        for volume in &self.volumes {
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
