//! What every disk on the network must do; the tests of other crates with such disks use this file, too.

use ashlar_block::bio::Flags;
use ashlar_block::{Bio, BioResult, Buffer, Gateway, Sector, Sectors};
use futures_util::future::join_all;

const MIB: usize = 1 << 20;

/// Runs on a reactor.
pub(crate) fn run<T>(work: impl Future<Output = T>) -> T {
    ashlar_engine::Reactor::new(Default::default()).unwrap().block_on(work)
}

/// Writes a block of 4 KiB.
pub(crate) async fn write(disk: &Gateway, sector: u64, byte: u8) -> BioResult {
    let mut data = Buffer::from_slice(&[byte; 4096]);
    disk.submit(Bio::write_from(Sector(sector), &mut data)).await
}

/// Random numbers (xorshift64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// A change of sectors.
#[derive(Clone, Copy)]
pub(crate) enum Change {
    Zero(Flags),
    /// To zeroes, on a disk that does that.
    #[allow(dead_code, reason = "not every kind of disk promises that")]
    Discard,
    Write(Flags),
}

/// Random changes in batches of several at a time, and reads of all of it, on a disk of 8 MiB with zeroes. `change` gives the
/// change for a part, which is a MiB, and stays in that part.
pub(crate) async fn compare(
    disk: &Gateway,
    seed: u64,
    change: impl Fn(&mut Random, u64) -> (Sector, Sectors, Change),
) {
    let block = disk.disk().limits().logical_block();
    let mut random = Random(seed);
    let mut model = vec![0_u8; 8 * MIB];
    for round in 0..20_u64 {
        let changes: Vec<_> = (0..8_u64)
            .map(|part| {
                let (sector, len, change) = change(&mut random, part);
                (sector, len, change, (round * 8 + part) as u8 | 1)
            })
            .collect();
        join_all(changes.iter().map(async |(sector, len, change, byte)| {
            let mut data = Buffer::from_slice(&vec![*byte; len.bytes() as usize]);
            let bio = match change {
                Change::Zero(flags) => Bio::write_zeroes(*sector, *len).with_flags(*flags),
                Change::Discard => Bio::discard(*sector, *len),
                Change::Write(flags) => Bio::write_from(*sector, &mut data).with_flags(*flags),
            };
            disk.submit(bio).await.unwrap();
        }))
        .await;
        for (sector, len, change, byte) in changes {
            let at = sector.bytes() as usize;
            let byte = if matches!(change, Change::Write(_)) { byte } else { 0 };
            model[at..at + len.bytes() as usize].fill(byte);
        }
        if round % 3 == 0 {
            disk.flush().await.unwrap();
        }
        let at = random.below(7 * 2048 / block.0) * block.0;
        let read = disk.read(Sector(at), Sectors(2048)).await.unwrap();
        let at = at as usize * 512;
        assert!(read.as_slice() == &model[at..at + MIB], "round {round}");
    }
    let reads = (0..8).map(|part| disk.read(Sector(part * 2048), Sectors(2048)));
    for (part, read) in join_all(reads).await.into_iter().enumerate() {
        assert!(read.unwrap().as_slice() == &model[part * MIB..(part + 1) * MIB], "part {part}");
    }
}

/// Four threads write to parts of their own, and read their data.
pub(crate) fn share(disk: &Gateway) {
    let writer = |part: u64| {
        let disk = disk.clone();
        std::thread::spawn(move || {
            run(async {
                for round in 0..100_u64 {
                    let sector = part * 4096 + round * 8;
                    write(&disk, sector, (round + part) as u8).await.unwrap();
                }
                disk.flush().await.unwrap();
                for round in 0..100_u64 {
                    let sector = Sector(part * 4096 + round * 8);
                    let read = disk.read(sector, Sectors(8)).await.unwrap();
                    assert!(read.as_slice() == [(round + part) as u8; 4096]);
                }
            });
        })
    };
    let threads: Vec<_> = (0..4).map(writer).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}
