//! `flakey DEVICE OFFSET UP DOWN [COUNT FEATURE...]`: works for `UP` seconds, misbehaves for `DOWN`
//! seconds, repeatedly.
//!
//! The features define the misbehaviour; without any, all I/O fails.
//!
//! | feature | while it is down |
//! |---|---|
//! | `error_reads` | reads fail |
//! | `error_writes` | everything but reads fails |
//! | `drop_writes` | everything but reads is dropped and reported as successful |
//! | `corrupt_bio_byte N r\|w VALUE FLAGS` | byte N (from 1) of the data of reads or writes becomes VALUE, if they have all the kernel's bits of `bi_opf` that FLAGS has |
//! | `random_read_corrupt P` | a byte of a read is changed, in P of 1,000,000,000 cases |
//! | `random_write_corrupt P` | a byte of a write is changed, in P of 1,000,000,000 cases |

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ashlar_block::buffer::gather;
use ashlar_block::{
    Bio, BioResult, Buffer, Disk, Flags, Gateway, IoFuture, Limits, Op, Runtime, Sector, Sectors,
    Segment, Segments, Status,
};

use super::{Arguments, Lower, TableTarget, Target, TargetError, TargetParameters};

const PROBABILITY_BASE: u32 = 1_000_000_000;
const NS_PER_SECOND: u64 = 1_000_000_000;

/// A byte to replace.
#[derive(Clone, Copy)]
struct Byte {
    /// Counted from 1.
    number: u32,
    write: bool,
    value: u8,
    flags: u32,
}

/// The misbehaviour.
#[derive(Clone, Copy, Default)]
struct Features {
    error_reads: bool,
    error_writes: bool,
    drop_writes: bool,
    corrupt: Option<Byte>,
    random_read: u32,
    random_write: u32,
}

/// See the module text.
pub struct Flakey {
    lower: Lower,
    up_s: u32,
    down_s: u32,
    features: Features,
    runtime: Arc<dyn Runtime>,
    began_ns: u64,
    /// The last random number.
    chance: AtomicU64,
}

impl Features {
    fn take(args: &mut Arguments<'_>) -> Result<Self, TargetError> {
        let mut features = Self::default();
        let count = if args.left() == 0 { 0 } else { args.number("the number of features")? };
        if count as usize != args.left() {
            let text = format!("{count} words of features are announced, {} given", args.left());
            return Err(TargetError::Invalid(text));
        }
        while args.left() > 0 {
            features.take_one(args)?;
        }
        features.check()
    }

    fn take_one(&mut self, args: &mut Arguments<'_>) -> Result<(), TargetError> {
        let name = args.word("the feature")?.to_ascii_lowercase();
        let again = match name.as_str() {
            "error_reads" => std::mem::replace(&mut self.error_reads, true),
            "error_writes" => std::mem::replace(&mut self.error_writes, true),
            "drop_writes" => std::mem::replace(&mut self.drop_writes, true),
            "corrupt_bio_byte" => self.corrupt.replace(Byte::take(args)?).is_some(),
            "random_read_corrupt" => {
                std::mem::replace(&mut self.random_read, probability(args)?) != 0
            }
            "random_write_corrupt" => {
                std::mem::replace(&mut self.random_write, probability(args)?) != 0
            }
            _ => return Err(TargetError::Invalid(format!("there is no feature '{name}'"))),
        };
        if again {
            return Err(TargetError::Invalid(format!("the feature {name} is given twice")));
        }
        Ok(())
    }

    fn check(mut self) -> Result<Self, TargetError> {
        let corrupts_writes = self.corrupt.is_some_and(|byte| byte.write) || self.random_write != 0;
        if u8::from(self.drop_writes) + u8::from(self.error_writes) + u8::from(corrupts_writes) > 1
        {
            let text = "writes can be dropped, fail, or be corrupted: choose one";
            return Err(TargetError::Invalid(text.to_owned()));
        }
        let corrupts_reads = self.corrupt.is_some_and(|byte| !byte.write) || self.random_read != 0;
        if self.error_reads && corrupts_reads {
            let text = "reads can fail or be corrupted: choose one";
            return Err(TargetError::Invalid(text.to_owned()));
        }
        let bad_reads = self.error_reads || corrupts_reads;
        if !(bad_reads || corrupts_writes || self.drop_writes || self.error_writes) {
            (self.error_reads, self.error_writes) = (true, true);
        }
        Ok(self)
    }

    fn words(&self) -> Vec<String> {
        let flag = |set: bool, name: &str| set.then(|| vec![name.to_owned()]);
        let number = |n: u32, name: &str| (n != 0).then(|| vec![name.to_owned(), n.to_string()]);
        let corrupt = self.corrupt.map(|byte| {
            let direction = if byte.write { "w" } else { "r" }.to_owned();
            let (n, value) = (byte.number.to_string(), byte.value.to_string());
            vec!["corrupt_bio_byte".to_owned(), n, direction, value, byte.flags.to_string()]
        });
        let all = [
            flag(self.error_reads, "error_reads"),
            flag(self.drop_writes, "drop_writes"),
            flag(self.error_writes, "error_writes"),
            corrupt,
            number(self.random_read, "random_read_corrupt"),
            number(self.random_write, "random_write_corrupt"),
        ];
        all.into_iter().flatten().flatten().collect()
    }
}

fn probability(args: &mut Arguments<'_>) -> Result<u32, TargetError> {
    let of = args.number("the probability")?;
    if of > PROBABILITY_BASE {
        let text = format!("the probability {of} is above {PROBABILITY_BASE}, which is certainty");
        return Err(TargetError::Invalid(text));
    }
    Ok(of)
}

impl Byte {
    fn take(args: &mut Arguments<'_>) -> Result<Self, TargetError> {
        let number: u32 = args.number("the byte to corrupt")?;
        if number == 0 {
            return Err(TargetError::Invalid("bytes to corrupt are counted from 1".to_owned()));
        }
        let write = match args.word("the direction")? {
            "r" | "R" => false,
            "w" | "W" => true,
            other => {
                let text = format!("the direction is '{other}', but must be r or w");
                return Err(TargetError::Invalid(text));
            }
        };
        let value = args.number("the value of the byte")?;
        Ok(Self { number, write, value, flags: args.number("the flags")? })
    }

    /// The offset of the byte in the bio's data, if it must be replaced in this bio.
    fn offset(&self, bio: &Bio) -> Option<u64> {
        let meant = self.write == bio.op.is_write() && opf(bio) & self.flags == self.flags;
        let offset = u64::from(self.number) - 1;
        (meant && offset < bio.data_bytes()).then_some(offset)
    }
}

/// The bio's `bi_opf`, for flags that exist here (the kernel's `enum req_op`, `req_flag_bits`).
fn opf(bio: &Bio) -> u32 {
    const BITS: [(Flags, u32); 7] = [
        (Flags::SYNC, 11),
        (Flags::META, 12),
        (Flags::NOMERGE, 14),
        (Flags::FUA, 17),
        (Flags::PREFLUSH, 18),
        (Flags::RAHEAD, 19),
        (Flags::NOWAIT, 21),
    ];
    let op = match bio.op {
        Op::Read => 0,
        Op::Write => 1,
        Op::Flush => 2,
        Op::Discard => 3,
        Op::WriteZeroes => 9,
    };
    let set = BITS.iter().filter(|(flag, _)| bio.flags.contains(*flag));
    set.fold(op, |opf, (_, bit)| opf | 1 << bit)
}

/// The byte at `offset` of the data, as a separate segment.
fn byte_at(segments: &[Segment], offset: u64) -> Option<Segment> {
    let mut offset = offset as usize;
    for segment in segments {
        if offset < segment.len() {
            return Some(segment.slice(offset..offset + 1));
        }
        offset -= segment.len();
    }
    None
}

impl Flakey {
    fn is_down(&self) -> bool {
        let elapsed_s = self.runtime.now_ns().saturating_sub(self.began_ns) / NS_PER_SECOND;
        let period_s = u64::from(self.up_s) + u64::from(self.down_s);
        elapsed_s % period_s >= u64::from(self.up_s)
    }

    /// A pseudorandom number, reproducible on virtual time (splitmix64).
    fn random(&self) -> u64 {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut z = self.chance.fetch_add(STEP, Relaxed).wrapping_add(STEP);
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Replaces bytes of `segments`, the data of `bio`.
    fn corrupt(&self, bio: &Bio, segments: &[Segment]) {
        let replace = |offset, value| {
            if let Some(byte) = byte_at(segments, offset) {
                byte.copy_from(&[value]);
            }
        };
        if let Some(byte) = self.features.corrupt
            && let Some(offset) = byte.offset(bio)
        {
            replace(offset, byte.value);
        }
        let of =
            if bio.op == Op::Read { self.features.random_read } else { self.features.random_write };
        if self.random() % u64::from(PROBABILITY_BASE) < u64::from(of) {
            let random = self.random();
            replace(random % bio.data_bytes().max(1), (random >> 56) as u8);
        }
    }

    async fn read_corrupted(&self, bio: Bio) -> BioResult {
        self.lower.submit(bio.clone()).await?;
        self.corrupt(&bio, &bio.segments);
        Ok(())
    }

    /// The submitter's data must not change: a copy is corrupted.
    async fn write_corrupted(&self, mut bio: Bio) -> BioResult {
        let mut copy = Buffer::alloc(bio.data_bytes() as usize);
        gather(&bio.segments, copy.as_mut_slice());
        let segments: Segments = [copy.whole()].into();
        self.corrupt(&bio, &segments);
        bio.segments = segments;
        self.lower.submit(bio).await
    }
}

impl TableTarget for Flakey {
    const NAME: &'static str = "flakey";

    async fn construct(mut parameters: TargetParameters<'_>) -> Result<Self, TargetError> {
        let lower = Lower::take(&mut parameters.args, parameters.context, parameters.len)?;
        let up_s = parameters.args.number("the up interval")?;
        let down_s = parameters.args.number("the down interval")?;
        if up_s == 0 && down_s == 0 {
            return Err(TargetError::Invalid("one of the intervals must not be 0".to_owned()));
        }
        let features = Features::take(&mut parameters.args)?;
        let runtime = Arc::clone(&parameters.context.runtime);
        let began_ns = runtime.now_ns();
        let chance = AtomicU64::new(began_ns);
        Ok(Self { lower, up_s, down_s, features, runtime, began_ns, chance })
    }
}

impl Target for Flakey {
    fn type_name(&self) -> &'static str {
        Self::NAME
    }

    fn arguments(&self) -> String {
        let words = self.features.words();
        let (up, down) = (self.up_s, self.down_s);
        format!("{} {up} {down} {} {}", self.lower, words.len(), words.join(" "))
    }

    fn iterate_devices(&self, seen: &mut dyn FnMut(&Gateway)) {
        seen(self.lower.gateway());
    }

    fn stack_limits(&self, limits: &mut Limits) {
        self.lower.stack(limits);
    }

    fn remaps(&self, bio: &Bio, seen: &mut dyn FnMut(&Disk, &Bio)) {
        self.lower.remaps(bio, seen);
    }

    fn copies(&self, at: Sector, len: Sectors) -> u16 {
        self.lower.copies(at, len)
    }

    fn submit(&self, bio: Bio) -> IoFuture<'_> {
        if !self.is_down() {
            return self.lower.submit(bio);
        }
        match bio.op {
            Op::Read if self.features.error_reads => IoFuture::failed(Status::Io),
            Op::Read => IoFuture::boxed(self.read_corrupted(bio)),
            Op::Write | Op::Flush | Op::Discard | Op::WriteZeroes => {
                if self.features.drop_writes {
                    IoFuture::ready(Ok(()))
                } else if self.features.error_writes {
                    IoFuture::failed(Status::Io)
                } else if bio.op == Op::Write {
                    IoFuture::boxed(self.write_corrupted(bio))
                } else {
                    self.lower.submit(bio)
                }
            }
        }
    }
}
