//! NBD requests: an accepted request is within the export and uses only what was offered; a refused one says how much
//! to skip; every answer has the length it announces. The first bytes choose the terms.
use ashlar_export::nbd::block_status::{Extents, MAX_EXTENTS};
use ashlar_export::nbd::reply_structured;
use ashlar_export::nbd::transmission::{Command, Header, REQUEST_LEN, Terms, Verdict, judge};
use ashlar_export::nbd::wire::{FLAG_READ_ONLY, MAX_PAYLOAD};

/// Checks that the chunk's payload has the length in its header.
fn check_chunk(chunk: &[u8]) {
    let announced = chunk[16..20].iter().fold(0, |len, byte| len << 8 | usize::from(*byte));
    assert_eq!(chunk.len(), reply_structured::HEADER_LEN + announced);
}

/// Checks one input against the module text; returns whether part of it was accepted.
pub fn run(data: &[u8]) -> bool {
    let [choice, shift, high, low, requests @ ..] = data else { return false };
    let terms = Terms {
        size: u64::MAX >> (shift % 64),
        flags: u16::from_be_bytes([*high, *low]),
        structured: choice & 1 != 0,
        block_status: choice & 2 != 0,
    };
    let mut accepted = false;
    let mut rest = requests;
    while let Some((bytes, behind)) = rest.split_first_chunk::<REQUEST_LEN>() {
        rest = behind;
        let Some(header) = Header::parse(bytes) else { continue };
        assert_eq!(header.encode(), *bytes);
        match judge(&header, &terms) {
            Verdict::Run(request) if request.command == Command::Disc => {}
            Verdict::Run(request) => {
                accepted = true;
                let end = request.offset.checked_add(u64::from(request.length));
                assert!(end.is_some_and(|end| end <= terms.size));
                assert_eq!(request.length == 0, request.command == Command::Flush);
                let writes = [Command::Write, Command::Trim, Command::WriteZeroes];
                assert!(terms.flags & FLAG_READ_ONLY == 0 || !writes.contains(&request.command));
                if [Command::Read, Command::Write].contains(&request.command) {
                    assert!(request.length <= MAX_PAYLOAD);
                }
                if request.command == Command::BlockStatus {
                    assert!(terms.block_status);
                    status(request.offset, request.length, rest);
                }
            }
            Verdict::Refuse { error, message, skip } => {
                assert!(skip == 0 || header.number == Command::Write as u16 && skip <= MAX_PAYLOAD);
                check_chunk(&reply_structured::error(header.cookie, error, message));
                rest = rest.get(skip as usize..).unwrap_or_default();
            }
            Verdict::Disconnect => {
                assert!(header.length > MAX_PAYLOAD);
                break;
            }
        }
    }
    accepted
}

/// Checks that extents chosen by the fuzzer cover the request from its start, without gaps.
fn status(offset: u64, length: u32, choices: &[u8]) {
    let one = choices.first().is_some_and(|byte| byte & 1 != 0);
    let mut extents = Extents::new(offset, length, one, 0);
    for choice in choices.chunks_exact(3).take(64) {
        let start = offset.saturating_add(u64::from(choice[0]) * 512).saturating_sub(2048);
        let end = start.saturating_add(u64::from(choice[1]) * 512);
        extents.tell(start..end, u32::from(choice[2] % 4));
    }
    let found = extents.finish();
    assert!(!found.is_empty() && found.len() <= if one { 1 } else { MAX_EXTENTS });
    let total: u64 = found.iter().map(|extent| u64::from(extent.length)).sum();
    assert!(total <= u64::from(length) && found.iter().all(|extent| extent.length > 0));
    check_chunk(&reply_structured::block_status(7, 1, &found, true));
}
