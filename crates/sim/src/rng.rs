//! The only source of randomness of a simulation.

/// A small seeded generator (SplitMix64): fast, and all seeds are equally good.
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
}

/// Scrambles a number: the output function of SplitMix64.
pub(crate) const fn mix(n: u64) -> u64 {
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

impl Rng {
    /// The generator for `seed`.
    pub const fn new(seed: u64) -> Self {
        Self { state: mix(seed ^ 0x6173_686c_6172) }
    }

    /// The next 64 bits.
    pub const fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// A number below `n`.
    ///
    /// # Panics
    /// When `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        assert!(n != 0, "nothing is below 0");
        // The bias of the remainder does not matter here.
        self.next_u64() % n
    }

    /// An index into a list of `len` elements.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// True in `n` of `of` cases.
    pub fn chance(&mut self, n: u64, of: u64) -> bool {
        self.below(of) < n
    }

    /// A separate generator, whose draws do not affect this one's.
    #[must_use]
    pub const fn fork(&mut self) -> Self {
        Self::new(self.next_u64())
    }
}

/// The seeds that a test runs: the first `count`, unless the build's environment selects others
/// ([`crate::runs::wanted`]).
pub fn seeds(count: u64) -> std::ops::Range<u64> {
    let wanted = crate::runs::wanted(|name| {
        let value = match name {
            "ASHLAR_SEED" => option_env!("ASHLAR_SEED"),
            _ => option_env!("ASHLAR_SEEDS"),
        };
        value.map(str::to_owned)
    });
    wanted.unwrap_or(0..count)
}
