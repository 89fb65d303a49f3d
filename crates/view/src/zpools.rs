//! ZFS pools in the graph of `scan`: their names, members and missing parts. Scanning does not open them.

use ashlar_stack::signature::ZFS_MEMBER;
use ashlar_zfs::ondisk::config::{Device, Health, Node as Vdev, Pool, pools};
use ashlar_zfs::ondisk::label::DeviceLabels;

use crate::graph::{Graph, Node, NodeId};

/// A device with ZFS labels.
pub(crate) struct LabelledDevice<'a> {
    /// The device.
    pub(crate) node: NodeId,
    /// Its name.
    pub(crate) path: String,
    /// Its labels.
    pub(crate) labels: &'a DeviceLabels,
}

/// Adds the pools below their members; for a device in no pool, adds the state of its labels.
pub(crate) fn draw(graph: &mut Graph, labelled: &[LabelledDevice<'_>]) {
    let devices: Vec<Device<'_>> = labelled
        .iter()
        .map(|device| Device { path: &device.path, labels: device.labels })
        .collect();
    let found = pools(&devices);
    for pool in &found.pools {
        let members = pool.devices.iter().filter_map(|index| labelled.get(*index));
        let members: Vec<NodeId> = members.map(|member| member.node).collect();
        let id = graph.add_below(&members, pool_node(pool));
        pool.vdevs.iter().for_each(|vdev| add_vdev(graph, id, vdev));
    }
    let mut add = |index: usize, node: Node| {
        if let Some(device) = labelled.get(index) {
            let problems = device.labels.problems();
            let node = if problems.is_empty() { node } else { node.problem(problems.join("; ")) };
            graph.add_below(&[device.node], node);
        }
    };
    for (index, state) in &found.kept {
        add(*index, Node::new("zpool", ZFS_MEMBER).fact("state", state));
    }
    for index in &found.released {
        add(*index, Node::new("zpool", ZFS_MEMBER).fact("state", "released"));
    }
    for index in &found.damaged {
        add(*index, Node::new("zpool", ZFS_MEMBER).fact("state", "damaged"));
    }
}

fn pool_node(pool: &Pool) -> Node {
    let mut node = Node::new("zpool", &pool.name)
        .fact("state", pool.state)
        .fact("health", pool.health)
        .fact("txg", pool.uberblock.map_or(pool.txg, |(txg, _)| txg))
        .fact("version", pool.version)
        .identified("guid", pool.guid);
    if let Some(host) = &pool.hostname {
        node = node.fact("host", host);
    }
    let health = (pool.health != Health::Online).then(|| pool.health.to_string());
    let problems: Vec<String> = health.into_iter().chain(pool.problems.iter().cloned()).collect();
    if problems.is_empty() { node } else { node.problem(problems.join("; ")) }
}

fn add_vdev(graph: &mut Graph, parent: NodeId, vdev: &Vdev) {
    let mut node = Node::new(vdev.kind.to_string(), &vdev.name);
    if vdev.guid != 0 {
        node = node.identified("guid", vdev.guid);
    }
    if vdev.is_log {
        node = node.fact("log", "yes");
    }
    if vdev.health != Health::Online {
        node = node.fact("health", vdev.health);
    }
    if let Some(problem) = &vdev.problem {
        node = node.problem(problem);
    }
    let id = graph.add_below(&[parent], node);
    vdev.children.iter().for_each(|child| add_vdev(graph, id, child));
}
