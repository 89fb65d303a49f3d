//! `btrfs inspect-internal dump-tree`.

use std::sync::Arc;

use tracing::warn;

use super::items::{self, Sizes};
use super::names::{key as key_text, object, tree_title};
use super::{InspectError, Sink};
use crate::error::TreeError;
use crate::ondisk::items::RootItem;
use crate::ondisk::key::{Key, item, objectid};
use crate::ondisk::node::{BlockExpectation, DiskItem, HEADER_SIZE, KeyPtr, Node};
use crate::path::{Path, Root};
use crate::roots::{damaged, root_of};
use crate::units::Logical;
use crate::volume::FileSystem;

/// Number of blocks printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DumpCounts {
    /// Tree blocks.
    pub blocks: u64,
    /// Tree blocks that could not be read, and were left out with everything below them.
    pub unreadable: u64,
}

/// Prints all trees, and the size of the file system.
///
/// # Errors
/// The tree of roots cannot be read completely, or the sink failed.
pub async fn trees(fs: &Arc<FileSystem>, out: Sink<'_>) -> Result<DumpCounts, InspectError> {
    let mut dumped = DumpCounts::default();
    let log = fs.log_root();
    for (title, root) in [
        ("root tree", Some(fs.tree_root())),
        ("chunk tree", Some(fs.chunk_root())),
        ("log root tree", log),
    ] {
        if let Some(root) = root {
            writeln!(out, "{title}")?;
            whole(fs, root, out, &mut dumped).await?;
        }
    }
    below(fs, fs.tree_root(), None, out, &mut dumped).await?;
    if let Some(log) = log {
        below(fs, log, None, out, &mut dumped).await?;
    }
    totals(fs, out)?;
    Ok(dumped)
}

/// Prints one tree; if the tree of roots has several with this number, all of them.
///
/// # Errors
/// There is no such tree, the tree of roots cannot be read, or the sink failed.
pub async fn tree(
    fs: &Arc<FileSystem>,
    id: u64,
    out: Sink<'_>,
) -> Result<DumpCounts, InspectError> {
    let mut dumped = DumpCounts::default();
    let outside = match id {
        objectid::ROOT_TREE => Some(("root tree", Some(fs.tree_root()))),
        objectid::CHUNK_TREE => Some(("chunk tree", Some(fs.chunk_root()))),
        objectid::TREE_LOG => Some(("log root tree", fs.log_root())),
        objectid::BLOCK_GROUP_TREE => Some(("block group tree", fs.root(id).await?)),
        _ => None,
    };
    match outside {
        Some((title, Some(root))) => {
            writeln!(out, "{title}")?;
            whole(fs, root, out, &mut dumped).await?;
        }
        Some((_, None)) => return Err(TreeError::NoTree(id).into()),
        None => {
            if !below(fs, fs.tree_root(), Some(id), out, &mut dumped).await? {
                return Err(TreeError::NoTree(id).into());
            }
            totals(fs, out)?;
        }
    }
    Ok(dumped)
}

/// Prints one tree block; with `follow`, also those below it.
///
/// # Errors
/// The block cannot be read, or the sink failed.
pub async fn block(
    fs: &Arc<FileSystem>,
    at: Logical,
    follow: bool,
    out: Sink<'_>,
) -> Result<DumpCounts, InspectError> {
    let mut dumped = DumpCounts { blocks: 1, unreadable: 0 };
    let node = fs.node(BlockExpectation { at, ..BlockExpectation::default() }).await?;
    tell(fs, &node, out)?;
    if follow {
        children(fs, &node, out, &mut dumped).await?;
    }
    Ok(dumped)
}

fn totals(fs: &FileSystem, out: Sink<'_>) -> Result<(), InspectError> {
    let superblock = fs.superblock();
    writeln!(out, "total bytes {}", superblock.total_bytes)?;
    writeln!(out, "bytes used {}", superblock.bytes_used)?;
    writeln!(out, "uuid {}", superblock.fsid())?;
    Ok(())
}

/// Prints the trees in a tree of roots: all, or those with the number `wanted`. Returns whether there was one.
async fn below(
    fs: &Arc<FileSystem>,
    roots: Root,
    wanted: Option<u64>,
    out: Sink<'_>,
    dumped: &mut DumpCounts,
) -> Result<bool, InspectError> {
    let mut path = Path::new(fs, roots);
    let mut found = false;
    let mut more = path.search(Key::new(wanted.unwrap_or(0), 0, 0)).await?;
    while more {
        let Some((key, data)) = path.item() else { break };
        if wanted.is_some_and(|wanted| wanted != key.objectid) {
            break;
        }
        if key.kind == item::ROOT_ITEM {
            let it = RootItem::parse(data).map_err(|why| damaged(roots.id, key, &why))?;
            found = true;
            // btrfs-progs prints the trailing blank.
            writeln!(out, "{} tree {} ", tree_title(key.objectid), key_text(key))?;
            whole(fs, root_of(key, &it), out, dumped).await?;
        }
        more = path.next().await?;
    }
    Ok(found)
}

/// Prints a whole tree, level by level.
async fn whole(
    fs: &Arc<FileSystem>,
    root: Root,
    out: Sink<'_>,
    dumped: &mut DumpCounts,
) -> Result<(), InspectError> {
    match fs.node(root.expected()).await {
        Ok(node) => {
            dumped.blocks += 1;
            tell(fs, &node, out)?;
            children(fs, &node, out, dumped).await
        }
        Err(error) => {
            warn!(tree = root.id, %error, "left out");
            dumped.unreadable += 1;
            Ok(())
        }
    }
}

/// A block on the path, its next slot, and the key above all keys below it.
struct Step {
    node: Arc<Node>,
    slot: usize,
    end: Option<Key>,
}

/// Prints all blocks below `top`, higher levels first. Only one path is in memory: each level is a
/// separate walk. As in [`Path`], a walk meets no block twice.
async fn children(
    fs: &Arc<FileSystem>,
    top: &Arc<Node>,
    out: Sink<'_>,
    dumped: &mut DumpCounts,
) -> Result<(), InspectError> {
    for wanted in (0..top.level()).rev() {
        let mut steps = vec![Step { node: Arc::clone(top), slot: 0, end: None }];
        while let Some(step) = steps.last_mut() {
            let Some(expected) = step.node.child(step.slot) else {
                steps.pop();
                continue;
            };
            let (level, end) = (step.node.level() - 1, step.node.key(step.slot + 1).or(step.end));
            step.slot += 1;
            match fs.node_below(expected, end).await {
                Ok(node) if level == wanted => {
                    dumped.blocks += 1;
                    tell(fs, &node, out)?;
                }
                Ok(node) => steps.push(Step { node, slot: 0, end }),
                // Count it once, not again for each level below it.
                Err(error) if level == wanted => {
                    warn!(%error, "left out");
                    dumped.unreadable += 1;
                }
                Err(_) => {}
            }
        }
    }
    Ok(())
}

/// Prints one block.
fn tell(fs: &FileSystem, node: &Node, out: Sink<'_>) -> Result<(), InspectError> {
    heading(node, out)?;
    if node.level() > 0 {
        for pointer in (0..node.len()).filter_map(|slot| node.pointer(slot)) {
            let (at, generation) = (pointer.at, pointer.generation);
            writeln!(out, "\t{} block {at} gen {generation}", key_text(pointer.key))?;
        }
        return Ok(());
    }
    let sizes = Sizes { csum: fs.superblock().csum_kind(), sectorsize: fs.sectorsize() };
    // Data is packed from the end of the block downwards, without gaps, as checked when it was read.
    let mut offset = node.bytes().len() - HEADER_SIZE;
    for slot in 0..node.len() {
        let Some((key, data)) = node.item(slot) else { break };
        offset = offset.saturating_sub(data.len());
        let size = data.len();
        writeln!(out, "\titem {slot} {} itemoff {offset} itemsize {size}", key_text(key))?;
        items::body(out, key, data, sizes)?;
    }
    Ok(())
}

fn heading(node: &Node, out: Sink<'_>) -> Result<(), InspectError> {
    let header = node.header();
    let (at, count, level) = (header.bytenr, node.len(), node.level());
    let (generation, owner) = (header.generation, object(header.owner.get(), 0));
    let body = node.bytes().len() - HEADER_SIZE;
    let kind = if level > 0 { "node" } else { "leaf" };
    if level > 0 {
        let free = body / size_of::<KeyPtr>() - count;
        writeln!(
            out,
            "node {at} level {level} items {count} free space {free} generation {generation} owner {owner}"
        )?;
    } else {
        let data: usize =
            (0..count).filter_map(|slot| node.item(slot)).map(|(_, it)| it.len()).sum();
        let free = body - count * size_of::<DiskItem>() - data;
        writeln!(
            out,
            "leaf {at} items {count} free space {free} generation {generation} owner {owner}"
        )?;
    }
    // The upper 8 bits are the back reference version.
    let (flags, revision) = (header.flags.get() & ((1 << 56) - 1), header.flags.get() >> 56);
    let named: Vec<&str> = [(1, "WRITTEN"), (2, "RELOC")]
        .into_iter()
        .filter(|(bit, _)| flags & bit != 0)
        .map(|(_, name)| name)
        .collect();
    let named = named.join("|");
    writeln!(out, "{kind} {at} flags 0x{flags:x}({named}) backref revision {revision}")?;
    writeln!(out, "fs uuid {}", uuid::Uuid::from_bytes(header.fsid))?;
    writeln!(out, "chunk uuid {}", uuid::Uuid::from_bytes(header.chunk_tree_uuid))?;
    Ok(())
}
