//! Volumes served over data channels, from memory of this process and of another one.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use crate::pool::io::{Random, assert_same, assert_volume, cut, read};
use crate::pool::{Directory, NewVolume, VanishingMemory, Zpool, assert_clean, zpool};
use ashlar_zfs::protocol::{Completion, FUA, RemoteSegment, Submission, op};
use ashlar_zfs::worker::channel::{Queues, RequestMemory, Server};
use ashlar_zfs::worker::taskq::{Parameters, TaskQueues};
use ashlar_zfs::zvol::Volume;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};
use zerocopy::IntoBytes;

const MIB: u64 = 1 << 20;
const VOLSIZE_BYTES: u64 = 16 * MIB;

fn pair() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

fn submit(socket: impl AsFd, submission: Submission, segments: &[RemoteSegment]) {
    submit_all(socket, [(submission, segments)]);
}

/// Sends all requests in one packet.
fn submit_all<'a>(
    socket: impl AsFd,
    requests: impl IntoIterator<Item = (Submission, &'a [RemoteSegment])>,
) {
    let mut packet = Vec::new();
    for (submission, segments) in requests {
        let header = Submission { segments: segments.len() as u16, ..submission };
        packet.extend_from_slice(header.as_bytes());
        packet.extend_from_slice(segments.as_bytes());
    }
    send(socket, &packet, SendFlags::empty()).unwrap();
}

/// A completion: tag and errno. `None`: the channel is closed.
fn complete(socket: impl AsFd) -> Option<(u64, i32)> {
    let mut packet = [0_u8; size_of::<Completion>()];
    let (bytes, _) = recv(socket, &mut packet, RecvFlags::empty()).unwrap();
    if bytes == 0 {
        return None;
    }
    assert_eq!(bytes, packet.len());
    let completion: Completion = zerocopy::transmute!(packet);
    Some((completion.tag, completion.errno))
}

fn request(tag: u64, op: u8, offset_bytes: u64, len_bytes: u64) -> Submission {
    Submission { tag, offset_bytes, len_bytes, op, flags: 0, segments: 0, reserved: 0 }
}

fn serve(zpool: &Zpool, directory: &Directory, pool: &str, queues: &Arc<Queues>) -> Server {
    zpool.create_pool(pool, &[directory.file("disk", 512 * MIB)], false);
    let name = format!("{pool}/vol");
    let new = NewVolume { name: &name, volsize_bytes: VOLSIZE_BYTES, volblocksize_bytes: 16384 };
    zpool.create_volume(&new, &[]);
    Server::new(Volume::open(&zpool.library, &name, false).unwrap(), Arc::clone(queues))
}

/// One request of many segments (with the request queue), or many requests of one segment (without
/// it), from two channels at a time, in both execution modes.
#[test]
fn requests_of_both_shapes_come_out_right() {
    let Some(zpool) = zpool() else { return };
    let directory = Directory::new("shapes");
    let queues = Arc::new(TaskQueues::start(&Parameters::default()).unwrap());
    let mut server = serve(zpool, &directory, "shapes", &queues);
    let channels: [OwnedFd; 2] = std::array::from_fn(|_| {
        let (ours, theirs) = pair();
        server.attach(theirs, RequestMemory::OfPeer { shared: None }).unwrap();
        ours
    });
    for is_synchronous in [false, true] {
        queues.set_synchronous(is_synchronous);
        std::thread::scope(|scope| {
            for (number, channel) in channels.iter().enumerate() {
                // Each thread has a half of the volume, and the halves meet inside a block.
                let middle = VOLSIZE_BYTES / 2 + 512 * 5;
                let (start, end) = if number == 0 { (0, middle) } else { (middle, VOLSIZE_BYTES) };
                let seed = number as u64 + 2 * u64::from(is_synchronous) + 1;
                scope.spawn(move || exercise(channel, start, end, seed));
            }
        });
    }
    drop(channels);
    server.close();
    zpool.export("shapes");
    assert_clean("shapes", &directory.0);
}

fn exercise(channel: &OwnedFd, start: u64, end: u64, seed: u64) {
    let mut random = Random::new(seed);
    let mut oracle = vec![0; (end - start) as usize];
    submit(channel, request(0, op::WRITE_ZEROES, start, end - start), &[]);
    assert_eq!(complete(channel), Some((0, 0)));
    for round in 0..400 {
        let (offset, len) = random.range(end - start, 128 << 10);
        random.fill(&mut oracle[offset as usize..][..len]);
        let mut memory = oracle[offset as usize..][..len].to_vec();
        let list = cut(&mut memory, Some(&mut random));
        transfer(channel, op::WRITE, start + offset, &list, round % 2 == 0);
        let (offset, len) = random.range(end - start, 128 << 10);
        let mut memory = vec![0xee; len];
        let list = cut(&mut memory, Some(&mut random));
        transfer(channel, op::READ, start + offset, &list, round % 3 == 0);
        assert_same(&memory, &oracle[offset as usize..][..len], &format!("round {round}"));
        if round % 50 == 0 {
            submit(channel, request(1, op::FLUSH, 0, 0), &[]);
            assert_eq!(complete(channel), Some((1, 0)));
        }
    }
}

fn transfer(channel: &OwnedFd, op: u8, offset: u64, list: &[RemoteSegment], is_merged: bool) {
    if is_merged {
        let len: u64 = list.iter().map(|segment| segment.len_bytes).sum();
        submit(channel, request(u64::MAX, op, offset, len), list);
        assert_eq!(complete(channel), Some((u64::MAX, 0)));
        return;
    }
    let mut at = offset;
    let mut requests = Vec::new();
    for (tag, segment) in list.iter().enumerate() {
        let request = request(tag as u64, op, at, segment.len_bytes);
        requests.push((request, std::slice::from_ref(segment)));
        at += segment.len_bytes;
    }
    for packet in requests.chunks(1 + (offset / 512 % 5) as usize) {
        submit_all(channel, packet.iter().copied());
    }
    let mut tags: Vec<u64> = list
        .iter()
        .map(|_| {
            let (tag, errno) = complete(channel).unwrap();
            assert_eq!(errno, 0);
            tag
        })
        .collect();
    tags.sort_unstable();
    assert!(tags.into_iter().eq(0..list.len() as u64));
}

#[test]
fn what_makes_no_sense_is_refused_and_the_channel_goes_on() {
    let Some(zpool) = zpool() else { return };
    let directory = Directory::new("hostile");
    let queues = Arc::new(TaskQueues::start(&Parameters::default()).unwrap());
    let mut server = serve(zpool, &directory, "hostile", &queues);
    let (ours, theirs) = pair();
    server.attach(theirs, RequestMemory::OfPeer { shared: None }).unwrap();
    let mut memory = [1_u8; 1024];
    let list = cut(&mut memory, None);
    let invalid = Errno::INVAL.raw_os_error();
    submit(&ours, request(1, 77, 0, 1024), &list);
    assert_eq!(complete(&ours), Some((1, invalid)));
    submit(&ours, request(2, op::WRITE, 0, 512), &list);
    assert_eq!(complete(&ours), Some((2, invalid)));
    // More segments than fit in a packet.
    let many = vec![list[0]; 3000];
    submit(&ours, request(3, op::WRITE, 0, 3000 * 1024), &many);
    assert_eq!(complete(&ours), Some((3, invalid)));
    submit(&ours, request(4, op::WRITE, VOLSIZE_BYTES, 1024), &list);
    assert_eq!(complete(&ours), Some((4, Errno::IO.raw_os_error())));
    let nowhere = [RemoteSegment { address: 4096, len_bytes: 1024 }];
    submit(&ours, request(5, op::WRITE, 0, 1024), &nowhere);
    assert_eq!(complete(&ours), Some((5, Errno::FAULT.raw_os_error())));
    // An invalid request among several in a packet; and one with a larger segment count than there
    // are segments, which takes the rest of the packet as its own.
    let flush = |tag| (request(tag, op::FLUSH, 0, 0), &[][..]);
    submit_all(&ours, [flush(6), (request(7, 77, 0, 1024), &list[..]), flush(8)]);
    let mut answers: Vec<_> = (0..3).map(|_| complete(&ours).unwrap()).collect();
    answers.sort_unstable();
    assert_eq!(answers, [(6, 0), (7, invalid), (8, 0)]);
    let mut packet =
        Submission { segments: 5, ..request(9, op::WRITE, 0, 5120) }.as_bytes().to_vec();
    packet.extend_from_slice(flush(10).0.as_bytes());
    send(&ours, &packet, SendFlags::empty()).unwrap();
    assert_eq!(complete(&ours), Some((9, invalid)));
    // Random bytes: any completion is accepted, or none; the next request is answered correctly.
    let mut random = Random::new(5);
    for tag in 100..300_u64 {
        let mut packet = vec![0; 32 + random.below(64) as usize];
        random.fill(&mut packet);
        send(&ours, &packet, SendFlags::empty()).unwrap();
        complete(&ours).unwrap();
        submit(&ours, request(tag, op::READ, 0, 1024), &list);
        assert_eq!(complete(&ours), Some((tag, 0)));
    }
    let fua = Submission { flags: FUA, ..request(6, op::WRITE, 0, 1024) };
    submit(&ours, fua, &list);
    assert_eq!(complete(&ours), Some((6, 0)));
    // A packet that is not a request at all closes the channel, not the volume.
    send(&ours, &[0; 9], SendFlags::empty()).unwrap();
    let (ours, theirs) = pair();
    server.attach(theirs, RequestMemory::OfPeer { shared: None }).unwrap();
    submit(&ours, request(7, op::FLUSH, 0, 0), &[]);
    assert_eq!(complete(&ours), Some((7, 0)));
    server.close();
    assert_eq!(complete(&ours), None);
    zpool.export("hostile");
}

/// Received requests are completed when the volume is closed.
#[test]
fn closing_waits_for_what_runs() {
    let Some(zpool) = zpool() else { return };
    let directory = Directory::new("closing");
    let queues = Arc::new(TaskQueues::start(&Parameters::default()).unwrap());
    let mut server = serve(zpool, &directory, "closing", &queues);
    let (ours, theirs) = pair();
    server.attach(theirs, RequestMemory::OfPeer { shared: None }).unwrap();
    let mut data = vec![0; MIB as usize];
    Random::new(8).fill(&mut data);
    let list = cut(&mut data, None);
    for tag in 0..16 {
        let fua = Submission { flags: FUA, ..request(tag, op::WRITE, tag * MIB, MIB) };
        submit(&ours, fua, &list);
    }
    // The first completion: other requests run now.
    let mut answered = vec![complete(&ours).unwrap()];
    server.close();
    while let Some(answer) = complete(&ours) {
        answered.push(answer);
    }
    assert!(answered.iter().all(|(_, errno)| *errno == 0));
    let volume = Volume::open(&zpool.library, "closing/vol", true).unwrap();
    for (tag, _) in &answered {
        assert_same(&read(&volume, tag * MIB, data.len()).unwrap(), &data, "answered");
    }
    drop(volume);
    zpool.export("closing");
    assert_clean("closing", &directory.0);
}

/// The memory of a process that is killed while its requests run.
#[test]
fn a_client_that_dies_takes_nothing_with_it() {
    let Some(zpool) = zpool() else { return };
    let directory = Directory::new("dying");
    let queues = Arc::new(TaskQueues::start(&Parameters::default()).unwrap());
    let mut server = serve(zpool, &directory, "dying", &queues);
    let (ours, theirs) = pair();
    server.attach(theirs, RequestMemory::OfPeer { shared: None }).unwrap();
    let mut oracle = vec![0; VOLSIZE_BYTES as usize];
    Random::new(9).fill(&mut oracle);
    for (at, piece) in oracle.chunks_mut(MIB as usize).enumerate() {
        submit(&ours, request(0, op::WRITE, at as u64 * MIB, MIB), &cut(piece, None));
        assert_eq!(complete(&ours), Some((0, 0)));
    }
    // Half of each request is in memory that is unmapped while the request runs.
    for round in 0..50 {
        let mut good = vec![0x77; 256 << 10];
        let mut list = cut(&mut good, None);
        let gone = VanishingMemory::new(256 << 10);
        list.push(RemoteSegment { address: gone.0 as u64, len_bytes: 256 << 10 });
        let offset = (round % 8) * MIB;
        submit(&ours, request(round, op::WRITE, offset, 512 << 10), &list);
        drop(gone);
        let (tag, errno) = complete(&ours).unwrap();
        assert_eq!(tag, round);
        assert!(errno == 0 || errno == Errno::FAULT.raw_os_error(), "{errno}");
        // Sectors are old, new or zeroes.
        let got = read(server.volume(), offset, 512 << 10).unwrap();
        let was = &oracle[offset as usize..][..512 << 10];
        for (got, was) in got.chunks(512).zip(was.chunks(512)) {
            let is = |value| got.iter().all(|byte| *byte == value);
            assert!(got == was || is(0x77) || is(0x66) || is(0));
        }
        oracle[offset as usize..][..512 << 10].copy_from_slice(&got);
    }
    assert_volume(server.volume(), &oracle);
    drop(ours);
    server.close();
    zpool.export("dying");
    assert_clean("dying", &directory.0);
}
