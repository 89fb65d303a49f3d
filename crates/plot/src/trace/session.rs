//! A running trace: from the first event to the bytes of blktrace.

use std::sync::Arc;
use std::time::Duration;

use ashlar_block::disk::DeviceNumber;
use ashlar_block::trace::{self, Watch};

use super::binary;
use super::categories::Categories;
use super::recorder::{Recorder, RecorderOptions, ThreadIdentity};

/// Capacity of a thread's ring, in records: some tens of milliseconds of a very busy thread. 88
/// bytes each, of memory that is touched only as far as the ring fills.
const CAPACITY: usize = 1 << 16;

/// Functions that a session needs from its host.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    /// Nanoseconds on a clock that all threads share and that never runs backwards.
    pub clock: fn() -> u64,
    /// Time since the Unix epoch.
    pub wall_clock: fn() -> Duration,
    /// Returns the calling thread.
    pub who: fn() -> ThreadIdentity,
}

/// A running trace; dropping it ends it.
pub struct Session {
    recorder: Arc<Recorder>,
    devices: Vec<DeviceNumber>,
    /// Notes to send before the next records.
    notes: Vec<u8>,
    /// Number of threads whose names were sent.
    named: usize,
    _watch: Watch,
}

impl Session {
    /// Starts recording the events of `devices` in any of `categories`.
    pub fn start(devices: Vec<DeviceNumber>, categories: Categories, host: Host) -> Self {
        let recorder = Recorder::new(RecorderOptions {
            devices: devices.clone(),
            categories,
            capacity: CAPACITY,
            clock: host.clock,
            who: host.who,
        });
        let mut notes = Vec::new();
        for device in &devices {
            binary::put_start(&mut notes, *device, (host.clock)(), (host.wall_clock)());
        }
        let watch = trace::watch(Arc::<Recorder>::clone(&recorder));
        Self { recorder, devices, notes, named: 0, _watch: watch }
    }

    /// Removes at most `max` records older than `until_ns`, in order of time. Returns them in
    /// blktrace's format, and their number.
    pub fn take(&mut self, until_ns: u64, max: usize) -> (Vec<u8>, usize) {
        let records = self.recorder.take(until_ns, max);
        let mut bytes = std::mem::take(&mut self.notes);
        // Names come before the records of their threads; each of those threads is registered by now.
        for (index, who) in self.recorder.threads().iter().enumerate().skip(self.named) {
            for device in &self.devices {
                binary::put_name(&mut bytes, *device, index as u32, who);
            }
            self.named = index + 1;
        }
        for record in &records {
            binary::put(&mut bytes, record);
        }
        (bytes, records.len())
    }

    /// Events lost because the reader was too slow.
    pub fn lost(&self) -> u64 {
        self.recorder.lost()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::binary::{Decoder, Item};
    use ashlar_block::trace::Action;
    use ashlar_block::{Bio, Disk, Limits, Sector, Sectors};

    #[test]
    fn a_session_tells_of_its_start_and_of_threads_before_their_events() {
        let disk = Disk::new("d", Sectors(1000), Limits::default());
        let host = Host {
            clock: || 5,
            wall_clock: || Duration::from_secs(1000),
            who: || ThreadIdentity { pid: 12, name: "me".to_owned() },
        };
        let mut session = Session::start(vec![disk.number()], Categories::all(), host);
        let mut decoder = Decoder::default();
        let mut next = |session: &mut Session, until_ns| {
            let (bytes, count) = session.take(until_ns, 10);
            decoder.push(&bytes);
            let items = std::iter::from_fn(|| decoder.take().unwrap());
            (items.map(|placed| placed.item).collect::<Vec<_>>(), count)
        };
        let start = Item::Start { time_ns: 5, wall_clock: Duration::from_secs(1000) };
        assert_eq!(next(&mut session, u64::MAX), (vec![start], 0));
        trace::bio(&disk, Action::Queue, &Bio::discard(Sector(8), Sectors(16)));
        let name = Item::Name((host.who)());
        assert_eq!(next(&mut session, 5), (vec![name], 0), "the event is not from before that");
        let (items, count) = next(&mut session, 6);
        assert_eq!(count, 1);
        let [Item::Event(record)] = &items[..] else { panic!("{items:?}") };
        assert_eq!((record.pid, record.sector, record.bytes), (12, 8, 8192));
    }
}
