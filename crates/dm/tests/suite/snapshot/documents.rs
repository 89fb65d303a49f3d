//! docs/formats/dm-snapshot.md matches the code: its tables are read and compared.

use std::mem::{offset_of, size_of};

use ashlar_block::Sectors;
use ashlar_dm::snapshot::ondisk::{Exception, Geometry, Header, MAGIC, VERSION};

const DOCUMENT: &str = include_str!("../../../../../docs/formats/dm-snapshot.md");

/// The rows of the table below `heading` whose first column has the title `first`.
fn table(heading: &str, first: &str) -> Vec<Vec<&'static str>> {
    let start = DOCUMENT.find(&format!("## {heading}\n")).expect("the heading");
    let cells = |line: &'static str| line.trim_matches('|').split('|').map(str::trim).collect();
    let titles = format!("| {first} |");
    let lines = DOCUMENT[start..].lines().skip_while(|line| !line.starts_with(&titles));
    lines.skip(2).take_while(|line| line.starts_with('|')).map(cells).collect()
}

#[test]
fn structures_are_as_documented() {
    let fields = |heading| -> Vec<(String, usize, usize)> {
        let number = |text: &str| text.parse::<usize>().expect("a number");
        let row = |row: Vec<&str>| (row[2].to_owned(), number(row[0]), number(row[1]));
        table(heading, "offset").into_iter().map(row).collect()
    };
    let field = |name: &str, offset, size| (name.to_owned(), offset, size);
    let header = [
        field("magic", offset_of!(Header, magic), 4),
        field("valid", offset_of!(Header, valid), 4),
        field("version", offset_of!(Header, version), 4),
        field("chunk_size", offset_of!(Header, chunk_size), 4),
    ];
    assert_eq!((fields("Header"), size_of::<Header>()), (header.to_vec(), 16));
    let exception = [
        field("old_chunk", offset_of!(Exception, old_chunk), 8),
        field("new_chunk", offset_of!(Exception, new_chunk), 8),
    ];
    assert_eq!((fields("Exception"), size_of::<Exception>()), (exception.to_vec(), 16));
    let meaning = |row: usize| table("Header", "offset")[row][3];
    assert!(meaning(0).starts_with(&format!("{MAGIC:#x}")) && meaning(2) == VERSION.to_string());
}

#[test]
fn areas_lie_where_it_is_documented() {
    for row in table("Layout", "chunk size, sectors") {
        let numbers: Vec<u64> = row.iter().map(|cell| cell.parse().expect("a number")).collect();
        let geometry = Geometry::new(Sectors(numbers[0]), Sectors(1)).expect("a chunk size");
        let areas = [geometry.per_area(), geometry.area_chunk(1), geometry.area_chunk(2)];
        assert_eq!(numbers[1..], areas);
    }
}
