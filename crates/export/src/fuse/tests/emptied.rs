//! Volumes that are opened with O_TRUNC.

use super::super::abi::{self, opcode};
use super::session::{
    MIB, RDONLY, TestSession, WRONLY, call, fallocate, look_up, read, with_disk, write,
};
use super::*;

const O_TRUNC: u32 = 0o1000;
const VOLUME: &str = "dev/md0";

/// A message of the thread `pid`.
fn by(pid: u32, mut message: Vec<u8>) -> Vec<u8> {
    message[32..36].copy_from_slice(&pid.to_ne_bytes());
    message
}

fn open_by(session: &TestSession, pid: u32, flags: u32) -> u64 {
    let node = look_up(session, VOLUME).unwrap().nodeid;
    let args = abi::OpenIn { flags, open_flags: 0 };
    body::<abi::OpenOut>(&call(session, &by(pid, message(opcode::OPEN, node, &args, &[])))).fh
}

/// Sets the size, by the thread `pid`, through a handle or without one.
fn resize(session: &TestSession, pid: u32, fh: Option<u64>, size: u64) -> Result<u64, Errno> {
    let node = look_up(session, VOLUME).unwrap().nodeid;
    let valid = abi::fattr::SIZE | fh.map_or(0, |_| abi::fattr::FH);
    let args = abi::SetAttrIn { valid, size, fh: fh.unwrap_or(0), ..Default::default() };
    let reply = call(session, &by(pid, message(opcode::SETATTR, node, &args, &[])));
    errno(&reply).map_or_else(|| Ok(body::<abi::AttrOut>(&reply).attr.size), Err)
}

/// A session with a volume that is full of sevens, and all of its bytes.
fn full() -> (TestSession, impl Fn(&TestSession) -> Vec<u8>) {
    let (_, _, session) = with_disk();
    let fh = open_by(&session, 1, WRONLY);
    assert_eq!(write(&session, fh, 0, &vec![7; MIB], 0), Ok(MIB as u32));
    (session, |session: &TestSession| {
        let fh = open_by(session, 1, RDONLY);
        read(session, fh, 0, MIB as u32)
    })
}

#[test]
fn what_an_opener_goes_past_reads_as_zeroes_and_the_rest_stays() {
    let (session, bytes) = full();
    let fh = open_by(&session, 9, WRONLY | O_TRUNC);
    assert_eq!(resize(&session, 9, None, 0), Ok(MIB as u64));
    assert_eq!(bytes(&session), vec![7; MIB], "an open changed something");
    let mut expected = vec![7; MIB];
    assert_eq!(write(&session, fh, 8100, &[1; 1000], 0), Ok(1000));
    expected[..8100].fill(0);
    expected[8100..9100].fill(1);
    assert!(bytes(&session) == expected);
    // A write at a lower offset leaves the opener's earlier data.
    assert_eq!(write(&session, fh, 100, &[2; 50], 0), Ok(50));
    expected[100..150].fill(2);
    assert!(bytes(&session) == expected);
    assert_eq!(fallocate(&session, fh, 20_000, 4096, 0x11), None);
    expected[9100..24_096].fill(0);
    assert!(bytes(&session) == expected);
    assert_eq!(resize(&session, 9, Some(fh), 4096), Err(Errno::INVAL));
    assert!(bytes(&session) == expected);
    // As large as it is, but of zeroes.
    assert_eq!(resize(&session, 9, Some(fh), MIB as u64), Ok(MIB as u64));
    expected[24_096..].fill(0);
    assert!(bytes(&session) == expected);
}

#[test]
fn only_the_opener_that_empties_a_volume_finds_it_empty() {
    let (session, bytes) = full();
    let other = open_by(&session, 8, WRONLY);
    let first = open_by(&session, 9, WRONLY);
    open_by(&session, 9, WRONLY | O_TRUNC);
    assert_eq!(resize(&session, 9, None, 0), Ok(MIB as u64));
    let mut expected = vec![7; MIB];
    for (fh, at) in [(other, 4096), (first, 8192)] {
        assert_eq!(write(&session, fh, at, &[1; 512], 0), Ok(512));
        expected[at as usize..][..512].fill(1);
        assert_eq!(resize(&session, 9, Some(fh), MIB as u64), Ok(MIB as u64));
    }
    assert!(bytes(&session) == expected);
}

#[test]
fn a_truncation_that_is_no_part_of_an_open_is_refused() {
    let (session, bytes) = full();
    let fh = open_by(&session, 9, WRONLY);
    assert_eq!(resize(&session, 9, Some(fh), 0), Err(Errno::INVAL));
    assert_eq!(resize(&session, 10, None, 0), Err(Errno::INVAL));
    let unknown = open_by(&session, 0, WRONLY | O_TRUNC);
    assert_eq!(resize(&session, 0, None, 0), Err(Errno::INVAL));
    open_by(&session, 11, RDONLY);
    assert_eq!(resize(&session, 11, None, 0), Err(Errno::INVAL));
    assert_eq!(resize(&session, 9, None, 4096), Err(Errno::INVAL));
    for fh in [fh, unknown] {
        assert_eq!(write(&session, fh, 512, &[7; 512], 0), Ok(512));
    }
    assert!(bytes(&session) == vec![7; MIB]);
}
