//! Random requests and random bytes through whole connections.

use std::collections::HashMap;
use std::ops::Range;

use super::super::testing::{
    Chance, Client, ReceivedReply, SIZE, SlowRam, exports, pattern, session,
};
use super::super::transmission::Command;
use super::*;

/// Random requests, up to 40 in flight, compared with a plain vector. A request that overlaps a write in flight is
/// postponed, since the protocol does not order the two.
fn random_requests(seed: u64, structured: bool, fragment: usize, most_len: u64) {
    let ram = SlowRam::new(SIZE, 6);
    let (end, oracle) = session(&exports(&ram), fragment, |pipe| async move {
        let chance = Chance::new(seed);
        let client = Client::connect(pipe, "md0", structured).await;
        let mut oracle = vec![0_u8; SIZE];
        let mut in_flight: HashMap<u64, (Command, Range<usize>)> = HashMap::new();
        let mut cookie = 0;
        while cookie < 400 || !in_flight.is_empty() {
            let length = 1 + chance.below(most_len) as usize;
            let offset = chance.below((SIZE - length) as u64) as usize;
            let round = if chance.below(2) == 0 { 511 } else { 0 };
            let range = offset & !round..(offset & !round) + ((length + round) & !round).max(1);
            let command =
                [Command::Read, Command::Write, Command::WriteZeroes][chance.below(3) as usize];
            let clash = in_flight.values().any(|(other, busy)| {
                let overlap = busy.start < range.end && range.start < busy.end;
                overlap && (*other != Command::Read || command != Command::Read)
            });
            if cookie < 400 && in_flight.len() < 40 && !clash && range.end <= SIZE {
                cookie += 1;
                let (at, len) = (range.start as u64, range.len() as u32);
                let mut message = Client::request(command, 0, cookie, at, len);
                if command == Command::Write {
                    oracle[range.clone()].copy_from_slice(&pattern(range.len(), cookie));
                    message.extend(&oracle[range.clone()]);
                } else if command == Command::WriteZeroes {
                    oracle[range.clone()].fill(0);
                }
                in_flight.insert(cookie, (command, range));
                client.send(&message).await;
                if chance.below(3) != 0 {
                    continue;
                }
            }
            if in_flight.is_empty() {
                continue;
            }
            let read_len = |cookie: u64| match &in_flight[&cookie] {
                (Command::Read, range) => range.len(),
                _ => 0,
            };
            let (cookie, got) = client.reply(read_len).await.unwrap();
            let (command, range) = in_flight.remove(&cookie).unwrap();
            match (command, got) {
                (Command::Read, ReceivedReply::Data(_, data)) => {
                    assert!(data == oracle[range], "cookie {cookie}")
                }
                (_, got) => assert_eq!(got, ReceivedReply::Done),
            }
        }
        client.pipe.close();
        oracle
    });
    assert_eq!(end.unwrap(), End::Closed);
    assert!(ram.bytes() == oracle, "seed {seed}: contents differ");
}

#[test]
fn random_pipelined_requests_agree_with_a_vector() {
    for seed in 0..12 {
        random_requests(seed, seed % 2 == 0, 3 + seed as usize * 1500, 20_000);
    }
    for seed in 20..24 {
        random_requests(seed, true, usize::MAX, 300_000);
    }
}

#[test]
fn random_streams_never_panic_and_replies_are_bounded_by_requests() {
    for seed in 0..300 {
        let ram = SlowRam::new(1 << 20, 2);
        let chance = Chance::new(seed + 1);
        let fragment = 1 + chance.below(3000) as usize;
        let (_, (sent, got)) = session(&exports(&ram), fragment, |pipe| async move {
            let client = Client::connect(pipe, "md0", true).await;
            let (mut stream, mut asked) = (Vec::new(), 0);
            for _ in 0..chance.below(60) {
                let command =
                    [Command::Read, Command::Write, Command::Flush, Command::Trim, Command::Cache]
                        .into_iter()
                        .chain([Command::WriteZeroes, Command::BlockStatus])
                        .nth(chance.below(7) as usize)
                        .unwrap();
                let length = chance.below(9000) as u32;
                let flags = if chance.below(3) == 0 { 1 << chance.below(16) } else { 0 };
                let offset = chance.below(1 << 21);
                stream.extend(Client::request(command, flags, chance.below(9), offset, length));
                asked += length as usize + 1000;
                if command == Command::Write {
                    stream.extend(pattern(length as usize, seed));
                }
                if chance.below(12) == 0 {
                    stream.extend(pattern(chance.below(60) as usize, seed));
                }
            }
            let end = client.send(&stream).await;
            client.pipe.close();
            let mut got = client.pipe.drain().len();
            while client.take(1).await.is_some() {
                got += 1 + client.pipe.drain().len();
            }
            (end, (asked, got)).1
        });
        assert!(got <= sent, "seed {seed}: {got} bytes for {sent}");
        let counts = ram.counts();
        assert_eq!(counts.started, counts.ended);
    }
}
