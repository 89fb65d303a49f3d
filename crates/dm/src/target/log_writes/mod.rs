//! `log-writes DEVICE LOG_DEVICE`: writes to a device are also written to a log, which can be
//! replayed up to any point (xfstests' `replay-log`).
//!
//! The log has the order in which data became durable: a write without FUA waits for the next
//! flush, and comes before it in the log if it was acknowledged before the flush began; a write
//! with FUA is logged when it is acknowledged. The message `mark NAME` adds a mark at the end of
//! the log. See [`format`](mod@format) for the format.
//!
//! Differences from the kernel's target: entries are in the log before the flush or FUA write that
//! caused them is acknowledged; failed writes are not logged; data overwritten by a write with FUA
//! comes before it, flushed or not, so that a replay does not bring it back; and unflushed data is
//! logged when the device is suspended, because a suspension precedes its removal.
//!
//! An error of the log never fails I/O: the log ends there, and the status shows `logging_disabled`.

pub mod format;

use std::collections::VecDeque;
use std::sync::Mutex;

use ashlar_block::buffer::gather;
use ashlar_block::sync::lock;
use ashlar_block::{
    Bio, BioResult, Buffer, Features, Flags, Gateway, IoFuture, Limits, LocalFuture, Op, Sector,
    Sectors, Segments, Status,
};
use futures_util::lock::Mutex as AsyncMutex;
use tracing::error;
use zerocopy::IntoBytes;

use super::zero::anything;
use super::{Lower, MessageError, Reply, TableTarget, Target, TargetError, TargetParameters};
use crate::text::QuotedArgument;
use format::{DISCARD, Entry, FLUSH, FUA, MARK, METADATA, Super};

/// An entry to log.
struct Block {
    sector: Sector,
    len: Sectors,
    flags: u64,
    /// The written data, or the mark's name.
    data: Buffer,
}

#[derive(Default)]
struct State {
    /// Acknowledged, unflushed writes, in order of acknowledgement.
    unflushed: VecDeque<Block>,
    /// The number of entries ever moved from there to the queue.
    flushed: u64,
    /// The next entries to log, in this order.
    queue: VecDeque<Block>,
    entries: u64,
    /// The end of the log.
    next: Sector,
    disabled: bool,
}

impl State {
    /// Adds an acknowledged write. Returns whether it must be logged now.
    fn add(&mut self, block: Block) -> bool {
        if self.disabled {
            return false;
        }
        if block.flags & FUA == 0 {
            self.unflushed.push_back(block);
            return false;
        }
        // Everything up to the last overlapping write, to keep the order.
        let last = self.unflushed.iter().rposition(|other| other.overlaps(&block));
        self.queue_unflushed(last.map_or(0, |last| last + 1));
        self.queue.push_back(block);
        true
    }

    /// The number of writes acknowledged so far.
    fn acknowledged(&self) -> u64 {
        self.flushed + self.unflushed.len() as u64
    }

    /// Queues a flush, after the writes acknowledged when [`Self::acknowledged`] was `covered`.
    fn queue_flush(&mut self, covered: u64, flush: Block) {
        self.queue_unflushed(covered.saturating_sub(self.flushed) as usize);
        self.queue.push_back(flush);
    }

    fn queue_unflushed(&mut self, count: usize) {
        // There are fewer if the log was disabled meanwhile.
        let count = count.min(self.unflushed.len());
        self.flushed += count as u64;
        self.queue.extend(self.unflushed.drain(..count));
    }
}

impl Block {
    fn overlaps(&self, other: &Self) -> bool {
        self.sector < other.sector + other.len && other.sector < self.sector + self.len
    }
}

/// See the module text.
pub struct LogWrites {
    device: Lower,
    log: Lower,
    /// The log's sector: the device's logical block.
    sector: Sectors,
    state: Mutex<State>,
    /// Held by the thread that writes the log.
    writer: AsyncMutex<()>,
}

impl LogWrites {
    async fn write(&self, bio: Bio) -> BioResult {
        let mut data = Buffer::alloc(bio.data_bytes() as usize);
        gather(&bio.segments, data.as_mut_slice());
        let block = Block { sector: bio.sector, len: bio.len, flags: flags_of(&bio), data };
        self.device.submit(bio).await?;
        self.acknowledge(block).await;
        Ok(())
    }

    async fn discard(&self, bio: Bio) -> BioResult {
        let data = Buffer::alloc(0);
        let block = Block { sector: bio.sector, len: bio.len, flags: flags_of(&bio), data };
        if self.can_discard() {
            self.device.submit(bio).await?;
        }
        self.acknowledge(block).await;
        Ok(())
    }

    async fn acknowledge(&self, block: Block) {
        let now = lock(&self.state).add(block);
        if now {
            self.write_log().await;
        }
    }

    async fn flush(&self, bio: Bio) -> BioResult {
        let covered = lock(&self.state).acknowledged();
        let (flags, data) = (flags_of(&bio), Buffer::alloc(0));
        self.device.submit(bio).await?;
        let block = Block { sector: Sector::ZERO, len: Sectors::ZERO, flags, data };
        lock(&self.state).queue_flush(covered, block);
        self.write_log().await;
        Ok(())
    }

    /// Writes the queued entries to the log.
    async fn write_log(&self) {
        let _writer = self.writer.lock().await;
        loop {
            let Some(block) = lock(&self.state).queue.pop_front() else { return };
            if let Err(status) = self.write_block(block).await {
                self.disable(status);
            }
        }
    }

    fn disable(&self, status: Status) {
        error!(log = self.log.name(), %status, "the log of writes ends here");
        let mut state = lock(&self.state);
        state.disabled = true;
        state.unflushed.clear();
        state.queue.clear();
    }

    async fn write_block(&self, mut block: Block) -> BioResult {
        let data = if block.flags & MARK != 0 { 0 } else { block.data.len() as u64 };
        let (at, super_too) = {
            let mut state = lock(&self.state);
            if state.disabled {
                return Ok(());
            }
            let at = state.next;
            state.next += self.sector + Sectors::from_bytes_floor(data);
            if state.next >= self.log.gateway().capacity().as_end() {
                return Err(Status::NoSpace);
            }
            state.entries += 1;
            (at, block.flags & (FUA | MARK) != 0)
        };
        let mut head = Buffer::zeroed(self.sector.bytes() as usize);
        let entry = Entry {
            sector: (block.sector.0 / self.sector.0).into(),
            nr_sectors: (block.len.0 / self.sector.0).into(),
            flags: block.flags.into(),
            data_len: if data == 0 { block.data.len() as u64 } else { 0 }.into(),
        };
        let (fields, inline) = head.as_mut_slice().split_at_mut(size_of::<Entry>());
        fields.copy_from_slice(entry.as_bytes());
        let mut segments = Segments::new();
        if data == 0 {
            inline[..block.data.len()].copy_from_slice(block.data.as_slice());
            segments.push(head.whole());
        } else {
            segments.extend([head.whole(), block.data.whole()]);
        }
        self.log.submit(Bio::write(at, segments)).await?;
        if super_too { self.write_super().await } else { Ok(()) }
    }

    async fn write_super(&self) -> BioResult {
        let entries = lock(&self.state).entries;
        let mut block = Buffer::zeroed(self.sector.bytes() as usize);
        let found = Super::new(entries, self.sector.bytes() as u32);
        block.as_mut_slice()[..size_of::<Super>()].copy_from_slice(found.as_bytes());
        self.log.gateway().write(Sector::ZERO, &mut block, Flags::empty()).await
    }

    async fn mark(&self, words: &[&str]) -> Result<String, MessageError> {
        let [command, name] = words else {
            return Err(MessageError::Invalid("the message is: mark NAME".to_owned()));
        };
        if !command.eq_ignore_ascii_case("mark") {
            let message = (*command).to_owned();
            return Err(MessageError::Unknown { target: Self::NAME, message });
        }
        // As in the kernel, with room for a terminating 0.
        let room = self.sector.bytes() as usize - size_of::<Entry>() - 1;
        let data = Buffer::from_slice(&name.as_bytes()[..name.len().min(room)]);
        let block = Block { sector: Sector::ZERO, len: Sectors::ZERO, flags: MARK, data };
        lock(&self.state).queue.push_back(block);
        self.write_log().await;
        Ok(String::new())
    }

    fn can_discard(&self) -> bool {
        !self.device.gateway().disk().max_discard().is_zero()
    }

    /// Logs unflushed writes, and writes the number of entries to the super.
    async fn settle(&self) -> BioResult {
        lock(&self.state).queue_unflushed(usize::MAX);
        self.write_log().await;
        if let Err(status) = self.write_super().await {
            self.disable(status);
        }
        Ok(())
    }
}

fn flags_of(bio: &Bio) -> u64 {
    let op = match bio.op {
        Op::Flush => FLUSH,
        Op::Discard => DISCARD,
        Op::Read | Op::Write | Op::WriteZeroes => 0,
    };
    let flag = |flag, bit| if bio.flags.contains(flag) { bit } else { 0 };
    op | flag(Flags::FUA, FUA) | flag(Flags::META, METADATA)
}

impl TableTarget for LogWrites {
    const NAME: &'static str = "log-writes";

    async fn construct(mut parameters: TargetParameters<'_>) -> Result<Self, TargetError> {
        let (device, log) =
            (parameters.args.word("the device")?, parameters.args.word("the log device")?);
        parameters.args.end()?;
        let device = Lower::find(parameters.context, device, Sector::ZERO, parameters.len)?;
        let sector = device.gateway().disk().limits().logical_block();
        let log = Lower::find(parameters.context, log, Sector::ZERO, sector)?;
        let state = Mutex::new(State { next: sector.as_end(), ..State::default() });
        Ok(Self { device, log, sector, state, writer: AsyncMutex::default() })
    }
}

impl Target for LogWrites {
    fn type_name(&self) -> &'static str {
        Self::NAME
    }

    fn arguments(&self) -> String {
        format!("{} {}", QuotedArgument(self.device.name()), QuotedArgument(self.log.name()))
    }

    /// The number of entries, and the last sector of the log.
    fn status(&self) -> String {
        let state = lock(&self.state);
        let disabled = if state.disabled { " logging_disabled" } else { "" };
        format!("{} {}{disabled}", state.entries, state.next.0 - 1)
    }

    fn iterate_devices(&self, seen: &mut dyn FnMut(&Gateway)) {
        seen(self.device.gateway());
        seen(self.log.gateway());
    }

    fn stack_limits(&self, limits: &mut Limits) {
        self.device.stack(limits);
        if !self.can_discard() {
            // Discards are logged even if the device does not support them.
            limits.max_hw_discard = anything().max_hw_discard;
            limits.discard_granularity_bytes = limits.logical_block_bytes;
            limits.features -= Features::DISCARD_ZEROES;
        }
        // Zeroes are logged as data.
        limits.max_write_zeroes = Sectors::ZERO;
    }

    fn copies(&self, at: Sector, len: Sectors) -> u16 {
        self.device.copies(at, len)
    }

    fn submit(&self, bio: Bio) -> IoFuture<'_> {
        match bio.op {
            Op::Read => self.device.submit(bio),
            Op::WriteZeroes => IoFuture::failed(Status::NotSupported),
            Op::Write => IoFuture::boxed(self.write(bio)),
            Op::Discard => IoFuture::boxed(self.discard(bio)),
            Op::Flush => IoFuture::boxed(self.flush(bio)),
        }
    }

    fn suspended(&self) -> LocalFuture<'_, BioResult> {
        Box::pin(self.settle())
    }

    fn resuming(&self) -> LocalFuture<'_, BioResult> {
        // So that older contents of the log device are not taken for this log.
        Box::pin(self.write_super())
    }

    fn message<'a>(&'a self, words: &'a [&'a str]) -> Reply<'a> {
        Box::pin(self.mark(words))
    }
}
