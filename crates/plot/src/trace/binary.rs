//! Records as bytes: the format of blktrace, version 7, with little-endian numbers
//! (docs/formats/blktrace.md).

use std::collections::VecDeque;
use std::io::{self, Read};
use std::mem::{offset_of, size_of};
use std::time::Duration;

use ashlar_block::disk::DeviceNumber;
use ashlar_block::trace::Action;
use thiserror::Error;
use zerocopy::byteorder::big_endian;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::categories::Categories;
use super::record::{Payload, Record};
use super::recorder::ThreadIdentity;

/// The magic number and the version.
pub const MAGIC: u32 = 0x6561_7400 | 7;
/// Bytes of a thread's name, including at least one zero byte.
const NAME: usize = 16;
/// Notes have no sequence number; their category distinguishes them from events.
const PROCESS: u32 = (Categories::NOTIFY.bits() as u32) << 16;
const TIMESTAMP: u32 = PROCESS | 1;
/// The kernel's mark of a record whose payload begins with the number of a control group
/// (`__BLK_TA_CGROUP`), and the bytes of that number.
const IN_GROUP: u32 = 1 << 8;
const GROUP: usize = 8;
/// Numbers of actions of the kernel that ashlar does not have: sleeping for a request, the timer of a plug,
/// bouncing, aborting, drivers' data (`BLK_TA_SLEEPRQ` and so on).
const OTHERS: [u32; 6] = [5, 11, 14, 16, 17, 18];

/// The kernel's `struct blk_io_trace`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
struct Header {
    magic: U32,
    sequence: U32,
    time: U64,
    sector: U64,
    bytes: U32,
    action: U32,
    pid: U32,
    device: U32,
    cpu: U32,
    error: U16,
    pdu_len: U16,
}

/// The kernel's `struct blk_io_trace_remap`, which is always big-endian.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
struct Remap {
    from: big_endian::U32,
    to: big_endian::U32,
    sector: big_endian::U64,
}

const _: () = assert!(size_of::<Header>() == 48 && size_of::<Remap>() == 16);
const _: () = assert!(offset_of!(Header, time) == 8 && offset_of!(Header, sector) == 16);
const _: () = assert!(offset_of!(Header, bytes) == 24 && offset_of!(Header, action) == 28);
const _: () = assert!(offset_of!(Header, pid) == 32 && offset_of!(Header, device) == 36);
const _: () = assert!(offset_of!(Header, cpu) == 40 && offset_of!(Header, error) == 44);
const _: () = assert!(offset_of!(Header, pdu_len) == 46 && offset_of!(Remap, sector) == 8);

/// The numbers of the actions (`enum blktrace_act`).
const ACTIONS: [(Action, u16); 12] = [
    (Action::Queue, 1),
    (Action::BackMerge, 2),
    (Action::FrontMerge, 3),
    (Action::GetRequest, 4),
    (Action::Requeue, 6),
    (Action::Issue, 7),
    (Action::Complete, 8),
    (Action::Plug, 9),
    (Action::Unplug, 10),
    (Action::Insert, 12),
    (Action::Split, 13),
    (Action::Remap, 15),
];

fn number(action: Action) -> u16 {
    // The table has every action: a test checks this.
    ACTIONS.iter().find(|(known, _)| *known == action).map_or(0, |(_, number)| *number)
}

/// Appends a record.
pub fn put(out: &mut Vec<u8>, record: &Record) {
    let payload: &[u8] = match record.payload {
        Payload::None => &[],
        Payload::Number(number) => &number.to_be_bytes(),
        Payload::Remap { from, to, sector } => {
            let (from, to) = (from.raw().into(), to.raw().into());
            &Remap { from, to, sector: sector.into() }.to_bytes()
        }
    };
    let header = Header {
        magic: MAGIC.into(),
        sequence: record.sequence.into(),
        time: record.time_ns.into(),
        sector: record.sector.into(),
        bytes: record.bytes.into(),
        action: (u32::from(record.categories.bits()) << 16 | u32::from(number(record.action)))
            .into(),
        pid: record.pid.into(),
        device: record.device.raw().into(),
        cpu: record.thread.into(),
        error: record.error.into(),
        pdu_len: (payload.len() as u16).into(),
    };
    out.extend_from_slice(header.as_bytes());
    out.extend_from_slice(payload);
}

impl Remap {
    fn to_bytes(self) -> [u8; size_of::<Self>()] {
        zerocopy::transmute!(self)
    }
}

/// Appends a note without an event.
fn put_note(out: &mut Vec<u8>, action: u32, device: DeviceNumber, note: Note<'_>) {
    let header = Header {
        magic: MAGIC.into(),
        sequence: 0.into(),
        time: note.time_ns.into(),
        sector: 0.into(),
        bytes: 0.into(),
        action: action.into(),
        pid: note.pid.into(),
        device: device.raw().into(),
        cpu: note.thread.into(),
        error: 0.into(),
        pdu_len: (note.text.len() as u16).into(),
    };
    out.extend_from_slice(header.as_bytes());
    out.extend_from_slice(note.text);
}

struct Note<'a> {
    time_ns: u64,
    pid: u32,
    thread: u32,
    text: &'a [u8],
}

/// Appends the note that a trace of `device` began at `time_ns`, `wall_clock` after 1970.
pub fn put_start(out: &mut Vec<u8>, device: DeviceNumber, time_ns: u64, wall_clock: Duration) {
    // 32 bits last until 2106, as in the kernel.
    let seconds = U32::new(wall_clock.as_secs() as u32);
    let text = [seconds, U32::new(wall_clock.subsec_nanos())];
    put_note(out, TIMESTAMP, device, Note { time_ns, pid: 0, thread: 0, text: text.as_bytes() });
}

/// Appends a note with a thread's name.
pub fn put_name(out: &mut Vec<u8>, device: DeviceNumber, thread: u32, who: &ThreadIdentity) {
    let mut text = [0; NAME];
    let len = who.name.floor_char_boundary(NAME - 1);
    text[..len].copy_from_slice(&who.name.as_bytes()[..len]);
    put_note(out, PROCESS, device, Note { time_ns: 0, pid: who.pid, thread, text: &text });
}

/// An item of a trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Item {
    /// An event.
    Event(Record),
    /// A thread's name.
    Name(ThreadIdentity),
    /// The start of the trace: `time_ns` on its clock was `wall_clock` after 1970.
    Start {
        /// Nanoseconds.
        time_ns: u64,
        /// Since the Unix epoch.
        wall_clock: Duration,
    },
    /// An event or a message of the kernel's that ashlar does not have.
    Other,
}

/// An item, and the blktrace file that it belongs to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlacedItem {
    /// The device.
    pub device: DeviceNumber,
    /// The index of the thread.
    pub thread: u32,
    /// The item.
    pub item: Item,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// Why bytes are not a trace.
#[derive(Debug, Error)]
pub enum FormatError {
    /// They do not begin with a record's magic number.
    #[error("not a trace: a record begins with {0:#010x}, not {MAGIC:#010x}")]
    Magic(u32),
    /// An action that neither ashlar nor the kernel writes.
    #[error("unknown action {0:#010x} in the trace; try blkparse")]
    Action(u32),
    /// The payload does not fit the action.
    #[error("damaged: a payload of {len} bytes behind action {action:#010x}")]
    Payload {
        /// The action.
        action: u32,
        /// Length of the payload.
        len: usize,
    },
    /// The last record is incomplete.
    #[error("the last record is incomplete: it ends after {0} bytes")]
    Truncated(usize),
    /// They could not be read.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Splits bytes into items.
#[derive(Default)]
pub struct Decoder {
    bytes: VecDeque<u8>,
}

impl Decoder {
    /// Adds bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    /// The next item, once it has arrived completely.
    ///
    /// # Errors
    /// The bytes are not a trace; the rest cannot be decoded.
    pub fn take(&mut self) -> Result<Option<PlacedItem>, FormatError> {
        let front = &self.bytes.make_contiguous()[..];
        let Ok((header, rest)) = Header::ref_from_prefix(front) else { return Ok(None) };
        if header.magic.get() != MAGIC {
            return Err(FormatError::Magic(header.magic.get()));
        }
        let Some(payload) = rest.get(..header.pdu_len.get().into()) else { return Ok(None) };
        let item = header.item(payload)?;
        let (device, thread) = (header.device(), header.cpu.get());
        let len = size_of::<Header>() + payload.len();
        let bytes = self.bytes.drain(..len).collect();
        Ok(Some(PlacedItem { device, thread, item, bytes }))
    }

    /// Checks that no bytes are left.
    ///
    /// # Errors
    /// Part of a record is left.
    pub fn end(&self) -> Result<(), FormatError> {
        match self.bytes.len() {
            0 => Ok(()),
            len => Err(FormatError::Truncated(len)),
        }
    }
}

impl Header {
    fn device(&self) -> DeviceNumber {
        DeviceNumber::of_raw(self.device.get())
    }

    fn item(&self, payload: &[u8]) -> Result<Item, FormatError> {
        let raw = self.action.get();
        let damaged = || FormatError::Payload { action: raw, len: payload.len() };
        let categories = Categories::from_bits_retain((raw >> 16) as u16);
        let payload = match raw & IN_GROUP {
            0 => payload,
            _ => payload.get(GROUP..).ok_or_else(damaged)?,
        };
        let raw = raw & !IN_GROUP;
        match raw {
            PROCESS => {
                let name = payload.split(|byte| *byte == 0).next().unwrap_or_default();
                let name = String::from_utf8_lossy(name).into_owned();
                return Ok(Item::Name(ThreadIdentity { pid: self.pid.get(), name }));
            }
            TIMESTAMP => {
                let [seconds, nanoseconds] =
                    *<[U32; 2]>::ref_from_bytes(payload).map_err(|_| damaged())?;
                let seconds = Duration::from_secs(seconds.get().into());
                let wall_clock = seconds + Duration::from_nanos(nanoseconds.get().into());
                return Ok(Item::Start { time_ns: self.time.get(), wall_clock });
            }
            _ if categories.contains(Categories::NOTIFY) => return Ok(Item::Other),
            // Commands, which have no sectors.
            _ if categories.intersects(Categories::PC | Categories::DRV_DATA) => {
                return Ok(Item::Other);
            }
            _ if OTHERS.contains(&(raw & 0xffff)) => return Ok(Item::Other),
            _ => {}
        }
        let known = ACTIONS.iter().find(|(_, number)| u32::from(*number) == raw & 0xffff);
        let (action, _) = *known.ok_or(FormatError::Action(raw))?;
        let payload = match action {
            Action::Remap => {
                let remap = Remap::ref_from_bytes(payload).map_err(|_| damaged())?;
                Payload::Remap {
                    from: DeviceNumber::of_raw(remap.from.get()),
                    to: DeviceNumber::of_raw(remap.to.get()),
                    sector: remap.sector.get(),
                }
            }
            Action::Split | Action::Unplug => {
                let number = payload.try_into().map_err(|_| damaged())?;
                Payload::Number(u64::from_be_bytes(number))
            }
            Action::Queue
            | Action::GetRequest
            | Action::Plug
            | Action::BackMerge
            | Action::FrontMerge
            | Action::Insert
            | Action::Issue
            | Action::Requeue
            | Action::Complete => {
                if payload.is_empty() {
                    Payload::None
                } else {
                    return Err(damaged());
                }
            }
        };
        Ok(Item::Event(Record {
            sequence: self.sequence.get(),
            time_ns: self.time.get(),
            sector: self.sector.get(),
            bytes: self.bytes.get(),
            action,
            categories,
            pid: self.pid.get(),
            device: self.device(),
            thread: self.cpu.get(),
            error: self.error.get(),
            payload,
        }))
    }
}

/// The items of a file.
pub struct Items<R> {
    file: R,
    decoder: Decoder,
}

impl<R: Read> Items<R> {
    /// The items of `file`.
    pub fn new(file: R) -> Self {
        Self { file, decoder: Decoder::default() }
    }
}

impl<R: Read> Iterator for Items<R> {
    type Item = Result<PlacedItem, FormatError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.decoder.take() {
                Ok(None) => {}
                Ok(Some(placed)) => return Some(Ok(placed)),
                Err(error) => return Some(Err(error)),
            }
            let mut buffer = [0; 1 << 14];
            match self.file.read(&mut buffer) {
                Ok(0) => return self.decoder.end().err().map(Err),
                Ok(len) => self.decoder.push(&buffer[..len]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Some(Err(error.into())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::text::tests::record;

    fn decode(bytes: &[u8]) -> Result<Vec<Item>, FormatError> {
        Items::new(bytes).map(|placed| placed.map(|placed| placed.item)).collect()
    }

    #[test]
    fn each_field_is_where_the_kernel_has_it() {
        let record = Record {
            sequence: 0x0102_0304,
            time_ns: 0x1112_1314_1516_1718,
            sector: 0x2122_2324_2526_2728,
            bytes: 0x3132_3334,
            action: Action::Remap,
            categories: Categories::QUEUE | Categories::WRITE | Categories::FUA,
            pid: 0x4142_4344,
            device: DeviceNumber { major: 0x515, minor: 0x2_5354 },
            thread: 0x6162_6364,
            error: 0x7172,
            payload: Payload::Remap {
                from: DeviceNumber { major: 9, minor: 0x8_1828 },
                to: DeviceNumber { major: 0x515, minor: 0x2_5354 },
                sector: 0x9192_9394_9596_9798,
            },
        };
        let mut bytes = Vec::new();
        put(&mut bytes, &record);
        let expected = [
            &[0x07, 0x74, 0x61, 0x65, 4, 3, 2, 1][..],
            &[0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11],
            &[0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21],
            &[0x34, 0x33, 0x32, 0x31, 15, 0, 0x12, 0x80],
            &[0x44, 0x43, 0x42, 0x41, 0x54, 0x53, 0x52, 0x51],
            &[0x64, 0x63, 0x62, 0x61, 0x72, 0x71, 16, 0],
            &[0x00, 0x98, 0x18, 0x28, 0x51, 0x52, 0x53, 0x54],
            &[0x91, 0x92, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98],
        ];
        assert_eq!(bytes, expected.concat());
        assert_eq!(decode(&bytes).unwrap(), [Item::Event(record)]);
    }

    #[test]
    fn every_action_comes_back() {
        for (action, _) in ACTIONS {
            let payload = match action {
                Action::Split | Action::Unplug => Payload::Number(1 << 40),
                Action::Remap => {
                    let device = record().device;
                    Payload::Remap { from: DeviceNumber::dm(1), to: device, sector: 5 }
                }
                Action::Queue
                | Action::GetRequest
                | Action::Plug
                | Action::BackMerge
                | Action::FrontMerge
                | Action::Insert
                | Action::Issue
                | Action::Requeue
                | Action::Complete => Payload::None,
            };
            let record = Record { action, payload, ..record() };
            let mut bytes = Vec::new();
            put(&mut bytes, &record);
            assert_eq!(decode(&bytes).unwrap(), [Item::Event(record)]);
        }
    }

    #[test]
    fn notes_come_back_wherever_the_bytes_are_cut() {
        let mut bytes = Vec::new();
        let start = Duration::new(1_700_000_000, 999_999_999);
        put_start(&mut bytes, DeviceNumber::md(1), 5, start);
        let who = ThreadIdentity { pid: 12, name: "a name that is long".to_owned() };
        put_name(&mut bytes, DeviceNumber::md(1), 3, &who);
        put(&mut bytes, &record());
        let expected = [
            Item::Start { time_ns: 5, wall_clock: start },
            Item::Name(ThreadIdentity { pid: 12, name: "a name that is ".to_owned() }),
            Item::Event(record()),
        ];
        for step in 1..bytes.len() {
            let mut decoder = Decoder::default();
            let mut items = Vec::new();
            for piece in bytes.chunks(step) {
                decoder.push(piece);
                while let Some(placed) = decoder.take().unwrap() {
                    items.push(placed.item);
                }
            }
            assert_eq!(items, expected);
        }
    }

    #[test]
    fn records_of_the_kernel_that_ashlar_has_not_are_left_out() {
        let mut good = Vec::new();
        put(&mut good, &record());
        let (mut message, mut sleep, mut grouped) = (good.clone(), good.clone(), good.clone());
        message[28..32].copy_from_slice(&0x0400_0102_u32.to_le_bytes());
        message[46] = 13;
        message.extend(*b"\x01\0\0\0\0\0\0\0hello");
        sleep[28] = 5;
        grouped[29] = 1;
        grouped[46] = 8;
        grouped.extend([1, 2, 3, 4, 5, 6, 7, 8]);
        let items = decode(&[message, sleep, grouped.clone()].concat()).unwrap();
        assert_eq!(items, [Item::Other, Item::Other, Item::Event(record())]);
        grouped[46] = 4;
        grouped.truncate(52);
        assert!(matches!(decode(&grouped), Err(FormatError::Payload { len: 4, .. })));
    }

    #[test]
    fn what_is_no_trace_is_an_error() {
        let mut good = Vec::new();
        put(&mut good, &record());
        let with = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            decode(&bytes).unwrap_err()
        };
        assert!(matches!(with(0, 6), FormatError::Magic(_)));
        assert!(matches!(with(28, 99), FormatError::Action(_)));
        assert!(matches!(with(28, 15), FormatError::Payload { len: 0, .. }));
        assert!(matches!(with(46, 1), FormatError::Truncated(48)));
        for len in 1..good.len() {
            assert!(matches!(decode(&good[..len]), Err(FormatError::Truncated(_))));
        }
    }
}
