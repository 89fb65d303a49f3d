//! The speeds of merges and moves, which the device mapper does not measure.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use ashlar_block::Sectors;

/// For how long back a speed is measured, and how often.
const MARKS: usize = 30;
const BETWEEN_MARKS: Duration = Duration::from_millis(500);

/// The speeds of merges and moves.
#[derive(Default)]
pub(crate) struct Speeds(HashMap<String, Speed>);

#[derive(Default)]
struct Speed {
    /// What was left when the job was first seen.
    total: Sectors,
    marks: VecDeque<(Instant, Sectors)>,
}

impl Speeds {
    /// Notes what is left of each job now.
    pub(crate) fn note(&mut self, jobs: HashMap<String, Sectors>, now: Instant) {
        self.0.retain(|name, _| jobs.contains_key(name));
        for (name, left) in jobs {
            let speed = self.0.entry(name).or_default();
            speed.total = speed.total.max(left);
            if speed.marks.back().is_some_and(|(last, _)| now - *last < BETWEEN_MARKS) {
                continue;
            }
            speed.marks.push_back((now, left));
            if speed.marks.len() > MARKS {
                speed.marks.pop_front();
            }
        }
    }

    /// The whole of a job of which this is left, and its bytes per second.
    pub(crate) fn of(&self, name: &str, left: Sectors) -> (Sectors, Option<u64>) {
        let Some(speed) = self.0.get(name) else { return (left, None) };
        let rate = speed.marks.front().and_then(|(since, before)| {
            let time = u64::try_from(since.elapsed().as_millis()).ok().filter(|time| *time > 0)?;
            Some(before.0.saturating_sub(left.0) * 512 * 1000 / time)
        });
        (speed.total.max(left), rate.filter(|rate| *rate > 0))
    }
}
