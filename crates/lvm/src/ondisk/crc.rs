//! LVM's checksum: CRC-32 with a special initial value and without the final inversion (`lib/misc/crc.c`).

/// The initial value (`INITIAL_CRC`).
pub const INITIAL: u32 = 0xf597_a6cf;

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let mut value = i as u32;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 == 1 { value >> 1 ^ 0xedb8_8320 } else { value >> 1 };
            bit += 1;
        }
        table[i] = value;
        i += 1;
    }
    table
};

/// The checksum of `bytes`.
pub fn crc(bytes: &[u8]) -> u32 {
    bytes.iter().fold(INITIAL, |crc, byte| crc >> 8 ^ TABLE[usize::from(crc as u8 ^ byte)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_crc32_but_for_where_it_begins_and_ends() {
        assert_eq!(crc(b""), INITIAL);
        let plain = b"123456789"
            .iter()
            .fold(!0, |crc: u32, byte| crc >> 8 ^ TABLE[usize::from(crc as u8 ^ byte)]);
        assert_eq!(!plain, 0xcbf4_3926);
    }
}
