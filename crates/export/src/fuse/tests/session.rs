//! The dispatcher against a RAM disk and a made-up tree.

use ashlar_block::{Features, Flags, Limits, Op, Sectors, Status};

use super::super::abi::{self, opcode};
use super::super::request::Request;
use super::super::session::Action;
use super::ram::Ram;
use super::*;

pub(super) type TestSession = Session<Arc<Tree>>;

pub(super) const RDONLY: u32 = 0;
pub(super) const WRONLY: u32 = 1;
const RDWR: u32 = 2;

/// Sends a message and returns the reply; empty without a reply.
pub(super) fn call(session: &TestSession, message: &[u8]) -> Vec<u8> {
    let split =
        if message[4..8] == opcode::WRITE.to_ne_bytes() { abi::WRITE_HEAD } else { message.len() };
    let (head, payload) = message.split_at(split);
    let request = Request::parse(head, payload.len()).expect("well-formed");
    match session.handle(&request, payload) {
        Action::Reply(bytes) => bytes,
        Action::Silent => Vec::new(),
        Action::Run(job) => {
            let mut buffer = ashlar_block::Buffer::from_slice(payload);
            let payload = job.wants_payload().then(|| buffer.whole());
            let done = block_on(job.run(payload));
            let data = done.data.as_ref().map_or(&[][..], |data| data.as_slice());
            [&done.head, data].concat()
        }
    }
}

pub(super) fn look_up(session: &TestSession, path: &str) -> Result<abi::EntryOut, Errno> {
    let mut node = abi::ROOT_ID;
    let mut entry = abi::EntryOut::default();
    for name in path.split('/') {
        let reply = call(session, &message(opcode::LOOKUP, node, name.as_bytes(), &[0]));
        if let Some(errno) = errno(&reply) {
            return Err(errno);
        }
        entry = body(&reply);
        node = entry.nodeid;
    }
    Ok(entry)
}

pub(super) fn open(session: &TestSession, path: &str, flags: u32) -> Result<abi::OpenOut, Errno> {
    let node = look_up(session, path)?.nodeid;
    let reply =
        call(session, &message(opcode::OPEN, node, &abi::OpenIn { flags, open_flags: 0 }, &[]));
    errno(&reply).map_or_else(|| Ok(body(&reply)), Err)
}

pub(super) fn read(session: &TestSession, fh: u64, offset: u64, size: u32) -> Vec<u8> {
    let args = abi::ReadIn { fh, offset, size, ..Default::default() };
    let reply = call(session, &message(opcode::READ, 2, &args, &[]));
    assert_eq!(errno(&reply), None);
    reply_parts(&reply).1.to_vec()
}

pub(super) fn write(
    session: &TestSession,
    fh: u64,
    offset: u64,
    data: &[u8],
    flags: u32,
) -> Result<u32, Errno> {
    let args = abi::WriteIn { fh, offset, size: data.len() as u32, flags, ..Default::default() };
    let reply = call(session, &message(opcode::WRITE, 2, &args, data));
    errno(&reply).map_or_else(|| Ok(body::<abi::WriteOut>(&reply).size), Err)
}

pub(super) fn fallocate(
    session: &TestSession,
    fh: u64,
    offset: u64,
    length: u64,
    mode: u32,
) -> Option<Errno> {
    let args = abi::FallocateIn { fh, offset, length, mode, padding: 0 };
    errno(&call(session, &message(opcode::FALLOCATE, 2, &args, &[])))
}

fn fsync(session: &TestSession, fh: u64) -> Option<Errno> {
    errno(&call(
        session,
        &message(opcode::FSYNC, 2, &abi::FsyncIn { fh, ..Default::default() }, &[]),
    ))
}

fn set_size(session: &TestSession, path: &str, size: u64) -> Option<Errno> {
    let node = look_up(session, path).unwrap().nodeid;
    let args = abi::SetAttrIn { valid: abi::fattr::SIZE, size, ..Default::default() };
    errno(&call(session, &message(opcode::SETATTR, node, &args, &[])))
}

pub(super) const MIB: usize = 1 << 20;

pub(super) fn with_disk() -> (Arc<Ram>, Arc<Tree>, TestSession) {
    let ram = Ram::new("md0", MIB);
    let (tree, session) = session(&[("dev/md0", ram.volume())]);
    (ram, tree, session)
}

fn init(offered: u64, minor: u32) -> Vec<u8> {
    let (_, _, session) = with_disk();
    let flags = offered | abi::init::INIT_EXT;
    let args = abi::InitIn { major: 7, minor, max_readahead: 131_072, flags: flags as u32 };
    call(&session, &message(opcode::INIT, 0, &args, &((flags >> 32) as u32).to_ne_bytes()))
}

#[test]
fn init_takes_what_both_sides_know_and_nothing_else() {
    let out: abi::InitOut = body(&init(u64::MAX, 45));
    let agreed = u64::from(out.flags) | u64::from(out.flags2) << 32;
    assert_eq!((out.major, out.minor, out.max_write, out.max_pages), (7, 45, 1 << 20, 257));
    assert_eq!(out.max_readahead, 131_072);
    assert!(out.max_background > 64 && out.congestion_threshold < out.max_background);
    assert_ne!(agreed & abi::init::DIRECT_IO_ALLOW_MMAP, 0);
    assert_ne!(agreed & abi::init::ASYNC_DIO, 0);
    for (bit, why) in [(16, "writeback cache"), (3, "atomic O_TRUNC"), (1, "remote locks")] {
        assert_eq!(agreed & 1 << bit, 0, "{why}");
    }
    let old: abi::InitOut = body(&init(abi::init::ASYNC_READ, 31));
    assert_eq!((old.minor, old.flags2), (31, 0));
    assert_eq!(u64::from(old.flags), abi::init::ASYNC_READ | abi::init::INIT_EXT);
    assert_eq!(errno(&init(0, 30)), Some(Errno::PROTO));
}

#[test]
fn look_ups_follow_the_tree_and_show_its_attributes() {
    let (_, _, session) = with_disk();
    let volume = look_up(&session, "dev/md0").unwrap().attr;
    assert_eq!((volume.mode, volume.size, volume.nlink), (0o100_600, 1 << 20, 1));
    assert_eq!((volume.uid, volume.gid), (7, 8));
    assert_eq!((volume.mtime, volume.mtimensec, volume.blocks), (1, 500_000_000, 2048));
    assert_eq!(look_up(&session, "dev").unwrap().attr.mode, 0o040_755);
    assert_eq!(look_up(&session, "sys/block/md0/size").unwrap().attr.mode, 0o100_444);
    assert_eq!(look_up(&session, "sys/block/md0/kick").unwrap().attr.mode, 0o100_200);
    let link = look_up(&session, "dev/link").unwrap();
    assert_eq!(link.attr.mode, 0o120_777);
    let target = call(&session, &message(opcode::READLINK, link.nodeid, &[0u8; 0], &[]));
    assert_eq!(reply_parts(&target), (0, &b"md0"[..]));
    assert_eq!(look_up(&session, "dev/md1"), Err(Errno::NOENT));
    assert_eq!(look_up(&session, "dev/\u{fffd}"), Err(Errno::NOENT));
    let unknown = call(&session, &message(opcode::GETATTR, 12_345, &[0u64; 2], &[]));
    assert_eq!(errno(&unknown), Some(Errno::STALE));
}

#[test]
fn another_volume_at_the_same_path_is_another_node() {
    let (_, tree, session) = with_disk();
    let first = look_up(&session, "dev/md0").unwrap();
    assert_eq!(look_up(&session, "dev/md0").unwrap().nodeid, first.nodeid);
    let other = Ram::new("md0", 2 * MIB).volume();
    tree.entries.lock().unwrap().insert("dev/md0".into(), Entry::Volume(other));
    let second = look_up(&session, "dev/md0").unwrap();
    assert_ne!(second.nodeid, first.nodeid);
    assert_eq!((second.attr.ino, second.attr.size), (first.attr.ino, 2 << 20));
}

#[test]
fn the_kernel_is_told_the_size_of_the_nodes_that_it_knows() {
    let volume = Ram::new("md0", 2 * MIB).volume();
    let (_, session) = session(&[("dev/md0", Arc::clone(&volume))]);
    assert_eq!(session.size_notices(&volume), [[0; 0]; 0], "it knows none");
    let node = look_up(&session, "dev/md0").unwrap().nodeid;
    let notices = session.size_notices(&volume);
    let parts = notices.iter().map(|notice| {
        let (header, rest) = abi::OutHeader::read_from_prefix(notice).unwrap();
        assert_eq!((header.len as usize, header.unique), (notice.len(), 0));
        (header.error, rest.to_vec())
    });
    let store = abi::NotifyStoreOut { nodeid: node, offset: (2 << 20) - 1, size: 1, padding: 0 };
    let drop = abi::NotifyInvalInodeOut { nodeid: node, offset: (2 << 20) - 1, len: 1 };
    let expected = [(4, [store.as_bytes(), &[0]].concat()), (2, drop.as_bytes().to_vec())];
    assert_eq!(parts.collect::<Vec<_>>(), expected);
    let other = Ram::new("md0", 2 * MIB).volume();
    assert_eq!(session.size_notices(&other), [[0; 0]; 0]);
}

#[test]
fn data_of_any_alignment_come_back() {
    let (ram, _, session) = with_disk();
    let fh = open(&session, "dev/md0", RDWR).unwrap().fh;
    let mut oracle = vec![0; MIB];
    for (round, (offset, len)) in
        [(0, 4096), (1, 511), (4095, 2), (700, 5000), (MIB - 1, 1), (123_457, 300_001)]
            .into_iter()
            .enumerate()
    {
        let data: Vec<u8> = (0..len).map(|i| (i * 7 + round) as u8).collect();
        assert_eq!(write(&session, fh, offset as u64, &data, RDWR), Ok(len as u32));
        oracle[offset..offset + len].copy_from_slice(&data);
        assert_eq!(read(&session, fh, offset as u64, len as u32), data);
    }
    assert_eq!(ram.bytes(0, MIB), oracle);
    assert_eq!(read(&session, fh, 5, 1 << 20), &oracle[5..]);
}

#[test]
fn the_end_of_a_volume_is_the_end() {
    let (_, _, session) = with_disk();
    let fh = open(&session, "dev/md0", RDWR).unwrap().fh;
    assert_eq!(read(&session, fh, (MIB - 10) as u64, 4096).len(), 10);
    for beyond in [MIB as u64, u64::MAX] {
        assert_eq!(read(&session, fh, beyond, 4096), b"");
        assert_eq!(write(&session, fh, beyond, b"x", RDWR), Err(Errno::NOSPC));
    }
    assert_eq!(write(&session, fh, (MIB - 3) as u64, b"12345", RDWR), Ok(3));
    let too_big = abi::ReadIn { fh, size: u32::MAX, ..Default::default() };
    assert_eq!(
        errno(&call(&session, &message(opcode::READ, 2, &too_big, &[]))),
        Some(Errno::INVAL)
    );
}

#[test]
fn durability_is_asked_of_the_device_exactly_when_the_caller_asks() {
    let (ram, _, session) = with_disk();
    let fh = open(&session, "dev/md0", RDWR).unwrap().fh;
    let ops = |ram: &Ram| {
        ram.take_seen().iter().map(|s| (s.op, s.flags.contains(Flags::FUA))).collect::<Vec<_>>()
    };
    assert_eq!(write(&session, fh, 0, &[1; 4096], RDWR), Ok(4096));
    assert_eq!(ops(&ram), [(Op::Write, false)]);
    assert_eq!(write(&session, fh, 0, &[1; 4096], RDWR | 0o10_000), Ok(4096));
    assert_eq!(ops(&ram), [(Op::Write, true)]);
    assert_eq!(fsync(&session, fh), None);
    assert_eq!(ops(&ram), [(Op::Flush, false)]);
    let flush = message(opcode::FLUSH, 2, &[fh, 0, 0], &[]);
    assert_eq!(errno(&call(&session, &flush)), Some(Errno::NOSYS));
    let release = abi::ReleaseIn { fh, ..Default::default() };
    assert_eq!(errno(&call(&session, &message(opcode::RELEASE, 2, &release, &[]))), None);
    assert_eq!(ops(&ram), []);
    assert_eq!(write(&session, fh, 0, b"x", RDWR), Err(Errno::BADF));
}

#[test]
fn a_failing_device_s_errno_reaches_the_caller() {
    let (ram, _, session) = with_disk();
    let fh = open(&session, "dev/md0", RDWR).unwrap().fh;
    for (status, expected) in
        [(Status::Medium, Errno::NODATA), (Status::Io, Errno::IO), (Status::NoSpace, Errno::NOSPC)]
    {
        ram.break_with(status);
        assert_eq!(write(&session, fh, 0, &[0; 512], RDWR), Err(expected));
        assert_eq!(fsync(&session, fh), Some(expected));
        let args = abi::ReadIn { fh, size: 512, ..Default::default() };
        assert_eq!(errno(&call(&session, &message(opcode::READ, 2, &args, &[]))), Some(expected));
    }
}

#[test]
fn a_hole_reads_as_zeroes_and_may_deallocate() {
    let (ram, _, session) = with_disk();
    let fh = open(&session, "dev/md0", RDWR).unwrap().fh;
    write(&session, fh, 0, &[0xff; 65_536], RDWR).unwrap();
    ram.take_seen();
    assert_eq!(fallocate(&session, fh, 1000, 20_000, 0x03), None);
    let seen = ram.take_seen();
    let zeroed = seen.iter().find(|s| s.op == Op::WriteZeroes).expect("a write-zeroes arrives");
    assert!(!zeroed.flags.contains(Flags::NOUNMAP));
    assert!(seen.iter().all(|s| s.op != Op::Discard));
    let data = ram.bytes(0, 65_536);
    assert!(data[..1000].iter().chain(&data[21_000..]).all(|&b| b == 0xff));
    assert!(data[1000..21_000].iter().all(|&b| b == 0));
}

#[test]
fn a_hole_is_a_discard_where_discarded_ranges_read_as_zeroes() {
    let limits = Limits {
        max_hw_discard: Sectors(1 << 20),
        max_write_zeroes: Sectors(1 << 20),
        features: Features::WRITE_CACHE | Features::DISCARD_ZEROES | Features::FAST_ZERO,
        ..Limits::default()
    };
    for holes in [Holes::Fast, Holes::Zero, Holes::Discard] {
        let ram = Ram::with_limits("md0", MIB, limits);
        let (_, session) = session_with(&[("dev/md0", ram.volume())], holes);
        let fh = open(&session, "dev/md0", RDWR).unwrap().fh;
        assert_eq!(fallocate(&session, fh, 4096, 8192, 0x03), None);
        let ops = || ram.take_seen().iter().map(|s| s.op).collect::<Vec<_>>();
        assert_eq!(ops(), [Op::Discard]);
        // Not whole blocks: a discard would leave the partial blocks unchanged.
        assert_eq!(fallocate(&session, fh, 100, 8192, 0x03), None);
        assert!(ops().iter().all(|op| *op != Op::Discard));
    }
}

#[test]
fn a_hole_becomes_what_the_user_wants_and_the_disk_can() {
    let (cache, fast) = (Features::WRITE_CACHE, Features::WRITE_CACHE | Features::FAST_ZERO);
    let (some, none) = (Sectors(1 << 20), Sectors::ZERO);
    let (zeroes, discard) = (Some(Op::WriteZeroes), Some(Op::Discard));
    // Discards, write-zeroes, features; and what becomes of a hole with fast, zero and discard.
    for (max_hw_discard, max_write_zeroes, features, expected) in [
        (some, some, fast, [zeroes, zeroes, discard]),
        (some, some, cache, [None, zeroes, discard]),
        (some, none, cache, [None, None, discard]),
        (none, some, fast, [zeroes, zeroes, zeroes]),
        (none, some, cache, [None, zeroes, None]),
        (none, none, cache, [None, None, None]),
    ] {
        let limits = Limits { max_hw_discard, max_write_zeroes, features, ..Limits::default() };
        for (holes, expected) in
            [Holes::Fast, Holes::Zero, Holes::Discard].into_iter().zip(expected)
        {
            let ram = Ram::with_limits("md0", MIB, limits);
            let (_, session) = session_with(&[("dev/md0", ram.volume())], holes);
            let fh = open(&session, "dev/md0", RDWR).unwrap().fh;
            let punch = |offset| fallocate(&session, fh, offset, 8192, 0x03);
            let refused = expected.is_none().then_some(Errno::OPNOTSUPP);
            let text = format!("{holes:?} with {limits:?}");
            assert_eq!(punch(4096), refused, "{text}");
            assert_eq!(ram.take_seen().iter().map(|s| s.op).next(), expected, "{text}");
            // Discards are turned off by the user.
            if !max_hw_discard.is_zero() {
                ram.volume().gateway().disk().set_max_discard_bytes(0).unwrap();
                for offset in [4096, 100] {
                    assert_eq!(punch(offset), Some(Errno::OPNOTSUPP), "{text}");
                    assert_eq!(ram.take_seen(), [], "{text}");
                }
                // That does not concern those who ask for zeroes.
                assert_eq!(fallocate(&session, fh, 4096, 8192, 0x10), None);
            }
        }
    }
}

#[test]
fn a_hole_is_refused_where_only_writing_could_make_it_and_zeroing_is_not() {
    let limits = Limits {
        max_hw_discard: Sectors(1 << 20),
        features: Features::WRITE_CACHE,
        ..Limits::default()
    };
    let ram = Ram::with_limits("md0", MIB, limits);
    let (_, session) = session(&[("dev/md0", ram.volume())]);
    let fh = open(&session, "dev/md0", RDWR).unwrap().fh;
    write(&session, fh, 0, &[0xff; 8192], RDWR).unwrap();
    assert_eq!(fallocate(&session, fh, 0, 4096, 0x03), Some(Errno::OPNOTSUPP));
    assert!(ram.bytes(0, 8192).iter().all(|&b| b == 0xff));
    assert_eq!(fallocate(&session, fh, 0, 4096, 0x10), None);
    assert!(ram.bytes(0, 4096).iter().all(|&b| b == 0));
    assert!(ram.bytes(4096, 4096).iter().all(|&b| b == 0xff));
}

#[test]
fn fallocate_follows_the_rules_of_block_devices() {
    let (ram, _, session) = with_disk();
    let fh = open(&session, "dev/md0", RDWR).unwrap().fh;
    let size = MIB as u64;
    for mode in 0..0x100 {
        let supported = [0x03, 0x10, 0x11].contains(&mode);
        let expected = if supported { None } else { Some(Errno::OPNOTSUPP) };
        assert_eq!(fallocate(&session, fh, 0, 4096, mode), expected, "mode {mode:#x}");
    }
    assert_eq!(fallocate(&session, fh, size, 4096, 0x03), Some(Errno::INVAL));
    assert_eq!(fallocate(&session, fh, 0, size + 1, 0x10), Some(Errno::INVAL));
    assert_eq!(fallocate(&session, fh, 4096, u64::MAX, 0x03), Some(Errno::FBIG));
    ram.take_seen();
    assert_eq!(fallocate(&session, fh, 4096, size, 0x11), None);
    let zeroed = ram.take_seen();
    assert_eq!((zeroed[0].op, zeroed[0].len), (Op::WriteZeroes, Sectors((size - 4096) / 512)));
    assert!(zeroed[0].flags.contains(Flags::NOUNMAP));
}

#[test]
fn a_volume_cannot_be_resized_or_chmodded() {
    let (_, _, session) = with_disk();
    assert_eq!(set_size(&session, "dev/md0", MIB as u64), None);
    for size in [0, 4096, 2 << 20] {
        assert_eq!(set_size(&session, "dev/md0", size), Some(Errno::INVAL));
    }
    assert_eq!(set_size(&session, "dev", 0), Some(Errno::ISDIR));
    let node = look_up(&session, "dev/md0").unwrap().nodeid;
    for (valid, expected) in [(1, Some(Errno::PERM)), (2, Some(Errno::PERM)), (1 << 5, None)] {
        let args = abi::SetAttrIn { valid, ..Default::default() };
        assert_eq!(errno(&call(&session, &message(opcode::SETATTR, node, &args, &[]))), expected);
    }
    for code in [opcode::MKDIR, opcode::UNLINK, opcode::CREATE, opcode::RENAME2] {
        assert_eq!(errno(&call(&session, &message(code, 1, b"x\0", &[]))), Some(Errno::PERM));
    }
}

#[test]
fn a_read_only_volume_is_never_opened_for_writing() {
    let ram = Ram::new("md0", MIB);
    ashlar_block::BlockDevice::disk(&*ram).set_read_only(true);
    let (_, session) = session(&[("dev/md0", ram.volume())]);
    assert_eq!(look_up(&session, "dev/md0").unwrap().attr.mode, 0o100_400);
    assert_eq!(open(&session, "dev/md0", RDWR), Err(Errno::ROFS));
    assert_eq!(open(&session, "dev/md0", WRONLY), Err(Errno::ROFS));
    let opened = open(&session, "dev/md0", RDONLY).unwrap();
    assert_eq!(opened.open_flags, abi::fopen::DIRECT_IO | abi::fopen::PARALLEL_DIRECT_WRITES);
    assert_eq!(read(&session, opened.fh, 0, 512), [0; 512]);
}

#[test]
fn attributes_behave_as_in_sysfs() {
    let (_, tree, session) = with_disk();
    let path = "sys/block/md0/nomerges";
    assert_eq!(look_up(&session, path).unwrap().attr.size, 4096);
    assert_eq!(set_size(&session, path, 0), None);
    let fh = open(&session, path, RDWR).unwrap().fh;
    assert_eq!(read(&session, fh, 0, 4096), b"0\n");
    assert_eq!(write(&session, fh, 0, b"2\n", RDWR), Ok(2));
    // A new value shows when the file is read from its start again, not in the middle.
    assert_eq!(read(&session, fh, 1, 4096), b"\n");
    assert_eq!(read(&session, fh, 0, 4096), b"2\n");
    // A second write through the same open file is a separate store.
    assert_eq!(write(&session, fh, 2, b"1", RDWR), Ok(1));
    assert_eq!(tree.values.lock().unwrap()[path], "1\n");
    for (bad, expected) in
        [(&b"7"[..], Errno::INVAL), (b"\xff", Errno::INVAL), (&[b'1'; 4097], Errno::TOOBIG)]
    {
        assert_eq!(write(&session, fh, 0, bad, RDWR), Err(expected));
    }
    assert_eq!(tree.values.lock().unwrap()[path], "1\n");
    assert_eq!(fallocate(&session, fh, 0, 1, 0x03), Some(Errno::OPNOTSUPP));
    assert_eq!(fsync(&session, fh), None);
}

#[test]
fn an_attribute_s_access_is_kept_even_for_root() {
    let (_, _, session) = with_disk();
    let table =
        [("size", [true, false, false]), ("kick", [false, true, false]), ("nomerges", [true; 3])];
    for (name, allowed) in table {
        for (flags, allowed) in [RDONLY, WRONLY, RDWR].into_iter().zip(allowed) {
            let opened = open(&session, &format!("sys/block/md0/{name}"), flags);
            assert_eq!(
                opened.map(|o| o.open_flags),
                if allowed { Ok(abi::fopen::DIRECT_IO) } else { Err(Errno::ACCESS) }
            );
        }
    }
    // An attribute without a value: the namespace's errno.
    let kick = open(&session, "sys/block/md0/kick", WRONLY).unwrap().fh;
    let args = abi::ReadIn { fh: kick, size: 10, ..Default::default() };
    assert_eq!(errno(&call(&session, &message(opcode::READ, 2, &args, &[]))), Some(Errno::IO));
    assert_eq!(open(&session, "dev", RDONLY), Err(Errno::ISDIR));
}

#[test]
fn a_store_that_takes_a_while_is_answered_when_it_has_ended() {
    let (_, tree, session) = with_disk();
    let path = "sys/block/md0/kick";
    let fh = open(&session, path, WRONLY).unwrap().fh;
    assert_eq!(write(&session, fh, 0, b"1\n", WRONLY), Ok(2));
    assert_eq!(write(&session, fh, 0, b"9\n", WRONLY), Err(Errno::INVAL));
    assert_eq!(tree.values.lock().unwrap()[path], "1\n");
}

/// Lists a directory in replies of at most `room` bytes: names, inode numbers, kinds, node ids.
fn list(session: &TestSession, path: &str, room: u32, plus: bool) -> Vec<(String, u64, u32, u64)> {
    let node = if path.is_empty() { abi::ROOT_ID } else { look_up(session, path).unwrap().nodeid };
    let reply = call(session, &message(opcode::OPENDIR, node, &abi::OpenIn::default(), &[]));
    let fh = body::<abi::OpenOut>(&reply).fh;
    let (mut out, mut offset) = (Vec::new(), 0);
    loop {
        let args = abi::ReadIn { fh, offset, size: room, ..Default::default() };
        let code = if plus { opcode::READDIRPLUS } else { opcode::READDIR };
        let reply = call(session, &message(code, node, &args, &[]));
        let mut rest = reply_parts(&reply).1;
        assert!(rest.len() <= room as usize);
        if rest.is_empty() {
            return out;
        }
        while !rest.is_empty() {
            let start = rest.len();
            let mut entry = abi::EntryOut::default();
            if plus {
                (entry, rest) = abi::EntryOut::read_from_prefix(rest).unwrap();
            }
            let (dirent, tail) = abi::Dirent::read_from_prefix(rest).unwrap();
            let (name, tail) = tail.split_at(dirent.namelen as usize);
            let padding = (start - tail.len()).next_multiple_of(8) - (start - tail.len());
            rest = &tail[padding..];
            out.push((
                String::from_utf8(name.to_vec()).unwrap(),
                dirent.ino,
                dirent.kind,
                entry.nodeid,
            ));
            offset = dirent.off;
        }
    }
}

#[test]
fn listings_are_the_same_in_any_number_of_goes() {
    let (_, _, session) = with_disk();
    let whole = list(&session, "sys/block/md0", 65_536, false);
    let names: Vec<_> = whole.iter().map(|e| (e.0.as_str(), e.2)).collect();
    assert_eq!(names, [(".", 4), ("..", 4), ("kick", 8), ("nomerges", 8), ("size", 8)]);
    for room in (40..400).step_by(8) {
        assert_eq!(list(&session, "sys/block/md0", room, false), whole, "room {room}");
    }
    let plus = list(&session, "sys/block/md0", 200, true);
    assert_eq!(plus.len(), whole.len());
    for (a, b) in plus.iter().zip(&whole) {
        assert_eq!((&a.0, a.1, a.2), (&b.0, b.1, b.2));
    }
    // Each entry of a READDIRPLUS counts as a look-up, except `.` and `..`.
    assert_eq!((plus[0].3, plus[1].3), (0, 0));
    assert_eq!(look_up(&session, "sys/block/md0/size").unwrap().nodeid, plus[4].3);
    assert_eq!(
        list(&session, "dev", 4096, false).iter().map(|e| e.2).collect::<Vec<_>>(),
        [4, 4, 10, 8]
    );
    assert_eq!(list(&session, "", 4096, false).len(), 4);
}

#[test]
fn writing_nothing_succeeds_wherever_it_is_and_reaches_no_disk() {
    let (ram, _, session) = with_disk();
    let fh = open(&session, "dev/md0", RDWR).unwrap().fh;
    ram.take_seen();
    for offset in [0, 1, MIB as u64 - 1, MIB as u64, MIB as u64 + 1, u64::MAX] {
        for flags in [0, abi::oflag::DSYNC] {
            assert_eq!(write(&session, fh, offset, &[], flags), Ok(0), "at {offset}");
        }
    }
    assert_eq!(ram.take_seen(), []);
}

#[test]
fn a_listing_that_goes_on_behind_its_end_is_empty_wherever_that_is() {
    let (_, _, session) = with_disk();
    let reply = call(&session, &message(opcode::OPENDIR, 1, &abi::OpenIn::default(), &[]));
    let fh = body::<abi::OpenOut>(&reply).fh;
    for offset in [6, 7, 1 << 32, u64::MAX - 2, u64::MAX - 1, u64::MAX] {
        let args = abi::ReadIn { fh, offset, size: 4096, ..Default::default() };
        let reply = call(&session, &message(opcode::READDIR, 1, &args, &[]));
        assert_eq!(reply_parts(&reply), (0, &[][..]), "at {offset}");
    }
}

#[test]
fn forgotten_nodes_are_stale() {
    let (_, _, session) = with_disk();
    let node = look_up(&session, "dev").unwrap().nodeid;
    let again = look_up(&session, "dev").unwrap().nodeid;
    assert_eq!(node, again);
    let stat = || errno(&call(&session, &message(opcode::GETATTR, node, &[0u64; 2], &[])));
    assert!(call(&session, &message(opcode::FORGET, node, &1u64, &[])).is_empty());
    assert_eq!(stat(), None);
    let batch =
        [abi::ForgetOne { nodeid: node, nlookup: 1 }, abi::ForgetOne { nodeid: 1, nlookup: 9 }];
    let count = abi::BatchForgetIn { count: 2, dummy: 0 };
    assert!(call(&session, &message(opcode::BATCH_FORGET, 0, &count, batch.as_bytes())).is_empty());
    assert_eq!(stat(), Some(Errno::STALE));
}

#[test]
fn statfs_tells_a_loop_device_the_discard_granularity() {
    let limits = Limits {
        max_hw_discard: Sectors(1 << 20),
        discard_granularity_bytes: 65_536,
        ..Limits::default()
    };
    let ram = Ram::with_limits("md0", MIB, limits);
    let (_, session) = session(&[("dev/md0", ram.volume())]);
    let node = look_up(&session, "dev/md0").unwrap().nodeid;
    let statfs: abi::StatfsOut =
        body(&call(&session, &message(opcode::STATFS, node, &[0u8; 0], &[])));
    assert_eq!((statfs.bsize, statfs.blocks), (65_536, 16));
    let root: abi::StatfsOut = body(&call(&session, &message(opcode::STATFS, 1, &[0u8; 0], &[])));
    assert_eq!(root.bsize, 4096);
}

#[test]
fn the_size_ioctl_of_block_devices_works() {
    let (_, _, session) = with_disk();
    let fh = open(&session, "dev/md0", RDONLY).unwrap().fh;
    let ask = |cmd, out_size| {
        let args = abi::IoctlIn { fh, cmd, out_size, ..Default::default() };
        call(&session, &message(opcode::IOCTL, 2, &args, &[]))
    };
    let reply = ask(abi::BLKGETSIZE64, 8);
    assert_eq!(body::<abi::IoctlOut>(&reply).result, 0);
    assert_eq!(reply_parts(&reply).1[16..], (MIB as u64).to_ne_bytes());
    assert_eq!(errno(&ask(abi::BLKGETSIZE64, 4)), Some(Errno::NOTTY));
    assert_eq!(errno(&ask(0x1234, 8)), Some(Errno::NOTTY));
}
