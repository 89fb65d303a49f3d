//! The loops and the field against definitions that share no code with them.

use crate::field;
use crate::kernel;
use crate::*;

/// The product by definition: polynomials multiplied and reduced.
fn product(left: u8, right: u8) -> u8 {
    let mut product = (0..8)
        .filter(|bit| right >> bit & 1 == 1)
        .fold(0_u16, |sum, bit| sum ^ u16::from(left) << bit);
    for bit in (8..16).rev() {
        if product >> bit & 1 == 1 {
            product ^= 0x11d << (bit - 8);
        }
    }
    product as u8
}

/// Logarithms and powers of 2, by which the tests compute everything else.
struct Tables {
    powers: Vec<u8>,
    logarithms: [usize; 256],
}

impl Tables {
    fn new() -> Self {
        let next = |power: &u8| Some(product(*power, 2));
        let powers: Vec<u8> = std::iter::successors(Some(1), next).take(255).collect();
        let mut logarithms = [0; 256];
        for (exponent, power) in powers.iter().enumerate() {
            logarithms[usize::from(*power)] = exponent;
        }
        Self { powers, logarithms }
    }

    fn multiply(&self, left: u8, right: u8) -> u8 {
        if left == 0 || right == 0 {
            return 0;
        }
        let [left, right] = [left, right].map(|factor| self.logarithms[usize::from(factor)]);
        self.powers[(left + right) % 255]
    }

    /// P and Q of bytes.
    fn parity(&self, data: &[Option<Vec<u8>>], len: usize) -> [Vec<u8>; 2] {
        let (mut p, mut q) = (vec![0; len], vec![0; len]);
        for (exponent, block) in data.iter().enumerate() {
            for (at, byte) in block.iter().flatten().enumerate() {
                p[at] ^= byte;
                q[at] ^= self.multiply(*byte, self.powers[exponent % 255]);
            }
        }
        [p, q]
    }
}

/// Pseudo-random bytes, the same each time (xorshift64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 16
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }

    /// Blocks, at the exponents in the set.
    fn row(&mut self, blocks: usize, set: u64, len: usize) -> Vec<Option<Vec<u8>>> {
        (0..blocks).map(|block| (set >> block & 1 == 1).then(|| self.bytes(len))).collect()
    }
}

fn slices(row: &[Option<Vec<u8>>]) -> Vec<Option<&[u8]>> {
    row.iter().map(Option::as_deref).collect()
}

/// Around the sizes of vectors and of pieces.
const LENGTHS: [usize; 14] =
    [0, 1, 31, 63, 64, 65, 127, 128, 129, 255, 256, 257, 4096 + 1, 3 * 256 + 200];

#[test]
fn the_field_is_that_of_the_polynomial() {
    let tables = Tables::new();
    for left in 0..=255 {
        assert_eq!(field::double(left), product(left, 2));
        for right in 0..=255 {
            let wanted = product(left, right);
            assert_eq!([field::multiply(left, right), tables.multiply(left, right)], [wanted; 2]);
        }
        assert_eq!(product(field::invert(left), left), u8::from(left != 0));
    }
    assert_eq!((0..255).map(field::power).collect::<Vec<u8>>(), tables.powers);
    let mut powers = tables.powers;
    assert_eq!(powers[..12], [1, 2, 4, 8, 0x10, 0x20, 0x40, 0x80, 0x1d, 0x3a, 0x74, 0xe8]);
    assert_eq!(powers[254], 0x8e);
    powers.sort_unstable();
    powers.dedup();
    assert_eq!(powers.len(), 255);
    let inverses = [2, 3, 4, 0x1d, 0x8e, 0xff].map(field::invert);
    assert_eq!(inverses, [0x8e, 0xf4, 0x47, 0x83, 0x02, 0xfd]);
}

#[test]
fn two_lost_bytes_come_back_for_all_pairs_of_exponents() {
    let tables = Tables::new();
    for (x, y) in (0..255).flat_map(|x| (0..255).map(move |y| (x, y))).filter(|(x, y)| x != y) {
        let (a, b) = field::of_two(x, y);
        // Both are linear: two bytes that span all suffice, but take one more.
        for (first, second) in [(1, 0), (0, 1), (0x53, 0xca)] {
            let q = tables.multiply(tables.powers[x], first)
                ^ tables.multiply(tables.powers[y], second);
            let found = tables.multiply(a, first ^ second) ^ tables.multiply(b, q);
            assert_eq!(found, first, "{x} {y}");
        }
    }
    assert_eq!(field::of_two(0, 1), (0xf5, 0xf4));
    assert_eq!(field::of_two(0, 2), (0xa6, 0xa7));
    assert_eq!(field::of_two(1, 3), (0xa6, 0xdd));
}

/// Compares all that is compiled for some targets with the definition.
macro_rules! versions {
    ($($name:ident: $($target:literal),*;)*) => {$(
        mod $name {
            use multiversion::{multiversion, target::match_target};

            use super::*;
            use crate::kernel::{combine, double, scaled, solved, sums};

            kernel::kernels!($($target),*);

            #[test]
            fn computes_as_defined() {
                println!("{}", kind());
                let tables = Tables::new();
                let mut random = Random(7);
                for len in LENGTHS {
                    for set in [0, 1, 0b111, 0b1011, 0b101_1010, 0x3f_ffff] {
                        let row = random.row(22, set, len);
                        let row = slices(&row);
                        folds(&tables, &mut random, &row, len);
                    }
                    let block = random.bytes(len);
                    for factor in 0..=255 {
                        let mut product = block.clone();
                        scale(&mut product, factor);
                        let wanted = |at: usize| tables.multiply(block[at], factor);
                        assert!((0..len).all(|at| product[at] == wanted(at)), "{len} {factor}");
                    }
                    for (x, y) in [(0, 1), (3, 200), (254, 0), (17, 16)] {
                        let (first, second) = (random.bytes(len), random.bytes(len));
                        let mut p = first.clone();
                        let mut q = first.clone();
                        for at in 0..len {
                            p[at] ^= second[at];
                            q[at] = tables.multiply(first[at], tables.powers[x])
                                ^ tables.multiply(second[at], tables.powers[y]);
                        }
                        solve(&mut p, &mut q, field::of_two(x, y));
                        assert_eq!([p, q], [first, second], "{len} {x} {y}");
                    }
                }
            }

            fn folds(tables: &Tables, random: &mut Random, row: &[Option<&[u8]>], len: usize) {
                let owned: Vec<_> = row.iter().map(|block| block.map(<[u8]>::to_vec)).collect();
                let wanted = tables.parity(&owned, len);
                let [before, with] = [random.bytes(len), random.bytes(len)];
                let added = |sum: &[u8], term: &[u8]| -> Vec<u8> {
                    sum.iter().zip(term).map(|(sum, term)| sum ^ term).collect()
                };
                let (mut p, mut q) = (before.clone(), before.clone());
                fold(row, len, Write(&mut p), Write(&mut q));
                assert_eq!([&p, &q], [&wanted[0], &wanted[1]], "{len}");
                p.fill(0x5a);
                fold(row, len, Write(&mut p), Nothing);
                assert_eq!(p, wanted[0], "{len}");
                fold(row, len, Nothing, WriteWith(&mut q, &with));
                assert_eq!(q, added(&wanted[1], &with), "{len}");
                let (mut p, mut q) = (before.clone(), before.clone());
                fold(row, len, Add(&mut p), Add(&mut q));
                assert_eq!([p, q], [0, 1].map(|which| added(&before, &wanted[which])), "{len}");
                for at in (0..len).step_by(61).chain(len.checked_sub(1)) {
                    let [mut p, mut q] = wanted.clone();
                    let (mut p_differs, mut q_differs) = (false, false);
                    q[at] ^= 0x40;
                    fold(row, len, Compare(&p, &mut p_differs), Compare(&q, &mut q_differs));
                    assert!(!p_differs && q_differs, "{len} {at}");
                    p[at] ^= 1;
                    fold(row, len, Compare(&p, &mut p_differs), Nothing);
                    assert!(p_differs, "{len} {at}");
                }
            }
        }
    )*};
}

versions! {
    best: "x86_64+avx512f+gfni", "x86_64+avx2+gfni", "x86_64+avx2";
    without_avx512: "x86_64+avx2+gfni", "x86_64+avx2";
    without_gfni: "x86_64+avx2";
    portable: "wasm32+simd128";
}

#[test]
fn data_with_known_parity_give_it() {
    let data = [[0x11], [0x80], [0x33], [0xff]];
    let data: Vec<Option<&[u8]>> = data.iter().map(|block| Some(&block[..])).collect();
    let (mut p, mut q) = ([0], [0]);
    pq(&data, Some(&mut p), Some(&mut q)).unwrap();
    assert_eq!([p, q], [[0x5d], [0x6b]]);
    // As DDF has it for members Q D D P D D: the same P, other exponents.
    let data = [None, data[0], data[1], None, data[2], data[3]];
    pq(&data, Some(&mut p), Some(&mut q)).unwrap();
    let tables = Tables::new();
    let wanted = [(0x11, 1), (0x80, 2), (0x33, 4), (0xff, 5)];
    let wanted = wanted.map(|(byte, exponent)| tables.multiply(byte, tables.powers[exponent]));
    assert_eq!((p, q[0]), ([0x5d], wanted.into_iter().fold(0, |sum, term| sum ^ term)));
}

/// What recovery makes of a row without the `lost`, of which the last two are P and Q.
fn recovered(
    row: &[Option<Vec<u8>>],
    lost: &[usize],
    unread: Option<usize>,
) -> Vec<Option<Vec<u8>>> {
    let mut row = row.to_vec();
    for number in lost {
        row[*number].iter_mut().for_each(|block| block.fill(0xa5));
    }
    let mut blocks: Vec<Option<Block<'_>>> = Vec::new();
    for (number, block) in row.iter_mut().enumerate() {
        let bytes = block.as_deref_mut().filter(|_| unread != Some(number));
        let is_lost = lost.contains(&number);
        blocks.push(
            bytes.map(|bytes| if is_lost { Block::Lost(bytes) } else { Block::Known(bytes) }),
        );
    }
    let (q, p) = (blocks.pop().unwrap(), blocks.pop().unwrap());
    recover(&mut blocks, p, q).unwrap();
    assert!(blocks.iter().all(|block| !matches!(block, Some(Block::Lost(_)))));
    row
}

#[test]
fn every_block_and_every_pair_comes_back() {
    let tables = Tables::new();
    let mut random = Random(11);
    for (blocks, len) in (2..=8).flat_map(|blocks| [1, 257, 600].map(|len| (blocks, len))) {
        // A full row, and rows with one or two zero sets.
        for set in [!0, !0b10, !0b101] {
            let mut row = random.row(blocks, set, len);
            let parity = tables.parity(&row, len);
            row.extend(parity.map(Some));
            let present: Vec<usize> = (0..blocks + 2).filter(|at| row[*at].is_some()).collect();
            assert_eq!(recovered(&row, &[], None), row);
            for one in &present {
                for other in &present {
                    assert_eq!(recovered(&row, &[*one, *other], None), row, "{one} {other}");
                }
                // Without the other parity: RAID 5, or a parity that nobody read.
                let (p, q) = (blocks, blocks + 1);
                if *one != q {
                    assert_eq!(recovered(&row, &[*one], Some(q)), row, "{one} by P");
                }
                if *one != p {
                    assert_eq!(recovered(&row, &[*one], Some(p)), row, "{one} by Q");
                }
            }
        }
    }
}

#[test]
fn every_length_comes_back() {
    let tables = Tables::new();
    let mut random = Random(13);
    for len in LENGTHS {
        let mut row = random.row(5, !0, len);
        let parity = tables.parity(&row, len);
        row.extend(parity.map(Some));
        for (one, other) in (0..7).flat_map(|one| (0..7).map(move |other| (one, other))) {
            assert_eq!(recovered(&row, &[one, other], None), row, "{len} {one} {other}");
        }
    }
}

#[test]
fn the_widest_row_comes_back() {
    let tables = Tables::new();
    let mut row: Vec<_> = (0..EXPONENTS).map(|at| Some(vec![at as u8, 1, 2])).collect();
    let parity = tables.parity(&row, 3);
    row.extend(parity.map(Some));
    for lost in [[0, 254], [253, 254], [127, 128], [254, 255], [254, 256], [255, 256]] {
        assert_eq!(recovered(&row, &lost, None), row, "{lost:?}");
    }
}

#[test]
fn changes_update_parity() {
    let tables = Tables::new();
    let mut random = Random(17);
    for (len, set) in LENGTHS.iter().flat_map(|len| (0..64).map(move |set| (*len, set))) {
        let old = random.row(6, !0, len);
        let new = random.row(6, set, len);
        let changes: Vec<Option<Change<'_>>> = old
            .iter()
            .zip(&new)
            .map(|(old, new)| Some(Change { old: old.as_ref()?, new: new.as_ref()? }))
            .collect();
        let [mut p, mut q] = tables.parity(&old, len);
        let (mut only_p, mut only_q) = (p.clone(), q.clone());
        pq_delta(&changes, Some(&mut p), Some(&mut q)).unwrap();
        pq_delta(&changes, Some(&mut only_p), None).unwrap();
        pq_delta(&changes, None, Some(&mut only_q)).unwrap();
        let after: Vec<_> = old.into_iter().zip(new).map(|(old, new)| new.or(old)).collect();
        let wanted = tables.parity(&after, len);
        assert_eq!([&p, &q], [&wanted[0], &wanted[1]], "{len} {set:b}");
        assert_eq!([only_p, only_q], wanted, "{len} {set:b}");
        let mismatch = check(&slices(&after), Some(&p), Some(&q)).unwrap();
        assert_eq!(mismatch, Mismatch::default());
    }
}

#[test]
fn check_names_the_parity_that_is_wrong() {
    let tables = Tables::new();
    let row = Random(19).row(4, !0, 300);
    let [p, q] = tables.parity(&row, 300);
    for at in 0..300 {
        let (mut bad_p, mut bad_q) = (p.clone(), q.clone());
        bad_p[at] ^= 0x80;
        bad_q[at] ^= 1;
        let check = |p, q| check(&slices(&row), p, q).unwrap();
        assert_eq!(check(Some(&bad_p), Some(&q)), Mismatch { p: true, q: false });
        assert_eq!(check(Some(&p), Some(&bad_q)), Mismatch { p: false, q: true });
        assert_eq!(check(Some(&bad_p), None), Mismatch { p: true, q: false });
        assert_eq!(check(None, None), Mismatch::default());
    }
}

#[test]
fn xor_is_the_sum() {
    let mut random = Random(23);
    for (len, count) in LENGTHS.iter().flat_map(|len| (0..5).map(move |count| (*len, count))) {
        let blocks: Vec<Vec<u8>> = (0..count).map(|_| random.bytes(len)).collect();
        let sources: Vec<&[u8]> = blocks.iter().map(|block| &block[..]).collect();
        let mut sum = random.bytes(len);
        xor(&mut sum, &sources).unwrap();
        let wanted = |at: usize| sources.iter().fold(0, |sum, source| sum ^ source[at]);
        assert!((0..len).all(|at| sum[at] == wanted(at)), "{len} {count}");
    }
}

#[test]
fn rows_that_cannot_be_are_refused() {
    let length = Err(ParityError::Length { found: 3, wanted: 4 });
    let (four, three): (&[u8], &[u8]) = (&[0; 4], &[0; 3]);
    let (mut p, mut q) = ([9; 4], [9; 3]);
    assert_eq!(xor(&mut q, &[four]), length);
    assert_eq!(pq(&[Some(four), Some(three)], Some(&mut p), None), length);
    assert_eq!(pq(&[None, Some(four)], Some(&mut p), Some(&mut q)), length);
    let change = Change { old: four, new: three };
    assert_eq!(pq_delta(&[Some(change)], Some(&mut p), None), length);
    assert_eq!(check(&[Some(four)], None, Some(three)), length.map(|()| Mismatch::default()));
    assert_eq!((p, q), ([9; 4], [9; 3]));

    let wide = vec![Some(four); EXPONENTS + 1];
    let exponents = Err(ParityError::Exponents { blocks: 256 });
    assert_eq!(pq(&wide, None, Some(&mut p)), exponents);
    assert_eq!(check(&wide, Some(four), Some(four)), exponents.map(|()| Mismatch::default()));
    // P alone has no limit.
    pq(&wide, Some(&mut p), None).unwrap();
    assert_eq!(p, [0; 4]);

    let lose = |lost: usize, p: bool, q: bool| {
        let mut bytes = [[9; 4]; 5];
        let mut blocks: Vec<_> = bytes.iter_mut().map(|bytes| Some(Block::Known(bytes))).collect();
        let mut others = [[9; 4]; 5];
        for (block, bytes) in blocks.iter_mut().zip(others.iter_mut()).take(lost) {
            *block = Some(Block::Lost(bytes));
        }
        let result =
            recover(&mut blocks, p.then_some(Block::Known(four)), q.then_some(Block::Known(four)));
        let is_lost = |block: &&Option<Block<'_>>| matches!(block, Some(Block::Lost(_)));
        assert_eq!(blocks.iter().filter(is_lost).count(), if result.is_ok() { 0 } else { lost });
        result
    };
    for (lost, p, q) in
        (0..5).flat_map(|lost| [false, true].map(|p| [false, true].map(|q| (lost, p, q)))).flatten()
    {
        let parities = usize::from(p) + usize::from(q);
        let many = Err(ParityError::TooManyLost { lost, parities });
        assert_eq!(lose(lost, p, q), if lost > parities { many } else { Ok(()) });
    }
}

#[test]
#[ignore = "prints rates; run it alone, with --release"]
fn rates() {
    println!("{}: GB/s of data", kind());
    for (disks, len) in
        [4, 8].into_iter().flat_map(|disks| [4, 64, 1024].map(|kib| (disks, kib << 10)))
    {
        let mut random = Random(29);
        let row = random.row(disks, !0, len);
        let data = slices(&row);
        let plain: Vec<&[u8]> = data.iter().copied().flatten().collect();
        let (mut p, mut q) = (vec![0; len], vec![0; len]);
        let best = |run: &mut dyn FnMut()| {
            let repeats = ((4 << 20) / (disks * len)).max(1);
            let mut rate = || {
                let start = std::time::Instant::now();
                (0..repeats).for_each(|_| run());
                (repeats * disks * len) as f64 / start.elapsed().as_secs_f64() / 1e9
            };
            (0..50).map(|_| rate()).fold(0.0, f64::max)
        };
        let sum = best(&mut || xor(&mut p, &plain).unwrap());
        let both = best(&mut || pq(&data, Some(&mut p), Some(&mut q)).unwrap());
        let compared = best(&mut || assert!(!check(&data, Some(&p), Some(&q)).unwrap().q));
        let (mut x, mut y) = (vec![0; len], vec![0; len]);
        let two = best(&mut || {
            let mut blocks: Vec<_> = data.iter().map(|block| block.map(Block::Known)).collect();
            blocks[0] = Some(Block::Lost(&mut x));
            blocks[1] = Some(Block::Lost(&mut y));
            recover(&mut blocks, Some(Block::Known(&p)), Some(Block::Known(&q))).unwrap();
        });
        println!(
            "{disks} disks of {:4} KiB: xor {sum:.1}, pq {both:.1}, check {compared:.1}, two lost {two:.1}",
            len >> 10
        );
    }
}
