//! I/O on a volume from memory of this process, and its oracle.

use ashlar_zfs::protocol::RemoteSegment;
use ashlar_zfs::zvol::{Peer, Segments, Volume};
use rustix::io::Errno;

/// Random numbers (xorshift64*), reproducible by seed.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub(crate) fn fill(&mut self, memory: &mut [u8]) {
        for word in memory.chunks_mut(8) {
            let random = self.next().to_ne_bytes();
            word.copy_from_slice(&random[..word.len()]);
        }
    }

    /// Whole sectors in a volume: offset and length.
    pub(crate) fn range(&mut self, volsize_bytes: u64, most_bytes: u64) -> (u64, usize) {
        let offset = self.below(volsize_bytes / 512) * 512;
        let len = (self.below(most_bytes / 512) + 1) * 512;
        (offset, len.min(volsize_bytes - offset) as usize)
    }
}

/// Memory as segments, cut at sectors if there is `random`.
pub(crate) fn cut(memory: &mut [u8], random: Option<&mut Random>) -> Vec<RemoteSegment> {
    let mut list = Vec::new();
    let mut rest = memory;
    let mut random = random;
    while !rest.is_empty() {
        let len = match &mut random {
            // A request has at most 1024 segments.
            Some(random) if list.len() < 1000 => {
                ((random.below(8) + 1) * 512).min(rest.len() as u64) as usize
            }
            _ => rest.len(),
        };
        let (head, tail) = rest.split_at_mut(len);
        list.push(RemoteSegment { address: head.as_mut_ptr() as u64, len_bytes: len as u64 });
        rest = tail;
    }
    list
}

/// One write from one segment.
pub(crate) fn write(
    volume: &Volume,
    offset_bytes: u64,
    data: &[u8],
    fua: bool,
) -> Result<(), Errno> {
    let mut memory = data.to_vec();
    let mut segments = Segments::new(Peer::this(), cut(&mut memory, None));
    volume.write(offset_bytes, data.len() as u64, &mut segments, fua)
}

/// One read to one segment.
pub(crate) fn read(volume: &Volume, offset_bytes: u64, len_bytes: usize) -> Result<Vec<u8>, Errno> {
    let mut memory = vec![0xee; len_bytes];
    let mut segments = Segments::new(Peer::this(), cut(&mut memory, None));
    volume.read(offset_bytes, len_bytes as u64, &mut segments)?;
    Ok(memory)
}

/// Compares a range, and reports the first difference.
pub(crate) fn assert_same(got: &[u8], expected: &[u8], what: &str) {
    assert_eq!(got.len(), expected.len());
    // Without optimisation, this is a hundred times faster than to compare bytes one by one.
    if got == expected {
        return;
    }
    if let Some(at) = got.iter().zip(expected).position(|(got, expected)| got != expected) {
        panic!("{what}: byte {at} is {:#x}, not {:#x}", got[at], expected[at]);
    }
}

/// Compares the whole volume with the oracle.
pub(crate) fn assert_volume(volume: &Volume, oracle: &[u8]) {
    for (at, expected) in oracle.chunks(1 << 20).enumerate() {
        let got = read(volume, (at as u64) << 20, expected.len()).unwrap();
        assert_same(&got, expected, &format!("MiB {at}"));
    }
}

/// Makes one random change of a volume, and of the oracle.
pub(crate) fn change(
    volume: &Volume,
    oracle: &mut [u8],
    random: &mut Random,
    most_bytes: u64,
    fua: bool,
) {
    let (offset, len) = random.range(oracle.len() as u64, most_bytes);
    let range = offset as usize..offset as usize + len;
    match random.below(10) {
        0 => {
            volume.discard(offset, len as u64, fua).unwrap();
            let block = u64::from(volume.volblocksize_bytes());
            let start = offset.next_multiple_of(block) as usize;
            let end = range.end & !(block as usize - 1);
            if start < end {
                oracle[start..end].fill(0);
            }
        }
        1 => {
            volume.write_zeroes(offset, len as u64, fua).unwrap();
            oracle[range].fill(0);
        }
        _ => {
            random.fill(&mut oracle[range.clone()]);
            let mut memory = oracle[range].to_vec();
            let list = cut(&mut memory, Some(random));
            let mut segments = Segments::new(Peer::this(), list);
            volume.write(offset, len as u64, &mut segments, fua).unwrap();
        }
    }
}
