//! RAID5 and RAID6 parity, and reconstruction from it.
//!
//! A row is data stripes `D[0]` to `D[n-1]`, then P, then (RAID6) Q, all of equal length. For each
//! byte, in the field GF(2^8) with the polynomial 0x11d, whose element 2 generates all elements but
//! zero:
//!
//! ```text
//! P = sum of D[i]          Q = sum of 2^i * D[i]          (a sum is an exclusive or)
//! ```
//!
//! Two stripes of a RAID6 row can be lost. For data `x` and `y`, let `p` and `q` be P and Q without
//! the share of the other stripes; then `p = D[x] + D[y]` and `q = 2^x * D[x] + 2^y * D[y]`, so
//! that `D[x] = (q + 2^y * p) / (2^x + 2^y)`. If P is lost with `x`, then `D[x] = q / 2^x`.
//!
//! Stripes are processed in pieces that fit the L1 cache, eight bytes at a time, in loops without
//! branches that compilers vectorize.

use thiserror::Error;

/// Data stripes that Q can distinguish: the powers of 2 in the field.
pub const DATA_STRIPES_MAX: usize = 255;

/// Bytes of a stripe processed together.
const PIECE: usize = 2048;

/// Why parity cannot be computed or used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Raid56Error {
    /// A row needs at least one data stripe, at most [`DATA_STRIPES_MAX`], and one or two parities.
    #[error("a row of {stripes} stripes, {parities} of them parity, is impossible")]
    Row {
        /// Number of stripes.
        stripes: usize,
        /// Number of parity stripes.
        parities: usize,
    },
    /// Stripes differ in length.
    #[error("stripe {stripe} of a row is of {found} bytes, others of {wanted}")]
    Length {
        /// The stripe.
        stripe: usize,
        /// Its length in bytes.
        found: usize,
        /// The first stripe's length.
        wanted: usize,
    },
    /// More stripes are lost than there is parity.
    #[error("{lost} stripes are lost, there are {parities} of parity")]
    TooManyLost {
        /// Number of lost stripes.
        lost: usize,
        /// Number of parities.
        parities: usize,
    },
    /// A lost stripe is not in the row.
    #[error("stripe {stripe} is lost, of a row of {stripes}")]
    NoSuchStripe {
        /// The stripe.
        stripe: usize,
        /// Number of stripes.
        stripes: usize,
    },
}

/// Powers of 2, repeated once, so that sums of two logarithms need no modulo.
const POWERS: [u8; 510] = {
    let mut powers = [0; 510];
    let mut value = 1_u8;
    let mut exponent = 0;
    while exponent < powers.len() {
        powers[exponent] = value;
        value = value << 1 ^ if value & 0x80 == 0 { 0 } else { 0x1d };
        exponent += 1;
    }
    powers
};

/// The exponent of each element except zero.
const LOGARITHMS: [u8; 256] = {
    let mut logarithms = [0; 256];
    let mut exponent = 0;
    while exponent < 255 {
        logarithms[POWERS[exponent] as usize] = exponent as u8;
        exponent += 1;
    }
    logarithms
};

/// `2^exponent`, for exponents below 255.
const fn power(exponent: usize) -> u8 {
    POWERS[exponent]
}

/// `left / right`; `right` is not zero.
const fn divide(left: u8, right: u8) -> u8 {
    if left == 0 {
        return 0;
    }
    let (left, right) = (LOGARITHMS[left as usize], LOGARITHMS[right as usize]);
    POWERS[left as usize + 255 - right as usize]
}

/// Doubles each of eight elements.
const fn double(elements: u64) -> u64 {
    let carries = elements >> 7 & 0x0101_0101_0101_0101;
    // A carry bit becomes 0xff, which masks the polynomial.
    let reduce = (carries << 8).wrapping_sub(carries) & 0x1d1d_1d1d_1d1d_1d1d;
    (elements & 0x7f7f_7f7f_7f7f_7f7f) << 1 ^ reduce
}

/// `into[i] = step(into[i], from[i])`, eight bytes at a time; a remainder is padded with zeroes.
fn combine(into: &mut [u8], from: &[u8], step: impl Fn(u64, u64) -> u64) {
    let (words, tail) = into.as_chunks_mut::<8>();
    let (from_words, from_tail) = from.as_chunks::<8>();
    for (word, from) in words.iter_mut().zip(from_words) {
        *word = step(u64::from_le_bytes(*word), u64::from_le_bytes(*from)).to_le_bytes();
    }
    let padded = |bytes: &[u8]| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    };
    if !tail.is_empty() && tail.len() == from_tail.len() {
        let word = step(padded(tail), padded(from_tail)).to_le_bytes();
        tail.copy_from_slice(&word[..tail.len()]);
    }
}

/// `into += from`
fn add(into: &mut [u8], from: &[u8]) {
    combine(into, from, |into, from| into ^ from);
}

/// `into = 2 * into + from`
fn double_add(into: &mut [u8], from: &[u8]) {
    combine(into, from, |into, from| double(into) ^ from);
}

/// `into = 2 * into`
fn double_all(into: &mut [u8]) {
    let (words, tail) = into.as_chunks_mut::<8>();
    for word in words {
        *word = double(u64::from_le_bytes(*word)).to_le_bytes();
    }
    for byte in tail {
        *byte = double(u64::from(*byte)) as u8;
    }
}

/// `into *= factor`
fn multiply(into: &mut [u8], factor: u8) {
    // All products of the factor: one lookup per byte.
    let logarithm = usize::from(LOGARITHMS[usize::from(factor)]);
    let products: [u8; 256] = std::array::from_fn(|element| match (element, factor) {
        (0, _) | (_, 0) => 0,
        (element, _) => POWERS[usize::from(LOGARITHMS[element]) + logarithm],
    });
    for byte in into {
        *byte = products[usize::from(*byte)];
    }
}

/// Ranges that split `len` bytes into pieces.
fn pieces(len: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    (0..len).step_by(PIECE).map(move |start| start..len.min(start + PIECE))
}

/// Checks that a row of `count` stripes is possible and that they have the same length; returns the length.
fn check_row(
    count: usize,
    parities: usize,
    lengths: impl IntoIterator<Item = usize>,
) -> Result<usize, Raid56Error> {
    let data = count.saturating_sub(parities);
    if !(1..=2).contains(&parities) || !(1..=DATA_STRIPES_MAX).contains(&data) {
        return Err(Raid56Error::Row { stripes: count, parities });
    }
    let mut lengths = lengths.into_iter().enumerate();
    let wanted = lengths.next().map_or(0, |(_, len)| len);
    match lengths.find(|(_, len)| *len != wanted) {
        Some((stripe, found)) => Err(Raid56Error::Length { stripe, found, wanted }),
        None => Ok(wanted),
    }
}

/// Computes P, and for RAID6 Q, of `data`.
///
/// # Errors
/// There are no data stripes or too many, or lengths differ.
pub fn parity(data: &[&[u8]], p: &mut [u8], mut q: Option<&mut [u8]>) -> Result<(), Raid56Error> {
    let parities = 1 + usize::from(q.is_some());
    let parity_lengths = [Some(p.len()), q.as_ref().map(|q| q.len())];
    let lengths = data.iter().map(|data| data.len()).chain(parity_lengths.into_iter().flatten());
    check_row(data.len() + parities, parities, lengths)?;
    for piece in pieces(p.len()) {
        let p = &mut p[piece.clone()];
        p.fill(0);
        data.iter().for_each(|data| add(p, &data[piece.clone()]));
        if let Some(q) = &mut q {
            let q = &mut q[piece.clone()];
            q.fill(0);
            data.iter().rev().for_each(|data| double_add(q, &data[piece.clone()]));
        }
    }
    Ok(())
}

/// Rebuilds the lost stripes of a row from the others: `stripes` are the data, then P, then with
/// two `parities` Q. The previous content of the lost ones does not matter. All others are assumed
/// to be right, except that for one lost stripe of a RAID6 row only P's equation is used (for a
/// lost Q: only Q's).
///
/// # Errors
/// The row is impossible; lengths differ; or more is lost than there is parity.
pub fn recover(
    stripes: &mut [&mut [u8]],
    parities: usize,
    lost: &[usize],
) -> Result<(), Raid56Error> {
    let count = stripes.len();
    let len = check_row(count, parities, stripes.iter().map(|stripe| stripe.len()))?;
    if let Some(stripe) = lost.iter().copied().find(|stripe| *stripe >= count) {
        return Err(Raid56Error::NoSuchStripe { stripe, stripes: count });
    }
    let (first, second) = match *lost {
        [] => return Ok(()),
        [only] => (only, None),
        [one, other] if one == other => (one, None),
        [one, other] => (one.min(other), Some(one.max(other))),
        _ => return Err(Raid56Error::TooManyLost { lost: lost.len(), parities }),
    };
    if second.is_some() && parities == 1 {
        return Err(Raid56Error::TooManyLost { lost: 2, parities });
    }
    let (p, q) = (count - parities, count - 1);
    let mut row = Row { stripes, data: p };
    for piece in pieces(len) {
        match second {
            None if first == q && parities == 2 => row.write_q(&piece),
            None => row.write_by_p(first, &piece),
            Some(second) if second == q => {
                row.write_by_p(first, &piece);
                row.write_q(&piece);
            }
            Some(second) if second == p => {
                row.write_by_q(first, &piece);
                row.write_by_p(p, &piece);
            }
            Some(second) => row.write_two(first, second, &piece),
        }
    }
    Ok(())
}

/// A checked row of `data` data stripes and their parity.
struct Row<'a, 'b> {
    stripes: &'a mut [&'b mut [u8]],
    data: usize,
}

type Piece = std::ops::Range<usize>;

impl Row<'_, '_> {
    /// The sum of data and P, excluding the stripes `without`.
    fn sum_p(&self, without: [usize; 2], piece: &Piece) -> [u8; PIECE] {
        let mut sum = [0; PIECE];
        let into = &mut sum[..piece.len()];
        for stripe in (0..=self.data).filter(|stripe| !without.contains(stripe)) {
            add(into, &self.stripes[stripe][piece.clone()]);
        }
        sum
    }

    /// Q's sum of multiples of data, excluding the stripes `without`.
    fn sum_q(&self, without: [usize; 2], piece: &Piece) -> [u8; PIECE] {
        let mut sum = [0; PIECE];
        let into = &mut sum[..piece.len()];
        for stripe in (0..self.data).rev() {
            if without.contains(&stripe) {
                double_all(into);
            } else {
                double_add(into, &self.stripes[stripe][piece.clone()]);
            }
        }
        sum
    }

    fn write(&mut self, stripe: usize, piece: &Piece, bytes: &[u8; PIECE]) {
        self.stripes[stripe][piece.clone()].copy_from_slice(&bytes[..piece.len()]);
    }

    /// Writes a data stripe or P from the others of these.
    fn write_by_p(&mut self, lost: usize, piece: &Piece) {
        let sum = self.sum_p([lost; 2], piece);
        self.write(lost, piece, &sum);
    }

    /// Writes Q.
    fn write_q(&mut self, piece: &Piece) {
        let none = [usize::MAX; 2];
        let sum = self.sum_q(none, piece);
        self.write(self.data + 1, piece, &sum);
    }

    /// Writes a data stripe from the other data and Q.
    fn write_by_q(&mut self, lost: usize, piece: &Piece) {
        let mut sum = self.sum_q([lost; 2], piece);
        add(&mut sum[..piece.len()], &self.stripes[self.data + 1][piece.clone()]);
        multiply(&mut sum[..piece.len()], divide(1, power(lost)));
        self.write(lost, piece, &sum);
    }

    /// Writes two data stripes, `x` before `y`.
    fn write_two(&mut self, x: usize, y: usize, piece: &Piece) {
        let p = self.sum_p([x, y], piece);
        let mut q = self.sum_q([x, y], piece);
        add(&mut q[..piece.len()], &self.stripes[self.data + 1][piece.clone()]);
        // D[x] = q / (2^x + 2^y) + p * 2^y / (2^x + 2^y); the divisor is not zero, as x differs from y.
        let divisor = power(x) ^ power(y);
        multiply(&mut q[..piece.len()], divide(1, divisor));
        let mut share = p;
        multiply(&mut share[..piece.len()], divide(power(y), divisor));
        add(&mut q[..piece.len()], &share[..piece.len()]);
        self.write(x, piece, &q);
        add(&mut q[..piece.len()], &p[..piece.len()]);
        self.write(y, piece, &q);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    /// Pseudo-random bytes, the same each time (xorshift64).
    fn random(state: &mut u64, len: usize) -> Vec<u8> {
        let mut next = || {
            *state ^= *state << 13;
            *state ^= *state >> 7;
            *state ^= *state << 17;
            (*state >> 32) as u8
        };
        (0..len).map(|_| next()).collect()
    }

    /// A row by definition.
    fn row(data: Vec<Vec<u8>>, parities: usize) -> Vec<Vec<u8>> {
        let len = data[0].len();
        let sum = |factors: &[u8]| -> Vec<u8> {
            let at = |byte: usize| {
                data.iter()
                    .zip(factors)
                    .fold(0, |sum, (data, factor)| sum ^ product(data[byte], *factor))
            };
            (0..len).map(at).collect()
        };
        let ones = vec![1; data.len()];
        let powers: Vec<u8> = std::iter::successors(Some(1), |power| Some(product(*power, 2)))
            .take(data.len())
            .collect();
        let parity = [sum(&ones), sum(&powers)];
        data.into_iter().chain(parity.into_iter().take(parities)).collect()
    }

    fn recovered(row: &[Vec<u8>], parities: usize, lost: &[usize]) -> Vec<Vec<u8>> {
        let mut row = row.to_vec();
        lost.iter().for_each(|stripe| row[*stripe].fill(0xa5));
        let mut stripes: Vec<&mut [u8]> = row.iter_mut().map(|stripe| &mut stripe[..]).collect();
        recover(&mut stripes, parities, lost).unwrap();
        row
    }

    #[test]
    fn the_field_is_that_of_the_polynomial() {
        for left in 0..=255 {
            let word = u64::from_le_bytes([left, 0x80, left, 0xff, 0, left, 1, left]);
            let wanted = word.to_le_bytes().map(|byte| product(byte, 2));
            assert_eq!(double(word).to_le_bytes(), wanted);
            let all: Vec<u8> = (0..=255).collect();
            let mut products = all.clone();
            multiply(&mut products, left);
            let wanted: Vec<u8> = all.iter().map(|right| product(left, *right)).collect();
            assert_eq!(products, wanted);
            for right in 1..=255 {
                assert_eq!(product(divide(left, right), right), left, "{left} {right}");
            }
        }
        let mut powers: Vec<u8> = (0..255).map(power).collect();
        assert_eq!(powers[..10], [1, 2, 4, 8, 16, 32, 64, 128, 0x1d, 0x3a]);
        powers.sort_unstable();
        powers.dedup();
        assert_eq!(powers.len(), 255);
    }

    #[test]
    fn parity_is_what_the_definition_says() {
        let mut seed = 1;
        for (data, len) in (1..=8).flat_map(|data| [0, 1, 7, 8, 1001, 5000].map(|len| (data, len)))
        {
            let data: Vec<_> = (0..data).map(|_| random(&mut seed, len)).collect();
            let slices: Vec<&[u8]> = data.iter().map(|data| &data[..]).collect();
            let wanted = row(data.clone(), 2);
            let (mut p, mut q) = (vec![0x5a; len], vec![0x5a; len]);
            parity(&slices, &mut p, Some(&mut q)).unwrap();
            assert_eq!([&p, &q], [&wanted[data.len()], &wanted[data.len() + 1]]);
            p.fill(0x5a);
            parity(&slices, &mut p, None).unwrap();
            assert_eq!(p, wanted[data.len()]);
        }
    }

    #[test]
    fn every_stripe_and_every_pair_comes_back() {
        let mut seed = 2;
        for data in 1..=8 {
            // One piece and a bit more: not a multiple of anything.
            let data: Vec<_> = (0..data).map(|_| random(&mut seed, PIECE + 13)).collect();
            let raid5 = row(data.clone(), 1);
            for lost in 0..raid5.len() {
                assert_eq!(recovered(&raid5, 1, &[lost]), raid5, "{lost}");
            }
            let raid6 = row(data, 2);
            for (one, other) in
                (0..raid6.len()).flat_map(|one| (0..raid6.len()).map(move |other| (one, other)))
            {
                assert_eq!(recovered(&raid6, 2, &[one, other]), raid6, "{one} {other}");
            }
            for lost in 0..raid6.len() {
                assert_eq!(recovered(&raid6, 2, &[lost]), raid6, "{lost}");
            }
            assert_eq!(recovered(&raid6, 2, &[]), raid6);
        }
    }

    #[test]
    fn the_widest_row_comes_back() {
        let mut seed = 3;
        let data = (0..DATA_STRIPES_MAX).map(|_| random(&mut seed, 3)).collect();
        let raid6 = row(data, 2);
        for lost in [[0, 254], [253, 254], [127, 128], [254, 255], [254, 256], [255, 256]] {
            assert_eq!(recovered(&raid6, 2, &lost), raid6, "{lost:?}");
        }
    }

    #[test]
    fn rows_that_cannot_be_are_refused() {
        let mut bytes = vec![vec![0; 4]; 260];
        let mut error = |count: usize, parities, lost: &[usize]| {
            let mut stripes: Vec<_> = bytes[..count].iter_mut().map(|s| &mut s[..]).collect();
            recover(&mut stripes, parities, lost).unwrap_err()
        };
        for (stripes, parities) in [(0, 1), (1, 1), (2, 2), (3, 0), (5, 3), (257, 1), (258, 2)] {
            assert_eq!(error(stripes, parities, &[0]), Raid56Error::Row { stripes, parities });
        }
        assert_eq!(error(3, 1, &[3]), Raid56Error::NoSuchStripe { stripe: 3, stripes: 3 });
        assert_eq!(error(3, 1, &[0, 1]), Raid56Error::TooManyLost { lost: 2, parities: 1 });
        assert_eq!(error(5, 2, &[0, 1, 2]), Raid56Error::TooManyLost { lost: 3, parities: 2 });
        bytes[2].push(0);
        let mut stripes: Vec<_> = bytes[..4].iter_mut().map(|s| &mut s[..]).collect();
        let length = Err(Raid56Error::Length { stripe: 2, found: 5, wanted: 4 });
        assert_eq!(recover(&mut stripes, 2, &[0]), length);
        let (mut p, mut q) = ([0; 4], [0; 3]);
        let data: [&[u8]; 2] = [&[0; 4]; 2];
        let length = Err(Raid56Error::Length { stripe: 3, found: 3, wanted: 4 });
        assert_eq!(parity(&data, &mut p, Some(&mut q)), length);
        let row = Err(Raid56Error::Row { stripes: 1, parities: 1 });
        assert_eq!(parity(&[], &mut p, None), row);
    }
}
