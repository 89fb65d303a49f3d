//! Limits the log messages that clients can cause at will.

use std::time::Duration;

use ashlar_block::rate_limit::RateLimit;

/// The most messages in a window of time; further ones are only counted.
const MOST: u32 = 20;
/// The window.
const WINDOW: Duration = Duration::from_secs(10);

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
/// [`Throttle::tell`].
#[derive(Debug)]
pub(crate) struct Throttle([RateLimit; 4]);

impl Default for Throttle {
    fn default() -> Self {
        Self([const { RateLimit::of(MOST, WINDOW.as_nanos() as u64) }; 4])
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

    /// Logs how many messages were left out, and restarts the counts.
    pub(crate) fn tell(&self) {
        self.0.iter().map(RateLimit::restart).for_each(tell);
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
        (0..1000).for_each(|now_ns| say(Topic::Handshake, 5 + now_ns));
        assert_eq!(said.take(), MOST);
        say(Topic::Transmission, 2000);
        assert_eq!(said.take(), 1);
        say(Topic::Handshake, 5 + WINDOW.as_nanos() as u64);
        assert_eq!(said.take(), 1);
    }
}
