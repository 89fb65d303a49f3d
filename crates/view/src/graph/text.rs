//! A graph as text: a tree with a heading, as `lsblk` prints it.
//!
//! Details that do not fit into a line continue below the first ones. Names and facts are never cut: a name that would leave too little
//! room for the details has a line of its own.

use ashlar_block::text::one_line;
use unicode_width::UnicodeWidthStr;

use super::{Graph, Node, NodeId, human_size};

/// The width of a text for which there is no terminal, in columns.
pub const TEXT_WIDTH: usize = 100;

/// The room for details that a long name must leave: that of a partition's UUID, if any detail is so long.
const DETAILS_LEAST: usize = "partuuid=00000000-0000-0000-0000-000000000000".len();
/// The blanks between the four columns, together.
const GAPS: usize = 6;

/// A row of the table.
struct Row {
    /// The name, with its branch.
    name: String,
    /// Stands in place of the name on further lines of the row: the branches of the rows below.
    branches: String,
    size: String,
    kind: String,
    /// Words that are not cut.
    details: Vec<String>,
}

impl Graph {
    /// The tree as text, in aligned columns with a heading. A line has at most `width` columns, unless a name or a fact alone has more.
    pub fn to_text(&self, width: usize) -> String {
        let mut rows = vec![Row {
            name: "NAME".to_owned(),
            branches: String::new(),
            size: "SIZE".to_owned(),
            kind: "TYPE".to_owned(),
            details: vec!["DETAILS".to_owned()],
        }];
        let mut seen = vec![false; self.nodes.len()];
        for root in &self.roots {
            self.rows(*root, "", None, &mut seen, &mut rows);
        }
        let widest = |cell: fn(&Row) -> &str| rows.iter().map(|row| cell(row).width()).max();
        let size_width = widest(|row| &row.size).unwrap_or(0);
        let kind_width = widest(|row| &row.kind).unwrap_or(0);
        let details = rows.iter().flat_map(|row| &row.details).map(|detail| detail.width());
        let details_least = details.max().unwrap_or(0).min(DETAILS_LEAST);
        let others = GAPS + size_width + kind_width;
        let name_most = width.saturating_sub(others + details_least);
        let names = rows.iter().map(|row| row.name.width()).filter(|width| *width <= name_most);
        let name_width = names.max().unwrap_or(0);
        let details_width = width.saturating_sub(others + name_width);
        let mut out = String::new();
        for row in &rows {
            let branches = row.branches.get(..name_width).unwrap_or(&row.branches);
            let mut cells = [row.name.as_str(), &row.size, &row.kind];
            if row.name.width() > name_width {
                out += &row.name;
                out.push('\n');
                cells[0] = branches;
            }
            for details in wrapped(&row.details, details_width) {
                let [name, size, kind] = cells;
                let (name, kind) = (padded(name, name_width), padded(kind, kind_width));
                let line = format!("{name}  {size:>size_width$}  {kind}  {details}");
                out += line.trim_end();
                out.push('\n');
                cells = [branches, "", ""];
            }
        }
        out
    }

    /// Appends the rows of a node and of those below it; `last` says whether the node is the last one below its parent.
    fn rows(
        &self,
        id: NodeId,
        indent: &str,
        last: Option<bool>,
        seen: &mut [bool],
        out: &mut Vec<Row>,
    ) {
        let (node, children) = &self.nodes[id.0];
        let (branch, below) = match last {
            None => ("", ""),
            Some(false) => ("|-", "| "),
            Some(true) => ("`-", "  "),
        };
        let again = std::mem::replace(&mut seen[id.0], true);
        let children = if again { &[][..] } else { children };
        let below = format!("{indent}{below}");
        out.push(Row {
            name: format!("{indent}{branch}{}", one_line(&node.name)),
            branches: format!("{below}{}", if children.is_empty() { "" } else { "|" }),
            size: node.size_bytes.map(human_size).unwrap_or_default(),
            kind: node.kind.clone(),
            details: if again { Vec::new() } else { details(node) },
        });
        for (index, child) in children.iter().enumerate() {
            self.rows(*child, &below, Some(index + 1 == children.len()), seen, out);
        }
    }
}

/// The facts, the defect, and at the end the identifier, which programs need more than people.
fn details(node: &Node) -> Vec<String> {
    let fact = |(key, value): &(&'static str, String)| {
        let value = one_line(value);
        let is_word = !value.contains([' ', '"']);
        if is_word {
            format!("{key}={value}")
        } else {
            format!("{key}=\"{}\"", value.replace('"', "\\\""))
        }
    };
    let mut all: Vec<String> = node.facts.iter().map(fact).collect();
    if let Some(problem) = &node.problem {
        all.extend(format!("({})", one_line(problem)).split(' ').map(str::to_owned));
    }
    all.extend(node.identifier.iter().map(fact));
    all
}

/// Words in lines of at most `width` columns, with a blank between two; a word that is wider is a line. At least one line.
pub fn wrapped(words: &[impl AsRef<str>], width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in words.iter().map(AsRef::as_ref) {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.width() + 1 + word.width() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            Some(_) | None => lines.push(word.to_owned()),
        }
    }
    lines
}

/// `text` and blanks to its right, `width` columns together.
fn padded(text: &str, width: usize) -> String {
    let blanks = width.saturating_sub(text.width());
    format!("{text}{:blanks$}", "")
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "ab53b46a:fb544242:938bd170:f2c9870b";

    fn array(name: &str) -> Node {
        Node::new("raid1", name)
            .sized(63 << 20)
            .fact("set", "nas:0")
            .fact("devices", "1/2")
            .fact("metadata", "1.2")
            .problem("degraded")
            .identified("uuid", UUID)
    }

    #[test]
    fn a_shared_node_is_printed_below_each_parent_and_its_children_once() {
        let mut graph = Graph::default();
        let a = graph.add_root(Node::new("disk", "a.img").sized(64 << 20).fact("role", 0));
        let b = graph.add_root(Node::new("disk", "b.img").sized(64 << 20).fact("role", 1));
        graph.add_root(Node::new("disk", "c.img").sized(1536).problem("bad checksum"));
        let md = graph
            .add_below(&[a, b], Node::new("raid1", "md0").sized(63 << 20).fact("state", "clean"));
        let label = Node::new("file system", "ext4").fact("label", "my \"data\"");
        graph.add_below(&[md], label);
        let expected = r#"NAME      SIZE  TYPE         DETAILS
a.img      64M  disk         role=0
`-md0      63M  raid1        state=clean
  `-ext4        file system  label="my \"data\""
b.img      64M  disk         role=1
`-md0      63M  raid1
c.img     1.5K  disk         (bad checksum)
"#;
        assert_eq!(graph.to_text(TEXT_WIDTH), expected);
    }

    #[test]
    fn details_continue_below_the_first_ones_beside_the_branches() {
        let mut graph = Graph::default();
        let disk = graph.add_root(Node::new("disk", "disk0.img").sized(64 << 20));
        let problem = "the superblock has a wrong checksum, and so it is not used";
        let first = graph.add_below(&[disk], array("md0").also(problem));
        graph.add_below(&[first], Node::new("file system", "ext4"));
        graph.add_below(&[disk], array("md1"));
        let expected = "\
NAME       SIZE  TYPE         DETAILS
disk0.img   64M  disk
|-md0       63M  raid1        set=nas:0 devices=1/2 metadata=1.2 (degraded;
| |                           the superblock has a wrong checksum, and so it
| |                           is not used)
| |                           uuid=ab53b46a:fb544242:938bd170:f2c9870b
| `-ext4         file system
`-md1       63M  raid1        set=nas:0 devices=1/2 metadata=1.2 (degraded)
                              uuid=ab53b46a:fb544242:938bd170:f2c9870b
";
        assert_eq!(graph.to_text(76), expected);
        let wide = graph.to_text(200);
        assert!(wide.contains("metadata=1.2 (degraded) uuid=ab53b46a"), "{wide}");
    }

    #[test]
    fn a_name_that_leaves_no_room_for_details_has_a_line_of_its_own() {
        let mut graph = Graph::default();
        let path = format!("/dev/disk/by-id/{}", "x".repeat(60));
        let disk = graph.add_root(Node::new("disk", &path).sized(64 << 20).fact("role", 0));
        graph.add_below(&[disk], array("md0"));
        let expected = format!(
            "\
NAME   SIZE  TYPE   DETAILS
{path}
|       64M  disk   role=0
`-md0   63M  raid1  set=nas:0 devices=1/2 metadata=1.2 (degraded)
                    uuid={UUID}
"
        );
        assert_eq!(graph.to_text(80), expected);
    }

    /// The widest of everything, to the depth that a stack may have.
    #[test]
    fn no_line_is_too_wide_and_nothing_is_cut() {
        let mut graph = Graph::default();
        let mut words = vec![UUID.to_owned()];
        let mut at = graph
            .add_root(Node::new("array configuration", "/dev/\u{78c1}\u{789f}").sized(1023 << 40));
        for depth in 0..16 {
            let name = format!("{depth}{}", "n".repeat(depth * 3));
            let wide = array(&name).fact("parttype", "ebd0a0a2-b9e5-4433-87c0-68b6b72699c7");
            let wide = wide
                .fact("partlabel", "\u{78c1}".repeat(17))
                .also("one of two ".repeat(20).trim_end());
            words.extend([name, "\u{78c1}".repeat(17)]);
            let below = graph.add_below(&[at], wide);
            let identifier = "12345678-9abc-def0-1234-56789abcdef0";
            graph.add_below(&[at], Node::new("part", "p").identified("partuuid", identifier));
            words.push(identifier.to_owned());
            at = below;
        }
        for width in [TEXT_WIDTH, 90, 120, 250] {
            let text = graph.to_text(width);
            let widest = text.lines().map(UnicodeWidthStr::width).max().unwrap();
            assert!(widest <= width, "{widest}: {text}");
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
            assert_eq!(text.matches(UUID).count(), 16);
        }
    }
}
