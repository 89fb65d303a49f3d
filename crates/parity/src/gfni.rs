//! Multiplication by a constant is a product with a matrix of bits, which is one instruction.

use std::arch::x86_64::*;

use zerocopy::transmute;

use crate::field;
use crate::kernel::add;

/// For each factor the matrix in the order of GF2P8AFFINEQB: byte `7 - i` selects the bits of the
/// operand that contribute to bit `i` of the product.
static MATRICES: [i64; 256] = {
    let mut matrices = [0; 256];
    let mut factor = 0;
    while factor < matrices.len() {
        let mut rows = [0; 8];
        let mut bit = 0;
        while bit < 64 {
            let (row, column) = (bit / 8, bit % 8);
            rows[7 - row] |= (field::multiply(factor as u8, 1 << column) >> row & 1) << column;
            bit += 1;
        }
        matrices[factor] = i64::from_le_bytes(rows);
        factor += 1;
    }
    matrices
};

macro_rules! width {
    ($features:literal, $bits:literal, $multiply:ident, $double:ident, $combine:ident, $set:ident, $affine:ident) => {
        #[target_feature(enable = $features)]
        #[inline]
        fn $multiply<const N: usize>(factor: u8, mut bytes: [u8; N]) -> [u8; N] {
            let matrix = $set(MATRICES[usize::from(factor)]);
            for vector in bytes.as_chunks_mut::<{ $bits / 8 }>().0 {
                *vector = transmute!($affine::<0>(transmute!(*vector), matrix));
            }
            bytes
        }

        #[target_feature(enable = $features)]
        #[inline]
        pub(crate) fn $double<const N: usize>(bytes: [u8; N]) -> [u8; N] {
            $multiply(2, bytes)
        }

        #[target_feature(enable = $features)]
        #[inline]
        pub(crate) fn $combine<const N: usize>(
            a: u8,
            left: [u8; N],
            b: u8,
            right: [u8; N],
        ) -> [u8; N] {
            add($multiply(a, left), $multiply(b, right))
        }
    };
}

width!(
    "avx512f,gfni",
    512,
    multiply_512,
    double_512,
    combine_512,
    _mm512_set1_epi64,
    _mm512_gf2p8affine_epi64_epi8
);
width!(
    "avx2,gfni",
    256,
    multiply_256,
    double_256,
    combine_256,
    _mm256_set1_epi64x,
    _mm256_gf2p8affine_epi64_epi8
);
