//! Seeded random I/O on a device, checked by the oracle.

use std::ops::Range;
use std::rc::Rc;

use ashlar_block::{Bio, BioResult, Buffer, Flags, Gateway, Sector, Sectors, Segments, Status};

use crate::oracle::{Oracle, Violation};
use crate::rng::Rng;
use crate::scheduler::start;

/// The frequency of each operation, as weights.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mix {
    /// Reads.
    pub read: u64,
    /// Writes without flags.
    pub write: u64,
    /// Writes with FUA, half of them with PREFLUSH too.
    pub write_fua: u64,
    /// Flushes.
    pub flush: u64,
    /// Discards.
    pub discard: u64,
    /// Write-zeroes.
    pub write_zeroes: u64,
}

impl Default for Mix {
    fn default() -> Self {
        Self { read: 30, write: 40, write_fua: 8, flush: 6, discard: 6, write_zeroes: 10 }
    }
}

impl Mix {
    /// Only reads and writes.
    pub const fn reads_and_writes() -> Self {
        Self { read: 50, write: 50, write_fua: 0, flush: 0, discard: 0, write_zeroes: 0 }
    }
}

/// Random I/O: several tasks, each submitting one I/O after the other.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Sectors that the I/Os are in.
    pub span: Range<u64>,
    /// Every I/O begins and ends on a multiple of this many sectors.
    pub align: u64,
    /// Longest I/O in sectors.
    pub max_len: u64,
    /// Number of tasks.
    pub tasks: usize,
    /// Number of I/Os per task.
    pub ios: usize,
    /// Frequencies of the operations.
    pub mix: Mix,
    /// Whether errors are only counted; otherwise the workload panics.
    pub tolerate_errors: bool,
}

impl Workload {
    /// Eight tasks with 40 I/Os each of up to 64 sectors, over `span`.
    pub fn over(span: Range<u64>) -> Self {
        let mix = Mix::default();
        Self { span, align: 1, max_len: 64, tasks: 8, ios: 40, mix, tolerate_errors: false }
    }

    fn range(&self, rng: &mut Rng) -> Range<u64> {
        let units = (self.span.end - self.span.start) / self.align;
        let len = 1 + rng.below((self.max_len / self.align).clamp(1, units));
        let at = rng.below(units - len + 1);
        let start = self.span.start + at * self.align;
        start..start + len * self.align
    }

    /// Runs the workload; returns how many I/Os failed.
    ///
    /// # Errors
    /// The violation that the oracle found.
    ///
    /// # Panics
    /// When an I/O fails and errors are not tolerated.
    pub async fn run(
        &self,
        gateway: &Gateway,
        oracle: &Oracle,
        rng: &mut Rng,
    ) -> Result<u64, Violation> {
        let shared = Rc::new(self.clone());
        let tasks: Vec<_> = (0..self.tasks)
            .map(|_| {
                let worker = Worker {
                    workload: Rc::clone(&shared),
                    gateway: gateway.clone(),
                    oracle: oracle.clone(),
                    rng: rng.fork(),
                    errors: 0,
                };
                start(worker.work())
            })
            .collect();
        let mut errors = 0;
        for task in tasks {
            errors += task.await?;
        }
        Ok(errors)
    }

    /// Reads everything that the workload may have touched.
    ///
    /// # Errors
    /// The violation that the oracle found.
    ///
    /// # Panics
    /// When a read fails.
    pub async fn verify(&self, gateway: &Gateway, oracle: &Oracle) -> Result<(), Violation> {
        let mut at = self.span.start;
        while at < self.span.end {
            let range = at..self.span.end.min(at + 256);
            at = range.end;
            let ticket = oracle.begin_read(range.clone());
            let data = gateway.read(Sector(range.start), Sectors(range.end - range.start)).await;
            oracle.check_read(ticket, data.expect("a read").as_slice())?;
        }
        Ok(())
    }
}

struct Worker {
    workload: Rc<Workload>,
    gateway: Gateway,
    oracle: Oracle,
    rng: Rng,
    errors: u64,
}

impl Worker {
    async fn work(mut self) -> Result<u64, Violation> {
        for _ in 0..self.workload.ios {
            if let Err(status) = self.one().await? {
                assert!(self.workload.tolerate_errors, "an I/O failed: {status}");
                self.errors += 1;
            }
        }
        Ok(self.errors)
    }

    /// Bytes as a list of segments, cut at random.
    fn scattered(&mut self, bytes: &[u8]) -> (Vec<Buffer>, Segments) {
        let mut buffers = Vec::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            let whole = rest.len() as u64 / 512;
            let n = if self.rng.chance(2, 3) { whole } else { 1 + self.rng.below(whole) };
            let (part, more) = rest.split_at(n as usize * 512);
            buffers.push(Buffer::from_slice(part));
            rest = more;
        }
        let segments = buffers.iter_mut().map(Buffer::whole).collect();
        (buffers, segments)
    }

    async fn one(&mut self) -> Result<BioResult, Violation> {
        let mix = self.workload.mix;
        let range = self.workload.range(&mut self.rng);
        let (at, len) = (Sector(range.start), Sectors(range.end - range.start));
        let weights =
            [mix.read, mix.write, mix.write_fua, mix.flush, mix.discard, mix.write_zeroes];
        let mut draw = self.rng.below(weights.iter().sum::<u64>().max(1));
        let chosen = weights.iter().position(|&weight| {
            let here = draw < weight;
            draw = draw.saturating_sub(weight);
            here
        });
        let fua = Flags::FUA;
        let flags = match chosen {
            Some(2) if self.rng.chance(1, 2) => fua | Flags::PREFLUSH,
            Some(2) => fua,
            Some(4 | 5) if self.rng.chance(1, 4) => fua,
            Some(_) | None => Flags::empty(),
        };
        let (ticket, bio) = match chosen {
            Some(1 | 2) => {
                let (ticket, data) = self.oracle.begin_write(range, flags);
                let (_buffers, segments) = self.scattered(&data);
                (ticket, Bio::write(at, segments))
            }
            Some(3) => (self.oracle.begin_flush(), Bio::flush()),
            Some(4) => (self.oracle.begin_discard(range, flags), Bio::discard(at, len)),
            Some(5) => (self.oracle.begin_write_zeroes(range, flags), Bio::write_zeroes(at, len)),
            Some(_) | None => return self.read(range).await,
        };
        let result = self.gateway.submit(bio.with_flags(flags)).await;
        self.oracle.end(ticket, result);
        // A device without discards is not a failure.
        Ok(if result == Err(Status::NotSupported) && chosen == Some(4) { Ok(()) } else { result })
    }

    async fn read(&mut self, range: Range<u64>) -> Result<BioResult, Violation> {
        let poison = vec![0xa5; (range.end - range.start) as usize * 512];
        let (buffers, segments) = self.scattered(&poison);
        let ticket = self.oracle.begin_read(range.clone());
        let result = self.gateway.submit(Bio::read(Sector(range.start), segments)).await;
        if result.is_err() {
            self.oracle.end(ticket, result);
            return Ok(result);
        }
        let parts: Vec<&[u8]> = buffers.iter().map(Buffer::as_slice).collect();
        let data = parts.concat();
        self.oracle.check_read(ticket, &data)?;
        Ok(Ok(()))
    }
}
