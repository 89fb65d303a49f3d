//! Hand-made pools: which vdevs are present, which label is valid, and the import configuration.

use ashlar_zfs::ondisk::config::{Health, ImportRefusal, Pool};
use ashlar_zfs::ondisk::nvlist::NvList;

use crate::ondisk::support::{config, device, found, group, labels, leaf};

/// The one pool on devices with these configurations.
fn pool(configs: &[NvList]) -> Pool {
    let labels: Vec<_> = configs.iter().map(|config| labels(&device(config))).collect();
    let mut found = found(&labels);
    assert_eq!(found.pools.len(), 1, "{found:?}");
    found.pools.remove(0)
}

fn mirror(id: u64, first: u64) -> NvList {
    group("mirror", id, first * 10, vec![leaf(0, first), leaf(1, first + 1)])
}

/// The leaves' paths in the import configuration: GUID and path.
fn paths(list: &NvList) -> Vec<(u64, String)> {
    let own = list.text("path").map(|path| (list.number("guid").expect("a guid"), path.to_owned()));
    let below = list.lists("children").into_iter().flatten().flat_map(paths);
    own.into_iter().chain(below).collect()
}

#[test]
fn an_import_is_told_all_of_the_pool_and_where_its_leaves_are_now() {
    let (first, second) = (mirror(0, 20), mirror(1, 30));
    let configs = [
        config(31, 9, 3, &second),
        config(20, 7, 2, &first),
        config(30, 9, 3, &second),
        config(21, 7, 2, &first),
    ];
    let configs: Vec<NvList> =
        configs.into_iter().map(|config| config.with("hole_array", vec![2])).collect();
    let pool = pool(&configs);
    assert_eq!((pool.health, pool.txg, pool.uberblock), (Health::Online, 9, Some((9, 1))));
    let told = pool.import_config(&|device| format!("/now/{device}")).expect("a whole pool");
    let expected: Vec<(&str, u64)> = vec![
        ("version", 5000),
        ("state", 1),
        ("txg", 9),
        ("pool_guid", 1),
        ("hostid", 7),
        ("vdev_children", 3),
    ];
    for (name, number) in expected {
        assert_eq!(told.number(name), Some(number), "{name}");
    }
    assert_eq!((told.text("name"), told.text("hostname")), (Some("tank"), Some("host")));
    assert_eq!(told.numbers("hole_array"), Some(&[2][..]));
    // Fields that only apply to one device are left out.
    assert!(!told.has("guid") && !told.has("top_guid"));
    let root = told.list("vdev_tree").expect("a tree");
    assert_eq!(
        (root.text("type"), root.number("guid"), root.number("id")),
        (Some("root"), Some(1), Some(0))
    );
    let types: Vec<Option<&str>> =
        root.lists("children").expect("children").iter().map(|child| child.text("type")).collect();
    assert_eq!(types, [Some("mirror"), Some("mirror"), Some("hole")]);
    let expected = [(20, "/now/1"), (21, "/now/3"), (30, "/now/2"), (31, "/now/0")];
    assert_eq!(paths(root), expected.map(|(guid, path)| (guid, path.to_owned())));
    // With a device id, an import would look elsewhere.
    assert!(!told.encode().windows(9).any(|bytes| bytes == b"somewhere"));
}

#[test]
fn a_leaf_that_is_not_here_is_not_opened_where_it_was() {
    let pool = pool(&[config(20, 7, 1, &mirror(0, 20))]);
    assert_eq!(pool.health, Health::Degraded);
    assert_eq!(pool.vdevs[0].told(), ["21 is not here"]);
    let told = pool.import_config(&|_| "/now".to_owned()).expect("half a mirror will do");
    let tree = told.list("vdev_tree").expect("a tree");
    assert_eq!(paths(tree), [(20, "/now".to_owned()), (21, "/dev/null/old/21".to_owned())]);
    assert!(std::fs::File::open("/dev/null/old/21").is_err());
    // The path is written into the labels; the next import does not make it longer.
    let mut top = mirror(0, 20);
    let children = vec![leaf(0, 20), leaf(1, 21).with("path", "/dev/null/old/21")];
    top.set("children", children.into());
    let pool = self::pool(&[config(20, 8, 1, &top)]);
    let told = pool.import_config(&|_| "/now".to_owned()).expect("half a mirror will do");
    let tree = told.list("vdev_tree").expect("a tree");
    assert_eq!(paths(tree)[1].1, "/dev/null/old/21");
}

#[test]
fn a_device_that_was_left_behind_is_told_of() {
    let top = mirror(0, 20);
    let pool = pool(&[config(20, 9, 1, &top), config(21, 7, 1, &top)]);
    assert_eq!(pool.health, Health::Degraded);
    assert_eq!(pool.vdevs[0].told(), ["/1 missed transactions: its label is of txg 7, not 9"]);
    assert!(pool.import_config(&|_| String::new()).is_ok());
}

#[test]
fn the_newest_label_says_what_is_in_a_place() {
    // A disk that became a mirror, next to a copy's old label; and a disk that was replaced.
    let old = leaf(0, 19).with("ashift", 12);
    let pool = pool(&[
        config(19, 5, 1, &old),
        config(20, 9, 1, &mirror(0, 20)),
        config(21, 9, 1, &mirror(0, 20)),
    ]);
    assert_eq!((pool.health, pool.vdevs[0].guid), (Health::Online, 200));
    assert_eq!(pool.problems, ["/0 was in this pool, and no longer is"]);
}

#[test]
fn a_copy_of_a_member_makes_the_pool_unusable() {
    let top = mirror(0, 20);
    let pool = pool(&[config(20, 9, 1, &top), config(21, 9, 1, &top), config(20, 9, 1, &top)]);
    let copies = vec!["/0 and /2 are the same vdev 20, all but one of them copies".to_owned()];
    assert_eq!(pool.problems, copies);
    let refused = pool.import_config(&|_| String::new());
    assert_eq!(refused, Err(ImportRefusal::Copies { name: "tank".to_owned(), copies }));
}

#[test]
fn a_vdev_lives_with_as_many_parts_as_its_kind_needs() {
    let leaves = |count: u64| (0..count).map(|n| leaf(n, 20 + n)).collect::<Vec<_>>();
    for (kind, parity, count, may_lose) in [
        ("mirror", 0, 3, 2),
        ("raidz", 1, 4, 1),
        ("raidz", 2, 4, 2),
        ("raidz", 3, 5, 3),
        ("draid", 2, 6, 2),
    ] {
        let top = group(kind, 0, 10, leaves(count)).with("nparity", parity);
        let top = top.with("draid_ndata", 2).with("draid_nspares", 1);
        for here in 1..=count {
            let configs: Vec<NvList> = (0..here).map(|n| config(20 + n, 5, 1, &top)).collect();
            let expected = match count - here {
                0 => Health::Online,
                lost if lost <= may_lose => Health::Degraded,
                _ => Health::Unavailable,
            };
            assert_eq!(pool(&configs).health, expected, "{kind} {parity}: {here} of {count}");
        }
    }
}

#[test]
fn what_takes_the_place_of_a_child_counts_as_the_child() {
    let replacing = group("replacing", 1, 11, vec![leaf(0, 21), leaf(1, 22)]);
    let top = group("raidz", 0, 10, vec![leaf(0, 20), replacing, leaf(2, 23)]);
    let pool = pool(&[20, 22, 23].map(|guid| config(guid, 5, 1, &top)));
    assert_eq!((pool.health, pool.vdevs[0].name.as_str()), (Health::Degraded, "raidz1-0"));
    assert_eq!(pool.vdevs[0].children[1].health, Health::Degraded);
    assert_eq!(pool.vdevs[0].children[1].name, "replacing-1");
}

#[test]
fn a_leaf_that_was_taken_offline_stays_so_and_a_failed_one_is_tried_again() {
    let health = |flag: &str| {
        let top = group("mirror", 0, 10, vec![leaf(0, 20), leaf(1, 21).with(flag, 1)]);
        let pool = pool(&[config(20, 9, 1, &top), config(21, 9, 1, &top)]);
        (pool.health, pool.vdevs[0].children[1].health)
    };
    assert_eq!(health("offline"), (Health::Degraded, Health::Unavailable));
    assert_eq!(health("faulted"), (Health::Degraded, Health::Degraded));
    assert_eq!(health("removed"), (Health::Online, Health::Online));
}

#[test]
fn a_log_that_is_lost_costs_the_log_only() {
    let log = group("mirror", 1, 300, vec![leaf(0, 30), leaf(1, 31)]).with("is_log", 1);
    let gone = group("mirror", 1, 300, vec![leaf(0, 32), leaf(1, 33)]).with("is_log", 1);
    let data = leaf(0, 20).with("ashift", 12);
    assert_eq!(pool(&[config(20, 9, 2, &data), config(30, 9, 2, &log)]).health, Health::Degraded);
    // Without any device of a log, it is unknown that it is a log.
    assert_eq!(pool(&[config(20, 9, 2, &data)]).health, Health::Unavailable);
    let pool = pool(&[config(20, 9, 2, &data), config(30, 9, 2, &gone)]);
    assert_eq!((pool.health, pool.vdevs[1].health), (Health::Degraded, Health::Unavailable));
}

#[test]
fn two_pools_of_one_name_are_two() {
    let top = leaf(0, 20).with("ashift", 12);
    let other = leaf(0, 21).with("ashift", 12);
    let configs = [config(20, 9, 1, &top), config(21, 9, 1, &other).with("pool_guid", 2)];
    let labels = configs.map(|config| labels(&device(&config)));
    let guids: Vec<u64> = found(&labels).pools.iter().map(|pool| pool.guid).collect();
    assert_eq!(guids, [1, 2]);
}

#[test]
fn a_pool_goes_through_json() {
    let pool = pool(&[config(20, 7, 1, &mirror(0, 20))]);
    let text = serde_json::to_string(&pool).expect("JSON");
    assert_eq!(serde_json::from_str::<Pool>(&text).expect("the same"), pool);
}
