//! Rate limits of volumes, in the answers of `Status` and `Sample`.

use serde::{Deserialize, Serialize};

/// A volume with rate limits.
#[derive(Serialize, Deserialize, Debug, Default)]
pub struct LimitedVolume {
    /// The volume's name for clients.
    pub volume: String,
    /// Its limits.
    pub limits: LimitSample,
}

/// The rate limits of a volume, each a number in a second, and the requests that had to wait for them.
#[derive(Clone, Default, Serialize, Deserialize, Debug)]
pub struct LimitSample {
    /// Bytes read; `None` for no limit.
    pub rbps: Option<u64>,
    /// Bytes written; `None` for no limit.
    pub wbps: Option<u64>,
    /// Reads; `None` for no limit.
    pub riops: Option<u64>,
    /// Writes and discards; `None` for no limit.
    pub wiops: Option<u64>,
    /// The length of a burst in milliseconds.
    pub burst_ms: u32,
    /// Reads that had to wait.
    pub read: DelaySample,
    /// Writes and discards that had to wait.
    pub write: DelaySample,
}

impl LimitSample {
    /// The requests that wait now.
    pub fn waiting(&self) -> u64 {
        self.read.waiting + self.write.waiting
    }

    /// The limits, in the words of `io.max`, and how many requests wait, for users; `None` if there are no limits any more.
    pub fn text(&self) -> Option<String> {
        let rates = [
            ("rbps", self.rbps),
            ("wbps", self.wbps),
            ("riops", self.riops),
            ("wiops", self.wiops),
        ];
        let words = rates.into_iter().filter_map(|(word, rate)| Some(format!("{word}={}", rate?)));
        let words: Vec<String> = words.collect();
        let wait = match self.waiting() {
            1 => "1 request waits".to_owned(),
            count => format!("{count} requests wait"),
        };
        (!words.is_empty()).then(|| format!("limited to {}; {wait}", words.join(" ")))
    }
}

/// Requests that had to wait for a rate limit.
#[derive(Clone, Default, Serialize, Deserialize, Debug)]
pub struct DelaySample {
    /// Those that wait now.
    pub waiting: u64,
    /// All since the daemon started.
    pub requests: u64,
    /// The time for which those waited that have passed, added up, in nanoseconds.
    pub time_ns: u64,
}
