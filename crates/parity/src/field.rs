//! The field GF(2^8) with the polynomial x^8 + x^4 + x^3 + x^2 + 1 (0x11d), whose element 2 generates
//! all elements but zero: that of RAID 6 in Linux (`lib/raid6/mktables.c`) and in DDF. Addition is XOR.

/// Elements of the field except zero, which is also the period of the powers of 2.
pub(crate) const ORDER: usize = 255;

/// What the eighth bit is replaced by.
const REDUCTION: u8 = 0x1d;

/// `2 * element`
pub(crate) const fn double(element: u8) -> u8 {
    // The sign, shifted arithmetically, is a mask. Without a branch, compilers vectorise this.
    element << 1 ^ (element as i8 >> 7) as u8 & REDUCTION
}

/// `left * right`
pub(crate) const fn multiply(left: u8, right: u8) -> u8 {
    let mut product = 0;
    let mut bit = 8;
    while bit > 0 {
        bit -= 1;
        product = double(product);
        if right >> bit & 1 == 1 {
            product ^= left;
        }
    }
    product
}

/// `1 / element`; zero of zero.
pub(crate) const fn invert(element: u8) -> u8 {
    // element^255 is 1, so that the inverse is element^254, the product of the powers 2, 4, 8 ... 128.
    let mut inverse = 1;
    let mut power = element;
    let mut square = 1;
    while square < 8 {
        power = multiply(power, power);
        inverse = multiply(inverse, power);
        square += 1;
    }
    inverse
}

const POWERS: [u8; ORDER] = {
    let mut powers = [1; ORDER];
    let mut exponent = 1;
    while exponent < ORDER {
        powers[exponent] = double(powers[exponent - 1]);
        exponent += 1;
    }
    powers
};

/// `2^exponent`, for exponents below [`ORDER`].
pub(crate) const fn power(exponent: usize) -> u8 {
    POWERS[exponent]
}

/// The factors `(a, b)` of `D[x] = a * p + b * q`, where `p = D[x] + D[y]` and
/// `q = 2^x * D[x] + 2^y * D[y]`. The exponents differ and are below [`ORDER`], so that the
/// divisor is not zero.
pub(crate) const fn of_two(x: usize, y: usize) -> (u8, u8) {
    let inverse = invert(power(x) ^ power(y));
    (multiply(power(y), inverse), inverse)
}
