//! From disks to running arrays.
//!
//! Reads only: an array writes its superblocks with its first write, so a stack that was assembled
//! and dropped has changed nothing.

use std::path::PathBuf;
use std::sync::Arc;

use ashlar_block::{ByteVolume, Gateway, Runtime, Status};
use ashlar_md::ondisk::MdadmUuid;
use ashlar_md::{Array, AssembleError, Candidate, MemberStatus};
use thiserror::Error;
use uuid::Uuid;

use crate::attributes::{Attributes, Source, Tree, mdstat};
use crate::disks::Disks;
use crate::names::{ArrayName, Names};
use crate::probe::{Contents, Md, probe};
use crate::view::{ArrayShape, ArrayView};

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
#[derive(Clone)]
pub struct Volume {
    /// What it is called.
    pub name: ArrayName,
    /// The array.
    pub view: Arc<ArrayView>,
    /// Its bytes, for exports: all of them must share this.
    pub bytes: Arc<ByteVolume>,
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
}

/// What was made of some disks.
pub struct Stack {
    /// All disks that are used.
    pub disks: Arc<Disks>,
    /// Those that hold no member.
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
        let bytes = Arc::new(ByteVolume::new(Gateway::new(Arc::clone(&array) as _)));
        volumes.push(Volume { name, view: ArrayView::new(array, Arc::clone(&disks)).await, bytes });
    }
    Stack { disks, plain, volumes, failures }
}

impl Stack {
    /// The attributes of all that runs, the member disks' too.
    pub fn attributes(&self) -> Attributes {
        Attributes::new(Shown {
            disks: Arc::clone(&self.disks),
            plain: self.plain.clone(),
            volumes: self.volumes.clone(),
        })
    }

    /// The array that is called `md127` or `md/data`.
    pub fn volume(&self, name: &str) -> Option<&Volume> {
        self.volumes.iter().find(|volume| {
            let alias = volume.name.alias.as_deref();
            volume.name.device() == name
                || name.strip_prefix("md/").is_some_and(|n| Some(n) == alias)
        })
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

/// What attributes are shown of.
struct Shown {
    disks: Arc<Disks>,
    plain: Vec<Plain>,
    volumes: Vec<Volume>,
}

impl Source for Shown {
    /// The names of the disks, and the shapes of the arrays.
    type Shape = (Vec<String>, Vec<ArrayShape>);

    fn shape(&self) -> Self::Shape {
        let disks = self.disks.all().into_iter().map(|held| held.name);
        let arrays = self.volumes.iter().map(|volume| volume.view.shape());
        (disks.collect(), arrays.collect())
    }

    fn build(&self, (_, arrays): &Self::Shape) -> Tree {
        let mut tree = Tree::default();
        for (volume, shape) in self.volumes.iter().zip(arrays) {
            let name = volume.name.device();
            let gateway = volume.bytes.gateway();
            tree.add_volume(&format!("dev/{name}"), gateway.clone());
            if let Some(alias) = &volume.name.alias {
                tree.add_symlink(&format!("dev/md/{alias}"), &format!("../{name}"));
            }
            tree.add_device(&name, gateway);
            let number = format!("9:{}", volume.name.number);
            tree.add_text(&format!("sys/block/{name}/dev"), move || number.clone());
            tree.add_array(&name, &volume.view, shape);
        }
        for Plain { name, bytes } in &self.plain {
            tree.add_volume(&format!("dev/{name}"), bytes.gateway().clone());
        }
        for held in self.disks.all() {
            tree.add_device(&held.name, &held.gateway);
        }
        let views: Vec<Arc<ArrayView>> =
            self.volumes.iter().map(|volume| Arc::clone(&volume.view)).collect();
        tree.add_text("proc/mdstat", move || {
            mdstat::mdstat(
                views.iter().map(|view| {
                    (view.snapshot(), |member: &MemberStatus| view.member_name(member))
                }),
            )
        });
        tree
    }
}
