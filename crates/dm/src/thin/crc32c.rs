//! CRC-32C (Castagnoli), eight bytes at a time.

const POLYNOMIAL: u32 = 0x82f6_3b78;

/// `TABLES[n][byte]` is what `byte` does to the sum with `n` more bytes behind it.
static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut sum = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            sum = if sum & 1 == 1 { sum >> 1 ^ POLYNOMIAL } else { sum >> 1 };
            bit += 1;
        }
        tables[0][byte] = sum;
        byte += 1;
    }
    let mut n = 1;
    while n < 8 {
        let mut byte = 0;
        while byte < 256 {
            let sum = tables[n - 1][byte];
            tables[n][byte] = sum >> 8 ^ tables[0][(sum & 0xff) as usize];
            byte += 1;
        }
        n += 1;
    }
    tables
}

/// The sum of `bytes` as the kernel's `crc32c(~0, ...)` has it: without the last inversion.
pub(super) fn raw(bytes: &[u8]) -> u32 {
    let (eights, rest) = bytes.as_chunks::<8>();
    let sum = eights.iter().fold(!0, |sum: u32, eight| {
        let mixed = u64::from_le_bytes(*eight) ^ u64::from(sum);
        let bytes = mixed.to_le_bytes();
        bytes.iter().zip(TABLES.iter().rev()).fold(0, |sum, (byte, t)| sum ^ t[usize::from(*byte)])
    });
    rest.iter().fold(sum, |sum, byte| sum >> 8 ^ TABLES[0][usize::from(sum as u8 ^ byte)])
}

#[cfg(test)]
mod tests {
    #[test]
    fn sums_are_those_of_rfc_3720() {
        let ascending: Vec<u8> = (0..32).collect();
        assert_eq!(!super::raw(b"123456789"), 0xe306_9283);
        assert_eq!(!super::raw(&[0; 32]), 0x8a91_36aa);
        assert_eq!(!super::raw(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(!super::raw(&ascending), 0x46dd_794e);
    }
}
