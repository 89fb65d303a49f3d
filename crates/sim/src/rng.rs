//! The one source of chance of a simulation.

/// A small seeded generator (SplitMix64): quick, and every seed is as good as any other.
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
    /// The generator of `seed`.
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
        // The bias of a remainder is of no importance here.
        self.next_u64() % n
    }

    /// An index of a list of `len`.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// True in `n` of `of` cases.
    pub fn chance(&mut self, n: u64, of: u64) -> bool {
        self.below(of) < n
    }

    /// A generator of its own, for a part whose draws must not disturb this one's.
    #[must_use]
    pub const fn fork(&mut self) -> Self {
        Self::new(self.next_u64())
    }
}

/// The seeds that a test runs: the first `count`, unless the environment of the build said which ([`crate::runs::wanted`]).
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
