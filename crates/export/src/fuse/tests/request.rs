//! Parsing: every opcode from handmade bytes, and invalid bytes.

use super::super::abi::{self, opcode};
use super::super::request::{Operation, Request};
use super::*;

/// The bytes of 32-bit words in the machine's byte order.
fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn longs(longs: &[u64]) -> Vec<u8> {
    longs.iter().flat_map(|long| long.to_ne_bytes()).collect()
}

/// A message built field by field, without the structures under test.
fn raw(opcode: u32, args: &[u8]) -> Vec<u8> {
    let mut out = words(&[40 + args.len() as u32, opcode]);
    out.extend(longs(&[UNIQUE, 99]));
    out.extend(words(&[1000, 100, 4242, 0]));
    out.extend_from_slice(args);
    out
}

fn parse(bytes: &[u8]) -> Operation<'_> {
    let request = Request::parse(bytes, 0).expect("well-formed");
    assert_eq!((request.unique, request.node), (UNIQUE, 99));
    request.op
}

#[test]
fn every_opcode_is_understood_at_its_offsets() {
    let init = words(&[7, 45, 131_072, 0x4000_0021, 1 << 4]);
    assert_eq!(
        parse(&raw(26, &init)),
        Operation::Init { version: (7, 45), flags: 0x10_4000_0021, max_readahead: 131_072 }
    );
    // Before 7.36 there is no second word of flags, and the parser must not read it.
    assert_eq!(
        parse(&raw(26, &words(&[7, 31, 4096, 0x21]))),
        Operation::Init { version: (7, 31), flags: 0x21, max_readahead: 4096 }
    );
    assert_eq!(parse(&raw(1, b"md0\0")), Operation::Lookup { name: b"md0" });
    assert_eq!(parse(&raw(2, &longs(&[3]))), Operation::Forget { lookups: 3 });
    assert_eq!(parse(&raw(3, &longs(&[0, 0]))), Operation::GetAttr);
    let mut set = words(&[1 << 3 | 1 << 6, 0]);
    set.extend(longs(&[5, 123_456, 0, 0, 0, 0, 0, 0, 0, 0]));
    assert_eq!(
        parse(&raw(4, &set)),
        Operation::SetAttr { owner_or_mode: false, size: Some(123_456), fh: Some(5) }
    );
    for bit in 0..3 {
        set[..4].copy_from_slice(&(1u32 << bit).to_ne_bytes());
        assert_eq!(
            parse(&raw(4, &set)),
            Operation::SetAttr { owner_or_mode: true, size: None, fh: None }
        );
    }
    assert_eq!(parse(&raw(5, &[])), Operation::ReadLink);
    assert_eq!(parse(&raw(14, &words(&[0o2, 0]))), Operation::Open { flags: 0o2 });
    let io = [longs(&[5, 8192]), words(&[4096, 0]), longs(&[0]), words(&[0, 0])].concat();
    assert_eq!(parse(&raw(15, &io)), Operation::Read { fh: 5, offset: 8192, size: 4096 });
    for (plus, code) in [(false, 28), (true, 44)] {
        assert_eq!(
            parse(&raw(code, &io)),
            Operation::ReadDir { fh: 5, offset: 8192, size: 4096, plus }
        );
    }
    assert_eq!(parse(&raw(17, &[])), Operation::StatFs);
    assert_eq!(parse(&raw(18, &longs(&[5, 0, 0]))), Operation::Release { fh: 5 });
    assert_eq!(parse(&raw(20, &longs(&[5, 1]))), Operation::Fsync { fh: 5 });
    assert_eq!(parse(&raw(25, &longs(&[5, 0, 0]))), Operation::Flush);
    assert_eq!(parse(&raw(27, &words(&[0, 0]))), Operation::OpenDir);
    assert_eq!(parse(&raw(29, &longs(&[5, 0, 0]))), Operation::ReleaseDir { fh: 5 });
    assert_eq!(parse(&raw(30, &longs(&[5, 0]))), Operation::FsyncDir);
    assert_eq!(parse(&raw(36, &longs(&[77]))), Operation::Interrupt);
    assert_eq!(parse(&raw(38, &[])), Operation::Destroy);
    let ioctl = [longs(&[5]), words(&[0, abi::BLKGETSIZE64]), longs(&[0]), words(&[0, 8])].concat();
    assert_eq!(
        parse(&raw(39, &ioctl)),
        Operation::Ioctl { fh: 5, cmd: abi::BLKGETSIZE64, out_size: 8 }
    );
    let hole = [longs(&[5, 4096, 8192]), words(&[3, 0])].concat();
    assert_eq!(
        parse(&raw(43, &hole)),
        Operation::Fallocate { fh: 5, offset: 4096, length: 8192, mode: 3 }
    );
    for code in [6, 8, 9, 10, 11, 12, 13, 35, 45] {
        assert_eq!(parse(&raw(code, b"x\0")), Operation::ChangeTree);
    }
    for code in
        [0, 7, 19, 21, 22, 23, 24, 31, 32, 33, 34, 37, 40, 41, 46, 47, 48, 51, 52, 4096, u32::MAX]
    {
        assert_eq!(parse(&raw(code, b"abc")), Operation::Unknown(code));
    }
}

#[test]
fn a_write_is_followed_by_its_payload() {
    for (flags, sync) in
        [(0, false), (0o1, false), (0o10_000, true), (0o4_010_000, true), (0o40_000, false)]
    {
        let args = [longs(&[5, 512]), words(&[1000, 0]), longs(&[0]), words(&[flags, 0])].concat();
        let mut bytes = raw(16, &args);
        bytes[..4].copy_from_slice(&1080u32.to_ne_bytes());
        let request = Request::parse(&bytes, 1000).unwrap();
        assert_eq!(request.op, Operation::Write { fh: 5, offset: 512, size: 1000, sync });
        // A length that contradicts the header, the arguments or the payload.
        assert!(Request::parse(&bytes, 999).is_err());
        bytes[..4].copy_from_slice(&1081u32.to_ne_bytes());
        assert!(Request::parse(&bytes, 1001).is_err());
    }
}

#[test]
fn batches_of_forgets_are_bounded_by_the_message() {
    let mut args = words(&[2, 0]);
    args.extend(longs(&[10, 1, 11, 5]));
    let message = raw(42, &args);
    let Operation::BatchForget { list } = parse(&message) else { panic!("not a batch") };
    assert_eq!(list.iter().collect::<Vec<_>>(), [(10, 1), (11, 5)]);
    for count in [3, u32::MAX] {
        args[..4].copy_from_slice(&count.to_ne_bytes());
        let malformed = Request::parse(&raw(42, &args), 0).unwrap_err();
        // A FORGET must not be answered, not even with an error.
        assert_eq!(malformed.unique, None);
    }
}

#[test]
fn every_truncation_is_refused_and_answerable_once_the_header_is_there() {
    let fixed = [1, 4, 14, 15, 16, 18, 20, 26, 28, 39, 43, 44];
    for code in fixed {
        for len in 0..40 {
            assert_eq!(Request::parse(&raw(code, &[])[..len], 0).unwrap_err().unique, None);
        }
        let malformed = Request::parse(&raw(code, &[]), 0).unwrap_err();
        assert_eq!((malformed.unique, malformed.opcode), (Some(UNIQUE), code));
    }
    for name in [&b""[..], b"\0", b"no end"] {
        assert!(Request::parse(&raw(1, name), 0).is_err());
    }
}

#[test]
fn random_bytes_never_panic() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let (tree, session) = session(&[]);
    for round in 0..200_000 {
        let len = (next() % 200) as usize;
        let mut bytes: Vec<u8> = (0..len).map(|_| next() as u8).collect();
        if round % 4 != 0 && len >= 24 {
            // Plausible: the correct length, a known opcode, a small node id.
            bytes[..4].copy_from_slice(&(len as u32).to_ne_bytes());
            bytes[4..8].copy_from_slice(&((next() % 54) as u32).to_ne_bytes());
            bytes[16..24].copy_from_slice(&(next() % 4).to_ne_bytes());
        }
        if let Ok(request) = Request::parse(&bytes, 0) {
            drop(session.handle(&request, &[]));
        }
    }
    drop(tree);
}

#[test]
fn structures_have_the_kernel_s_field_offsets() {
    use std::mem::offset_of;
    assert_eq!(offset_of!(abi::InHeader, unique), 8);
    assert_eq!(offset_of!(abi::InHeader, total_extlen), 36);
    assert_eq!(offset_of!(abi::SetAttrIn, size), 16);
    assert_eq!(offset_of!(abi::SetAttrIn, mode), 68);
    assert_eq!(offset_of!(abi::SetAttrIn, uid), 76);
    assert_eq!(offset_of!(abi::Attr, mode), 60);
    assert_eq!(offset_of!(abi::Attr, blksize), 80);
    assert_eq!(offset_of!(abi::EntryOut, attr), 40);
    assert_eq!(offset_of!(abi::InitOut, max_write), 20);
    assert_eq!(offset_of!(abi::InitOut, max_pages), 28);
    assert_eq!(offset_of!(abi::InitOut, flags2), 32);
    assert_eq!(offset_of!(abi::StatfsOut, bsize), 40);
    assert_eq!(offset_of!(abi::FallocateIn, mode), 24);
    assert_eq!(abi::WRITE_HEAD, 80);
    assert_eq!(abi::BLKGETSIZE64, 0x8008_1272);
    assert_eq!(message(opcode::GETATTR, 99, &[0u64; 2], &[]).len(), 56);
}
