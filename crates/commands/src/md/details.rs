//! The arrays on disks.

use std::path::PathBuf;

use ashlar_disks::sandbox::Sandbox;
use ashlar_disks::{self as disks, Access, Opener};
use ashlar_md::AssembleError;
use ashlar_stack::assemble::{MembershipError, Options, ProbedDisk, assemble, probe_all};
use ashlar_stack::signature::{Signature, Usage};
use ashlar_view::detail::Detail;

use crate::error::{Error, Result};

/// The arrays on disks.
#[derive(Default)]
pub struct ArraysOnDisks {
    /// Those that can be assembled.
    pub details: Vec<Detail>,
    /// Those that cannot.
    pub unusable: Vec<UnusableArray>,
    /// Failures of single disks.
    pub damaged: Vec<Error>,
}

/// An array that cannot be assembled.
pub struct UnusableArray {
    /// Whether too few members are present.
    pub lacks_members: bool,
    /// Why.
    pub error: Error,
}

fn is_partitioned(disk: &ProbedDisk) -> bool {
    let is_table = |found: &Signature| found.usage == Usage::PartitionTable;
    disk.contents.as_ref().is_ok_and(|contents| contents.foreign.iter().any(is_table))
}

/// The arrays on `devices` and their partitions, which are assembled for reading, in `sandbox`.
///
/// # Errors
/// A device cannot be opened, or has neither a member nor partitions.
pub async fn arrays_on(devices: &[PathBuf], sandbox: Sandbox) -> Result<ArraysOnDisks> {
    let opened = Opener::new(Access::Look).all(devices)?;
    sandbox.enter()?;
    let probed = probe_all(opened).await;
    let (mut whole, mut damaged) = (true, Vec::new());
    for disk in &probed {
        match disk.candidate() {
            Ok(_) => {}
            Err(MembershipError::Foreign(_)) if is_partitioned(disk) => whole = false,
            Err(why @ MembershipError::Damaged(_)) => {
                damaged.push(Error::plain(disk.disk.path.display(), why));
            }
            Err(why) => return Err(Error::plain(disk.disk.path.display(), why)),
        }
    }
    let md = ashlar_md::Options { run: true, read_only: true, force: true };
    let options = Options { md, whole, ..Options::default() };
    let stack = assemble(&probed, options, &disks::runtime()).await;
    if stack.arrays.running().is_empty() && stack.failures.is_empty() {
        let first = probed.iter().find_map(|disk| Some((disk, disk.candidate().err()?)));
        return match first {
            None => {
                Ok(ArraysOnDisks { details: Vec::new(), unusable: Vec::new(), damaged: Vec::new() })
            }
            Some((disk, why)) => Err(Error::plain(disk.disk.path.display(), why)),
        };
    }
    let unusable = stack.failures.iter().map(|failure| UnusableArray {
        lacks_members: matches!(failure.error, AssembleError::NotEnough { .. }),
        error: Error::new("cannot tell", failure, &failure.error),
    });
    Ok(ArraysOnDisks {
        details: stack.arrays.running().iter().map(Detail::of).collect(),
        unusable: unusable.collect(),
        damaged,
    })
}
