//! The graph of what is on some disks: `ashlar scan`.
//!
//! Arrays that can be started are started, for reading only, to see what is on them.

use std::collections::BTreeMap;
use std::sync::Arc;

use ashlar_block::Runtime;
use ashlar_md::ondisk::{Level, MdadmUuid, Role, Superblock, text};
use uuid::Uuid;

use crate::assemble::{Probed, assemble};
use crate::graph::{Graph, Node, NodeId};
use crate::probe::{Contents, Md, signatures};

/// The graph of `probed`. Nothing is written.
pub async fn scan(probed: &[Probed], runtime: &Arc<dyn Runtime>) -> Graph {
    let mut graph = Graph::default();
    let mut members: BTreeMap<Uuid, Vec<NodeId>> = BTreeMap::new();
    for disk in probed {
        let id = graph.add_root(disk_node(disk));
        let Ok(contents) = &disk.contents else { continue };
        for found in contents.remains() {
            let node = Node::new(found.usage.to_string(), found.name);
            graph.add_below(&[id], node.fact("offset", format_args!("{:#x}", found.offset)));
        }
        if let Md::Member(sb) = &contents.md {
            members.entry(sb.set_uuid).or_default().push(id);
        }
    }
    let options = ashlar_md::Options { run: true, read_only: true };
    let stack = assemble(probed, &options, None, runtime).await;
    for volume in stack.arrays.running() {
        let status = volume.view.status();
        let parents = members.remove(&status.uuid).unwrap_or_default();
        let mut node = Node::new(status.level.to_string(), volume.name.device())
            .sized(status.size.bytes())
            .fact("name", &status.set_name)
            .fact("uuid", MdadmUuid(status.uuid))
            .fact("metadata", status.version);
        if let Some(layout) = layout_name(status.level, status.layout) {
            node = node.fact("layout", layout);
        }
        if !status.chunk.is_zero() {
            node = node.fact("chunk", format_args!("{}K", status.chunk.0 / 2));
        }
        let working = status.raid_disks.saturating_sub(status.degraded);
        node = node.fact("devices", format_args!("{working}/{}", status.raid_disks));
        if !status.notes.is_empty() {
            node = node.problem(status.notes.join("; "));
        } else if status.degraded > 0 {
            node = node.problem("degraded");
        }
        let id = graph.add_below(&parents, node);
        for found in signatures(volume.bytes.gateway()).await.unwrap_or_default() {
            graph.add_below(&[id], Node::new(found.usage.to_string(), found.name));
        }
    }
    for failure in &stack.failures {
        let parents = members.remove(&failure.uuid).unwrap_or_default();
        let node =
            Node::new("md", if failure.set_name.is_empty() { "?" } else { &failure.set_name })
                .fact("uuid", MdadmUuid(failure.uuid))
                .problem(&failure.error);
        graph.add_below(&parents, node);
    }
    graph
}

fn disk_node(disk: &Probed) -> Node {
    let node = Node::new("disk", disk.disk.path.display().to_string())
        .sized(disk.disk.gateway.capacity().bytes());
    match &disk.contents {
        Err(status) => node.problem(format_args!("cannot be read: {status}")),
        Ok(Contents { md: Md::Member(sb), .. }) => member_facts(node, sb),
        Ok(Contents { md: Md::Damaged(error), .. }) => node.problem(error),
        Ok(Contents { md: Md::None, .. }) => node,
    }
}

fn member_facts(node: Node, sb: &Superblock) -> Node {
    let role = match sb.role() {
        Role::Active(slot) => slot.to_string(),
        Role::Spare => "spare".to_owned(),
        Role::Faulty => "faulty".to_owned(),
        Role::Journal => "journal".to_owned(),
    };
    node.fact("member", &sb.name).fact("role", role).fact("events", sb.events)
}

/// The name of a layout, for levels that have several.
pub fn layout_name(level: Level, layout: u32) -> Option<String> {
    match level {
        Level::Raid0 => text::raid0_layout_name(layout).map(str::to_owned),
        Level::Raid10 => Some(text::raid10_layout(layout).trim().to_owned()),
        Level::Linear
        | Level::Raid1
        | Level::Raid4
        | Level::Raid5
        | Level::Raid6
        | Level::Multipath
        | Level::Faulty
        | Level::Other(_) => None,
    }
}
