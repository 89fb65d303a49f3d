//! One limit: tokens that come at a rate, and are kept up to a burst.
//!
//! All arithmetic is exact: tokens are counted in billionths, so that each nanosecond brings a whole number of them.

/// The parts of a token.
const PARTS: i128 = 1_000_000_000;

/// See the module text.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Bucket {
    /// Tokens in each second; `None` without a limit.
    rate: Option<u64>,
    /// In parts.
    burst: i128,
    /// In parts; below zero by what was borrowed.
    level: i128,
    /// The time of the level.
    at_ns: u64,
}

impl Bucket {
    /// Sets the rate and the length of a burst. What is there stays, up to the new burst; the bucket of a new limit is full.
    pub(super) fn set(&mut self, rate: Option<u64>, burst_ms: u32, now_ns: u64) {
        self.fill(now_ns);
        let is_new = self.rate.is_none();
        let burst = u128::from(rate.unwrap_or(0)) * u128::from(burst_ms) / 1000;
        // A request passes, however low the rate is.
        self.burst = i128::try_from(burst.max(1)).map_or(i128::MAX, |burst| burst * PARTS);
        self.level = if is_new { self.burst } else { self.level.min(self.burst) };
        self.rate = rate;
    }

    /// Adds what has come until now.
    fn fill(&mut self, now_ns: u64) {
        let passed_ns = now_ns.saturating_sub(self.at_ns);
        self.at_ns += passed_ns;
        if let Some(rate) = self.rate {
            let come = i128::from(rate).saturating_mul(passed_ns.into());
            self.level = self.level.saturating_add(come).min(self.burst);
        }
    }

    /// How long from now a request for `tokens` has to wait, in ns, if nothing is taken before. One for more than a burst waits for a full
    /// bucket, and borrows the rest.
    pub(super) fn wait_ns(&mut self, tokens: u64, now_ns: u64) -> u64 {
        let Some(rate) = self.rate else { return 0 };
        self.fill(now_ns);
        let lack = (i128::from(tokens) * PARTS).min(self.burst) - self.level;
        if lack <= 0 {
            return 0;
        }
        u64::try_from((lack + i128::from(rate) - 1) / i128::from(rate)).unwrap_or(u64::MAX)
    }

    /// Takes `tokens` for a request that need not wait.
    pub(super) fn take(&mut self, tokens: u64) {
        if self.rate.is_some() {
            self.level -= i128::from(tokens) * PARTS;
        }
    }
}
