//! Random changes of inputs, for drivers without coverage.

use ashlar_sim::Rng;

/// Numbers at boundaries: zero, one, and the limits of the types.
const INTERESTING: [u64; 12] = [
    0,
    1,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    i64::MAX as u64,
    1 << 63,
    u64::MAX,
];

/// The longest input that is produced.
const MAX_LEN: usize = 128 << 10;

/// One of `seeds`, changed in one to four places.
///
/// # Panics
/// If there are no seeds.
pub fn mutate(seeds: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    let mut bytes = seeds[rng.index(seeds.len())].clone();
    for _ in 0..=rng.below(4) {
        change(&mut bytes, seeds, rng);
    }
    bytes.truncate(MAX_LEN);
    bytes
}

fn change(bytes: &mut Vec<u8>, seeds: &[Vec<u8>], rng: &mut Rng) {
    if bytes.is_empty() {
        bytes.push(rng.next_u64() as u8);
        return;
    }
    // The important bytes are mostly at the front.
    let len = if rng.chance(1, 2) { bytes.len().min(512) } else { bytes.len() };
    let at = rng.index(len);
    match rng.below(8) {
        0 => bytes[at] ^= 1 << rng.below(8),
        1 => bytes[at] = rng.next_u64() as u8,
        2 => bytes[at] = bytes[at].wrapping_add(if rng.chance(1, 2) { 1 } else { 255 }),
        3 => number(&mut bytes[at..], rng),
        4 => bytes.truncate(at),
        5 => {
            // Repeat a part directly after itself.
            let end = bytes.len().min(at + 1 + rng.index(64));
            let part = bytes[at..end].to_vec();
            bytes.splice(end..end, part);
        }
        6 => {
            let end = bytes.len().min(at + 1 + rng.index(64));
            bytes.drain(at..end);
        }
        _ => {
            // The front of this input and the end of another.
            let other = &seeds[rng.index(seeds.len())];
            bytes.truncate(at);
            bytes.extend(&other[at.min(other.len())..]);
        }
    }
}

/// Writes an interesting number, of 1 to 8 bytes in either byte order.
fn number(bytes: &mut [u8], rng: &mut Rng) {
    let width = bytes.len().min(1 << rng.below(4));
    let number = INTERESTING[rng.index(INTERESTING.len())];
    let number = number.wrapping_add(rng.below(3)).wrapping_sub(1);
    if rng.chance(1, 2) {
        bytes[..width].copy_from_slice(&number.to_le_bytes()[..width]);
    } else {
        bytes[..width].copy_from_slice(&number.to_be_bytes()[8 - width..]);
    }
}
