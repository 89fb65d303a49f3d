//! The graph of the contents of some disks: `ashlar scan`.
//!
//! Arrays that can start are started, read-only, to show their contents.

use std::collections::HashMap;
use std::sync::Arc;

use ashlar_block::Runtime;
use ashlar_lvm::metadata::SystemIds;
use ashlar_md::ArrayStatus;
use ashlar_md::ondisk::{Level, MdadmUuid, Role as MdRole, Superblock, text};
use ashlar_stack::assemble::{
    DeviceProbe, Failure, Options, Others, ProbedDisk, Refused, Stack, assemble,
};
use ashlar_stack::devices::{Device, Kind, Role};
use ashlar_stack::partitions::Entry;
use ashlar_stack::probe::{Contents, Md};
use ashlar_stack::signature::{Identity, Signature, Usage, ZFS_MEMBER};
use ashlar_stack::volume_groups::PHYSICAL;

use crate::graph::{Graph, Node, NodeId};
use crate::zpools::{self, LabelledDevice};

/// The graph of `probed` on the host with the system IDs `local`. Nothing is written.
pub async fn scan(probed: &[ProbedDisk], local: SystemIds, runtime: &Arc<dyn Runtime>) -> Graph {
    let md = ashlar_md::Options { run: true, read_only: true, force: true };
    let others = Others { local, force: false };
    let stack = assemble(probed, Options { md, others, ..Options::default() }, runtime).await;
    draw(&stack)
}

/// The graph of a stack.
fn draw(stack: &Stack) -> Graph {
    let mut graph = Graph::default();
    let mut nodes: HashMap<String, NodeId> = HashMap::new();
    let mut labelled = Vec::new();
    for device in stack.devices.all() {
        let probe = stack.probes.iter().rfind(|probe| probe.name == device.name);
        let notes = stack.notes.iter().filter(|note| note.device == device.name);
        let notes: Vec<&str> = notes.map(|note| note.text.as_str()).collect();
        let node = node(stack, &device, probe, &notes);
        let parents: Vec<NodeId> =
            device.below.iter().filter_map(|below| nodes.get(below).copied()).collect();
        let id =
            if parents.is_empty() { graph.add_root(node) } else { graph.add_below(&parents, node) };
        nodes.insert(device.name.clone(), id);
        if let Some(DeviceProbe { contents: Ok(contents), scheme, .. }) = probe {
            add_signatures(&mut graph, id, &device, contents, scheme.is_some());
            // Labels on other devices belong to the contents, for example of an array.
            if let (Role::Volume, Some(labels)) = (device.role, &contents.zfs) {
                let path = if device.kind.is_disk() { &device.path } else { &device.name };
                labelled.push(LabelledDevice { node: id, path: path.clone(), labels });
            }
        }
    }
    zpools::draw(&mut graph, &labelled);
    for failure in &stack.failures {
        let members = failure.candidates.iter().filter_map(|c| stack.devices.name(&c.path));
        let parents: Vec<NodeId> = members.filter_map(|name| nodes.get(&name).copied()).collect();
        graph.add_below(&parents, failure_node(failure));
    }
    for refused in stack.refusals(Refused::Volume) {
        let parents: Vec<NodeId> =
            refused.below.iter().filter_map(|name| nodes.get(name).copied()).collect();
        let node = Node::new(Kind::LOGICAL, &refused.name).problem(&refused.why);
        graph.add_below(&parents, node);
    }
    graph
}

/// A device, its membership, and its defects.
fn node(stack: &Stack, device: &Device, probe: Option<&DeviceProbe>, notes: &[&str]) -> Node {
    let size = device.gateway().capacity().bytes();
    let mut node = match &device.kind {
        Kind::Disk => Node::new(device.kind.name(), &device.path).sized(size),
        Kind::Partition(entry) => partition(device, entry).sized(size),
        Kind::Array => match stack.arrays.find(&device.name) {
            Some(volume) => array(&device.name, &volume.view.status()),
            None => Node::new(device.kind.name(), &device.name).sized(size),
        },
        Kind::Logical(_) | Kind::Zvol(_) => {
            Node::new(device.kind.name(), device.export_name()).sized(size)
        }
    };
    if let Some(DeviceProbe { contents, scheme, .. }) = probe {
        if device.role.is_of_md()
            && let Ok(Contents { md: Md::Member(sb), .. }) = contents
        {
            node = member_facts(node, sb);
        }
        if let Some(scheme) = scheme {
            node = node.fact("pttype", scheme);
        }
    }
    if let Some((uuid, group)) = stack.physical_on(&device.name) {
        node = fact_if_any(node, "vg", group.unwrap_or_default());
        // An array and a partition have identifiers of their own.
        node.identifier.get_or_insert_with(|| ("uuid", uuid.to_string()));
    }
    let problems: Vec<&str> =
        node.problem.as_deref().into_iter().chain(notes.iter().copied()).collect();
    if problems.is_empty() {
        return node;
    }
    let problem = problems.join("; ");
    node.problem(problem)
}

/// The other signatures of a device: not those of a used partition table, nor those in the data
/// area of a member.
fn add_signatures(
    graph: &mut Graph,
    id: NodeId,
    device: &Device,
    contents: &Contents,
    has_table: bool,
) {
    // A used signature is represented by the devices made of it.
    let is_used = |found: &&Signature| match found.usage {
        Usage::PartitionTable => has_table,
        // The last labels of a partition may be at the offsets of the disk's, but they are not the
        // disk's labels.
        Usage::Member if found.name == ZFS_MEMBER => contents.zfs.as_ref().is_some_and(|labels| {
            let is_inside = device.role == Role::Partitioned && labels.label().is_none();
            is_inside || device.role == Role::Volume
        }),
        Usage::Member => device.role == PHYSICAL && found.name == "LVM2_member",
        Usage::FileSystem
        | Usage::Encrypted
        | Usage::Swap
        | Usage::Snapshot
        | Usage::Backup
        | Usage::Image
        | Usage::Configuration => false,
    };
    let shown = contents.remains().filter(|found| !is_used(found));
    for found in shown {
        let mut node = Node::new(found.usage.to_string(), found.name);
        if device.kind.is_disk() {
            node = node.fact("offset", format_args!("{:#x}", found.offset));
        }
        if let Some(Identity { label, uuid }) = contents.identities.get(found) {
            node = fact_if_any(node, "label", label.as_deref().unwrap_or_default());
            node.identifier = uuid.clone().map(|uuid| ("uuid", uuid));
        }
        graph.add_below(&[id], node);
    }
}

fn partition(device: &Device, entry: &Entry) -> Node {
    let mut node = Node::new(device.kind.name(), &device.name).fact("start", entry.start);
    node = fact_if_any(node, "partlabel", &entry.name).fact("parttype", &entry.kind);
    node.identifier = entry.uuid.map(|uuid| ("partuuid", uuid.to_string()));
    node
}

fn array(name: &str, status: &ArrayStatus) -> Node {
    let node = Node::new(status.level.to_string(), name).sized(status.size.bytes());
    let working = status.raid_disks.saturating_sub(status.degraded);
    let mut node = fact_if_any(node, "set", &status.set_name)
        .fact("devices", format_args!("{working}/{}", status.raid_disks))
        .identified("uuid", MdadmUuid(status.uuid));
    if let Some(layout) = layout_name(status.level, status.layout) {
        node = node.fact("layout", layout);
    }
    if !status.chunk.is_zero() {
        node = node.fact("chunk", format_args!("{}K", status.chunk.0 / 2));
    }
    node = node.fact("metadata", status.version);
    if !status.notes.is_empty() {
        node.problem(status.notes.join("; "))
    } else if status.degraded > 0 {
        node.problem("degraded")
    } else {
        node
    }
}

fn failure_node(failure: &Failure) -> Node {
    fact_if_any(Node::new("md", failure.name.device()), "set", &failure.set_name)
        .identified("uuid", MdadmUuid(failure.uuid))
        .problem(&failure.error)
}

/// Adds a fact, unless it is empty.
fn fact_if_any(node: Node, key: &'static str, text: &str) -> Node {
    if text.is_empty() { node } else { node.fact(key, text) }
}

fn member_facts(node: Node, sb: &Superblock) -> Node {
    let role = match sb.role() {
        MdRole::Active(slot) => slot.to_string(),
        MdRole::Spare => "spare".to_owned(),
        MdRole::Faulty => "faulty".to_owned(),
        MdRole::Journal => "journal".to_owned(),
    };
    fact_if_any(node, "member", &sb.name).fact("role", role).fact("events", sb.events)
}

/// The name of a layout, for levels that have several.
pub fn layout_name(level: Level, layout: u32) -> Option<String> {
    match level {
        Level::Raid0 => text::raid0_layout_name(layout).map(str::to_owned),
        Level::Raid10 => Some(text::raid10_layout(layout).trim().to_owned()),
        Level::Raid5 => text::parity_layout_name(false, layout).map(str::to_owned),
        Level::Raid6 => text::parity_layout_name(true, layout).map(str::to_owned),
        Level::Linear
        | Level::Raid1
        | Level::Raid4
        | Level::Multipath
        | Level::Faulty
        | Level::Other(_) => None,
    }
}
