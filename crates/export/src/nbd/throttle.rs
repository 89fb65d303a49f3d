//! Limits the log messages that clients can cause at will: at most [`MOST`] lines in a [`WINDOW`], of all servers together.
//!
//! Each topic has a share, so that a client in the handshake cannot hide what becomes of those in transmission. A window
//! begins with a message and nothing ends it early: a client that comes and goes gets no further lines.

use std::time::Duration;

use ashlar_block::rate_limit::RateLimit;

/// The window.
const WINDOW: Duration = Duration::from_secs(10);
/// The topics' messages in a window. Each has one more line, which counts those that were left out.
const SHARES: [u32; 4] = [1, 3, 5, 7];
/// The most lines in a window.
#[cfg(test)]
const MOST: u32 = 20;

/// The topic of a message. Each topic is limited separately.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Topic {
    /// A connection could not be accepted.
    Accepting,
    /// A client was refused for lack of room.
    Refused,
    /// A connection ended in the handshake.
    Handshake,
    /// A connection ended in transmission.
    Transmission,
}

/// See the module text. The number of messages left out is logged with the first message of the next window, or by
/// [`Throttle::catch_up`] and [`Throttle::end`].
#[derive(Debug)]
pub(crate) struct Throttle([RateLimit; 4]);

impl Default for Throttle {
    fn default() -> Self {
        Self(SHARES.map(|most| RateLimit::of(most, WINDOW.as_nanos() as u64)))
    }
}

impl Throttle {
    /// Calls `message` to log, unless there were too many. `now_ns` is any monotonic clock.
    pub(crate) fn say(&self, topic: Topic, now_ns: u64, message: impl FnOnce()) {
        if let Some(left_out) = self.0[topic as usize].admit(now_ns) {
            tell(left_out);
            message();
        }
    }

    /// Whether messages were left out that are not counted in the log yet.
    pub(crate) fn is_behind(&self) -> bool {
        self.0.iter().any(RateLimit::is_behind)
    }

    /// Logs how many messages were left out in windows that are over.
    pub(crate) fn catch_up(&self, now_ns: u64) {
        self.0.iter().map(|limit| limit.take_suppressed(Some(now_ns))).for_each(tell);
    }

    /// Logs how many messages were left out, at the end.
    pub(crate) fn end(&self) {
        self.0.iter().map(|limit| limit.take_suppressed(None)).for_each(tell);
    }
}

fn tell(left_out: u64) {
    if left_out > 0 {
        tracing::warn!(left_out, "more messages about NBD clients");
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn messages_of_a_window_are_few_and_the_next_window_has_as_many() {
        let (throttle, said) = (Throttle::default(), Cell::new(0));
        let say = |topic, now_ns| throttle.say(topic, now_ns, || said.set(said.get() + 1));
        let window_ns = WINDOW.as_nanos() as u64;
        for begin_ns in [5, 5 + window_ns] {
            let mut lines = 0;
            let topics = [Topic::Accepting, Topic::Refused, Topic::Handshake, Topic::Transmission];
            for topic in topics {
                (0..1000).for_each(|step_ns| say(topic, begin_ns + step_ns));
                assert_eq!(said.get(), SHARES[topic as usize], "{topic:?}");
                lines += said.take() + 1;
            }
            assert_eq!(lines, MOST);
            // Clients that come and go end no window.
            throttle.catch_up(begin_ns + window_ns - 1);
            say(Topic::Handshake, begin_ns + window_ns - 1);
            assert!(said.take() == 0 && throttle.is_behind());
        }
        throttle.catch_up(5 + 3 * window_ns);
        assert!(!throttle.is_behind());
    }
}
