//! Execution of requests on the volume.

use ashlar_block::ExtentState;
use ashlar_block::bio::Flags;
use ashlar_block::buffer::{Buffer, Segment, footprint};
use ashlar_block::gateway::ZERO_BYTES;
use ashlar_block::status::{BioResult, Status};
use ashlar_block::units::{Sector, Sectors};

use super::admission::Ticket;
use super::block_status::{Extent, Extents, MAX_EXTENTS};
use super::context::MetaContext;
use super::errno::Errno;
use super::export::OpenExport;
use super::transmission::{Command, Request};
use super::{reply_simple, reply_structured};
use ashlar_nbd::wire::{CMD_FLAG_FAST_ZERO, CMD_FLAG_FUA, CMD_FLAG_NO_HOLE, CMD_FLAG_REQ_ONE};

/// The answer to a request, not encoded yet.
pub(crate) struct Reply<'a> {
    pub(crate) cookie: u64,
    pub(crate) answer: Answer,
    /// Kept until the reply was sent.
    pub(crate) ticket: Ticket<'a>,
}

/// The content of a reply.
#[derive(Debug)]
pub(crate) enum Answer {
    /// Success.
    Done,
    /// The data read at a byte position.
    Data(u64, Segment),
    /// The status of consecutive extents in each context that was selected.
    Extents(Vec<Vec<Extent>>),
    /// Failure, with a message for a person.
    Failed(Errno, String),
}

impl Answer {
    /// Appends the reply to `heads`, and returns the data that follows it.
    pub(crate) fn encode(
        self,
        cookie: u64,
        structured: bool,
        heads: &mut Vec<u8>,
    ) -> Option<Segment> {
        match self {
            Self::Data(offset, data) if structured => {
                // Reads are at most MAX_PAYLOAD long.
                heads.extend(reply_structured::offset_data(cookie, offset, data.len() as u32));
                return Some(data);
            }
            Self::Data(_, data) => {
                heads.extend(reply_simple::header(cookie, None));
                return Some(data);
            }
            Self::Done if structured => heads.extend(reply_structured::none(cookie)),
            Self::Done => heads.extend(reply_simple::header(cookie, None)),
            Self::Failed(errno, message) if structured => {
                heads.extend(reply_structured::error(cookie, errno, &message));
            }
            Self::Failed(errno, _) => heads.extend(reply_simple::header(cookie, Some(errno))),
            // Only requested where replies are structured.
            Self::Extents(contexts) => {
                let last = contexts.len() as u32;
                for (id, extents) in (1..).zip(&contexts) {
                    let is_last = id == last;
                    heads.extend(reply_structured::block_status(cookie, id, extents, is_last));
                }
            }
        }
        None
    }
}

/// The memory that a request holds until its reply is sent, bytes.
pub(crate) fn cost(export: &OpenExport, request: &Request) -> usize {
    match request.command {
        Command::Read | Command::Write => {
            let bounce = export.volume().bounce_bytes(request.offset, request.length.into());
            footprint(request.length as usize) + bounce
        }
        Command::BlockStatus => {
            let parts = size_of::<Extent>() + size_of::<ashlar_block::Extent>();
            export.contexts().len() * MAX_EXTENTS * parts
        }
        // If the device cannot zero ranges, zeroes are written.
        Command::WriteZeroes => footprint(request.length.min(ZERO_BYTES as u32) as usize),
        Command::Disc | Command::Flush | Command::Trim | Command::Cache => 0,
    }
}

/// Executes `request`; `payload` is the data of a `WRITE`.
pub(crate) async fn execute<'a>(
    export: &OpenExport,
    request: Request,
    payload: Option<Buffer>,
    ticket: Ticket<'a>,
) -> Reply<'a> {
    let fast = request.command == Command::WriteZeroes && request.flags & CMD_FLAG_FAST_ZERO != 0;
    let answer = answer(export, &request, payload).await.unwrap_or_else(|status| {
        Answer::Failed(Errno::from_status(status, fast), status.to_string())
    });
    Reply { cookie: request.cookie, answer, ticket }
}

async fn answer(
    export: &OpenExport,
    request: &Request,
    payload: Option<Buffer>,
) -> Result<Answer, Status> {
    let volume = export.volume();
    let (offset, length) = (request.offset, u64::from(request.length));
    match request.command {
        Command::Read => {
            let data = Buffer::try_alloc(request.length as usize).ok_or(Status::Resource)?.whole();
            volume.read(offset, [data.clone()]).await?;
            return Ok(Answer::Data(offset, data));
        }
        Command::Write => {
            let data = payload.ok_or(Status::Invalid)?.whole();
            volume.write(offset, [data], flags(request)).await?;
        }
        Command::Flush => volume.flush().await?,
        Command::Trim => trim(export, request).await?,
        Command::WriteZeroes => volume.write_zeroes(offset, length, flags(request)).await?,
        Command::BlockStatus => return block_status(export, request).await,
        // There is no cache to fill; DISC never reaches this function.
        Command::Cache | Command::Disc => {}
    }
    Ok(Answer::Done)
}

/// The bio flags for a request's command flags.
fn flags(request: &Request) -> Flags {
    let mut flags = Flags::empty();
    for (bit, flag) in [
        (CMD_FLAG_FUA, Flags::FUA),
        (CMD_FLAG_NO_HOLE, Flags::NOUNMAP),
        (CMD_FLAG_FAST_ZERO, Flags::FAST),
    ] {
        if request.flags & bit != 0 {
            flags |= flag;
        }
    }
    flags
}

/// TRIM is a hint: if discards were turned off after they were offered to the client, it succeeds without doing
/// anything.
async fn trim(export: &OpenExport, request: &Request) -> BioResult {
    let length = u64::from(request.length);
    match export.volume().discard(request.offset, length, flags(request)).await {
        Err(Status::NotSupported) => Ok(()),
        result => result,
    }
}

async fn block_status(export: &OpenExport, request: &Request) -> Result<Answer, Status> {
    let mut contexts = Vec::with_capacity(export.contexts().len());
    for context in export.contexts() {
        contexts.push(extents(export, request, context).await);
    }
    Ok(Answer::Extents(contexts))
}

async fn extents(export: &OpenExport, request: &Request, context: &MetaContext) -> Vec<Extent> {
    let one = request.flags & CMD_FLAG_REQ_ONE != 0;
    let unknown = context.number(ExtentState::empty());
    let mut extents = Extents::new(request.offset, request.length, one, unknown);
    let end = request.offset + u64::from(request.length);
    let start = Sector::from_bytes_floor(request.offset);
    let len = Sectors::from_bytes_floor(end.next_multiple_of(512) - start.bytes());
    let found = match context {
        MetaContext::Allocation => export.volume().gateway().extents(start, len).await,
        MetaContext::Changes(map) => Ok(map.same(start, len)),
    };
    // Of a device that fails nothing is known.
    if let Ok(found) = found {
        let mut at = start.bytes();
        for extent in found.iter() {
            let end = at + extent.len.bytes();
            extents.tell(at..end, context.number(extent.state));
            at = end;
        }
        extents.stop_at(at);
    }
    extents.finish()
}
