//! Volume groups that another host may be using: exported ones, those with another host's system ID, and shared ones. They are read, and
//! written to only if the user says so.

use std::fs;
use std::process::Command;
use std::time::Duration;

use super::lvm::{group, lvm, on, place, values, write};
use super::lvm_live::{live, rows, serving};
use super::support::{Daemon, Images, MIB, Nbd, Run, in_one_line, program, run, until};

/// A reason for which a group is not this host's.
struct Held {
    /// What the group's description says, for what it says otherwise.
    words: [&'static str; 2],
    /// What users read of it.
    state: &'static str,
    /// LVM's refusal to change it.
    refusal: &'static str,
    /// `vg_attr`, `vg_systemid` and `vg_lock_type`.
    shown: &'static str,
}

const FLAGS: &str = "flags = []\nextent_size";

const ALL: [Held; 3] = [
    Held {
        words: ["\"RESIZEABLE\", \"READ\"", "\"EXPORTED\", \"RESIZEABLE\", \"READ\""],
        state: "is exported",
        refusal: "Volume group vg is exported",
        shown: "wzx-n-",
    },
    Held {
        words: [FLAGS, "flags = []\nsystem_id = \"otherhost\"\nextent_size"],
        state: "has the system ID otherhost",
        refusal: "Cannot access VG vg with system ID otherhost with ",
        shown: "wz--n- otherhost",
    },
    Held {
        words: [FLAGS, "flags = []\nlock_type = \"sanlock\"\nlock_args = \"1.0.0:l\"\nextent_size"],
        state: "is shared by hosts with the lock manager sanlock",
        refusal: "Cannot access VG vg with lock type sanlock that requires lvmlockd",
        shown: "wz--ns sanlock",
    },
];

/// Has the description of `vg` say other words, as by another host.
pub(super) fn edit(images: &Images, [from, to]: [&str; 2]) {
    let copy = images.path("copy");
    let path = copy.to_str().unwrap();
    on(images, "vgcfgbackup", &["-f", path, "vg"]).ok();
    let text = fs::read_to_string(&copy).unwrap();
    // Without comments and indentation.
    let plain = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    let plain: String = plain.map(|line| line.to_owned() + "\n").collect();
    assert_eq!(plain.matches(from).count(), 1, "{plain}");
    fs::write(&copy, plain.replacen(from, to, 1)).unwrap();
    on(images, "vgcfgrestore", &["-f", path, "vg"]).ok();
}

/// A group with the volume `vg/data`, which begins with ones.
fn with_data(count: usize) -> Images {
    let images = group(count);
    on(&images, "lvcreate", &["-n", "data", "-L", "8M", "vg"]).ok();
    write(&images, &place(&images, "vg/data"), &[1; 4096]);
    images
}

/// A start that is to be refused; a daemon that serves nevertheless ends after a while.
fn serve(images: &Images) -> Run {
    start(images, &["serve"])
}

fn start(images: &Images, words: &[&str]) -> Run {
    let mut command = Command::new("timeout");
    command.arg("10").arg(program().get_program()).args(words).args(["--nbd", "unix:nbd"]);
    command.args(["--control", "control"]).args(&images.names).current_dir(images.dir.path());
    run(command)
}

#[test]
fn a_group_that_another_host_may_use_is_named_and_not_served_for_writing_unasked() {
    for held in ALL {
        let images = with_data(2);
        edit(&images, held.words);
        let before = images.bytes();
        let scan = in_one_line(&images.run(&["scan"], &images.refs()).ok().out);
        let note = format!("volume group vg {}", held.state);
        assert_eq!(scan.matches(&note).count(), 2, "{scan:?}");
        assert!(scan.contains("another host may be writing to it"), "{scan:?}");
        let vgs = on(&images, "vgs", &["-o", "vg_attr,vg_systemid,vg_lock_type"]).ok();
        assert!(vgs.err.contains(&format!("WARNING: VG vg {}", held.state)), "{vgs:?}");
        let shown: Vec<&str> = vgs.out.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(shown.join(" "), held.shown);

        let refused = serve(&images);
        refused.fails(
            1,
            &[
                &format!("cannot serve the volume group: vg: it {}", held.state),
                "another host may be writing to it",
                "hint: use --read-only",
                "--force",
            ],
        );
        assert!(images.bytes() == before, "{}: a refused start changes nothing", held.state);

        let daemon = serving(&images, &["--read-only"]);
        let mut data = Nbd::open(&images.path("nbd"), "vg/data");
        assert_eq!(data.read_at(0, 4096), [1; 4096]);
        data.write(0, &[2; 512]);
        assert_ne!(data.reply(), 0, "{}", held.state);
        drop(data);
        assert!(daemon.end().contains(&note));
        assert!(images.bytes() == before, "{}: reading changes nothing", held.state);
    }
}

/// mdadm's `--force` is about arrays only.
#[test]
fn a_forced_assembly_forces_no_group_on_the_array() {
    let images = Images::array(2, 32 * MIB, &["-l1", "--assume-clean"]);
    on(&images, "vgcreate", &["vg", "/dev/md0"]).ok();
    edit(&images, ALL[0].words);
    let before = images.bytes();
    let assembled = start(&images, &["md", "assemble", "--force"]);
    assembled.fails(1, &["cannot serve the volume group: vg: it is exported"]);
    assert!(images.bytes() == before);
}

/// The commands that change `vg`, with `d1` as another disk.
const CHANGES: [&[&str]; 9] = [
    &["lvcreate", "-n", "new", "-L", "1M", "vg"],
    &["lvcreate", "-s", "-n", "snap", "-L", "1M", "vg/data"],
    &["lvextend", "-L", "+1M", "vg/data"],
    &["lvreduce", "-f", "-y", "-L", "1M", "vg/data"],
    &["lvremove", "-y", "vg/data"],
    &["lvrename", "vg/data", "other"],
    &["vgrename", "vg", "other"],
    &["vgreduce", "-a", "vg"],
    &["vgremove", "-f", "vg"],
];

#[test]
fn the_description_of_a_group_that_another_host_may_use_is_not_changed() {
    for held in ALL {
        let images = with_data(1);
        edit(&images, held.words);
        fs::File::create(images.path("free")).unwrap().set_len(40 * MIB).unwrap();
        let before = images.bytes();
        for change in CHANGES.iter().chain(&[&["vgextend", "vg", "free"][..]]) {
            on(&images, change[0], &change[1..]).fails(5, &[held.refusal, "hint: "]);
        }
        on(&images, "pvremove", &["-y", "d0"]).fails(5, &["without -ff"]);
        assert!(images.bytes() == before, "{}", held.state);

        // The data of its volumes may be written if the user says so, the description not.
        let seqno = values(&images, "vgs", "vg_seqno", &[]);
        let daemon = serving(&images, &["--force"]);
        Nbd::open(&images.path("nbd"), "vg/data").write_at(0, &[3; 4096]);
        let free = images.path("free");
        let extend = ["vgextend", "vg", free.to_str().unwrap()];
        for change in CHANGES.iter().chain(&[&extend[..]]) {
            live(&images, change[0], &change[1..]).fails(5, &[held.refusal]);
        }
        // That changes no description.
        live(&images, "lvchange", &["-an", "vg/data"]).ok();
        live(&images, "lvchange", &["-ay", "vg/data"]).ok();
        assert_eq!(Nbd::open(&images.path("nbd"), "vg/data").read_at(0, 4096), [3; 4096]);
        assert_eq!(rows(&images, "vgs", "vg_seqno"), seqno);
        assert!(daemon.end().contains("--force"));
        assert_eq!(values(&images, "vgs", "vg_seqno", &[]), seqno);
        assert_eq!(fs::read(free).unwrap(), vec![0; 40 * MIB as usize]);
    }
}

#[test]
fn a_merge_in_a_group_that_another_host_may_use_goes_on_only_by_force_and_is_not_recorded() {
    let images = with_data(1);
    on(&images, "lvcreate", &["-s", "-n", "snap", "-L", "4M", "-c", "8", "vg/data"]).ok();
    let daemon = serving(&images, &[]);
    // An open origin puts the merge off: it begins when the group is served again.
    let mut data = Nbd::open(&images.path("nbd"), "vg/data");
    data.write_at(0, &[2; 4096]);
    live(&images, "lvconvert", &["--merge", "vg/snap"]).ok();
    drop(data);
    daemon.end();
    edit(&images, ALL[1].words);
    let before = images.bytes();
    serve(&images).fails(1, &["otherhost"]);
    assert!(images.bytes() == before);

    let seqno = values(&images, "vgs", "vg_seqno", &[]);
    let daemon = serving(&images, &["--force"]);
    let mut data = Nbd::open(&images.path("nbd"), "vg/data");
    let told = "could not be removed: Cannot access VG vg with system ID otherhost";
    until(Duration::from_secs(30), "merged", || data.read_at(0, 4096) == [1; 4096]);
    drop(data);
    daemon.end_once(told);
    assert_eq!(values(&images, "vgs", "vg_seqno", &[]), seqno);
}

/// A command on a host whose LVM is configured so.
fn on_host(images: &Images, args: &[&str]) -> Command {
    let mut command = program();
    command.args(args).current_dir(images.dir.path());
    command.env("LVM_SYSTEM_DIR", images.path("etc")).env("XDG_STATE_HOME", images.path("state"));
    command
}

#[test]
fn the_system_ids_of_lvm_s_configuration_say_which_groups_are_this_host_s() {
    let images = with_data(1);
    edit(&images, ALL[1].words);
    fs::create_dir(images.path("etc")).unwrap();
    let source = "global {\n\tsystem_id_source = \"lvmlocal\"\n}\n";
    fs::write(images.path("etc/lvm.conf"), source).unwrap();
    let local = |text: &str| fs::write(images.path("etc/lvmlocal.conf"), text).unwrap();
    let scan = || in_one_line(&run(on_host(&images, &["scan", "d0"])).ok().out);
    let create = |name: &str| {
        let args = ["lvm", "lvcreate", "--devices", "d0", "-n", name, "-L", "1M", "vg"];
        run(on_host(&images, &args))
    };

    local("local { system_id = \"thishost\" }\n");
    assert!(
        scan().contains("has the system ID otherhost, and this host has thishost"),
        "{}",
        scan()
    );
    create("new").fails(5, &["with system ID otherhost with local system ID thishost"]);

    local("local { system_id = \"thishost\" extra_system_ids = [ \"otherhost\" ] }\n");
    assert!(!scan().contains("another host"), "{}", scan());
    create("first").ok();
    local("local { system_id = \"otherhost\" }\n");
    create("second").ok();
    let args = ["serve", "--control", "control", "--nbd", "unix:nbd", "d0"];
    let daemon = Daemon::of(on_host(&images, &args), images.dir.path());
    Nbd::open(&images.path("nbd"), "vg/first").write_at(0, &[4; 512]);
    live(&images, "lvcreate", &["-n", "third", "-L", "1M", "vg"]).ok();
    assert!(!daemon.end().contains("another host"));

    // A file that cannot be used is no reason to write.
    local("local {\n");
    let refused = create("fourth").fails(5, &["with unknown local system ID"]);
    assert!(refused.err.contains("lvmlocal.conf cannot be used"), "{refused:?}");
    lvm(&images, &["lvs", "--devices", "d0"]).ok();
}
