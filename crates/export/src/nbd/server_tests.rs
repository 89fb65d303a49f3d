//! Whole connections: a client on one end of a pipe, the server on the other, a slow RAM disk below.

use std::cell::Cell;
use std::future::{pending, poll_fn};
use std::sync::Arc;
use std::task::Poll;

use futures_util::future::join;

use super::super::admission::{MAX_BYTES, MAX_REQUESTS};
use super::super::export::{Export, ExportError};
use super::super::testing::{
    Client, ReceivedReply, SIZE, SlowRam, alone, exports, pattern, pipe, run, session, turn,
};
use super::super::transmission::Command;
use super::*;
use ashlar_block::Features;
use ashlar_nbd::stream::Stream;
use ashlar_nbd::wire::{
    CMD_FLAG_DF, CMD_FLAG_FAST_ZERO, CMD_FLAG_FUA, CMD_FLAG_NO_HOLE, CMD_FLAG_REQ_ONE,
    FLAG_CAN_MULTI_CONN, FLAG_READ_ONLY, FLAG_ROTATIONAL, FLAG_SEND_FAST_ZERO, FLAG_SEND_TRIM,
    FLAG_SEND_WRITE_ZEROES, MAX_PAYLOAD,
};

/// Neither an export nor its volume is in use until a client has chosen it; a client that chooses a withdrawn export gets an error.
#[test]
fn a_client_in_its_handshake_keeps_no_export() {
    for (structured, withdrawn) in [(false, false), (false, true), (true, false), (true, true)] {
        let ram = SlowRam::new(SIZE, 3);
        let (exports, volume) = (Exports::new(), Arc::new(ram.volume()));
        exports.add(Export::new("md0", Arc::clone(&volume)).unwrap()).unwrap();
        let (end, ()) = session(&exports, 5000, async |pipe| {
            let client = Client::greet(pipe, structured).await;
            if structured {
                client.option(8, &[]).await;
                assert_eq!(client.option_end().await, 1);
            }
            // The client's own export is still listed if only its volume is withdrawn.
            if withdrawn {
                assert!(volume.withdraw());
            } else {
                drop(exports.remove("md0"));
                assert_eq!(Arc::strong_count(&volume), 1);
            }
            let option = if structured { 7 } else { 1 };
            let name = if structured { &b"\0\0\0\x03md0\0\0"[..] } else { b"md0" };
            client.option(option, name).await;
            assert_eq!(client.take(1).await, None, "nothing is answered");
        });
        assert!(matches!(end, Err(Disconnect::Withdrawn)), "{end:?}");
    }
}

#[test]
fn every_command_does_what_it_says_with_both_kinds_of_reply() {
    for structured in [false, true] {
        let ram = SlowRam::new(SIZE, 3);
        let exports = exports(&ram);
        let (end, ()) = session(&exports, 5000, |pipe| async move {
            let client = Client::connect(pipe, "md0", structured).await;
            let data = pattern(10_000, 1);
            let read = |offset, length| client.ask(Command::Read, 0, offset, length, &[]);
            assert_eq!(
                client.ask(Command::Write, 0, 777, 10_000, &data).await,
                ReceivedReply::Done
            );
            let at = if structured { 777 } else { 0 };
            assert_eq!(read(777, 10_000).await, ReceivedReply::Data(at, data.clone()));
            let df =
                client.ask(Command::Read, if structured { CMD_FLAG_DF } else { 0 }, 777, 1, &[]);
            assert_eq!(df.await, ReceivedReply::Data(at, data[..1].to_vec()));
            assert_eq!(client.ask(Command::Flush, 0, 0, 0, &[]).await, ReceivedReply::Done);
            for flags in [0, CMD_FLAG_FUA, CMD_FLAG_NO_HOLE, CMD_FLAG_FAST_ZERO] {
                assert_eq!(
                    client.ask(Command::Write, CMD_FLAG_FUA, 777, 10_000, &data).await,
                    ReceivedReply::Done
                );
                let zeroed = client.ask(Command::WriteZeroes, flags, 1024, 2048, &[]).await;
                assert_eq!(zeroed, ReceivedReply::Done, "flags {flags}");
                let ReceivedReply::Data(_, after) = read(777, 10_000).await else { panic!() };
                assert_eq!(after[247..247 + 2048], [0; 2048]);
                assert_eq!((&after[..247], &after[2295..]), (&data[..247], &data[2295..]));
            }
            for flags in [0, CMD_FLAG_FUA] {
                assert_eq!(
                    client.ask(Command::Trim, flags, 777, 10_000, &[]).await,
                    ReceivedReply::Done
                );
            }
            assert_eq!(client.ask(Command::Cache, 0, 0, 1 << 20, &[]).await, ReceivedReply::Done);
            if structured {
                let status =
                    client.ask(Command::BlockStatus, CMD_FLAG_REQ_ONE, 512, 1024, &[]).await;
                assert_eq!(status, ReceivedReply::Extents(vec![(1024, 0)]));
            }
            client.send(&Client::request(Command::Disc, 0, 0, 0, 0)).await;
            assert_eq!(client.take(1).await, None);
        });
        assert_eq!(end.unwrap(), End::Disc);
        let counts = ram.counts();
        assert_eq!(counts.started, counts.ended);
    }
}

#[test]
fn errors_carry_errno_and_message_and_the_connection_goes_on() {
    for structured in [false, true] {
        let ram = SlowRam::new(SIZE, 1);
        ram.fail(100);
        let (end, ()) = session(&exports(&ram), 5000, |pipe| async move {
            let client = Client::connect(pipe, "md0", structured).await;
            let text = |text: &str| if structured { text.to_owned() } else { String::new() };
            let past = text("range is not within the export");
            let medium = text("critical medium error");
            let ask = async |command, offset, length, data: &[u8]| {
                client.ask(command, 0, offset, length, data).await
            };
            let end = SIZE as u64;
            assert_eq!(
                ask(Command::Read, 51_000, 4096, &[]).await,
                ReceivedReply::Failed(5, medium.clone())
            );
            assert_eq!(
                ask(Command::Write, 51_200, 512, &[1; 512]).await,
                ReceivedReply::Failed(5, medium)
            );
            assert_eq!(
                ask(Command::Read, end, 1, &[]).await,
                ReceivedReply::Failed(22, past.clone())
            );
            // The data of the refused write must not be parsed as requests.
            assert_eq!(
                ask(Command::Write, end, 70_000, &[0x25; 70_000]).await,
                ReceivedReply::Failed(28, past)
            );
            let unknown = client.ask(Command::Read, 1 << 9, 0, 1, &[]).await;
            assert_eq!(unknown, ReceivedReply::Failed(22, text("unknown command flag")));
            assert_eq!(ask(Command::Read, 0, 1, &[]).await, ReceivedReply::Data(0, vec![0]));
            client.pipe.close();
        });
        assert_eq!(end.unwrap(), End::Closed);
    }
}

#[test]
fn a_read_only_export_says_so_and_means_it() {
    let ram = SlowRam::new(SIZE, 0);
    let exports = Exports::new();
    exports.add(Export::new("md0", ram.volume()).unwrap().read_only()).unwrap();
    let flags = exports.list()[0].info().flags;
    assert_eq!(flags & (FLAG_READ_ONLY | FLAG_SEND_TRIM | FLAG_SEND_WRITE_ZEROES), FLAG_READ_ONLY);
    let (end, ()) = session(&exports, 5000, |pipe| async move {
        let client = Client::connect(pipe, "md0", true).await;
        for (command, data) in
            [(Command::Write, &[1; 512][..]), (Command::Trim, &[]), (Command::WriteZeroes, &[])]
        {
            let got = client.ask(command, 0, 0, 512, data).await;
            assert_eq!(got, ReceivedReply::Failed(1, "the export is read-only".into()));
        }
        assert_eq!(client.ask(Command::Flush, 0, 0, 0, &[]).await, ReceivedReply::Done);
        client.pipe.close();
    });
    assert_eq!(end.unwrap(), End::Closed);
    assert_eq!(ram.bytes(), vec![0; SIZE]);
}

#[test]
fn an_export_tells_what_its_device_is() {
    let ram = SlowRam::new(SIZE, 0);
    let info = exports(&ram).list()[0].info();
    assert_eq!(info.size, SIZE as u64);
    let wanted = FLAG_ROTATIONAL | FLAG_SEND_TRIM | FLAG_CAN_MULTI_CONN | FLAG_SEND_WRITE_ZEROES;
    assert_eq!(info.flags & wanted, wanted);
    assert_eq!(info.block_size.preferred, 4096);
}

#[test]
fn fast_zeroes_are_offered_and_done_where_the_volume_is_fast() {
    for features in [Features::FAST_ZERO, Features::empty()] {
        let ram = SlowRam::with_features(SIZE, 1, features);
        let exports = exports(&ram);
        let is_fast = !features.is_empty();
        let flags = exports.list()[0].info().flags;
        assert_eq!(flags & FLAG_SEND_FAST_ZERO != 0, is_fast);
        assert_ne!(flags & FLAG_SEND_WRITE_ZEROES, 0);
        let (end, ()) = session(&exports, 5000, |pipe| async move {
            let client = Client::connect(pipe, "md0", true).await;
            let data = pattern(8192, 1);
            client.ask(Command::Write, 0, 0, 8192, &data).await;
            // A client that sends what was not offered is answered as the protocol says.
            let fast = client.ask(Command::WriteZeroes, CMD_FLAG_FAST_ZERO, 0, 8192, &[]).await;
            assert_eq!(fast == ReceivedReply::Done, is_fast, "{fast:?}");
            let ReceivedReply::Data(_, after) = client.ask(Command::Read, 0, 0, 8192, &[]).await
            else {
                panic!()
            };
            assert!(after == if is_fast { vec![0; 8192] } else { data });
            client.send(&Client::request(Command::Disc, 0, 0, 0, 0)).await;
        });
        assert_eq!(end.unwrap(), End::Disc);
    }
}

#[test]
fn a_volume_that_is_no_longer_fast_refuses_fast_zeroes_with_enotsup() {
    let ram = SlowRam::new(SIZE, 1);
    let exports = exports(&ram);
    let (end, ()) = session(&exports, 5000, |pipe| async move {
        let client = Client::connect(pipe, "md0", true).await;
        let data = pattern(8192, 1);
        client.ask(Command::Write, 0, 0, 8192, &data).await;
        let disk = ashlar_block::BlockDevice::disk(&*ram);
        let mut limits = *disk.limits();
        limits.features -= Features::FAST_ZERO;
        disk.set_limits(limits).unwrap();
        for (offset, length) in [(0, 8192), (100, 50), (100, 5000)] {
            let fast =
                client.ask(Command::WriteZeroes, CMD_FLAG_FAST_ZERO, offset, length, &[]).await;
            let ReceivedReply::Failed(errno, _) = fast else { panic!("{fast:?}") };
            assert_eq!(errno, 95);
        }
        let after = client.ask(Command::Read, 0, 0, 8192, &[]).await;
        assert_eq!(after, ReceivedReply::Data(0, data));
        client.send(&Client::request(Command::Disc, 0, 0, 0, 0)).await;
    });
    assert_eq!(end.unwrap(), End::Disc);
}

#[test]
fn exports_have_distinct_legal_names() {
    let ram = SlowRam::new(SIZE, 0);
    let exports = exports(&ram);
    let export = |name: &str| Export::new(name, ram.volume());
    assert_eq!(exports.add(export("md0").unwrap()), Err(ExportError::Exists("md0".into())));
    assert_eq!(export("a\0").err(), Some(ExportError::BadString));
    assert_eq!(export(&"a".repeat(4097)).err(), Some(ExportError::BadString));
    assert!(export("a").unwrap().described("\0").is_err());
    assert_eq!(exports.remove("md0").map(|export| export.name().to_owned()), Some("md0".into()));
    assert!(exports.remove("md0").is_none() && exports.list().is_empty());
}

#[test]
fn requests_that_came_together_are_answered_with_few_calls() {
    let ram = SlowRam::new(SIZE, 0);
    let exports = exports(&ram);
    let (server, end) = pipe(1 << 20, usize::MAX);
    let client = async {
        let client = Client::connect(end, "md0", true).await;
        let before = server.sends.get();
        let burst: Vec<u8> =
            (0..32).flat_map(|i| Client::request(Command::Read, 0, i, i * 4096, 4096)).collect();
        client.send(&burst).await;
        for _ in 0..32 {
            assert!(matches!(client.reply(|_| 0).await, Some((_, ReceivedReply::Data(..)))));
        }
        client.pipe.close();
        server.sends.get() - before
    };
    let (end, sends) = run(join(serve(&server, &exports, &alone(), pending(), pending()), client));
    // 1, 2, 4, 8 and 16 replies, and the last one.
    assert_eq!((end.unwrap(), sends), (End::Closed, 6));
}

#[test]
fn a_client_that_takes_no_replies_is_held_back() {
    let ram = SlowRam::new(SIZE, 40);
    let exports = exports(&ram);
    let (server, end) = pipe(64 << 10, usize::MAX);
    let client = async {
        let client = Client::connect(end, "md0", true).await;
        let flood = async {
            for i in 0..2000 {
                client.send(&Client::request(Command::Read, 0, i, 0, 4096)).await;
            }
        };
        let replies = async {
            for _ in 0..20_000 {
                turn().await;
            }
            let held = ram.counts();
            // Some end at once.
            assert!((MAX_REQUESTS - 8..=MAX_REQUESTS).contains(&held.most_at_a_time), "{held:?}");
            assert!(held.started < 2 * MAX_REQUESTS + 32, "{held:?}");
            for _ in 0..2000 {
                client.reply(|_| 0).await.unwrap();
            }
        };
        join(flood, replies).await;
        client.pipe.close();
    };
    assert_eq!(
        run(join(serve(&server, &exports, &alone(), pending(), pending()), client)).0.unwrap(),
        End::Closed
    );
    assert_eq!(ram.counts().ended, 2000);
}

#[test]
fn data_in_memory_is_bounded_and_one_request_always_gets_through() {
    let ram = SlowRam::new(2 * MAX_PAYLOAD as usize, 200);
    let (end, ()) = session(&exports(&ram), usize::MAX, |pipe| async move {
        let client = Client::connect(pipe, "md0", true).await;
        for i in 0..8 {
            client.send(&Client::request(Command::Read, 0, i, 0, MAX_PAYLOAD)).await;
        }
        for _ in 0..8 {
            assert!(matches!(client.reply(|_| 0).await, Some((_, ReceivedReply::Data(..)))));
        }
        client.pipe.close();
    });
    assert_eq!(end.unwrap(), End::Closed);
    // Two reads, each in 26 pieces of 1280 KiB at most.
    assert_eq!(MAX_BYTES / MAX_PAYLOAD as usize, 2);
    assert!((27..=2 * 26).contains(&ram.counts().most_at_a_time), "{:?}", ram.counts());
}

#[test]
fn zeroes_that_may_have_to_be_written_count_as_memory() {
    let ram = SlowRam::new(SIZE, 200);
    let (end, ()) = session(&exports(&ram), usize::MAX, |pipe| async move {
        let client = Client::connect(pipe, "md0", true).await;
        let zeroes = |i| Client::request(Command::WriteZeroes, 0, i, 0, SIZE as u32);
        client.send(&(0..100).flat_map(zeroes).collect::<Vec<u8>>()).await;
        for _ in 0..100 {
            assert!(matches!(client.reply(|_| 0).await, Some((_, ReceivedReply::Done))));
        }
        client.pipe.close();
    });
    assert_eq!(end.unwrap(), End::Closed);
    assert!(ram.counts().most_at_a_time <= MAX_BYTES >> 20, "{:?}", ram.counts());
}

#[test]
fn disc_lets_requests_in_flight_end_and_be_answered() {
    let ram = SlowRam::new(SIZE, 50);
    let (end, answered) = session(&exports(&ram), usize::MAX, |pipe| async move {
        let client = Client::connect(pipe, "md0", true).await;
        let mut burst: Vec<u8> =
            (0..20).flat_map(|i| Client::request(Command::Read, 0, i, i * 4096, 4096)).collect();
        burst.extend(Client::request(Command::Disc, 0, 0, 0, 0));
        client.send(&burst).await;
        let mut answered = 0;
        while client.reply(|_| 0).await.is_some() {
            answered += 1;
        }
        answered
    });
    assert_eq!((end.unwrap(), answered), (End::Disc, 20));
}

#[test]
fn a_client_that_goes_away_in_the_middle_leaves_whole_requests_only() {
    let write = Client::request(Command::Write, 0, 9, 8192, 4096);
    let message = [write, vec![7; 4096]].concat();
    for cut in [1, 27, 28, 29, 4000, message.len() - 1, message.len()] {
        let ram = SlowRam::new(SIZE, 20);
        let (end, ()) = session(&exports(&ram), 1000, |pipe| async {
            let client = Client::connect(pipe, "md0", true).await;
            let first = Client::request(Command::Write, 0, 8, 0, 512);
            client.send(&[&first[..], &[1; 512], &message[..cut]].concat()).await;
            client.pipe.close();
            // It takes no replies.
            client.pipe.refuse();
        });
        let whole = cut == message.len();
        // Either the stream ended too early or replies could not be sent, whichever came first.
        assert!(
            matches!(end, Err(Disconnect::Truncated | Disconnect::Io(_))),
            "cut {cut}: {end:?}"
        );
        let (counts, bytes) = (ram.counts(), ram.bytes());
        assert_eq!(counts.started, counts.ended, "cut {cut}");
        assert_eq!(bytes[..512], [1; 512], "cut {cut}");
        assert!(whole || bytes[512..].iter().all(|byte| *byte == 0), "cut {cut}");
    }
}

#[test]
fn a_client_that_dies_within_a_payload_ends_its_connection() {
    let taken = Client::request(Command::Write, 0, 9, 8192, 4096);
    // A refused write, whose payload is skipped.
    let refused = Client::request(Command::Write, 0, 9, SIZE as u64, 70_000);
    for write in [taken, refused] {
        let ram = SlowRam::new(SIZE, 20);
        let (end, ()) = session(&exports(&ram), 1000, |pipe| async {
            let client = Client::connect(pipe, "md0", true).await;
            let read = Client::request(Command::Read, 0, 8, 0, 512);
            client.send(&[&read[..], &write, &[7; 4000]].concat()).await;
            client.pipe.close();
            assert!(matches!(client.reply(|_| 0).await, Some((8, ReceivedReply::Data(..)))));
            assert_eq!(client.reply(|_| 0).await, None);
        });
        assert!(matches!(end, Err(Disconnect::Truncated)), "{end:?}");
    }
}

#[test]
fn what_is_no_request_ends_the_connection_after_those_that_were() {
    let ram = SlowRam::new(SIZE, 5);
    let oversized = Client::request(Command::Write, 0, 1, 0, MAX_PAYLOAD + 1);
    let old_magic = [&[0x12, 0x56, 0x09, 0x53][..], &[0; 24]].concat();
    for (garbage, expected) in
        [(oversized, "exceeds the maximum payload"), (old_magic, "wrong magic")]
    {
        let (end, answered) = session(&exports(&ram), usize::MAX, |pipe| async move {
            let client = Client::connect(pipe, "md0", true).await;
            let good = Client::request(Command::Read, 0, 5, 0, 512);
            client.send(&[&good[..], &garbage].concat()).await;
            let first = client.reply(|_| 0).await;
            (matches!(first, Some((5, ReceivedReply::Data(..)))), client.reply(|_| 0).await)
        });
        assert_eq!(answered, (true, None));
        assert!(end.unwrap_err().to_string().contains(expected));
    }
}

#[test]
fn a_broken_handshake_is_told_apart_from_a_polite_end() {
    let ram = SlowRam::new(SIZE, 0);
    let exports = exports(&ram);
    let ended = |bytes: &'static [u8]| {
        let (end, ()) = session(&exports, 7, |pipe| async move {
            let (sent, _) =
                join(async { Stream::send(&pipe, ChunkList::of(bytes.to_vec())).await.0 }, async {
                    pipe.close()
                })
                .await;
            sent.unwrap();
        });
        match end {
            Ok(end) => format!("{end:?}"),
            Err(error) => error.to_string(),
        }
    };
    assert_eq!(ended(b"\0\0"), "connection closed in the middle of a message");
    assert_eq!(ended(b"\0\0\0\x03"), "Closed");
    assert_eq!(ended(b"\0\0\0\x03IHAVEOPT\0\0\0\x02\0\0\0\0"), "Negotiation");
    assert_eq!(ended(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\x04nope"), "Negotiation");
    assert_eq!(ended(b"\0\0\0\x08"), "handshake broken off: UnknownFlags");
    assert_eq!(ended(b"GET / HTTP/1.1\r\n"), "handshake broken off: UnknownFlags");
    assert_eq!(ended(b"\0\0\0\x03GET / HTTP/1.1\r\n"), "handshake broken off: BadMagic");
}

#[test]
fn stopping_answers_what_runs_and_refuses_what_waits() {
    let ram = SlowRam::new(SIZE, 100);
    let exports = exports(&ram);
    let (server, end) = pipe(1 << 20, usize::MAX);
    let stop = Cell::new(false);
    let stopped = poll_fn(|_| if stop.get() { Poll::Ready(()) } else { Poll::Pending });
    let client = async {
        let client = Client::connect(end, "md0", true).await;
        let burst: Vec<u8> =
            (0..140).flat_map(|i| Client::request(Command::Read, 0, i, i * 4096, 4096)).collect();
        client.send(&burst).await;
        while ram.counts().started < MAX_REQUESTS {
            turn().await;
        }
        stop.set(true);
        let (mut read, mut refused) = (0, 0);
        while let Some((_, got)) = client.reply(|_| 0).await {
            match got {
                ReceivedReply::Data(..) => read += 1,
                ReceivedReply::Failed(error, _) => {
                    assert_eq!(error, 108);
                    refused += 1;
                }
                ReceivedReply::Done | ReceivedReply::Extents(_) => panic!("{got:?}"),
            }
        }
        (read, refused)
    };
    let serving = async {
        let end = serve(&server, &exports, &alone(), stopped, pending()).await;
        server.close();
        end
    };
    let (end, (read, refused)) = run(join(serving, client));
    assert_eq!(end.unwrap(), End::Stopped);
    assert_eq!(read + refused, 140);
    assert!(read >= MAX_REQUESTS && refused > 0, "{read} read, {refused} refused");
}

#[test]
fn stopping_ends_idle_connections_in_every_phase() {
    let ram = SlowRam::new(SIZE, 0);
    let exports = exports(&ram);
    for transmission in [false, true] {
        let (server, end) = pipe(1 << 20, usize::MAX);
        let stop = Cell::new(false);
        let stopped = poll_fn(|_| if stop.get() { Poll::Ready(()) } else { Poll::Pending });
        let client = async {
            let client =
                if transmission { Some(Client::connect(end, "md0", true).await) } else { None };
            for _ in 0..10 {
                turn().await;
            }
            stop.set(true);
            client
        };
        let (end, _client) =
            run(join(serve(&server, &exports, &alone(), stopped, pending()), client));
        assert_eq!(end.unwrap(), End::Stopped);
    }
}

#[test]
fn a_client_that_never_chooses_is_dropped_and_one_that_has_chosen_is_not() {
    let ram = SlowRam::new(SIZE, 0);
    let exports = exports(&ram);
    for chooses in [false, true] {
        let (server, end) = pipe(1 << 20, usize::MAX);
        let late = Cell::new(false);
        let patience = poll_fn(|_| if late.get() { Poll::Ready(()) } else { Poll::Pending });
        let client = async {
            if chooses {
                let client = Client::connect(end, "md0", true).await;
                late.set(true);
                assert_eq!(client.ask(Command::Flush, 0, 0, 0, &[]).await, ReceivedReply::Done);
                client.pipe.close();
                None
            } else {
                late.set(true);
                Some(end)
            }
        };
        let (end, _open) =
            run(join(serve(&server, &exports, &alone(), pending(), patience), client));
        assert_eq!(matches!(end, Err(Disconnect::Impatient)), !chooses, "{end:?}");
    }
}

#[test]
fn a_flush_covers_what_other_connections_were_told_is_written() {
    let ram = SlowRam::new(SIZE, 4);
    let exports = exports(&ram);
    let (server_a, end_a) = pipe(1 << 20, usize::MAX);
    let (server_b, end_b) = pipe(1 << 20, usize::MAX);
    let clients = async {
        let a = Client::connect(end_a, "md0", true).await;
        let b = Client::connect(end_b, "md0", false).await;
        let data = pattern(4096, 3);
        assert_eq!(a.ask(Command::Write, 0, 4096, 4096, &data).await, ReceivedReply::Done);
        assert_ne!(ram.durable_bytes()[4096..8192], data);
        assert_eq!(b.ask(Command::Flush, 0, 0, 0, &[]).await, ReceivedReply::Done);
        assert_eq!(ram.durable_bytes()[4096..8192], data);
        // FUA needs no flush.
        assert_eq!(
            b.ask(Command::Write, CMD_FLAG_FUA, 100, 4096, &data).await,
            ReceivedReply::Done
        );
        assert_eq!(ram.durable_bytes()[100..4196], data);
        a.pipe.close();
        b.pipe.close();
    };
    let (peer_a, peer_b) = (alone(), alone());
    let servers = join(
        serve(&server_a, &exports, &peer_a, pending(), pending()),
        serve(&server_b, &exports, &peer_b, pending(), pending()),
    );
    let ((a, b), ()) = run(join(servers, clients));
    assert_eq!((a.unwrap(), b.unwrap()), (End::Closed, End::Closed));
}

#[test]
fn holes_are_told_by_the_device() {
    // Every other block of 64 KiB is a hole.
    let ram = SlowRam::with_holes(SIZE, 0x1_0000);
    let exports = Exports::new();
    exports.add(Export::new("md0", ram.volume()).unwrap()).unwrap();
    let (end, ()) = session(&exports, 5000, |pipe| async move {
        let client = Client::connect(pipe, "md0", true).await;
        let got = client.ask(Command::BlockStatus, 0, 0x8000, 0x2_0000, &[]).await;
        assert_eq!(got, ReceivedReply::Extents(vec![(0x8000, 0), (0x1_0000, 3), (0x8000, 0)]));
        let got = client.ask(Command::BlockStatus, CMD_FLAG_REQ_ONE, 0x1_8000, 0x2_0000, &[]).await;
        assert_eq!(got, ReceivedReply::Extents(vec![(0x8000, 3)]));
        client.pipe.close();
    });
    assert_eq!(end.unwrap(), End::Closed);
}
