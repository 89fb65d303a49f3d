//! `ashlar zpool get`. The pools need OpenZFS's library, like those of [`super::zvol`].

use serde_json::Value;

use super::support::{Images, MIB};
use super::zvol::{has_libzpool, on};

/// The settings passed to `zpool create` that differ from the defaults.
const SETTINGS: [&str; 8] = [
    "-o",
    "ashift=12",
    "-o",
    "autotrim=on",
    "-o",
    "comment=for a test",
    "-o",
    "feature@large_dnode=disabled",
];

/// An image with a pool that has [`SETTINGS`].
fn pool() -> Images {
    let images = Images::new(1, 256 * MIB);
    images.run(&[&["zpool", "create"], &SETTINGS[..], &["tank"]].concat(), &["d0"]).ok();
    images
}

/// The lines of `-H` output, each split into fields.
fn fields(out: &str) -> Vec<Vec<&str>> {
    out.lines().map(|line| line.split('\t').collect()).collect()
}

#[test]
fn properties_of_a_pool_are_told_with_their_sources() {
    if !has_libzpool("zpool get") {
        return;
    }
    let images = pool();
    let before = images.bytes();
    let get = |args: &[&str]| on(&images, &[&["zpool", "get"], args].concat());
    let set = "comment,ashift,autotrim,failmode,bootfs,health,version,checkpoint,name";
    let expected = "\
tank\tcomment\tfor a test\tlocal
tank\tashift\t12\tlocal
tank\tautotrim\ton\tlocal
tank\tfailmode\twait\tdefault
tank\tbootfs\t-\tdefault
tank\thealth\tONLINE\t-
tank\tversion\t-\tdefault
tank\tcheckpoint\t-\t-
tank\tname\ttank\t-
";
    assert_eq!(get(&["-H", set, "tank"]).ok().out, expected);
    assert_eq!(get(&["-Hp", set]).ok().out, expected, "all pools are this one");
    let table = "\
NAME  PROPERTY    VALUE       SOURCE
tank  comment     for a test  local
tank  dedupratio  1.00x       -
tank  freeing     0           -
";
    assert_eq!(get(&["comment,dedup,freeing", "tank"]).ok().out, table);
    let exact = get(&["-Hp", "-o", "value", "size,cap,dedup"]).ok().out;
    assert_eq!(exact, "251658240\n0\n1.00\n");
    let some = get(&["-H", "-o", "source,property", "autotrim"]).ok().out;
    assert_eq!(some, "local\tautotrim\n");
    // A user property and features that the pool does not have.
    assert_eq!(get(&["-H", "com.example:of"]).ok().out, "tank\tcom.example:of\t-\tdefault\n");
    assert_eq!(get(&["feature@nosuch,unsupported@com.example:of"]).ok().out, "");
    let json: Value = serde_json::from_str(&get(&["--json", "cap,comment"]).ok().out).unwrap();
    let comment = serde_json::json!({ "value": "for a test", "source": "local" });
    assert_eq!(json[0]["name"], "tank");
    assert_eq!(json[0]["properties"]["comment"], comment);
    assert_eq!(json[0]["properties"].as_object().unwrap().len(), 2, "{json}");
    assert!(before == images.bytes(), "something was written");
}

#[test]
fn all_properties_come_in_zpools_order_and_the_features_behind_them() {
    if !has_libzpool("zpool get all") {
        return;
    }
    let images = pool();
    let all = on(&images, &["zpool", "get", "-Hp", "all"]).ok().out;
    let all = fields(&all);
    let names: Vec<&str> = all.iter().map(|fields| fields[1]).collect();
    let first = ["size", "capacity", "altroot", "health", "guid", "version", "bootfs"];
    assert!(names.starts_with(&first), "{names:?}");
    let features: Vec<&Vec<&str>> =
        all.iter().skip_while(|fields| !fields[1].starts_with("feature@")).collect();
    assert!(features.len() > 30, "{features:?}");
    let state = |name: &str| {
        let found = features.iter().find(|fields| fields[1] == name);
        found.unwrap_or_else(|| panic!("{name} in {features:?}"))[2]
    };
    for fields in &features {
        assert!(fields[1].starts_with("feature@") && fields[3] == "local", "{fields:?}");
    }
    assert_eq!(state("feature@large_dnode"), "disabled");
    assert_eq!(state("feature@large_blocks"), "enabled");
    assert_eq!(state("feature@spacemap_histogram"), "active");
    assert!(!names.contains(&"name") && !names.contains(&"maxblocksize"), "{names:?}");
}

#[test]
fn a_served_pool_tells_the_same_as_its_disks() {
    if !has_libzpool("zpool get of a daemon") {
        return;
    }
    let images = pool();
    // Offline, the pool is imported read-only, and OpenZFS then does not count what is allocated.
    let varies = ["readonly", "load_guid", "allocated", "free", "capacity", "fragmentation"];
    let steady = |out: &str| {
        let all = fields(out).into_iter().filter(|fields| !varies.contains(&fields[1]));
        all.map(|fields| fields.join(" ")).collect::<Vec<String>>()
    };
    let offline = on(&images, &["zpool", "get", "-Hp", "all"]).ok().out;
    let daemon = images.serve(&[]);
    let served = daemon.client(&["zpool", "get", "-Hp", "all", "tank"]).ok().out;
    assert_eq!(steady(&served), steady(&offline));
    let exact = daemon.client(&["zpool", "get", "-Hp", "-o", "value", "size,alloc,free"]).ok().out;
    let numbers: Vec<u64> = exact.lines().map(|line| line.parse().unwrap()).collect();
    let [size, allocated, free] = numbers[..] else { panic!("{exact}") };
    assert!(allocated > 0 && size == allocated + free, "{exact}");
    let people = daemon.client(&["zpool", "get", "-H", "-o", "value", "rdonly,size"]).ok().out;
    assert_eq!(people, "off\n240M\n");
    let unknown = daemon.client(&["zpool", "get", "size,nosuch", "tank"]);
    unknown.fails(2, &["bad property list: invalid property 'nosuch'"]);
    daemon.end();
}

#[test]
fn a_property_that_no_pool_has_is_a_usage_error() {
    if !has_libzpool("zpool get nosuch") {
        return;
    }
    let images = pool();
    for (args, name) in [
        (["zpool", "get", "size,nosuch"], "nosuch"),
        (["zpool", "get", "all,size"], "all"),
        (["zpool", "list", "-onosuch"], "nosuch"),
    ] {
        let why = format!("bad property list: invalid property '{name}'");
        on(&images, &args).fails(2, &[&why]);
    }
    let column = on(&images, &["zpool", "get", "-o", "nosuch", "all"]);
    assert!(column.code == Some(2) && column.err.contains("'nosuch'"), "{column:?}");
    let none = on(&images, &["zpool", "get", "all", "none"]);
    none.fails(1, &["cannot open 'none': no such pool"]);
}
