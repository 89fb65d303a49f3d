//! The client's half of the handshake: fixed newstyle, as in the NBD protocol document.

use std::io;

use ashlar_engine::ChunkList;
use thiserror::Error;

use crate::input::Input;
use crate::stream::Stream;
use crate::tls::{Channel, ClientTls, SecureError, TlsError};
use crate::uri::Address;
use crate::wire::{
    ALLOCATION_CONTEXT, FLAG_FIXED_NEWSTYLE, FLAG_NO_ZEROES, FLAG_READ_ONLY, Fields,
    INFO_BLOCK_SIZE, INFO_EXPORT, INIT_PASSWD, MAX_PAYLOAD, MAX_STRING, OPT_EXPORT_NAME, OPT_GO,
    OPT_SET_META_CONTEXT, OPT_STARTTLS, OPT_STRUCTURED_REPLY, OPTS_MAGIC, REP_ACK,
    REP_ERR_TLS_REQD, REP_ERR_UNSUP, REP_FLAG_ERROR, REP_INFO, REP_MAGIC, REP_META_CONTEXT,
};

/// The longest reply to an option.
const MAX_REPLY: usize = MAX_STRING + 64;
/// The most replies to one option.
const MAX_REPLIES: usize = 64;

/// Why a server cannot be used.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// It cannot be reached, or the connection broke.
    #[error("{address}: {source}")]
    Io {
        /// The server.
        address: Address,
        /// The error.
        source: io::Error,
    },
    /// Nothing came for too long.
    #[error("{0}: no answer in time")]
    Silent(Address),
    /// It has not answered changes of a former disk of this export, and may still execute them.
    #[error(
        "{0}: the server has not answered writes of a former connection, and may still execute them"
    )]
    Late(Address),
    /// It does not speak the protocol, or an old version of it.
    #[error("{0}: not an NBD server with fixed newstyle negotiation")]
    Foreign(Address),
    /// It broke the protocol.
    #[error("{0}: the server broke the protocol: {1}")]
    Protocol(Address, &'static str),
    /// It has no such export, or refuses it.
    #[error("{address}: the server refuses the export `{export}`: {why}")]
    Refused {
        /// The server.
        address: Address,
        /// The name of the export.
        export: String,
        /// The server's reason.
        why: String,
    },
    /// The export cannot be a disk.
    #[error("{0}: {1}")]
    Unsuitable(Address, String),
    /// The credentials for TLS cannot be used.
    #[error("{0}")]
    Credentials(TlsError),
    /// There is no TLS with this server, or it is not the one that is wanted.
    #[error("{0}: {1}")]
    Insecure(Address, String),
}

/// What a server says about an export.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExportInfo {
    /// The size in bytes.
    pub size_bytes: u64,
    /// The transmission flags.
    pub flags: u16,
    /// The smallest unit of I/O, in bytes.
    pub min_block_bytes: u32,
    /// The preferred unit, in bytes.
    pub preferred_block_bytes: u32,
    /// The longest read or write, in bytes.
    pub max_block_bytes: u32,
    /// Whether replies are structured.
    pub is_structured: bool,
    /// The identifier of `base:allocation`, of which the server tells.
    pub allocation: Option<u32>,
}

impl ExportInfo {
    /// Whether a transmission flag is set.
    pub const fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// Why the export `info` cannot stand for this one, that of the first connection.
    pub(crate) fn misfit(&self, info: &Self) -> Option<&'static str> {
        let lacks = self.flags & !info.flags;
        if info.size_bytes < self.size_bytes {
            Some("it is smaller")
        } else if !self.has(FLAG_READ_ONLY) && info.has(FLAG_READ_ONLY) {
            Some("it is read-only")
        } else if lacks & !FLAG_READ_ONLY != 0 {
            Some("it can do less")
        } else if info.min_block_bytes > self.min_block_bytes
            || info.max_block_bytes < self.max_block_bytes
        {
            Some("it has other block sizes")
        } else {
            None
        }
    }
}

/// A failure of a handshake, without the server's address.
#[derive(Debug)]
pub(crate) enum Failure {
    Io(io::Error),
    Foreign,
    Protocol(&'static str),
    Refused(String),
    Credentials(TlsError),
    Insecure(String),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl Failure {
    pub(crate) fn at(self, address: &Address, export: &str) -> ConnectError {
        let address = address.clone();
        match self {
            Self::Io(source) => ConnectError::Io { address, source },
            Self::Foreign => ConnectError::Foreign(address),
            Self::Protocol(what) => ConnectError::Protocol(address, what),
            Self::Refused(why) => ConnectError::Refused { address, export: export.to_owned(), why },
            Self::Credentials(why) => ConnectError::Credentials(why),
            Self::Insecure(why) => ConnectError::Insecure(address, why),
        }
    }
}

/// A reply to an option.
struct OptionReply {
    kind: u32,
    data: Vec<u8>,
}

async fn send(stream: &impl Stream, option: u32, data: &[u8]) -> io::Result<()> {
    let mut message = OPTS_MAGIC.to_be_bytes().to_vec();
    message.extend(option.to_be_bytes());
    message.extend((data.len() as u32).to_be_bytes());
    message.extend(data);
    stream.send(ChunkList::of(message)).await.0
}

async fn reply(
    stream: &impl Stream,
    input: &mut Input,
    option: u32,
) -> Result<OptionReply, Failure> {
    let header: [u8; 20] = input.array(stream).await?;
    let mut fields = Fields(&header);
    let (magic, its) = (fields.u64(), fields.u32());
    let (kind, len) = (fields.u32().unwrap_or_default(), fields.u32().unwrap_or_default() as usize);
    if magic != Some(REP_MAGIC) || its != Some(option) {
        return Err(Failure::Protocol("no reply to an option"));
    }
    if len > MAX_REPLY {
        return Err(Failure::Protocol("a reply to an option that is too long"));
    }
    Ok(OptionReply { kind, data: input.bytes(stream, len).await? })
}

/// Negotiates with a server that has just accepted the connection; transmission follows. With `tls` nothing but the request for it is said
/// in plain text.
pub(crate) async fn negotiate<S: Stream>(
    stream: &Channel<S>,
    input: &mut Input,
    export: &str,
    tls: Option<&ClientTls>,
) -> Result<ExportInfo, Failure> {
    let greeting: [u8; 18] = match input.array(stream).await {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(Failure::Foreign),
        greeting => greeting?,
    };
    let mut fields = Fields(&greeting);
    let magics = (fields.u64(), fields.u64());
    let server = fields.u16().unwrap_or_default();
    if magics != (Some(INIT_PASSWD), Some(OPTS_MAGIC)) || server & FLAG_FIXED_NEWSTYLE == 0 {
        return Err(Failure::Foreign);
    }
    let own = server & (FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES);
    stream.send(ChunkList::of(u32::from(own).to_be_bytes().to_vec())).await.0?;

    if let Some(tls) = tls {
        secure(stream, input, tls).await?;
    }

    send(stream, OPT_STRUCTURED_REPLY, &[]).await?;
    let is_structured = reply(stream, input, OPT_STRUCTURED_REPLY).await?.kind == REP_ACK;

    let allocation = match is_structured {
        true => allocation_context(stream, input, export).await?,
        false => None,
    };

    let mut choice = counted(export);
    choice.extend(1_u16.to_be_bytes());
    choice.extend(INFO_BLOCK_SIZE.to_be_bytes());
    send(stream, OPT_GO, &choice).await?;
    let mut chosen = None;
    // What a client may assume that knows nothing of blocks.
    let mut blocks = (1, 4096, MAX_PAYLOAD);
    for _ in 0..MAX_REPLIES {
        let OptionReply { kind, data } = reply(stream, input, OPT_GO).await?;
        let mut fields = Fields(&data);
        match kind {
            REP_ACK => {
                let (size_bytes, flags) =
                    chosen.ok_or(Failure::Protocol("an export without a size"))?;
                return Ok(info(size_bytes, flags, blocks, is_structured, allocation));
            }
            REP_INFO => match fields.u16() {
                Some(INFO_EXPORT) => chosen = fields.u64().zip(fields.u16()),
                Some(INFO_BLOCK_SIZE) => {
                    let sizes = (fields.u32(), fields.u32(), fields.u32());
                    let (Some(min), Some(preferred), Some(max)) = sizes else {
                        return Err(Failure::Protocol("block sizes that are incomplete"));
                    };
                    blocks = (min, preferred, max);
                }
                Some(_) => {}
                None => return Err(Failure::Protocol("information without a type")),
            },
            REP_ERR_UNSUP => {
                let (size_bytes, flags) = by_name(stream, input, export, own).await?;
                return Ok(info(size_bytes, flags, blocks, is_structured, None));
            }
            REP_ERR_TLS_REQD if tls.is_none() => {
                let why =
                    "the server requires TLS, which a URI asks for with nbds:// or nbds+unix://";
                return Err(Failure::Insecure(why.to_owned()));
            }
            error if error & REP_FLAG_ERROR != 0 => {
                return Err(Failure::Refused(reason(error, &data)));
            }
            _ => return Err(Failure::Protocol("an unknown reply")),
        }
    }
    Err(Failure::Protocol("too many replies"))
}

/// Why a server refuses an option.
fn reason(error: u32, data: &[u8]) -> String {
    let why = String::from_utf8_lossy(data).escape_debug().to_string();
    if why.is_empty() { format!("error {}", error & !REP_FLAG_ERROR) } else { why }
}

/// Has the server begin TLS, and does the handshake. The connection is not used in plain text if the server refuses.
async fn secure<S: Stream>(
    stream: &Channel<S>,
    input: &mut Input,
    tls: &ClientTls,
) -> Result<(), Failure> {
    send(stream, OPT_STARTTLS, &[]).await?;
    let OptionReply { kind, data } = reply(stream, input, OPT_STARTTLS).await?;
    if kind != REP_ACK {
        let why = reason(kind, &data);
        return Err(Failure::Insecure(format!("the server refuses TLS: {why}")));
    }
    // Whoever is between both sides could have sent it: it must not be taken for the server's word.
    if !data.is_empty() || !input.is_empty() {
        return Err(Failure::Protocol("plain text after it has agreed to TLS"));
    }
    let ssl = tls.session().map_err(|error| Failure::Insecure(format!("TLS: {error}")))?;
    match stream.secure(ssl).await {
        Ok(peer) => {
            tracing::debug!(server = peer, "TLS with an NBD server");
            Ok(())
        }
        Err(SecureError::Io(error)) => Err(Failure::Io(error)),
        Err(error @ (SecureError::Handshake(_) | SecureError::NoMemory)) => {
            Err(Failure::Insecure(error.to_string()))
        }
    }
}

fn info(
    size_bytes: u64,
    flags: u16,
    (min, preferred, max): (u32, u32, u32),
    is_structured: bool,
    allocation: Option<u32>,
) -> ExportInfo {
    ExportInfo {
        size_bytes,
        flags,
        min_block_bytes: min,
        preferred_block_bytes: preferred,
        max_block_bytes: max,
        is_structured,
        allocation,
    }
}

/// A string with its length before it.
fn counted(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat()
}

/// Has the server tell of holes; the identifier of that context, if it does.
async fn allocation_context(
    stream: &impl Stream,
    input: &mut Input,
    export: &str,
) -> Result<Option<u32>, Failure> {
    let query =
        [counted(export), 1_u32.to_be_bytes().to_vec(), counted(ALLOCATION_CONTEXT)].concat();
    send(stream, OPT_SET_META_CONTEXT, &query).await?;
    let mut context = None;
    for _ in 0..MAX_REPLIES {
        let OptionReply { kind, data } = reply(stream, input, OPT_SET_META_CONTEXT).await?;
        let mut fields = Fields(&data);
        match kind {
            REP_ACK => return Ok(context),
            REP_META_CONTEXT => {
                let id = fields.u32().ok_or(Failure::Protocol("a context without a number"))?;
                if fields.rest() == ALLOCATION_CONTEXT.as_bytes() {
                    context = Some(id);
                }
            }
            error if error & REP_FLAG_ERROR != 0 => return Ok(None),
            _ => return Err(Failure::Protocol("an unknown reply")),
        }
    }
    Err(Failure::Protocol("too many replies"))
}

/// Chooses an export of a server that is too old for `GO`: it ends the connection if it has none of that name.
async fn by_name(
    stream: &impl Stream,
    input: &mut Input,
    export: &str,
    own: u16,
) -> Result<(u64, u16), Failure> {
    send(stream, OPT_EXPORT_NAME, export.as_bytes()).await?;
    let about: [u8; 10] = match input.array(stream).await {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            return Err(Failure::Refused("it ended the connection".to_owned()));
        }
        about => about?,
    };
    if own & FLAG_NO_ZEROES == 0 {
        let _: [u8; 124] = input.array(stream).await?;
    }
    let mut fields = Fields(&about);
    fields.u64().zip(fields.u16()).ok_or(Failure::Protocol("an export without a size"))
}
