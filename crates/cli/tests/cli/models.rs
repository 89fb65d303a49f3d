//! Disks with the timing of device models: the option, the configuration file, the daemon's status.

use std::fs;

use serde_json::{Value, json};

use super::support::{Daemon, Images, MIB, ashlar};

/// The models in a daemon's status.
fn models(daemon: &Daemon) -> Value {
    let run = daemon.client(&["status", "--json"]).ok();
    let status: Value = serde_json::from_str(&run.out).unwrap();
    status["models"].clone()
}

#[test]
fn a_model_for_all_disks_gives_way_to_that_of_one_disk() {
    let images = Images::array(3, 16 * MIB, &["--level=1"]);
    let fast = "custom:read=1us";
    let daemon = images.serve(&["--model", "d1=hdd:latency=1us,flush=1us", "--model", fast]);
    let expected = json!([
        { "disk": "d0", "model": fast },
        { "disk": "d1", "model": "hdd:latency=1us,flush=1us" },
        { "disk": "d2", "model": fast },
    ]);
    assert_eq!(models(&daemon), expected);
    let text = daemon.client(&["status"]).ok().out;
    assert!(text.contains("d0 takes the time of custom:read=1us\n"), "{text}");
    // A model with a head is a rotational disk, and so is an array on it.
    let array = daemon.greeting.split([' ', ':']).next().unwrap();
    for (device, rotational) in [("d0", "0\n"), ("d1", "1\n"), (array, "1\n")] {
        let path = format!("sys/block/{device}/queue/rotational");
        assert_eq!(daemon.client(&["get", &path]).ok().out, rotational, "{device}");
    }
    daemon.end();
}

#[test]
fn without_models_there_are_none() {
    let images = Images::new(1, 4 * MIB);
    let daemon = images.serve(&[]);
    assert_eq!(models(&daemon), json!([]));
    assert!(!daemon.client(&["status"]).ok().out.contains("takes the time"));
    daemon.end();
}

#[test]
fn the_configuration_may_have_models_and_the_command_line_wins() {
    let images = Images::new(2, 4 * MIB);
    let config = images.path("stack.toml");
    let start = |text: &str, args: &[&str]| {
        fs::write(&config, format!("disks = [\"d0\", \"d1\"]\n{text}\n")).unwrap();
        let args = [&["--config", "stack.toml"], args].concat();
        let daemon = Daemon::start(images.dir.path(), &args);
        let found: Vec<String> = models(&daemon)
            .as_array()
            .unwrap()
            .iter()
            .map(|used| used["model"].as_str().unwrap().to_owned())
            .collect();
        daemon.end();
        found
    };
    assert_eq!(start("model = \"nvme\"", &[]), ["nvme", "nvme"]);
    assert_eq!(start("model = \"nvme\"", &["--model", "hdd"]), ["hdd", "hdd"]);
    assert_eq!(start("[model]\nd1 = \"gp2:500iops\"", &[]), ["gp2:500iops"]);
    assert_eq!(start("[model]\nd1 = \"gp2\"", &["--model", "d1=nvme"]), ["nvme"]);
    fs::write(&config, "disks = [\"d0\"]\nmodel = \"floppy\"\n").unwrap();
    let run = images.run(&["serve", "--config", "stack.toml"], &[]);
    run.fails(2, &["stack.toml:2:9: there is no device model `floppy`"]);
}

#[test]
fn bad_models_are_refused_with_what_there_is() {
    let images = Images::new(1, 4 * MIB);
    let cases = [
        ("floppy", "there are nvme, sata-ssd, hdd, hdd-5400, gp2, custom"),
        ("gp2:3000", "has no `3000`: there are 3000iops, burst=16"),
        ("d0=nvme:burst=4", "belongs to a cap on I/Os"),
        ("hdd:read=5", "`5` is not possible for read: a time"),
    ];
    for (model, expected) in cases {
        let run = images.run(&["serve", "--model", model], &["d0"]);
        assert_eq!(run.code, Some(2), "{run:?}");
        assert!(run.err.contains(expected), "{run:?}");
    }
    let run = images.run(&["serve", "--model", "d7=hdd"], &["d0"]);
    run.fails(2, &["a model for d7, which is not served", "the disks are d0"]);
}

#[test]
fn the_help_names_the_models() {
    let help = ashlar(&["serve", "--help"]).ok().out;
    let presets = ["nvme", "sata-ssd", "hdd", "hdd-5400", "gp2", "custom"];
    for word in presets.into_iter().chain(["bandwidth=250M", "--model gp2:3000iops"]) {
        assert!(help.contains(word), "{word}");
    }
}

#[test]
fn ram_disks_and_volumes_beside_them_have_their_own_times() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["ram:8M", "--model", "ram:8M=gp2:100iops"];
    let daemon = Daemon::start(dir.path(), &args);
    assert_eq!(models(&daemon), json!([{ "disk": "ram:8M", "model": "gp2:100iops" }]));
    daemon.end();
}
