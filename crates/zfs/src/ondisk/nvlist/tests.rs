//! Hand-made lists, byte for byte as libnvpair's `nvs_xdr_nvp_op` writes them.

use super::*;

/// Words, each of four bytes.
fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// The first word of the encoding, then version and flags.
fn head() -> Vec<u8> {
    words(&[0x0101_0000, 0, 1])
}

/// A list of these pairs.
fn listed(pairs: &[Vec<u8>]) -> Vec<u8> {
    [head(), pairs.concat(), words(&[0, 0])].concat()
}

/// A pair with correct sizes.
fn pair(name: &str, kind: u32, count: u32, value: &[u8]) -> Vec<u8> {
    let mut pair = words(&[0, 99, name.len() as u32]);
    pair.extend(name.as_bytes());
    pair.resize(pair.len().next_multiple_of(4), 0);
    pair.extend(words(&[kind, count]));
    pair.extend(value);
    let size = pair.len() as u32;
    pair[..4].copy_from_slice(&size.to_be_bytes());
    pair
}

fn number(name: &str, number: u64) -> Vec<u8> {
    pair(name, kind::UINT64, 1, &number.to_be_bytes())
}

#[test]
fn an_empty_list_is_twenty_bytes() {
    assert_eq!(listed(&[]).len(), 20);
    assert_eq!(NvList::parse(&listed(&[])), Ok(NvList::default()));
    assert_eq!(NvList::default().encode(), listed(&[]));
}

#[test]
fn each_type_of_labels_is_decoded() {
    let inner = [words(&[0, 1]), number("id", 3), words(&[0, 0])].concat();
    let bytes = listed(&[
        number("txg", u64::MAX),
        pair("name", kind::STRING, 1, &[words(&[4]), b"tank".to_vec()].concat()),
        pair("odd", kind::STRING, 1, &[words(&[5]), b"tanks\0\0\0".to_vec()].concat()),
        pair("flag", kind::BOOLEAN, 0, &[]),
        pair("holes", kind::UINT64_ARRAY, 2, &words(&[2, 0, 7, 0, 8])),
        pair("none", kind::UINT64_ARRAY, 0, &[]),
        pair("tree", kind::NVLIST, 1, &inner),
        pair("children", kind::NVLIST_ARRAY, 2, &[inner.clone(), inner.clone()].concat()),
        pair("nobody", kind::NVLIST_ARRAY, 0, &[]),
        pair("small", 6, 1, &words(&[17])),
    ]);
    let list = NvList::parse(&bytes).expect("a sound list");
    assert_eq!(list.number("txg"), Some(u64::MAX));
    assert_eq!((list.text("name"), list.text("odd")), (Some("tank"), Some("tanks")));
    assert!(list.has("flag") && !list.has("flags"));
    assert_eq!(list.numbers("holes"), Some(&[7, 8][..]));
    assert_eq!(list.numbers("none"), Some(&[][..]));
    assert_eq!(list.list("tree").and_then(|tree| tree.number("id")), Some(3));
    assert_eq!(list.lists("children").map(<[_]>::len), Some(2));
    assert_eq!(list.lists("nobody").map(<[_]>::len), Some(0));
    let raw = RawValue { kind: 6, count: 1, decoded_size: 99, bytes: words(&[17]) };
    assert_eq!(list.get("small"), Some(&Value::Raw(raw)));
    // A getter for the wrong type returns nothing.
    assert_eq!((list.number("name"), list.text("txg"), list.list("children")), (None, None, None));
    assert_eq!(NvList::parse(&list.encode()), Ok(list));
}

#[test]
fn the_size_in_memory_is_that_of_libnvpair() {
    // `NVP_SIZE_CALC`: 16 bytes and the name with its zero, and the value, each rounded up to 8.
    let tree = NvList::default();
    for (value, size) in [
        (Value::Flag, 24),
        (Value::Number(1), 32),
        (Value::Text("1234567".to_owned()), 32),
        (Value::Text("12345678".to_owned()), 40),
        (Value::Numbers(vec![1, 2, 3]), 48),
        (Value::List(tree.clone()), 48),
        (Value::Lists(vec![tree.clone(), tree]), 88),
    ] {
        assert_eq!(value.decoded_size("version"), size, "{value:?}");
        assert_eq!(value.decoded_size("versions"), size + 8, "{value:?}");
    }
}

#[test]
fn the_length_of_an_empty_array_is_in_its_size_only() {
    let mut empty = pair("none", kind::UINT64_ARRAY, 0, &[]);
    empty[3] += 4;
    let list = NvList::parse(&listed(&[empty, number("txg", 5)])).expect("a sound list");
    assert_eq!(list.number("txg"), Some(5));
}

#[test]
fn a_text_that_is_no_utf_8_is_kept_as_it_is() {
    let value = [words(&[3]), b"\xe9t\xe9\0".to_vec()].concat();
    let bytes = listed(&[pair("host", kind::STRING, 1, &value)]);
    let list = NvList::parse(&bytes).expect("a sound list");
    assert_eq!(list.text("host"), None);
    assert_eq!(list.encode(), bytes);
}

#[test]
fn what_is_damaged_is_refused_by_name() {
    let name = || "txg".to_owned();
    let list = |pair: Vec<u8>| listed(&[pair]);
    let mut short = number("txg", 1);
    short[3] -= 4;
    let mut long = [number("txg", 1), words(&[0])].concat();
    long[3] += 4;
    let mut tiny = number("txg", 1);
    tiny[..4].copy_from_slice(&words(&[4]));
    let mut huge = number("txg", 1);
    huge[..4].copy_from_slice(&words(&[u32::MAX]));
    let mut endless = number("txg", 1);
    endless[8..12].copy_from_slice(&words(&[u32::MAX]));
    let at = |bytes: &[u8]| bytes.len();
    let cases: Vec<(Vec<u8>, NvListError)> = vec![
        (vec![], NvListError::Truncated { at: 0 }),
        (words(&[0x0001_0000, 0, 1, 0, 0]), NvListError::Encoding(0)),
        (words(&[0x0101_0000, 1, 1, 0, 0]), NvListError::Version { at: 4, version: 1 }),
        (head(), NvListError::Truncated { at: 12 }),
        // The value ends where the pair's size says.
        (list(short), NvListError::Truncated { at: 12 + 28 }),
        (list(long), NvListError::Size { at: 12, says: 36, has: 32 }),
        (list(tiny), NvListError::Size { at: 12, says: 4, has: 24 }),
        (list(huge.clone()), NvListError::Truncated { at: at(&list(huge)) }),
        (list(endless.clone()), NvListError::Truncated { at: at(&list(endless)) }),
        (list(number("", 1)), NvListError::Name { at: 12 }),
        (list(number("t\0g", 1)), NvListError::Name { at: 12 }),
        (listed(&[number("txg", 1), number("txg", 1)]), NvListError::Duplicate(name())),
        (list(pair("txg", 0, 1, &[])), NvListError::Kind { name: name(), kind: 0 }),
        (list(pair("txg", 28, 1, &[])), NvListError::Kind { name: name(), kind: 28 }),
        (list(pair("txg", 8, 2, &words(&[0; 4]))), NvListError::Count { name: name(), count: 2 }),
        (list(pair("txg", 19, 0, &[])), NvListError::Count { name: name(), count: 0 }),
        (list(pair("txg", 1, 2, &[])), NvListError::Count { name: name(), count: 2 }),
        (
            list(pair("txg", 16, 2, &words(&[3, 0, 0, 0, 0, 0, 0]))),
            NvListError::Count { name: name(), count: 2 },
        ),
    ];
    for (bytes, expected) in cases {
        assert_eq!(NvList::parse(&bytes), Err(expected.clone()), "{bytes:x?}");
        assert!(!expected.to_string().is_empty());
    }
}

#[test]
fn lists_may_be_as_deep_as_the_kernel_takes_them() {
    let nested = |depth: usize| {
        (0..depth).fold(NvList::default(), |list, _| NvList::default().with("list", list))
    };
    assert_eq!(NvList::parse(&nested(MAX_DEPTH).encode()), Ok(nested(MAX_DEPTH)));
    assert_eq!(NvList::parse(&nested(MAX_DEPTH + 1).encode()), Err(NvListError::TooDeep));
    assert_eq!(NvList::parse(&nested(3000).encode()), Err(NvListError::TooDeep));
}

#[test]
fn a_count_reserves_nothing() {
    for kind in [kind::UINT64_ARRAY, kind::NVLIST_ARRAY] {
        let bytes = listed(&[pair("many", kind, u32::MAX, &words(&[u32::MAX]))]);
        assert!(NvList::parse(&bytes).is_err());
    }
}

#[test]
fn a_list_can_be_changed_and_goes_through_json() {
    let mut list =
        NvList::default().with("txg", 4).with("name", "tank").with("ids", vec![1, u64::MAX]);
    list.set("txg", Value::Number(5));
    assert_eq!(list.pairs().first(), Some(&("txg".to_owned(), Value::Number(5))));
    assert_eq!(list.remove("name"), Some(Value::Text("tank".to_owned())));
    assert_eq!(list.remove("name"), None);
    let list = list.with("tree", NvList::default()).with("children", vec![NvList::default()]);
    let text = serde_json::to_string(&list).expect("JSON");
    assert_eq!(serde_json::from_str::<NvList>(&text).expect("the same"), list);
}
