//! Snapshots, clones, and renames.

use std::collections::BTreeMap;

use ashlar_zfs::protocol::Command;

use super::support::{assert_clean, new_volume, read, texts, try_write, write};
use super::{MIB, destroy, refused, snapshot, tank};

fn rename(from: &str, to: &str) -> Command {
    Command::Rename { from: from.to_owned(), to: to.to_owned() }
}

fn clone(snapshot: &str, name: &str) -> Command {
    Command::Clone {
        snapshot: snapshot.to_owned(),
        name: name.to_owned(),
        properties: BTreeMap::new(),
    }
}

fn rollback(volume: &str, snapshot: &str) -> Command {
    Command::Rollback { volume: volume.to_owned(), snapshot: format!("{volume}@{snapshot}") }
}

#[test]
fn snapshots_are_taken_together_read_rolled_back_to_and_destroyed() {
    let Some((worker, disks)) = tank() else { return };
    worker.create_volume("tank/one", 16 * MIB, &[]);
    worker.create_volume("tank/two", 16 * MIB, &[]);
    let opened = worker.open("tank/one");
    let (old, new) = (vec![0x11; 1 << 20], vec![0x22; 1 << 20]);
    write(&worker, opened, 0, &old);
    worker.run(snapshot(&["tank/one@a", "tank/two@a"]));
    assert_eq!(worker.get("tank/one@a", "createtxg"), worker.get("tank/two@a", "createtxg"));
    write(&worker, opened, 0, &new);

    let kept = worker.open("tank/one@a");
    assert!(kept.read_only);
    assert_eq!(read(&worker, kept, 0, 1 << 20), old);
    assert_ne!(try_write(&worker, kept, 0, &new), 0);
    refused(&worker, destroy("tank/one@a", false), "dataset is busy", libc::EBUSY);
    worker.run(Command::Close { volume: kept.volume });

    // While the volume is open, too.
    assert_eq!(read(&worker, opened, 0, 1 << 20), new);
    worker.run(rollback("tank/one", "a"));
    assert_eq!(read(&worker, opened, 0, 1 << 20), old);
    write(&worker, opened, 0, &new);
    worker.run(Command::Close { volume: opened.volume });

    worker.run(snapshot(&["tank/one@b"]));
    refused(
        &worker,
        rollback("tank/one", "a"),
        "more recent snapshots or bookmarks exist",
        libc::EEXIST,
    );
    refused(&worker, rollback("tank/one", "none"), "dataset does not exist", libc::ENOENT);
    let taken = snapshot(&["tank/two@b", "tank/one@a"]);
    refused(
        &worker,
        taken,
        "cannot create snapshot 'tank/one@a': dataset already exists",
        libc::EEXIST,
    );
    let none = snapshot(&["tank/none@a"]);
    refused(
        &worker,
        none,
        "cannot create snapshot 'tank/none@a': dataset does not exist",
        libc::ENOENT,
    );
    refused(&worker, snapshot(&["tank/one"]), "missing '@' delimiter", libc::EINVAL);
    refused(&worker, snapshot(&["tank/one@x", "tank/one@y"]), "multiple snapshots", libc::EXDEV);
    refused(&worker, snapshot(&["tank/one@x@y"]), "multiple '@'", libc::EINVAL);
    refused(&worker, snapshot(&[]), "no name was given", libc::EINVAL);
    assert_eq!(
        worker.names(),
        ["tank", "tank/one", "tank/one@a", "tank/one@b", "tank/two", "tank/two@a"]
    );

    worker.run(rename("tank/one@b", "tank/one@c"));
    refused(
        &worker,
        rename("tank/one@c", "tank/two@c"),
        "must be part of same dataset",
        libc::EXDEV,
    );
    refused(&worker, rename("tank/one@c", "tank/one@a"), "dataset already exists", libc::EEXIST);
    worker.run(destroy("tank/one@c", false));
    refused(&worker, destroy("tank/one@c", false), "dataset does not exist", libc::ENOENT);
    let has = "volume has snapshots: tank/one@a";
    refused(&worker, destroy("tank/one", false), has, libc::EEXIST);
    worker.run(destroy("tank/one", true));
    assert_eq!(worker.names(), ["tank", "tank/two", "tank/two@a"]);
    worker.export();
    assert_clean("tank", disks.path());
}

#[test]
fn clones_share_are_promoted_and_keep_their_origin() {
    let Some((worker, disks)) = tank() else { return };
    worker.create_volume("tank/vol", 16 * MIB, &[]);
    let opened = worker.open("tank/vol");
    write(&worker, opened, 0, &vec![0x33; 1 << 20]);
    worker.run(snapshot(&["tank/vol@s"]));
    worker.run(Command::Clone {
        snapshot: "tank/vol@s".to_owned(),
        name: "tank/clone".to_owned(),
        properties: texts([("compression", "off"), ("org.example:of", "vol")]),
    });
    assert_eq!(worker.get("tank/clone", "origin").0, "tank/vol@s");
    assert_eq!(worker.get("tank/clone", "org.example:of").0, "vol");
    assert_eq!(worker.get("tank/vol@s", "clones").0, "tank/clone");
    assert_eq!(worker.number("tank/clone", "volsize"), 16 * MIB);
    let cloned = worker.open("tank/clone");
    assert_eq!(read(&worker, cloned, 0, 1 << 20), vec![0x33; 1 << 20]);
    write(&worker, cloned, 0, &vec![0x44; 1 << 20]);
    assert_eq!(read(&worker, opened, 0, 1 << 20), vec![0x33; 1 << 20]);

    let is_cloned = "cannot destroy snapshot 'tank/vol@s': snapshot is cloned";
    refused(&worker, destroy("tank/vol@s", false), is_cloned, libc::EEXIST);
    refused(&worker, clone("tank/vol@s", "tank/clone"), "dataset already exists", libc::EEXIST);
    refused(&worker, clone("tank/vol@none", "tank/c"), "cannot open 'tank/vol@none'", libc::ENOENT);
    refused(&worker, clone("tank/vol@s", "tank/no/c"), "no such parent 'tank/no'", libc::ENOENT);
    refused(&worker, clone("tank/vol", "tank/c"), "missing '@' delimiter", libc::EINVAL);
    let promote = |name: &str| Command::Promote { name: name.to_owned() };
    refused(&worker, promote("tank/vol"), "not a cloned filesystem", libc::EINVAL);
    worker.run(snapshot(&["tank/clone@s"]));
    refused(&worker, promote("tank/clone"), "conflicting snapshot 's'", libc::EEXIST);
    worker.run(destroy("tank/clone@s", false));
    worker.run(promote("tank/clone"));
    assert_eq!(worker.get("tank/vol", "origin").0, "tank/clone@s");
    assert_eq!(read(&worker, cloned, 0, 1 << 20), vec![0x44; 1 << 20]);
    assert_eq!(read(&worker, opened, 0, 1 << 20), vec![0x33; 1 << 20]);
    worker.end();
    assert_clean("tank", disks.path());
}

#[test]
fn datasets_are_renamed_and_destroyed_with_what_is_below_unless_they_are_open() {
    let Some((worker, disks)) = tank() else { return };
    for name in ["tank/a/x", "tank/a/y", "tank/b/z"] {
        let mut command = new_volume(name, 8 * MIB, &[]);
        if let Command::CreateVolume { parents, .. } = &mut command {
            *parents = true;
        }
        worker.run(command);
    }
    worker.run(snapshot(&["tank/a/x@s"]));
    worker.run(rename("tank/a", "tank/b/a"));
    assert_eq!(
        worker.names(),
        ["tank", "tank/b", "tank/b/a", "tank/b/a/x", "tank/b/a/x@s", "tank/b/a/y", "tank/b/z"]
    );
    refused(&worker, rename("tank/b/a", "tank/b/z"), "dataset already exists", libc::EEXIST);
    refused(&worker, rename("tank/b/none", "tank/c"), "dataset does not exist", libc::ENOENT);
    refused(&worker, rename("tank/b/z", "tank/no/z"), "no such parent 'tank/no'", libc::ENOENT);
    refused(&worker, rename("tank/b", "tank/b/c"), "descendant", libc::EINVAL);
    refused(&worker, rename("tank/b/z", "pond/z"), "it is not in pool 'tank'", libc::EINVAL);
    refused(&worker, rename("tank", "pond"), "cannot rename 'tank'", libc::EINVAL);

    let opened = worker.open("tank/b/a/x");
    let open = "'tank/b/a/x' is open";
    refused(&worker, rename("tank/b/a", "tank/c"), open, libc::EBUSY);
    refused(&worker, destroy("tank/b", true), open, libc::EBUSY);
    refused(&worker, Command::ExportPool, open, libc::EBUSY);
    let twice = Command::Open { name: "tank/b/a/x".to_owned(), read_only: false };
    refused(&worker, twice, "dataset is busy", libc::EBUSY);
    worker.run(Command::Close { volume: opened.volume });

    refused(&worker, destroy("tank/b", false), "has children", libc::EEXIST);
    refused(&worker, destroy("tank", true), "does not apply to pools", libc::EINVAL);
    refused(&worker, destroy("tank/none", true), "dataset does not exist", libc::ENOENT);
    worker.run(destroy("tank/b", true));
    assert_eq!(worker.names(), ["tank"]);
    worker.export();
    assert_clean("tank", disks.path());
}
