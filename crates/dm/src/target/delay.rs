//! `delay DEVICE OFFSET MS [WRITE_DEVICE OFFSET MS [FLUSH_DEVICE OFFSET MS]]`: delays I/O.
//!
//! Three arguments apply to all I/O; with six, the second three apply to writes and flushes; with
//! nine, the last three apply to flushes. The message `delay READ [WRITE [FLUSH]]` changes the
//! delays of a live device, which the kernel's target cannot do.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use ashlar_block::{Bio, BioResult, Gateway, IoFuture, Limits, Op, Runtime, Sector, Sectors};

use super::{Lower, MessageError, Reply, TableTarget, Target, TargetError, TargetParameters};
use crate::text::parse_number;

struct Class {
    lower: Lower,
    ms: AtomicU32,
    /// Number of waiting I/Os.
    waiting: AtomicU32,
}

/// See the module text.
pub struct Delay {
    /// Reads, writes, flushes.
    classes: [Class; 3],
    /// Number of classes in the table.
    named: usize,
    runtime: Arc<dyn Runtime>,
}

impl Class {
    fn take(parameters: &mut TargetParameters<'_>) -> Result<Self, TargetError> {
        let lower = Lower::take(&mut parameters.args, parameters.context, parameters.len)?;
        let ms = parameters.args.number("the delay")?;
        Ok(Self { lower, ms: AtomicU32::new(ms), waiting: AtomicU32::new(0) })
    }

    fn again(&self) -> Self {
        let ms = AtomicU32::new(self.ms.load(Relaxed));
        Self { lower: self.lower.clone(), ms, waiting: AtomicU32::new(0) }
    }

    async fn wait(&self, runtime: &dyn Runtime) {
        let ms = self.ms.load(Relaxed);
        if ms != 0 {
            let _waiting = Waiting::begin(&self.waiting);
            runtime.sleep(Duration::from_millis(ms.into())).await;
        }
    }
}

/// A waiting I/O, counted until dropped.
struct Waiting<'a>(&'a AtomicU32);

impl<'a> Waiting<'a> {
    fn begin(count: &'a AtomicU32) -> Self {
        count.fetch_add(1, Relaxed);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Delay {
    async fn flush(&self, bio: Bio) -> BioResult {
        let [_, write, flush] = &self.classes;
        flush.wait(&*self.runtime).await;
        flush.lower.submit(bio.clone()).await?;
        if !write.lower.gateway().is_same(flush.lower.gateway()) {
            // The data was written to another device. The kernel does not flush it.
            write.lower.submit(bio).await?;
        }
        Ok(())
    }

    fn set(&self, words: &[&str]) -> Result<String, MessageError> {
        let [command, delays @ ..] = words else { return Err(self.unknown("")) };
        if *command != "delay" {
            return Err(self.unknown(command));
        }
        let delays: Option<Vec<u32>> = delays.iter().map(|word| parse_number(word)).collect();
        let (read, write, flush) = match delays.as_deref() {
            Some([all]) => (all, all, all),
            Some([read, write]) => (read, write, write),
            Some([read, write, flush]) => (read, write, flush),
            Some(_) | None => {
                let text = "the message is: delay READ [WRITE [FLUSH]], in milliseconds";
                return Err(MessageError::Invalid(text.to_owned()));
            }
        };
        for (class, ms) in self.classes.iter().zip([read, write, flush]) {
            class.ms.store(*ms, Relaxed);
        }
        Ok(String::new())
    }

    fn unknown(&self, message: &str) -> MessageError {
        MessageError::Unknown { target: self.type_name(), message: message.to_owned() }
    }
}

impl TableTarget for Delay {
    const NAME: &'static str = "delay";

    async fn construct(mut parameters: TargetParameters<'_>) -> Result<Self, TargetError> {
        let read = Class::take(&mut parameters)?;
        let mut named = 1;
        let mut next = |parameters: &mut TargetParameters<'_>, before: &Class| {
            if parameters.args.left() == 0 {
                return Ok(before.again());
            }
            named += 1;
            Class::take(parameters)
        };
        let write = next(&mut parameters, &read)?;
        let flush = next(&mut parameters, &write)?;
        parameters.args.end()?;
        let runtime = Arc::clone(&parameters.context.runtime);
        Ok(Self { classes: [read, write, flush], named, runtime })
    }
}

impl Target for Delay {
    fn type_name(&self) -> &'static str {
        Self::NAME
    }

    fn arguments(&self) -> String {
        // A delay that was set by a message must be printed.
        let ms = |class: &Class| class.ms.load(Relaxed);
        let [read, write, flush] = self.classes.each_ref().map(ms);
        let needed = if flush != write { 3 } else { 1 + usize::from(write != read) };
        let named = self.classes.iter().take(self.named.max(needed));
        let words: Vec<_> = named.map(|class| format!("{} {}", class.lower, ms(class))).collect();
        words.join(" ")
    }

    /// The numbers of waiting reads, writes and flushes.
    fn status(&self) -> String {
        let [read, write, flush] = self.classes.each_ref().map(|class| class.waiting.load(Relaxed));
        format!("{read} {write} {flush}")
    }

    fn iterate_devices(&self, seen: &mut dyn FnMut(&Gateway)) {
        self.classes.iter().for_each(|class| seen(class.lower.gateway()));
    }

    fn stack_limits(&self, limits: &mut Limits) {
        self.classes.iter().for_each(|class| class.lower.stack(limits));
    }

    fn copies(&self, at: Sector, len: Sectors) -> u16 {
        let [read, ..] = &self.classes;
        read.lower.copies(at, len)
    }

    fn submit(&self, bio: Bio) -> IoFuture<'_> {
        let [read, write, _] = &self.classes;
        let class = match bio.op {
            Op::Flush => return IoFuture::boxed(self.flush(bio)),
            Op::Read => read,
            Op::Write | Op::Discard | Op::WriteZeroes => write,
        };
        IoFuture::boxed(async move {
            class.wait(&*self.runtime).await;
            class.lower.submit(bio).await
        })
    }

    fn message<'a>(&'a self, words: &'a [&'a str]) -> Reply<'a> {
        Box::pin(std::future::ready(self.set(words)))
    }
}
