//! The host of an array with superblocks of version 0.90, which have no name: mdadm stores the first 8 bytes of the
//! SHA-1 of the host's name in the third and fourth word of the array's UUID (`super0.c`).

use sha1::{Digest, Sha1};
use uuid::Uuid;

use super::fields::swap_words;

/// The bytes of these words in a stored UUID.
const HOST: core::ops::Range<usize> = 8..16;

/// The UUID with its host words replaced by those of `host`.
pub fn with_host(uuid: Uuid, host: &str) -> Uuid {
    let mut stored = swap_words(uuid.into_bytes());
    stored[HOST].copy_from_slice(&Sha1::digest(host)[..HOST.len()]);
    Uuid::from_bytes(swap_words(stored))
}

/// Whether the UUID contains the words of `host`.
pub fn is_of(uuid: Uuid, host: &str) -> bool {
    with_host(uuid, host) == uuid
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ondisk::MdadmUuid;

    /// The expected words are those that `mdadm --examine --homehost=nas` of mdadm 4.2 recognises.
    #[test]
    fn the_last_two_words_are_those_of_mdadm() {
        let uuid = Uuid::from_u128(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);
        let marked = with_host(uuid, "nas");
        assert_eq!(MdadmUuid(marked).to_string(), "01234567:89abcdef:c7780c0e:bc15422d");
        assert!(is_of(marked, "nas") && !is_of(marked, "nas2") && !is_of(uuid, "nas"));
    }
}
