//! Crates and their arrows as an SVG: a crate stands above all that it uses.

use std::collections::{BTreeMap, BTreeSet};

/// Pixels.
const BOX_WIDTH: usize = 84;
const BOX_HEIGHT: usize = 26;
const ROW_HEIGHT: usize = 64;
const LINE_WIDTH: usize = 22;
const GAP: usize = 14;

/// How often rows are ordered by their neighbours: the order is stable by then.
const SWEEPS: usize = 12;

/// What each crate uses.
pub(crate) type Uses<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

/// A crate, or the place where an arrow passes a row.
struct Node<'a> {
    name: Option<&'a str>,
    /// The nodes of the next row to which arrows lead.
    below: Vec<usize>,
}

/// The picture of these crates.
pub(crate) fn draw(uses: &Uses<'_>) -> String {
    let (nodes, mut rows) = nodes(uses);
    for _ in 0..SWEEPS {
        order(&nodes, &mut rows);
    }
    let width_of = |node: usize| if nodes[node].name.is_some() { BOX_WIDTH } else { LINE_WIDTH };
    let widths: Vec<usize> =
        rows.iter().map(|row| row.iter().map(|node| width_of(*node) + GAP).sum()).collect();
    let width = widths.iter().max().copied().unwrap_or_default() + GAP;
    let mut middles = vec![(0, 0); nodes.len()];
    for (number, row) in rows.iter().enumerate() {
        let mut x = GAP + (width - GAP - widths[number]) / 2;
        for node in row {
            middles[*node] = (x + width_of(*node) / 2, GAP + number * ROW_HEIGHT);
            x += width_of(*node) + GAP;
        }
    }
    let height = rows.len() * ROW_HEIGHT;
    let mut lines = String::new();
    let mut boxes = String::new();
    for (node, (x, y)) in nodes.iter().zip(&middles) {
        let bottom = y + BOX_HEIGHT;
        if let Some(name) = node.name {
            let (left, base) = (x - BOX_WIDTH / 2, y + 17);
            boxes += &format!(
                "<rect x=\"{left}\" y=\"{y}\" width=\"{BOX_WIDTH}\" height=\"{BOX_HEIGHT}\" rx=\"4\" fill=\"#eef3f8\" stroke=\"#456\"/>\
                 <text x=\"{x}\" y=\"{base}\">{name}</text>\n"
            );
        } else {
            lines += &format!("<path d=\"M{x} {y}V{bottom}\"/>\n");
        }
        for below in &node.below {
            let (to, end) = middles[*below];
            let half = bottom.midpoint(end);
            let mark = if nodes[*below].name.is_some() { " marker-end=\"url(#tip)\"" } else { "" };
            lines +=
                &format!("<path d=\"M{x} {bottom}C{x} {half} {to} {half} {to} {end}\"{mark}/>\n");
        }
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"13\" text-anchor=\"middle\">\n\
         <title>Crates of ashlar: each uses those to which its arrows lead</title>\n\
         <defs><marker id=\"tip\" viewBox=\"0 0 8 8\" refX=\"8\" refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" orient=\"auto\">\
         <path d=\"M0 0L8 4L0 8z\" fill=\"#789\"/></marker></defs>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <g fill=\"none\" stroke=\"#789\">\n{lines}</g>\n<g fill=\"#123\">\n{boxes}</g>\n</svg>\n"
    )
}

/// The nodes, and their rows from above. Only arrows that do not follow from others are drawn.
fn nodes<'a>(uses: &Uses<'a>) -> (Vec<Node<'a>>, Vec<Vec<usize>>) {
    let depths = uses.keys().map(|name| (*name, depth(uses, name))).collect::<BTreeMap<_, _>>();
    let deepest = depths.values().max().copied().unwrap_or_default();
    let mut rows = vec![Vec::new(); deepest + 1];
    let mut nodes = Vec::new();
    let mut numbers = BTreeMap::new();
    for (name, depth) in &depths {
        numbers.insert(*name, nodes.len());
        rows[deepest - depth].push(nodes.len());
        nodes.push(Node { name: Some(name), below: Vec::new() });
    }
    for (name, used) in uses {
        let follows = |to: &str| used.iter().any(|by| *by != to && reaches(uses, by, to));
        for to in used.iter().filter(|to| depths.contains_key(*to) && !follows(to)) {
            let mut from = numbers[name];
            for depth in (depths[to] + 1..depths[name]).rev() {
                let next = nodes.len();
                rows[deepest - depth].push(next);
                nodes[from].below.push(next);
                from = next;
                nodes.push(Node { name: None, below: Vec::new() });
            }
            nodes[from].below.push(numbers[to]);
        }
    }
    (nodes, rows)
}

/// The length of the longest way down. Cargo allows no circle.
fn depth(uses: &Uses<'_>, name: &str) -> usize {
    uses.get(name).into_iter().flatten().map(|used| depth(uses, used) + 1).max().unwrap_or(0)
}

fn reaches(uses: &Uses<'_>, from: &str, to: &str) -> bool {
    uses.get(from).into_iter().flatten().any(|used| *used == to || reaches(uses, used, to))
}

/// Puts each node of each row near the nodes to which it has arrows.
fn order(nodes: &[Node<'_>], rows: &mut [Vec<usize>]) {
    let mut places = vec![0; nodes.len()];
    let place_row = |places: &mut Vec<usize>, row: &[usize]| {
        for (index, node) in row.iter().enumerate() {
            places[*node] = (2 * index + 1) * 1_000_000 / (2 * row.len());
        }
    };
    rows.iter().for_each(|row| place_row(&mut places, row));
    for row in rows {
        row.sort_by_cached_key(|node| {
            let above = (0..nodes.len()).filter(|other| nodes[*other].below.contains(node));
            let near: Vec<usize> = above
                .chain(nodes[*node].below.iter().copied())
                .map(|other| places[other])
                .collect();
            near.iter().sum::<usize>() / near.len().max(1)
        });
        place_row(&mut places, row);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_is_above_what_it_uses_and_arrows_that_follow_are_left_out() {
        let uses = Uses::from([
            ("a", BTreeSet::from(["b", "c", "d"])),
            ("b", BTreeSet::from(["c"])),
            ("c", BTreeSet::new()),
            ("d", BTreeSet::new()),
        ]);
        let (nodes, rows) = nodes(&uses);
        let rows: Vec<Vec<_>> =
            rows.iter().map(|row| row.iter().map(|node| nodes[*node].name).collect()).collect();
        assert_eq!(
            rows,
            [vec![Some("a")], vec![Some("b"), None], vec![Some("c"), Some("d")]],
            "one arrow passes the row of b"
        );
        assert_eq!(draw(&uses).matches("marker-end").count(), 3);
    }
}
