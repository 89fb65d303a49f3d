//! Random trees are printed and parsed; random commits into rings are compared with a simple model.

use ashlar_lvm::ondisk::{MdaHeader, Range};
use ashlar_lvm::text::{self, Array, ArrayStyle, Entry, Form, Node, Scalar, Section, parse, print};
use ashlar_sim::{Rng, seeds};

fn word(rng: &mut Rng) -> String {
    let letters = b"abcdefghijklmnopqrstuvwxyzABC_.+-/012";
    let first = letters[rng.index(26)];
    let more = (0..rng.below(8)).map(|_| letters[rng.index(letters.len())]).collect::<Vec<_>>();
    [&[first], &more[..]].concat().into_iter().map(char::from).collect()
}

fn string(rng: &mut Rng) -> String {
    let pieces = ["\"", "\\", "#", "{", "}", "[", "=", " ", "\n", "\t", "'", "a", "0", "\u{fc}"];
    let mut bytes = Vec::new();
    for _ in 0..rng.below(10) {
        bytes.extend_from_slice(pieces[rng.index(pieces.len())].as_bytes());
        if rng.chance(1, 20) {
            bytes.push(0x80 | rng.below(128) as u8);
        }
    }
    text::raw::decode(&bytes)
}

fn scalar(rng: &mut Rng) -> Scalar {
    match rng.below(6) {
        0 => Scalar::Int(rng.next_u64() as i64),
        1 => Scalar::Int(rng.below(100) as i64 - 50),
        2 => Scalar::Float(format!("{}.{:06}", rng.below(1000), rng.below(1_000_000))),
        3 => Scalar::Bare(word(rng)),
        _ => Scalar::Str(string(rng)),
    }
}

fn array(rng: &mut Rng) -> Array {
    let mut items: Vec<Scalar> = (0..rng.below(6)).map(|_| scalar(rng)).collect();
    let style = match rng.below(4) {
        0 => ArrayStyle::Inline,
        1 if items.len() > 1 => ArrayStyle::Tight,
        2 if !items.is_empty() => ArrayStyle::Spaced,
        3 if !items.is_empty() => {
            let per_line = 1 + rng.index(items.len());
            ArrayStyle::Rows(per_line as u8)
        }
        _ => ArrayStyle::Inline,
    };
    // A word ends at a blank, not at a comma.
    for item in &mut items {
        if let Scalar::Bare(word) = item {
            *item = Scalar::Str(std::mem::take(word));
        }
    }
    Array { items, style }
}

fn section(rng: &mut Rng, depth: usize) -> Section {
    let mut section = Section::default();
    for _ in 0..rng.below(if depth == 0 { 8 } else { 5 }) {
        let key = if rng.chance(1, 10) { string(rng) + "x" } else { word(rng) };
        let node = match rng.below(8) {
            0 | 1 if depth < 5 => Node::Section(self::section(rng, depth + 1)),
            2 | 3 => Node::Array(array(rng)),
            _ => Node::Scalar(scalar(rng)),
        };
        let mut entry = Entry::new(key, node);
        entry.lead = ["", "", "\n", "\n\n", "# comment\n", "\n# comment\n\n"][rng.index(6)].into();
        if depth == 0 && rng.chance(1, 4) {
            entry.trail = "# behind".into();
        }
        entry.tight = entry.node.as_section().is_none() && rng.chance(1, 6);
        section.entries.push(entry);
    }
    section.tail = ["", "\n", "# end\n"][rng.index(3)].into();
    section
}

#[test]
fn random_trees_come_back_from_their_text() {
    for seed in seeds(3000) {
        let mut rng = Rng::new(seed);
        let tree = section(&mut rng, 0);
        // In the on-disk form sections come first, so they do here.
        let (sections, values): (Vec<_>, Vec<_>) =
            tree.entries.into_iter().partition(|entry| entry.node.as_section().is_some());
        let entries = [sections, values].concat();
        let tree = Section { entries, tail: tree.tail };
        let text = print(&tree, Form::Disk);
        let parsed = parse(&text).unwrap_or_else(|error| {
            panic!("seed {seed}: {error}\n{}", String::from_utf8_lossy(&text))
        });
        assert_eq!(parsed, tree, "seed {seed}\n{}", String::from_utf8_lossy(&text));
        let backup = Form::Backup { utc_offset: 0 };
        let backup = print(&tree, backup);
        let again = parse(&backup).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!(again.entries.len(), tree.entries.len());
    }
}

#[test]
fn a_new_text_never_touches_the_one_that_counts() {
    for seed in seeds(300) {
        let mut rng = Rng::new(seed);
        let size = (16 << 10) + 512 * rng.below(64);
        let area = Range { offset: 4096, size };
        let mut header = MdaHeader::empty(area);
        let mut ring = vec![0_u8; size as usize];
        let mut wrapped = 0;
        for round in 0..200_u64 {
            let len = 1 + rng.below(header.max_text());
            let text = vec![round as u8 + 1; len as usize];
            let placement = header.place(&text).expect("half of the ring is free");
            assert!(placement.text.offset.is_multiple_of(512));
            let before = ring.clone();
            let mut rest = &text[..];
            let last = placement.parts.iter().rposition(|part| part.size > 0).expect("a part");
            for (i, part) in placement.parts.iter().enumerate() {
                let (bytes, more) = rest.split_at(part.size as usize);
                rest = more;
                let at = (part.offset - area.offset) as usize;
                ring[at..at + bytes.len()].copy_from_slice(bytes);
                if i == last {
                    ring[at + bytes.len()..][..placement.padding as usize].fill(0);
                }
            }
            wrapped += u32::from(placement.parts[1].size > 0);
            assert!(ring[..512].iter().all(|byte| *byte == 0), "the header's sector");
            if let Some(old) = header.current {
                for part in header.locate(old).expect("valid").parts {
                    let at = (part.offset - area.offset) as usize;
                    let range = at..at + part.size as usize;
                    assert_eq!(ring[range.clone()], before[range], "seed {seed}, round {round}");
                }
            }
            header.current = Some(placement.text);
        }
        assert!(wrapped > 0);
    }
}
