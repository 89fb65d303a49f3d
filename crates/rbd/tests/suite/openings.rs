//! Images that cannot be opened.

use std::time::{Duration, Instant};

use ashlar_rbd::OpenError;

use crate::cluster::Cluster;
use crate::disk_checks::{run, write};
use crate::kit::{open, refused};

#[test]
fn what_is_missing_is_named() {
    let cluster = Cluster::shared();
    let error = refused(&cluster.uri("nowhere/disk"), false);
    assert_eq!(error.to_string(), "the cluster has no pool `nowhere`");
    for image in ["rbd/nothing", "rbd/nowhere/nothing", "rbd/nothing@snapshot"] {
        for read_only in [true, false] {
            let error = refused(&cluster.uri(image), read_only || image.contains('@'));
            assert_eq!(error.to_string(), format!("there is no image {image}"));
        }
    }
    let error = refused("rbd:rbd/disk?conf=/nonexistent/ceph.conf", false);
    assert!(matches!(error, OpenError::Configuration { .. }), "{error}");
    assert!(error.to_string().contains("/nonexistent/ceph.conf"), "{error}");
}

#[test]
fn a_cluster_that_does_not_answer_is_waited_for_as_long_as_its_configuration_says() {
    let dir = tempfile::tempdir().unwrap();
    let conf = dir.path().join("ceph.conf");
    let text = "[global]\nmon_host = v2:127.1.1.1:1\nauth_client_required = none\nclient_mount_timeout = 1\n";
    std::fs::write(&conf, text).unwrap();
    let since = Instant::now();
    let error = refused(&format!("rbd:rbd/disk?conf={}", conf.display()), true);
    assert!(error.to_string().ends_with("no monitor answers"), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("ceph -s")));
    assert!(since.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_user_needs_a_key() {
    let cluster = Cluster::start(&["--osds", "1", "--size", "1", "--cephx"]);
    let uri = cluster.image("theirs", "8M");
    run(async { write(&open(&format!("{uri}&id=test")), 0, 1).await.unwrap() });
    let error = refused(&format!("{uri}&id=bob"), true);
    let text = error.to_string();
    assert!(
        text.contains("client.bob") && text.ends_with("it refuses the user or the key"),
        "{text}"
    );
    let dir = tempfile::tempdir().unwrap();
    let conf = dir.path().join("ceph.conf");
    let text = std::fs::read_to_string(cluster.conf()).unwrap();
    std::fs::write(&conf, text.replace("\nkeyring = ", "\nkeyring = /nonexistent")).unwrap();
    let error = refused(&format!("rbd:rbd/theirs?conf={}", conf.display()), true);
    assert!(error.to_string().ends_with("there is no key for this user"), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("keyring")));
}
