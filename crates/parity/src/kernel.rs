//! The loops over bytes, compiled for several processors.
//!
//! The loops are generic, without `unsafe`, over arrays of bytes that the compiler keeps in vector
//! registers: it vectorises them for the features of the function that they are inlined into.
//! `multiversion` makes such a function for each target and calls the best one that the processor has.
//! Only multiplication has versions of its own: processors with GFNI multiply by a constant in one
//! instruction, which doubles the rate of Q.

use multiversion::multiversion;
use multiversion::target::match_target;

use crate::field;
#[cfg(target_arch = "x86_64")]
use crate::gfni;

/// A piece of all blocks: bytes that are processed in registers.
///
/// `len` is N but for the last piece. Where it is the constant, nothing is left of the padding.
#[derive(Clone, Copy)]
pub(crate) struct Piece<const N: usize> {
    at: usize,
    len: usize,
}

impl<const N: usize> Piece<N> {
    /// The bytes of a block, padded with zeroes.
    #[inline(always)]
    pub(crate) fn of(self, block: &[u8]) -> [u8; N] {
        let bytes = &block[self.at..self.at + self.len];
        match bytes.try_into() {
            Ok(bytes) => bytes,
            Err(_) => {
                let mut padded = [0; N];
                padded[..self.len].copy_from_slice(bytes);
                padded
            }
        }
    }

    /// Writes the bytes of a block.
    #[inline(always)]
    fn write(self, block: &mut [u8], bytes: &[u8; N]) {
        block[self.at..self.at + self.len].copy_from_slice(&bytes[..self.len]);
    }
}

/// One term of the sums.
pub(crate) trait Source {
    /// The lengths of its parts in bytes.
    fn lengths(&self) -> [Option<usize>; 2];

    /// None: all bytes are zeroes.
    fn bytes<const N: usize>(&self, piece: Piece<N>) -> Option<[u8; N]>;
}

impl Source for &[u8] {
    fn lengths(&self) -> [Option<usize>; 2] {
        [Some(self.len()), None]
    }

    #[inline(always)]
    fn bytes<const N: usize>(&self, piece: Piece<N>) -> Option<[u8; N]> {
        Some(piece.of(self))
    }
}

impl Source for Option<&[u8]> {
    fn lengths(&self) -> [Option<usize>; 2] {
        [self.map(<[u8]>::len), None]
    }

    #[inline(always)]
    fn bytes<const N: usize>(&self, piece: Piece<N>) -> Option<[u8; N]> {
        self.map(|block| piece.of(block))
    }
}

/// What becomes of a sum.
pub(crate) trait Sink {
    /// Whether to compute the sum.
    const WANTED: bool = true;

    /// Takes a piece of the sum.
    fn take<const N: usize>(&mut self, piece: Piece<N>, sum: [u8; N]);
}

/// Nobody wants the sum.
pub(crate) struct Nothing;

impl Sink for Nothing {
    const WANTED: bool = false;

    #[inline(always)]
    fn take<const N: usize>(&mut self, _: Piece<N>, _: [u8; N]) {}
}

/// Writes the sum.
pub(crate) struct Write<'a>(pub(crate) &'a mut [u8]);

impl Sink for Write<'_> {
    #[inline(always)]
    fn take<const N: usize>(&mut self, piece: Piece<N>, sum: [u8; N]) {
        piece.write(self.0, &sum);
    }
}

/// Adds the sum to what is there.
pub(crate) struct Add<'a>(pub(crate) &'a mut [u8]);

impl Sink for Add<'_> {
    #[inline(always)]
    fn take<const N: usize>(&mut self, piece: Piece<N>, sum: [u8; N]) {
        piece.write(self.0, &add(piece.of(self.0), sum));
    }
}

/// Writes the sum with one more term, the second.
pub(crate) struct WriteWith<'a>(pub(crate) &'a mut [u8], pub(crate) &'a [u8]);

impl Sink for WriteWith<'_> {
    #[inline(always)]
    fn take<const N: usize>(&mut self, piece: Piece<N>, sum: [u8; N]) {
        piece.write(self.0, &add(piece.of(self.1), sum));
    }
}

/// Notes whether the sum differs from what is there.
pub(crate) struct Compare<'a>(pub(crate) &'a [u8], pub(crate) &'a mut bool);

impl Sink for Compare<'_> {
    #[inline(always)]
    fn take<const N: usize>(&mut self, piece: Piece<N>, sum: [u8; N]) {
        let difference = add(piece.of(self.0), sum);
        *self.1 |= difference.iter().fold(0, |all, byte| all | byte) != 0;
    }
}

/// `left + right`
#[inline(always)]
pub(crate) fn add<const N: usize>(mut left: [u8; N], right: [u8; N]) -> [u8; N] {
    for at in 0..N {
        left[at] ^= right[at];
    }
    left
}

/// Doubles each byte.
#[inline(always)]
pub(crate) fn double<const N: usize>(mut bytes: [u8; N]) -> [u8; N] {
    for byte in &mut bytes {
        *byte = field::double(*byte);
    }
    bytes
}

/// `a * left + b * right`, by Horner's rule over the bits of the factors. The branches depend on the
/// factors alone, so that the processor learns them.
#[inline(always)]
pub(crate) fn combine<const N: usize>(a: u8, left: [u8; N], b: u8, right: [u8; N]) -> [u8; N] {
    let mut sum = [0; N];
    for bit in (0..8).rev() {
        sum = double(sum);
        if a >> bit & 1 == 1 {
            sum = add(sum, left);
        }
        if b >> bit & 1 == 1 {
            sum = add(sum, right);
        }
    }
    sum
}

/// Runs the body for the pieces of `len` bytes. A macro, so that the body is inlined twice: without
/// padding for whole pieces, and with it for the rest.
macro_rules! each_piece {
    ($n:ident, $len:expr, $piece:ident => $body:block) => {
        let len: usize = $len;
        let whole = len - len % $n;
        for at in (0..whole).step_by($n) {
            let $piece = Piece::<$n> { at, len: $n };
            $body
        }
        if whole < len {
            let $piece = Piece::<$n> { at: whole, len: len - whole };
            $body
        }
    };
}

/// Gives the sums of the first `len` bytes of the sources to `p`, and the sums of `2^i * source[i]` to
/// `q`.
#[inline(always)]
pub(crate) fn sums<const N: usize, P: Sink, Q: Sink>(
    sources: &[impl Source],
    len: usize,
    mut p: P,
    mut q: Q,
    double: impl Fn([u8; N]) -> [u8; N],
) {
    each_piece!(N, len, piece => {
        let (mut p_sum, mut q_sum) = ([0; N], [0; N]);
        // Horner's rule: from the highest exponent down.
        for source in sources.iter().rev() {
            if Q::WANTED {
                q_sum = double(q_sum);
            }
            if let Some(bytes) = source.bytes(piece) {
                if P::WANTED {
                    p_sum = add(p_sum, bytes);
                }
                if Q::WANTED {
                    q_sum = add(q_sum, bytes);
                }
            }
        }
        p.take(piece, p_sum);
        q.take(piece, q_sum);
    });
}

/// `block *= factor`
#[inline(always)]
pub(crate) fn scaled<const N: usize>(
    block: &mut [u8],
    factor: u8,
    combine: impl Fn(u8, [u8; N], u8, [u8; N]) -> [u8; N],
) {
    each_piece!(N, block.len(), piece => {
        let bytes = piece.of(block);
        piece.write(block, &combine(0, bytes, factor, bytes));
    });
}

/// From `x = D[x] + D[y]` and `y = 2^x * D[x] + 2^y * D[y]` makes D[x] and D[y].
#[inline(always)]
pub(crate) fn solved<const N: usize>(
    x: &mut [u8],
    y: &mut [u8],
    (a, b): (u8, u8),
    combine: impl Fn(u8, [u8; N], u8, [u8; N]) -> [u8; N],
) {
    each_piece!(N, x.len(), piece => {
        let (p, q) = (piece.of(x), piece.of(y));
        let first = combine(a, p, b, q);
        piece.write(x, &first);
        piece.write(y, &add(p, first));
    });
}

/// The loops, for the given targets: [`sums`], [`scaled`] and [`solved`]. A macro, so that tests can
/// make versions that this processor would not choose.
macro_rules! kernels {
    ($($target:literal),*) => {
        #[multiversion(targets($($target),*))]
        pub(crate) fn fold<S: Source, P: Sink, Q: Sink>(sources: &[S], len: usize, p: P, q: Q) {
            match_target! {
                "x86_64+avx512f+gfni" => sums::<256, P, Q>(sources, len, p, q, |bytes| gfni::double_512(bytes)),
                "x86_64+avx2+gfni" => sums::<128, P, Q>(sources, len, p, q, |bytes| gfni::double_256(bytes)),
                _ => sums::<128, P, Q>(sources, len, p, q, double),
            }
        }

        #[multiversion(targets($($target),*))]
        pub(crate) fn scale(block: &mut [u8], factor: u8) {
            match_target! {
                "x86_64+avx512f+gfni" => scaled::<256>(block, factor, |a, left, b, right| gfni::combine_512(a, left, b, right)),
                "x86_64+avx2+gfni" => scaled::<128>(block, factor, |a, left, b, right| gfni::combine_256(a, left, b, right)),
                _ => scaled::<128>(block, factor, combine),
            }
        }

        #[multiversion(targets($($target),*))]
        pub(crate) fn solve(x: &mut [u8], y: &mut [u8], factors: (u8, u8)) {
            match_target! {
                "x86_64+avx512f+gfni" => solved::<256>(x, y, factors, |a, left, b, right| gfni::combine_512(a, left, b, right)),
                "x86_64+avx2+gfni" => solved::<128>(x, y, factors, |a, left, b, right| gfni::combine_256(a, left, b, right)),
                _ => solved::<128>(x, y, factors, combine),
            }
        }

        #[multiversion(targets($($target),*))]
        pub(crate) fn kind() -> &'static str {
            match_target! {
                "x86_64+avx512f+gfni" => "avx512+gfni",
                "x86_64+avx2+gfni" => "avx2+gfni",
                "x86_64+avx2" => "avx2",
                "aarch64+neon" => "neon",
                _ => "portable",
            }
        }
    };
}

#[cfg(test)]
pub(crate) use kernels;

kernels!("x86_64+avx512f+gfni", "x86_64+avx2+gfni", "x86_64+avx2");
