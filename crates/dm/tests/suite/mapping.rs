//! Mapping: every mapping target, compared with a table of individual sectors.

use crate::common::{device, disks, disks_with, gateway, media, stamp, stamped, table, write};
use ashlar_block::{Bio, Flags, Limits, Op, Sector, Sectors, Status};
use ashlar_sim::{DiscardReads, Media, Rng, Sim, seeds};

const DISK: u64 = 4096;

/// A table as text, and the disk and sector for each sector of the device.
struct DrawnTable {
    text: String,
    places: Vec<(usize, u64)>,
}

/// A random table whose pieces use areas of the disks that do not overlap.
fn draw(rng: &mut Rng, disks: usize) -> DrawnTable {
    let mut drawn = DrawnTable { text: String::new(), places: Vec::new() };
    let mut used = vec![0; disks];
    let area = |used: &mut Vec<u64>, disk: usize, gap: u64, len: u64| {
        let start = used[disk] + gap;
        used[disk] = start + len;
        start
    };
    for _ in 0..1 + rng.below(4) {
        let start = drawn.places.len();
        let (len, words) = if rng.chance(1, 2) {
            let (disk, len) = (rng.index(disks), 1 + rng.below(200));
            let from = area(&mut used, disk, rng.below(20), len);
            drawn.places.extend((0..len).map(|i| (disk, from + i)));
            (len, format!("linear d{disk} {from}"))
        } else {
            let stripes = 1 + rng.below(disks as u64);
            let (chunk, rows) = (1 + rng.below(24), 1 + rng.below(8));
            let from: Vec<u64> = (0..stripes as usize)
                .map(|disk| area(&mut used, disk, rng.below(20), chunk * rows))
                .collect();
            for row in 0..rows {
                for (disk, from) in from.iter().enumerate() {
                    let at = from + row * chunk;
                    drawn.places.extend((at..at + chunk).map(|sector| (disk, sector)));
                }
            }
            let areas: String =
                from.iter().enumerate().map(|(d, from)| format!(" d{d} {from}")).collect();
            (rows * chunk * stripes, format!("striped {stripes} {chunk}{areas}"))
        };
        drawn.text += &format!("{start} {len} {words}\n");
    }
    drawn
}

#[test]
fn random_tables_put_each_sector_where_the_oracle_has_it() {
    for seed in seeds(60) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let drawn = draw(&mut rng, 3);
        let size = drawn.places.len() as u64;
        let media: Vec<Media> = media(3, DISK);
        media.iter().for_each(|medium| medium.set_discard_reads(DiscardReads::Zeroes));
        let mut model = vec![[0; 512]; drawn.places.len()];
        sim.block_on(async {
            let device = device(&sim, &disks(&media), &drawn.text).await;
            assert_eq!(device.table(), drawn.text);
            let volume = gateway(&device);
            assert_eq!(volume.capacity(), Sectors(size));
            for generation in 1..60 {
                let at = rng.below(size);
                let len = 1 + rng.below((size - at).min(120));
                let range = at as usize..(at + len) as usize;
                match rng.below(5) {
                    0 => {
                        let bio = Bio::discard(Sector(at), Sectors(len));
                        volume.submit(bio).await.expect("a discard");
                        model[range].fill([0; 512]);
                    }
                    1 => {
                        let bio = Bio::write_zeroes(Sector(at), Sectors(len));
                        volume.submit(bio).await.expect("zeroes");
                        model[range].fill([0; 512]);
                    }
                    2 => {
                        let got = volume.read(Sector(at), Sectors(len)).await.expect("a read");
                        assert_eq!(got.as_slice(), model[range].concat());
                    }
                    _ => {
                        write(&volume, at, len, generation, Flags::empty()).await;
                        for (sector, data) in range.clone().zip(&mut model[range]) {
                            *data = stamp(sector as u64, generation);
                        }
                    }
                }
            }
        });
        let mut untouched = vec![vec![true; DISK as usize]; 3];
        for ((disk, sector), want) in drawn.places.iter().zip(&model) {
            assert_eq!(&media[*disk].peek(Sector(*sector)), want, "seed {seed}: d{disk} {sector}");
            untouched[*disk][*sector as usize] = false;
        }
        for (medium, untouched) in media.iter().zip(untouched) {
            for (sector, _) in untouched.iter().enumerate().filter(|(_, untouched)| **untouched) {
                assert_eq!(medium.peek(Sector(sector as u64)), [0; 512], "seed {seed}: {sector}");
            }
        }
    }
}

#[test]
fn a_long_discard_is_one_command_on_each_stripe() {
    let (sim, media) = (Sim::new(1), media(3, DISK));
    sim.block_on(async {
        let text = "0 3072 striped 3 8 d0 0 d1 64 d2 128";
        let volume = gateway(&device(&sim, &disks(&media), text).await);
        volume.submit(Bio::discard(Sector(20), Sectors(3000))).await.expect("a discard");
        volume.submit(Bio::write_zeroes(Sector(20), Sectors(3000))).await.expect("zeroes");
    });
    for medium in &media {
        let ops: Vec<Op> = medium.log().iter().map(|command| command.op).collect();
        assert_eq!(ops, [Op::Discard, Op::WriteZeroes]);
    }
}

#[test]
fn discards_need_every_piece_and_every_stripe() {
    for text in ["0 64 linear d0 0\n64 64 linear d1 0", "0 128 striped 2 8 d0 0 d1 0"] {
        for without in [None, Some(0), Some(1)] {
            let (sim, media) = (Sim::new(1), media(2, DISK));
            sim.block_on(async {
                let disks = disks_with(&media, |index, limits| match without {
                    Some(n) if n == index => Limits { max_hw_discard: Sectors::ZERO, ..limits },
                    Some(_) | None => limits,
                });
                let volume = gateway(&device(&sim, &disks, text).await);
                let result = volume.submit(Bio::discard(Sector(0), Sectors(128))).await;
                let want = if without.is_some() { Err(Status::NotSupported) } else { Ok(()) };
                assert_eq!(result, want, "{text} without {without:?}");
            });
        }
    }
}

#[test]
fn errors_pass_with_their_status_and_only_to_those_they_concern() {
    for text in ["0 256 linear d0 100", "0 256 striped 2 8 d0 100 d1 100"] {
        let (sim, media) = (Sim::new(2), media(2, DISK));
        media[0].fail_reads(100..101);
        media[0].fail_writes(102..103);
        sim.block_on(async {
            let device = device(&sim, &disks(&media), text).await;
            let volume = gateway(&device);
            let read = volume.read(Sector(0), Sectors(256)).await.map(drop);
            assert_eq!(read, Err(Status::Medium), "{text}");
            let mut data = ashlar_block::Buffer::from_slice(&stamped(0, 8, 1));
            let result = volume.write(Sector(0), &mut data, Flags::empty()).await;
            assert_eq!(result, Err(Status::Io), "{text}");
            volume.read(Sector(8), Sectors(8)).await.expect("another chunk");
            write(&volume, 8, 8, 1, Flags::empty()).await;
            if text.contains("striped") {
                assert_eq!(device.status(), "0 256 striped 2 d0 d1 1 DA\n");
            }
        });
    }
}

#[test]
fn holes_fail_and_zeroes_are_zero_beside_data_that_is_neither() {
    let (sim, media) = (Sim::new(3), media(1, DISK));
    sim.block_on(async {
        let text = "0 8 linear d0 0\n8 8 error \n16 8 zero \n24 8 linear d0 8\n";
        let device = device(&sim, &disks(&media), text).await;
        assert_eq!(device.table(), text);
        assert_eq!(device.status(), "0 8 linear \n8 8 error \n16 8 zero \n24 8 linear \n");
        let volume = gateway(&device);
        for at in [0, 16, 24] {
            write(&volume, at, 8, 1, Flags::empty()).await;
        }
        let read = async |at| volume.read(Sector(at), Sectors(8)).await;
        assert_eq!(read(0).await.expect("data").as_slice(), stamped(0, 8, 1));
        assert_eq!(read(24).await.expect("data").as_slice(), stamped(24, 8, 1));
        assert_eq!(read(16).await.expect("zeroes").as_slice(), [0; 4096]);
        assert_eq!(read(8).await.map(drop), Err(Status::Io));
        assert_eq!(read(4).await.map(drop), Err(Status::Io));
        volume.flush().await.expect("holes need no flush");
    });
}

#[test]
fn a_table_that_cannot_be_is_refused_and_told_why() {
    let cases = [
        ("", "the table is empty"),
        ("1 8 zero", "piece 1 starts at 1, but must at 0"),
        ("0 8 zero\n9 8 zero", "piece 2 starts at 9, but must at 8"),
        ("0 8 zero\n0 8 zero", "piece 2 starts at 0, but must at 8"),
        ("0 0 zero", "piece 1 is empty"),
        ("0 36028797018963968 zero", "piece 1 ends beyond 2^64 bytes"),
        ("0 8 zero\n8 18446744073709551615 zero", "piece 2 ends beyond"),
        ("0 8 none", "there is no target 'none', only delay, error, flakey, linear"),
        ("0 8 zero d0", "zero: 'd0' is one argument too many"),
        ("0 8 linear", "linear: the device is missing"),
        ("0 8 linear d0", "linear: the offset is missing"),
        ("0 8 linear d0 x", "the offset is 'x', but must be a number of at most 64 bits"),
        ("0 8 linear d0 0 0", "'0' is one argument too many"),
        ("0 8 linear d9 0", "there is no device 'd9'"),
        ("0 8 linear d0 4089", "device d0 is smaller: it has 4096 sectors, 8 from 4089"),
        ("0 8 linear d0 18446744073709551615", "device d0 is smaller"),
        ("0 8 linear d1 4", "the offset 4 is not a multiple of the 8 sectors of a block"),
        ("0 12 linear d1 0", "the length 12 is not a multiple of the 8 sectors"),
        ("0 4 linear d0 0\n4 8 linear d1 0", "piece 2 does not begin on a block of 8"),
        ("0 8 linear d1 0\n8 4 linear d0 0", "piece 3 does not begin on a block of 8"),
        ("0 8 striped 0 8", "must not be 0"),
        ("0 8 striped 1 0 d0 0", "must not be 0"),
        ("0 8 striped 4294967295 8 d0 0", "the device and offset of a stripe is missing"),
        ("0 8 striped 4294967296 8 d0 0", "must be a number of at most 32 bits"),
        ("0 12 striped 1 8 d0 0", "the length 12 is not a multiple of a row"),
        ("0 24 striped 2 8 d0 0 d2 0", "not a multiple of a row, 2 chunks of 8"),
        ("0 16 striped 2 8 d0 0 d2 0 d0", "one argument too many"),
        ("0 16 striped 2 4 d0 0 d1 0", "the chunk size 4 is not a multiple"),
        ("0 8 delay d0 0", "the delay is missing"),
        ("0 8 delay d0 0 5 d0", "the offset is missing"),
        ("0 8 delay d0 0 5 d0 0 5 d0 0 5 6", "one argument too many"),
        ("0 8 flakey d0 0 0 0", "one of the intervals must not be 0"),
        ("0 8 flakey d0 0 1 1 1", "1 words of features are announced, 0 given"),
        ("0 8 flakey d0 0 1 1 1 x", "there is no feature 'x'"),
        ("0 8 flakey d0 0 1 1 2 drop_writes drop_writes", "is given twice"),
        ("0 8 flakey d0 0 1 1 2 drop_writes error_writes", "choose one"),
        ("0 8 flakey d0 0 1 1 5 corrupt_bio_byte 0 r 1 0", "counted from 1"),
        ("0 8 flakey d0 0 1 1 5 corrupt_bio_byte 1 x 1 0", "must be r or w"),
        ("0 8 flakey d0 0 1 1 5 corrupt_bio_byte 1 r 256 0", "of at most 8 bits"),
        ("0 8 flakey d0 0 1 1 2 random_read_corrupt 1000000001", "which is certainty"),
        ("0 8 log-writes d0", "the log device is missing"),
        ("0 8 log-writes d0 d1", "not a multiple of the 8 sectors of a block of device d1"),
    ];
    let (sim, media) = (Sim::new(4), media(3, DISK));
    sim.block_on(async {
        let disks = disks_with(&media, |index, limits| Limits {
            logical_block_bytes: if index == 1 { 4096 } else { 512 },
            ..limits
        });
        for (text, want) in cases {
            let error = table(&sim, &disks, text).await.err().expect(text).to_string();
            assert!(error.contains(want), "{text}: {error}");
        }
        for text in [
            "0 8 linear d0 0\n8 8 linear d1 0",
            "0 3 linear d0 0\n3 5 linear d2 0\n8 8 linear d1 0",
        ] {
            let table = table(&sim, &disks, text).await.expect(text);
            assert_eq!(table.limits().logical_block_bytes, 4096, "{text}");
        }
    });
}

#[test]
fn a_write_zeroes_that_may_be_refused_is_refused_by_all_devices_or_written() {
    for text in ["0 64 linear d0 0\n64 64 linear d1 0", "0 128 striped 2 8 d0 0 d1 0"] {
        for (refusing, expected) in [(vec![1], Ok(())), (vec![0, 1], Err(Status::NotSupported))] {
            let (sim, media) = (Sim::new(1), media(2, 1024));
            sim.block_on(async {
                let device = device(&sim, &disks(&media), text).await;
                let volume = gateway(&device);
                write(&volume, 0, 128, 1, Flags::empty()).await;
                refusing.iter().for_each(|disk: &usize| media[*disk].drop_support(Op::WriteZeroes));
                let zeroes = Bio::write_zeroes(Sector(4), Sectors(120)).with_flags(Flags::FAST);
                assert_eq!(volume.submit(zeroes).await, expected, "{text} {refusing:?}");
                let mut held = stamped(0, 128, 1);
                if expected.is_ok() {
                    held[4 * 512..124 * 512].fill(0);
                }
                let read = volume.read(Sector(0), Sectors(128)).await.expect("a read");
                assert!(read.as_slice() == held, "{text} {refusing:?}");
            });
        }
    }
}
