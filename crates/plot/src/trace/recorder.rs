//! The reader of the block layer's events: a ring for each thread.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ashlar_block::disk::DeviceNumber;
use ashlar_block::trace::{Event, Reader};
use rtrb::{Consumer, Producer, RingBuffer};

use super::categories::Categories;
use super::record::Record;

/// A thread, as shown to users.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ThreadIdentity {
    /// Its number (gettid(2)).
    pub pid: u32,
    /// Its name, of which 15 bytes are stored.
    pub name: String,
}

/// What a recorder records, and how.
#[derive(Clone, Debug)]
pub struct RecorderOptions {
    /// Events of these devices.
    pub devices: Vec<DeviceNumber>,
    /// Events in any of these categories.
    pub categories: Categories,
    /// Capacity of a thread's ring, in records.
    pub capacity: usize,
    /// Nanoseconds on a clock that all threads share.
    pub clock: fn() -> u64,
    /// Returns the calling thread.
    pub who: fn() -> ThreadIdentity,
}

/// The consumer end of a thread's ring.
struct Thread {
    who: ThreadIdentity,
    records: Consumer<Record>,
}

/// The producer end of a ring, on the thread that fills it.
struct Ring {
    recorder: usize,
    records: Producer<Record>,
    pid: u32,
    thread: u32,
    /// The last sequence number for each wanted device.
    sequences: Vec<u32>,
}

thread_local! {
    static RINGS: RefCell<Vec<Ring>> = const { RefCell::new(Vec::new()) };
}

/// Records events into rings, from which [`Recorder::take`] takes them.
pub struct Recorder {
    id: usize,
    options: RecorderOptions,
    threads: Mutex<Vec<Thread>>,
    lost: AtomicU64,
}

impl Recorder {
    /// A recorder with these settings.
    pub fn new(options: RecorderOptions) -> Arc<Self> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let id = NEXT.fetch_add(1, Relaxed);
        Arc::new(Self { id, options, threads: Mutex::default(), lost: AtomicU64::new(0) })
    }

    /// The threads that had an event, by index.
    pub fn threads(&self) -> Vec<ThreadIdentity> {
        self.lock().iter().map(|thread| thread.who.clone()).collect()
    }

    /// Events lost because a ring was full.
    pub fn lost(&self) -> u64 {
        self.lost.load(Relaxed)
    }

    /// Removes at most `max` records older than `until_ns`, in order of time.
    pub fn take(&self, until_ns: u64, max: usize) -> Vec<Record> {
        let mut threads = self.lock();
        let mut out = Vec::new();
        while out.len() < max {
            let heads = threads.iter_mut().filter_map(|thread| {
                let time_ns = thread.records.peek().ok()?.time_ns;
                (time_ns < until_ns).then_some((time_ns, &mut thread.records))
            });
            let Some((_, oldest)) = heads.min_by_key(|(time_ns, _)| *time_ns) else { break };
            out.extend(oldest.pop().ok());
        }
        out
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Thread>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a ring for the calling thread.
    #[cold]
    fn ring(&self) -> Ring {
        let (records, end) = RingBuffer::new(self.options.capacity);
        let who = (self.options.who)();
        let pid = who.pid;
        let mut threads = self.lock();
        let thread = threads.len() as u32;
        threads.push(Thread { who, records: end });
        let sequences = vec![0; self.options.devices.len()];
        Ring { recorder: self.id, records, pid, thread, sequences }
    }

    fn record(&self, ring: &mut Ring, device: usize, record: Record) {
        let sequence = &mut ring.sequences[device];
        *sequence = sequence.wrapping_add(1);
        let record = Record {
            sequence: *sequence,
            time_ns: (self.options.clock)(),
            pid: ring.pid,
            thread: ring.thread,
            ..record
        };
        if ring.records.push(record).is_err() {
            self.lost.fetch_add(1, Relaxed);
        }
    }
}

impl Reader for Recorder {
    fn event(&self, event: &Event<'_>) {
        let number = event.disk.number();
        let Some(device) = self.options.devices.iter().position(|wanted| *wanted == number) else {
            return;
        };
        let categories = Categories::of(event.action, event.op, event.flags);
        if !categories.intersects(self.options.categories) {
            return;
        }
        let record = Record::of(event, number, categories);
        let recorded = RINGS.try_with(|rings| {
            let mut rings = rings.borrow_mut();
            let here = rings.iter().position(|ring| ring.recorder == self.id);
            let here = here.unwrap_or_else(|| {
                rings.retain(|ring| !ring.records.is_abandoned());
                rings.push(self.ring());
                rings.len() - 1
            });
            self.record(&mut rings[here], device, record);
        });
        // A thread that is exiting no longer has a ring.
        if recorded.is_err() {
            self.lost.fetch_add(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_block::trace::{Action, Detail};
    use ashlar_block::{Disk, Flags, Limits, Op, Sector, Sectors};

    fn clock() -> u64 {
        static NOW: AtomicU64 = AtomicU64::new(0);
        NOW.fetch_add(1, Relaxed)
    }

    fn recorder(disks: &[&Disk], categories: Categories) -> Arc<Recorder> {
        Recorder::new(RecorderOptions {
            devices: disks.iter().map(|disk| disk.number()).collect(),
            categories,
            capacity: 4,
            clock,
            who: || ThreadIdentity { pid: 7, name: "me".to_owned() },
        })
    }

    fn disk() -> Disk {
        Disk::new("d", Sectors(1000), Limits::default())
    }

    fn fire(recorder: &Recorder, disk: &Disk, action: Action, op: Op, sector: u64) {
        recorder.event(&Event {
            at_ns: 0,
            disk,
            action,
            op,
            flags: Flags::empty(),
            sector: Sector(sector),
            len: Sectors(8),
            detail: Detail::None,
        });
    }

    fn seen(recorder: &Recorder) -> Vec<(u32, u64)> {
        recorder.take(u64::MAX, 100).iter().map(|r| (r.sequence, r.sector)).collect()
    }

    #[test]
    fn what_finds_a_full_ring_is_lost_and_leaves_a_gap() {
        let disk = disk();
        let recorder = recorder(&[&disk], Categories::all());
        for sector in 0..6 {
            fire(&recorder, &disk, Action::Queue, Op::Read, sector);
        }
        assert_eq!(seen(&recorder), [(1, 0), (2, 1), (3, 2), (4, 3)]);
        assert_eq!(recorder.lost(), 2);
        fire(&recorder, &disk, Action::Queue, Op::Read, 6);
        assert_eq!(seen(&recorder), [(7, 6)]);
        assert_eq!(recorder.lost(), 2);
    }

    #[test]
    fn other_devices_and_categories_are_not_recorded() {
        let (one, other) = (disk(), disk());
        let recorder = recorder(&[&one], Categories::WRITE | Categories::COMPLETE);
        fire(&recorder, &other, Action::Queue, Op::Write, 1);
        fire(&recorder, &one, Action::Queue, Op::Read, 2);
        fire(&recorder, &one, Action::Queue, Op::Discard, 3);
        fire(&recorder, &one, Action::Complete, Op::Read, 4);
        assert_eq!(seen(&recorder), [(1, 3), (2, 4)]);
        assert_eq!(recorder.lost(), 0);
    }

    #[test]
    fn each_device_counts_for_itself() {
        let (one, other) = (disk(), disk());
        let recorder = recorder(&[&one, &other], Categories::all());
        for disk in [&one, &other, &one] {
            fire(&recorder, disk, Action::Queue, Op::Read, 0);
        }
        let all = recorder.take(u64::MAX, 100);
        let numbers: Vec<_> = all.iter().map(|r| (r.device, r.sequence)).collect();
        assert_eq!(numbers, [(one.number(), 1), (other.number(), 1), (one.number(), 2)]);
    }

    #[test]
    fn threads_are_merged_by_time_and_taken_up_to_a_moment() {
        let disk = Arc::new(disk());
        let recorder = recorder(&[&disk], Categories::all());
        fire(&recorder, &disk, Action::Queue, Op::Read, 0);
        let (on, there) = (Arc::clone(&recorder), Arc::clone(&disk));
        std::thread::spawn(move || fire(&on, &there, Action::Queue, Op::Read, 1)).join().unwrap();
        fire(&recorder, &disk, Action::Queue, Op::Read, 2);
        let first = recorder.take(u64::MAX, 2);
        assert_eq!(
            first.iter().map(|r| (r.thread, r.sector)).collect::<Vec<_>>(),
            [(0, 0), (1, 1)]
        );
        assert!(recorder.take(first[1].time_ns, 100).is_empty());
        assert_eq!(seen(&recorder), [(2, 2)]);
        assert_eq!(recorder.threads().len(), 2);
    }
}
