//! The result of a scan as a graph: disks, their contents, and the devices made of them.
//!
//! A node may be below several others (an array below each of its members), never below itself.
//! The graph is printed as `lsblk` prints: once below each parent, with children only the first time.

use std::fmt;

use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};

mod text;

pub use text::{TEXT_WIDTH, wrapped};

/// A node of a [`Graph`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NodeId(usize);

/// What a node is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// Its name: a path, a volume's name, a signature's type.
    pub name: String,
    /// Its type, as `lsblk` would say: `disk`, `raid10`, `ext4`.
    pub kind: String,
    /// Its size in bytes, if it has one.
    pub size_bytes: Option<u64>,
    /// Details, in order.
    pub facts: Vec<(&'static str, String)>,
    /// What distinguishes it from all others: a UUID, with the key that names it.
    pub identifier: Option<(&'static str, String)>,
    /// Its defect.
    pub problem: Option<String>,
}

impl Node {
    /// A node without facts.
    pub fn new(kind: impl Into<String>, name: impl Into<String>) -> Self {
        let (kind, name) = (kind.into(), name.into());
        Self { name, kind, size_bytes: None, facts: Vec::new(), identifier: None, problem: None }
    }

    /// Sets the size.
    #[must_use]
    pub fn sized(mut self, bytes: u64) -> Self {
        self.size_bytes = Some(bytes);
        self
    }

    /// Adds a fact.
    #[must_use]
    pub fn fact(mut self, key: &'static str, value: impl fmt::Display) -> Self {
        self.facts.push((key, value.to_string()));
        self
    }

    /// Sets the identifier.
    #[must_use]
    pub fn identified(mut self, key: &'static str, value: impl fmt::Display) -> Self {
        self.identifier = Some((key, value.to_string()));
        self
    }

    /// Adds a defect to the one that there may be.
    #[must_use]
    pub fn also(self, problem: impl fmt::Display) -> Self {
        match &self.problem {
            Some(first) => {
                let both = format!("{first}; {problem}");
                self.problem(both)
            }
            None => self.problem(problem),
        }
    }

    /// Sets the defect.
    #[must_use]
    pub fn problem(mut self, problem: impl fmt::Display) -> Self {
        self.problem = Some(problem.to_string());
        self
    }
}

/// Nodes and their children.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    nodes: Vec<(Node, Vec<NodeId>)>,
    roots: Vec<NodeId>,
}

impl Graph {
    /// Adds a node at the top.
    pub fn add_root(&mut self, node: Node) -> NodeId {
        let id = self.add(node);
        self.roots.push(id);
        id
    }

    /// Adds a node below `parents`, which already exist: so there are no cycles.
    pub fn add_below(&mut self, parents: &[NodeId], node: Node) -> NodeId {
        let id = self.add(node);
        for parent in parents {
            self.nodes[parent.0].1.push(id);
        }
        id
    }

    /// Changes the nodes of this name at the top.
    pub fn amend_roots(&mut self, name: &str, change: impl Fn(Node) -> Node) {
        for root in &self.roots {
            let node = &mut self.nodes[root.0].0;
            if node.name == name {
                *node = change(node.clone());
            }
        }
    }

    fn add(&mut self, node: Node) -> NodeId {
        self.nodes.push((node, Vec::new()));
        NodeId(self.nodes.len() - 1)
    }
}

/// A size in the largest binary unit that does not exceed it, as `lsblk` prints it.
pub fn human_size(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "K", "M", "G", "T", "P", "E"];
    let unit = (bytes.max(1).ilog2() / 10) as usize;
    let tenths = (u128::from(bytes) * 10 + (1 << (unit * 10)) / 2) >> (unit * 10);
    let rest = tenths % 10;
    let whole = tenths / 10;
    if rest == 0 {
        format!("{whole}{}", UNITS[unit])
    } else {
        format!("{whole}.{rest}{}", UNITS[unit])
    }
}

/// The JSON of `lsblk --json`: `blockdevices`, nested, with a node below each of its parents.
impl Serialize for Graph {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(1))?;
        map.serialize_entry("blockdevices", &Subtrees { graph: self, nodes: &self.roots })?;
        map.end()
    }
}

struct Subtrees<'a> {
    graph: &'a Graph,
    nodes: &'a [NodeId],
}

impl Serialize for Subtrees<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.nodes.len()))?;
        for id in self.nodes {
            list.serialize_element(&Subtree { graph: self.graph, id: *id })?;
        }
        list.end()
    }
}

struct Subtree<'a> {
    graph: &'a Graph,
    id: NodeId,
}

impl Serialize for Subtree<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (node, children) = &self.graph.nodes[self.id.0];
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("name", &node.name)?;
        map.serialize_entry("type", &node.kind)?;
        if let Some(size) = node.size_bytes {
            map.serialize_entry("size", &size)?;
        }
        for (key, value) in node.facts.iter().chain(&node.identifier) {
            map.serialize_entry(key, value)?;
        }
        if let Some(problem) = &node.problem {
            map.serialize_entry("problem", problem)?;
        }
        if !children.is_empty() {
            let nodes = children.as_slice();
            map.serialize_entry("children", &Subtrees { graph: self.graph, nodes })?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mirror() -> Graph {
        let mut graph = Graph::default();
        let a = graph.add_root(Node::new("disk", "a.img").sized(64 << 20).fact("role", 0));
        let b = graph.add_root(Node::new("disk", "b.img").sized(64 << 20).fact("role", 1));
        graph.add_root(Node::new("disk", "c.img").sized(1536).problem("bad checksum"));
        let md = graph
            .add_below(&[a, b], Node::new("raid1", "md0").sized(63 << 20).fact("state", "clean"));
        graph.add_below(&[md], Node::new("ext4", "ext4"));
        graph
    }

    #[test]
    fn json_nests_as_lsblk_does() {
        let json = serde_json::to_value(mirror()).unwrap();
        let disks = json["blockdevices"].as_array().unwrap();
        assert_eq!(disks.len(), 3);
        for disk in &disks[..2] {
            assert_eq!(disk["children"][0]["name"], "md0");
            assert_eq!(disk["children"][0]["size"], 63 << 20);
            assert_eq!(disk["children"][0]["children"][0]["type"], "ext4");
        }
        assert_eq!(disks[1]["role"], "1");
        assert_eq!(disks[2]["problem"], "bad checksum");
        assert_eq!(disks[2].get("children"), None);
    }

    #[test]
    fn sizes_read_as_lsblk_prints_them() {
        for (bytes, text) in [
            (0, "0B"),
            (512, "512B"),
            (1024, "1K"),
            (1536, "1.5K"),
            (64 << 20, "64M"),
            (1_920_383_410_176, "1.7T"),
            (u64::MAX, "16E"),
        ] {
            assert_eq!(human_size(bytes), text);
        }
    }
}
