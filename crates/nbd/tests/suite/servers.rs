//! Exports of nbdkit and qemu-nbd: what they hold, their errors, servers that die or stop responding.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ashlar_block::bio::Flags;
use ashlar_block::{Bio, Features, Gateway, Presence, Sector, Sectors, Status};
use ashlar_engine::{blocking, sleep};
use ashlar_nbd::{ConnectError, NbdDisk};

use crate::disk_checks::{Change, Random, compare, run, share, write};
use crate::kit::{Server, directory};

const PATIENCE: Duration = Duration::from_secs(10);

fn gateway(disk: NbdDisk) -> Gateway {
    Gateway::new(Arc::new(disk))
}

/// Whether the disk holds what is written. Without discards: an export need not show zeroes after them.
async fn holds(disk: &Gateway, seed: u64) {
    let block = disk.disk().limits().logical_block().0;
    let blocks = 2048 / block;
    let change = |random: &mut Random, part: u64| {
        let start = random.below(blocks - 1);
        let len = 1 + random.below(blocks - start - 1).min(300);
        let change = match random.below(6) {
            0 => Change::Zero(Flags::empty()),
            1 => Change::Write(Flags::FUA),
            _ => Change::Write(Flags::empty()),
        };
        (Sector(part * 2048 + start * block), Sectors(len * block), change)
    };
    compare(disk, seed, change).await;
}

#[test]
fn an_export_holds_what_was_written() {
    let dir = directory();
    for (seed, args) in [
        &["memory", "8M"][..],
        &["--no-sr", "memory", "8M"],
        &["--filter=blocksize-policy", "memory", "8M", "blocksize-minimum=4096"],
        &["--filter=nozero", "memory", "8M"],
        &["--filter=delay", "memory", "8M", "rdelay=1ms", "wdelay=2ms"],
    ]
    .into_iter()
    .enumerate()
    {
        let server = Server::nbdkit(dir.path(), args);
        run(async {
            let disk = gateway(server.open(false).unwrap());
            let limits = *disk.disk().limits();
            assert_eq!(disk.capacity(), Sectors(16384));
            assert!(limits.features.contains(Features::FUA | Features::WRITE_CACHE));
            assert_eq!(limits.max_write_zeroes.is_zero(), args.contains(&"--filter=nozero"));
            let block = if args.contains(&"blocksize-minimum=4096") { 4096 } else { 512 };
            assert_eq!(limits.logical_block_bytes, block, "{args:?}");
            holds(&disk, seed as u64 + 1).await;
        });
    }
}

#[test]
fn a_discard_reaches_the_server() {
    let dir = directory();
    let server = Server::nbdkit(dir.path(), &["memory", "8M"]);
    run(async {
        let disk = gateway(server.open(false).unwrap());
        write(&disk, 0, 1).await.unwrap();
        disk.submit(Bio::discard(Sector(0), Sectors(8))).await.unwrap();
        // nbdkit's memory is sparse.
        assert!(
            disk.read(Sector(0), Sectors(8)).await.unwrap().as_slice().iter().all(|it| *it == 0)
        );
    });
}

#[test]
fn a_fast_write_zeroes_reaches_the_server_as_such() {
    let dir = directory();
    let (log, told) = (dir.path().join("log"), "logfile=".to_owned());
    let logfile = told + &log.display().to_string();
    let server = Server::nbdkit(dir.path(), &["--filter=log", "memory", "8M", &logfile]);
    run(async {
        let disk = gateway(server.open(false).unwrap());
        assert!(disk.disk().limits().features.contains(Features::FAST_ZERO));
        for flags in [Flags::empty(), Flags::FAST, Flags::FAST | Flags::NOUNMAP, Flags::NOFALLBACK]
        {
            let zeroes = Bio::write_zeroes(Sector(8), Sectors(8)).with_flags(flags);
            disk.submit(zeroes).await.unwrap();
        }
    });
    let log = std::fs::read_to_string(log).unwrap();
    let kinds: Vec<_> = log
        .lines()
        .filter(|line| line.contains(" Zero ") && !line.contains("return"))
        .map(|line| ["trim=1", "fast=1"].map(|flag| line.contains(flag)))
        .collect();
    assert_eq!(kinds, [[true, false], [true, true], [false, true], [true, false]], "{log}");
}

/// Servers that refuse all fast zeroes: the second one does not even know them.
#[test]
fn a_server_that_is_not_fast_has_no_fast_zeroes() {
    let dir = directory();
    for (mode, claims) in [("slow", true), ("none", false)] {
        let mode = format!("fastzeromode={mode}");
        let args = ["--filter=nozero", "memory", "8M", "zeromode=notrim", &mode];
        let server = Server::nbdkit(dir.path(), &args);
        run(async {
            let disk = gateway(server.open(false).unwrap());
            write(&disk, 8, 0x5a).await.unwrap();
            let takes = || disk.disk().takes_zeroes(Flags::FAST);
            assert_eq!(takes(), claims);
            let zeroes = |flags| Bio::write_zeroes(Sector(8), Sectors(8)).with_flags(flags);
            let fast = disk.submit(zeroes(Flags::FAST)).await;
            assert_eq!((fast, takes()), (Err(Status::NotSupported), false));
            let read = disk.read(Sector(8), Sectors(8)).await.unwrap();
            assert!(read.as_slice().iter().all(|byte| *byte == 0x5a));
            disk.submit(zeroes(Flags::NOFALLBACK)).await.unwrap();
            let read = disk.read(Sector(8), Sectors(8)).await.unwrap();
            assert!(read.as_slice().iter().all(|byte| *byte == 0));
        });
    }
}

#[test]
fn an_image_of_qemu_is_a_disk() {
    let dir = directory();
    let image = dir.path().join("disk.qcow2");
    let mut make = Command::new("qemu-img");
    make.args(["create", "-q", "-f", "qcow2"]).arg(&image).arg("8M");
    assert!(make.status().unwrap().success());
    let socket = dir.path().join("socket");
    let mut command = Command::new("qemu-nbd");
    command.args(["--persistent", "--format=qcow2", "--export-name=disk", "--socket"]);
    command.arg(&socket).arg(&image);
    let server = Server::start(command, socket);
    let Err(refused) = server.open_export("other", false) else {
        panic!("there is no such export")
    };
    assert!(matches!(&refused, ConnectError::Refused { .. }), "{refused}");
    run(async {
        let disk = gateway(server.open_export("disk", false).unwrap());
        holds(&disk, 7).await;
        write(&disk, 64, 0x5a).await.unwrap();
        disk.flush().await.unwrap();
    });
    server.signal("TERM");
    drop(server);
    let mut check = Command::new("qemu-io");
    check.args(["-r", "-f", "qcow2", "-c", "read -P 0x5a 32k 4k"]).arg(&image);
    let checked = check.output().unwrap();
    let said = String::from_utf8_lossy(&checked.stdout);
    assert!(checked.status.success() && said.contains("read 4096/4096"), "{checked:?}");
}

#[test]
fn errors_of_the_server_are_those_of_the_disk() {
    let dir = directory();
    for (options, status) in [
        (["error-pread=EIO", "error-pread-rate=100%"], Status::Io),
        (["error-pread=ENOSPC", "error-pread-rate=100%"], Status::NoSpace),
        (["error-pread=ESHUTDOWN", "error-pread-rate=100%"], Status::Transport),
    ] {
        for sr in ["--newstyle", "--no-sr"] {
            let args = [&[sr, "--filter=error", "memory", "8M"], &options[..]].concat();
            let server = Server::nbdkit(dir.path(), &args);
            run(async {
                let disk = gateway(server.open(false).unwrap());
                let read = disk.read(Sector(0), Sectors(8)).await;
                assert_eq!(read.map(drop), Err(status), "{args:?}");
                // A server that is about to end is left, and this one takes a new connection.
                let since = Instant::now();
                while write(&disk, 0, 1).await.is_err() {
                    assert!(status == Status::Transport && since.elapsed() < PATIENCE);
                    sleep(Duration::from_millis(10)).await;
                }
            });
        }
    }
}

#[test]
fn a_read_only_export_is_not_written() {
    let dir = directory();
    let server = Server::nbdkit(dir.path(), &["--readonly", "memory", "8M"]);
    let Err(error) = server.open(false) else { panic!("it is read-only") };
    assert!(error.to_string().contains("read-only"), "{error}");
    run(async {
        let disk = gateway(server.open(true).unwrap());
        disk.read(Sector(0), Sectors(8)).await.unwrap();
        assert_eq!(write(&disk, 0, 1).await, Err(Status::ReadOnly));
    });
}

/// Waits until the server answers again.
async fn until_back(disk: &Gateway) {
    let since = Instant::now();
    while disk.read(Sector(0), Sectors(8)).await.is_err() {
        assert!(since.elapsed() < PATIENCE, "it does not respond again");
        sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(disk.disk().presence(), Presence::Answering);
}

#[test]
fn what_a_dead_server_had_not_flushed_is_told_to_the_next_flush() {
    let dir = directory();
    let args = ["memory", "8M"];
    let mut server = Some(Server::nbdkit(dir.path(), &args));
    run(async {
        let disk = gateway(server.as_ref().unwrap().open(false).unwrap());
        for round in 0..4_u8 {
            let (is_flushed, is_idle) = (round & 1 == 1, round & 2 == 0);
            write(&disk, 8, round).await.unwrap();
            if is_flushed {
                disk.flush().await.unwrap();
            }
            let losses = disk.disk().losses();
            server.take().unwrap().kill();
            if !is_idle {
                assert_eq!(write(&disk, 8, 9).await, Err(Status::Transport));
                assert_eq!(disk.disk().presence(), Presence::Gone);
            }
            server = Some(Server::nbdkit(dir.path(), &args));
            if is_idle {
                // Long enough for the link: no request fails.
                sleep(Duration::from_secs(1)).await;
                // Whatever reads in between knows that it may read older data.
                assert_eq!(disk.disk().losses() != losses, !is_flushed, "round {round}");
            } else {
                until_back(&disk).await;
            }
            let flushed = disk.flush().await;
            assert_eq!(flushed.is_ok(), is_flushed && is_idle, "round {round}: {flushed:?}");
            assert_eq!(disk.flush().await, Ok(()), "round {round}");
        }
    });
}

#[test]
fn a_server_that_is_told_to_end_can_end() {
    let dir = directory();
    let args = ["memory", "8M"];
    let server = Server::nbdkit(dir.path(), &args);
    run(async {
        let disk = gateway(server.open(false).unwrap());
        write(&disk, 8, 1).await.unwrap();
        server.signal("TERM");
        let since = Instant::now();
        while write(&disk, 8, 2).await.is_ok() {
            assert!(since.elapsed() < PATIENCE, "it continues");
            sleep(Duration::from_millis(1)).await;
        }
        // All of the disk's connections end, also that of this thread.
        blocking::run(move || server.ended()).await.unwrap();
        let _server = Server::nbdkit(dir.path(), &args);
        until_back(&disk).await;
        assert!(disk.flush().await.is_err(), "what it had acknowledged is lost");
        assert_eq!(disk.flush().await, Ok(()));
    });
}

#[test]
fn a_late_write_does_not_overtake_what_follows_it() {
    let dir = directory();
    let server = Server::nbdkit(dir.path(), &["memory", "8M"]);
    run(async {
        let disk = gateway(server.open(false).unwrap());
        for round in 0..10_u8 {
            disk.disk().set_io_timeout_ms(30_000).unwrap();
            write(&disk, 0, 3 * round).await.unwrap();
            disk.flush().await.unwrap();
            disk.disk().set_io_timeout_ms(100).unwrap();
            server.stop();
            let since = Instant::now();
            assert_eq!(write(&disk, 0, 3 * round + 1).await, Err(Status::Timeout));
            assert!(since.elapsed() < Duration::from_secs(3));
            // It could still be executed.
            assert!(write(&disk, 0, 3 * round + 2).await.is_err());
            assert_eq!(disk.disk().presence(), Presence::Silent);
            server.signal("CONT");
            let since = Instant::now();
            while write(&disk, 0, 3 * round + 2).await.is_err() {
                assert!(since.elapsed() < Duration::from_secs(10), "it does not respond again");
                sleep(Duration::from_millis(1)).await;
            }
            // Longer than the late one can take.
            sleep(Duration::from_millis(20)).await;
            let read = disk.read(Sector(0), Sectors(1)).await.unwrap();
            assert_eq!(read.as_slice(), [3 * round + 2; 512], "round {round}");
            // One flush reports the loss.
            assert!(disk.flush().await.is_err());
            assert_eq!(disk.flush().await, Ok(()));
        }
    });
}

#[test]
fn several_threads_share_a_disk() {
    let dir = directory();
    let server = Server::nbdkit(dir.path(), &["memory", "8M"]);
    let disk = gateway(server.open(false).unwrap());
    share(&disk);
}

/// The states of all of a disk, asked in pieces.
async fn states(disk: &Gateway, piece: u64) -> Vec<u8> {
    let (mut at, mut states) = (Sector(0), Vec::new());
    let end = disk.capacity().as_end();
    while at < end {
        let len = Sectors(piece.min((end - at).0));
        let extents = disk.extents(at, len).await.unwrap();
        for extent in extents.iter() {
            states.extend(vec![extent.state.bits(); extent.len.0 as usize]);
        }
        assert!(extents.end() > at && extents.end() <= at + len);
        at = extents.end();
    }
    states
}

#[test]
fn holes_of_an_export_are_those_that_its_server_tells() {
    let dir = directory();
    let qcow2 = dir.path().join("image.qcow2");
    let raw = dir.path().join("image.raw");
    std::fs::File::create(&raw).unwrap().set_len(8 << 20).unwrap();
    let mut create = Command::new("qemu-img");
    create.args(["create", "-q", "-f", "qcow2"]).arg(&qcow2).arg("8M");
    assert!(create.status().unwrap().success());
    for kind in ["memory", "raw", "qcow2", "simple"] {
        let socket = dir.path().join("socket");
        let server = match kind {
            "memory" => Server::nbdkit(dir.path(), &["memory", "8M"]),
            "simple" => Server::nbdkit(dir.path(), &["--no-sr", "memory", "8M"]),
            _ => {
                let mut command = Command::new("qemu-nbd");
                command.args(["--persistent", "--shared=0", "--discard=unmap", "-f", kind, "-k"]);
                command.arg(&socket).arg(if kind == "raw" { &raw } else { &qcow2 });
                Server::start(command, socket)
            }
        };
        run(async {
            let disk = gateway(server.open(false).unwrap());
            for at in [0, 2048, 9000] {
                write(&disk, at, 7).await.unwrap();
            }
            let told = states(&disk, 16384).await;
            assert_eq!(told, states(&disk, 1000).await, "{kind}");
            let map = Command::new("nbdinfo")
                .args([
                    "--map",
                    "--json",
                    &format!("nbd+unix:///?socket={}", server.socket.display()),
                ])
                .output()
                .unwrap();
            if kind == "simple" {
                assert!(told.iter().all(|state| *state == 0));
                return;
            }
            let map: serde_json::Value = serde_json::from_slice(&map.stdout).unwrap();
            let number = |part: &serde_json::Value, name: &str| part[name].as_u64().unwrap();
            let expected: Vec<u8> = map
                .as_array()
                .unwrap()
                .iter()
                .flat_map(|part| {
                    vec![number(part, "type") as u8; number(part, "length") as usize / 512]
                })
                .collect();
            assert_eq!(told, expected, "{kind}");
            assert!(told.contains(&0) && told.contains(&3), "{kind}");
            // A hole reads as zeroes.
            let all = disk.read(Sector(0), Sectors(16384)).await.unwrap();
            let zeroes = |sector: &[u8]| sector.iter().all(|byte| *byte == 0);
            for (sector, state) in all.as_slice().chunks(512).zip(&told) {
                assert!(*state & 2 == 0 || zeroes(sector), "{kind}");
            }
        });
    }
}
