//! Volumes on real libzpool, driven in this process.

mod pool;

use ashlar_zfs::protocol::RemoteSegment;
use ashlar_zfs::zvol::{Peer, Segments, Volume};
use pool::{Directory, NewVolume, assert_clean, zpool};
use rustix::io::Errno;

const MIB: u64 = 1 << 20;

/// Memory of this process as segments of the given lengths, over and over.
fn segments_of(memory: &mut [u8], lengths: &[usize]) -> Segments {
    let mut lengths = lengths.iter().cycle();
    let mut list = Vec::new();
    let mut rest = memory;
    while !rest.is_empty() {
        let length = (*lengths.next().unwrap()).min(rest.len());
        let (head, tail) = rest.split_at_mut(length);
        list.push(RemoteSegment { address: head.as_mut_ptr() as u64, len_bytes: length as u64 });
        rest = tail;
    }
    Segments::new(Peer::this(), list)
}

fn write(volume: &Volume, offset_bytes: u64, data: &[u8], fua: bool) -> Result<(), Errno> {
    let mut memory = data.to_vec();
    let mut segments = segments_of(&mut memory, &[data.len()]);
    volume.write(offset_bytes, data.len() as u64, &mut segments, fua)
}

fn read(volume: &Volume, offset_bytes: u64, len_bytes: usize) -> Result<Vec<u8>, Errno> {
    let mut memory = vec![0xee; len_bytes];
    let mut segments = segments_of(&mut memory, &[len_bytes]);
    volume.read(offset_bytes, len_bytes as u64, &mut segments)?;
    Ok(memory)
}

#[test]
fn what_is_written_is_read_and_nothing_more() {
    let Some(zpool) = zpool() else { return };
    let directory = Directory::new("basic");
    zpool.create_pool("basic", &[directory.file("disk", 256 * MIB)], false);
    let new = NewVolume { name: "basic/vol", volsize_bytes: 64 * MIB, volblocksize_bytes: 16384 };
    zpool.create_volume(&new, &[]);
    let volume = Volume::open(&zpool.library, "basic/vol", false).unwrap();
    assert_eq!((volume.volsize_bytes(), volume.volblocksize_bytes()), (64 * MIB, 16384));
    assert!(!volume.is_read_only());
    // Larger than a transaction may be, and not aligned.
    let data: Vec<u8> = (0..40 * MIB as usize).map(|at| (at / 512 % 251 + 1) as u8).collect();
    write(&volume, 512 * 3, &data, false).unwrap();
    volume.flush().unwrap();
    assert!(read(&volume, 512 * 3, data.len()).unwrap() == data);
    assert_eq!(read(&volume, 0, 512 * 3).unwrap(), vec![0; 512 * 3]);
    assert_eq!(read(&volume, 512 * 3 + data.len() as u64, 4096).unwrap(), vec![0; 4096]);
    // Only whole blocks are discarded; zeroes are written everywhere.
    volume.discard(16384 + 512, 3 * 16384, false).unwrap();
    let after = read(&volume, 16384, 4 * 16384).unwrap();
    let before = &data[16384 - 512 * 3..][..4 * 16384];
    assert!(after[..16384] == before[..16384] && after[3 * 16384..] == before[3 * 16384..]);
    assert!(after[16384..3 * 16384].iter().all(|byte| *byte == 0));
    volume.write_zeroes(MIB + 512, 100_352, true).unwrap();
    let after = read(&volume, MIB, 256 * 1024).unwrap();
    let mut expected = data[MIB as usize - 512 * 3..][..256 * 1024].to_vec();
    expected[512..512 + 100_352].fill(0);
    assert!(after == expected);
    // The end, and beyond.
    write(&volume, 64 * MIB - 512, &[9; 512], true).unwrap();
    assert_eq!(read(&volume, 64 * MIB - 512, 512).unwrap(), [9; 512]);
    for (offset, len) in [(64 * MIB - 512, 1024), (64 * MIB, 512), (u64::MAX - 511, 1024)] {
        assert_eq!(write(&volume, offset, &vec![1; len], false).unwrap_err(), Errno::IO);
        assert_eq!(read(&volume, offset, len).unwrap_err(), Errno::IO);
        assert_eq!(volume.discard(offset, len as u64, false).unwrap_err(), Errno::IO);
        assert_eq!(volume.write_zeroes(offset, len as u64, false).unwrap_err(), Errno::IO);
    }
    drop(volume);
    zpool.export("basic");
    assert_clean("basic", &directory.0);
}
