//! A limit for messages that I/O causes: a dying disk, or a client, must not fill the log.
//!
//! As with the kernel's `printk_ratelimited`, each place in the program that logs through [`rate_limited!`](crate::rate_limited)
//! has a separate limit: [`BURST`] messages in [`INTERVAL_NS`]. The first message of a later interval has a
//! field `suppressed`: the number of messages suppressed before it.

use std::sync::Mutex;

use crate::sync::lock;

/// Most messages of one place in an interval (the kernel's `DEFAULT_RATELIMIT_BURST`).
pub const BURST: u32 = 10;
/// Length of an interval in nanoseconds (the kernel's `DEFAULT_RATELIMIT_INTERVAL`).
pub const INTERVAL_NS: u64 = 5_000_000_000;

/// The limit of one place.
#[derive(Debug)]
pub struct RateLimit {
    burst: u32,
    interval_ns: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// When the interval began; meaningless if `told` is zero.
    begin_ns: u64,
    told: u32,
    suppressed: u64,
}

impl RateLimit {
    /// The limit of a place that has logged nothing yet: [`BURST`] messages in [`INTERVAL_NS`].
    #[must_use]
    pub const fn new() -> Self {
        Self::of(BURST, INTERVAL_NS)
    }

    /// A limit of `burst` messages in an interval of `interval_ns`.
    #[must_use]
    pub const fn of(burst: u32, interval_ns: u64) -> Self {
        let state = State { begin_ns: 0, told: 0, suppressed: 0 };
        Self { burst, interval_ns, state: Mutex::new(state) }
    }

    /// If a message may be logged at `now_ns`, the number of messages suppressed since the last one. `None`
    /// suppresses this message, and counts it.
    pub fn admit(&self, now_ns: u64) -> Option<u64> {
        let mut state = lock(&self.state);
        // A clock that goes back is a different clock: each simulation has one.
        let is_over = now_ns < state.begin_ns || now_ns - state.begin_ns >= self.interval_ns;
        if state.told == 0 || is_over {
            (state.begin_ns, state.told) = (now_ns, 0);
        }
        if state.told == self.burst {
            state.suppressed += 1;
            return None;
        }
        state.told += 1;
        Some(std::mem::take(&mut state.suppressed))
    }

    /// Takes the number of messages suppressed since the last one, if the interval is over at `now_ns` or there is no
    /// `now_ns`; otherwise 0. A new interval begins with the next message, but none early.
    pub fn take_suppressed(&self, now_ns: Option<u64>) -> u64 {
        let mut state = lock(&self.state);
        let is_over = |now_ns: u64| now_ns.saturating_sub(state.begin_ns) >= self.interval_ns;
        if now_ns.is_none_or(is_over) { std::mem::take(&mut state.suppressed) } else { 0 }
    }

    /// Whether messages were suppressed since the last one.
    pub fn is_behind(&self) -> bool {
        lock(&self.state).suppressed > 0
    }
}

impl Default for RateLimit {
    fn default() -> Self {
        Self::new()
    }
}

/// Logs like tracing's macro of the level named first, as often as the [`RateLimit`] of this place allows:
/// `rate_limited!(warn, member, %status, "read error")`. The caller needs `tracing` as a dependency.
#[macro_export]
macro_rules! rate_limited {
    ($level:ident, $($message:tt)+) => {{
        static LIMIT: $crate::rate_limit::RateLimit = $crate::rate_limit::RateLimit::new();
        if let Some(suppressed) = LIMIT.admit($crate::clock::now_ns()) {
            let suppressed = (suppressed > 0).then_some(suppressed);
            tracing::$level!(suppressed, $($message)+);
        }
    }};
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_told_and_the_rest_is_counted() {
        let limit = RateLimit::new();
        let told = |now_ns| (0..1000).filter_map(|_| limit.admit(now_ns)).collect::<Vec<_>>();
        assert_eq!(told(7), [0; BURST as usize]);
        assert!(told(7 + INTERVAL_NS - 1).is_empty());
        let mut next = [0; BURST as usize];
        next[0] = 1000 - u64::from(BURST) + 1000;
        assert_eq!(told(7 + INTERVAL_NS), next);
        // Another clock.
        next[0] = 1000 - u64::from(BURST);
        assert_eq!(told(3), next);
        // Saying how many were suppressed makes no room for others.
        assert!(limit.is_behind());
        assert_eq!(limit.take_suppressed(Some(3 + INTERVAL_NS - 1)), 0);
        assert_eq!(limit.take_suppressed(None), 1000 - u64::from(BURST));
        assert!(told(3).is_empty());
        assert_eq!(limit.take_suppressed(Some(3 + INTERVAL_NS)), 1000);
        assert!(!limit.is_behind());
        assert_eq!(told(3 + INTERVAL_NS), [0; BURST as usize]);
    }
}
