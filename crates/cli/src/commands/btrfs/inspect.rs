//! `ashlar btrfs inspect`: superblocks, trees, chunks, usage, and the owners of an address.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use ashlar_btrfs::inspect::{
    self, DumpCounts, InspectError, Sink, SizeForm, SuperblockKind, SuperblockTextError,
};
use ashlar_btrfs::ondisk::superblock::{OFFSETS, SUPERBLOCK_SIZE};
use ashlar_btrfs::units::Logical;
use ashlar_btrfs::volume::FileSystem;
use ashlar_commands::btrfs::{LookedAt, look_through};
use ashlar_daemon::error::{Error, FAILURE, Result};
use ashlar_disks::sandbox::Sandbox;
use ashlar_disks::{self as disks, Access, Opener};
use ashlar_terminal::bulk::{text_output, written};
use clap::{Args, Subcommand};

use super::volumes::FileSystemArgs;
use super::{paths, resolve, with};
use crate::commands::verbs::verbs;
use crate::output::report;

verbs! {
    /// Print the structures on the devices of a file system
    ///
    /// The output has the wording of btrfs-progs 6.2, so that scripts for the one can read the other.
    /// Times are in UTC.
    #[derive(Subcommand, Debug)]
    #[command(after_help = "\
Examples:
  ashlar btrfs inspect super -f disk0.img
  ashlar btrfs inspect tree -t extent disk*.img
  ashlar btrfs inspect usage disk*.img
  ashlar btrfs inspect paths 30523392 disk*.img")]
    pub(crate) enum Inspect {
        #[command(visible_alias = "dump-super")]
        Super(Super),
        #[command(visible_alias = "dump-tree")]
        Tree(Tree),
        #[command(visible_alias = "list-chunks")]
        Chunks(Chunks),
        Usage(Usage),
        Paths(paths::Paths),
        InodeResolve(resolve::InodeResolve),
        LogicalResolve(resolve::LogicalResolve),
        SubvolidResolve(resolve::SubvolidResolve),
        Rootid(resolve::Rootid),
    }
}

/// Print superblocks, as btrfs inspect-internal dump-super does
///
/// Examines each device by itself; damaged ones are accepted. Of a device without a superblock that partitions, arrays or volume
/// groups are on, those of the volumes there.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 all are superblocks, 1 some are not or cannot be read.

Examples:
  ashlar btrfs inspect super disk*.img
  ashlar btrfs inspect super -fa /dev/sdb
  ashlar btrfs inspect super /dev/sd[bc]    # members of an array with a btrfs")]
pub(crate) struct Super {
    /// Image files or block devices
    #[arg(required = true, value_name = "DEVICE")]
    devices: Vec<PathBuf>,

    /// Also print its chunks and older roots
    #[arg(short, long)]
    full: bool,

    /// Print all superblocks of each device
    #[arg(short, long, conflicts_with = "which")]
    all: bool,

    /// Which superblock: 0, 1 or 2
    #[arg(short = 's', long = "super", value_name = "N", default_value_t = 0,
        value_parser = clap::value_parser!(u8).range(0..3))]
    which: u8,

    /// Also print data without a superblock's magic number
    #[arg(short = 'F', long)]
    force: bool,
}

impl Super {
    fn run(self) -> Result<ExitCode> {
        let sandbox = Sandbox::of(&self.devices);
        let opened = Opener::new(Access::Look).all(&self.devices)?;
        let reactor = disks::reactor()?;
        sandbox.enter()?;
        let wanted = usize::from(self.which);
        let offsets = if self.all { &OFFSETS[..] } else { &OFFSETS[wanted..=wanted] };
        let kind = if self.full { SuperblockKind::Full } else { SuperblockKind::Fields };
        let (mut out, mut code) = (text_output(), ExitCode::SUCCESS);
        let found = reactor.block_on(look_through(opened));
        for LookedAt { path, gateway } in &found.devices {
            for at in offsets {
                let end = at.0 + SUPERBLOCK_SIZE as u64;
                if self.all && end > gateway.capacity().bytes() {
                    continue;
                }
                let print = inspect::superblock_at(gateway, path, *at, kind, self.force, &mut out);
                match reactor.block_on(print) {
                    Ok(()) => {}
                    Err(SuperblockTextError::Io(error)) => {
                        written(Err(error))?;
                        return Ok(code);
                    }
                    Err(error) => {
                        written(out.flush())?;
                        let lacks_magic = matches!(error, SuperblockTextError::NoMagic { .. });
                        let error = Error::failed(error);
                        let hint = "--force prints it anyway";
                        report(&if lacks_magic { error.hint(hint) } else { error });
                        code = ExitCode::from(FAILURE);
                    }
                }
            }
        }
        written(out.flush())?;
        reactor.block_on(found.close())?;
        Ok(code)
    }
}

/// Print trees, as btrfs inspect-internal dump-tree does
///
/// Blocks without a readable mirror are omitted and named on standard error. The output contains
/// file names: consider that before you share it.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 done, 1 failed or something could not be read.

Examples:
  ashlar btrfs inspect tree disk*.img
  ashlar btrfs inspect tree -t extent disk*.img
  ashlar btrfs inspect tree -b 30523392 --follow disk*.img")]
pub(crate) struct Tree {
    #[command(flatten)]
    chosen: FileSystemArgs,

    /// Only this tree: a number, or a name such as root, chunk, extent, fs, csum
    #[arg(short, long, value_name = "TREE", conflicts_with = "block",
        value_parser = |text: &str| inspect::tree_id(text).ok_or("there is no such tree"))]
    tree: Option<u64>,

    /// Only the tree block at this address
    #[arg(short, long, value_name = "ADDRESS")]
    block: Option<u64>,

    /// With --block: also print all blocks below it
    #[arg(long, requires = "block")]
    follow: bool,
}

impl Tree {
    fn run(self) -> Result<ExitCode> {
        with(&self.chosen, async |fs| {
            let mut out = text_output();
            let dumped = match (self.block, self.tree) {
                (Some(at), _) => inspect::block(fs, Logical(at), self.follow, &mut out).await,
                (None, Some(id)) => inspect::tree(fs, id, &mut out).await,
                (None, None) => inspect::trees(fs, &mut out).await,
            };
            let flushed = out.flush();
            let dumped = told(dumped)?;
            written(flushed)?;
            let Some(DumpCounts { unreadable, .. }) = dumped.filter(|it| it.unreadable > 0) else {
                return Ok(ExitCode::SUCCESS);
            };
            Err(Error::failed(format_args!("{unreadable} tree blocks could not be read")))
        })
    }
}

/// The value; `None` if the reader of the output is gone.
fn told<T>(result: std::result::Result<T, InspectError>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(InspectError::Io(error)) => written(Err(error)).map(|()| None),
        Err(InspectError::Tree(error)) => Err(Error::plain("cannot read the trees", error)),
    }
}

/// Prints what `print` writes about the file system.
pub(super) fn printed(
    chosen: &FileSystemArgs,
    print: impl AsyncFnOnce(&Arc<FileSystem>, Sink<'_>) -> std::result::Result<(), InspectError>,
) -> Result<ExitCode> {
    with(chosen, async |fs| print_about(async |out| print(fs, out).await).await)
}

/// Prints what `print` writes.
pub(super) async fn print_about(
    print: impl AsyncFnOnce(Sink<'_>) -> std::result::Result<(), InspectError>,
) -> Result<ExitCode> {
    let mut out = text_output();
    let result = print(&mut out).await;
    let flushed = out.flush();
    told(result)?;
    written(flushed)?;
    Ok(ExitCode::SUCCESS)
}

/// Print the place of each chunk on the devices
///
/// Prints a line for each chunk: its place and length in the file system's address space, and its
/// type. Then a line for each of its stripes.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar btrfs inspect chunks disk*.img")]
pub(crate) struct Chunks {
    #[command(flatten)]
    chosen: FileSystemArgs,
}

impl Chunks {
    fn run(self) -> Result<ExitCode> {
        with(&self.chosen, async |fs| {
            let mut out = text_output();
            written(inspect::chunks(fs, &mut out).and_then(|()| out.flush()))?;
            Ok(ExitCode::SUCCESS)
        })
    }
}

/// Print allocated and used space, as btrfs filesystem usage -b does
///
/// Two lines give a kernel's values for the mounted file system: the free space that df shows, and
/// the reserve for metadata.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar btrfs inspect usage disk*.img")]
pub(crate) struct Usage {
    #[command(flatten)]
    chosen: FileSystemArgs,
}

impl Usage {
    fn run(self) -> Result<ExitCode> {
        printed(&self.chosen, async |fs, out| inspect::usage(fs, SizeForm::Bytes, out).await)
    }
}
