//! Messages of the vhost-user protocol, as bytes.
//!
//! The bodies and numbers are the crate `vhost`'s. Its server is not used: it receives with blocking calls, so each connection would
//! need a thread; it wants the body of a message in one piece; it has no message for a changed configuration; and it refuses a
//! postcopy without naming it.

use std::os::fd::OwnedFd;

use ashlar_engine::net::Socket;
use vhost::vhost_user::message::{
    BackendReq, FrontendReq, MAX_MSG_SIZE, VhostUserHeaderFlag, VhostUserMemory,
    VhostUserMemoryRegion, VhostUserMsgValidator, VhostUserSingleMemoryRegion,
};
use vm_memory::ByteValued;

use crate::memory::Region;
use crate::violation::Violation;

/// Request, flags, size; in the byte order of this machine.
const HEADER_BYTES: usize = 12;
const VERSION: u32 = 1;
/// The most descriptors of a message, as in the crate `vhost`.
const MAX_FILES: usize = 32;

/// A message of a front end.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) request: FrontendReq,
    /// Its sender waits for an answer, if such answers were negotiated.
    pub(crate) needs_reply: bool,
    body: Vec<u8>,
    files: Vec<OwnedFd>,
}

/// Fills `buf`; 0 if the stream ends before its first byte.
async fn receive_all(
    socket: &Socket,
    len: usize,
    files: &mut Vec<OwnedFd>,
) -> Result<Vec<u8>, Violation> {
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        let (count, part) = socket.recv_with_files(vec![0; len - bytes.len()], files).await;
        let count = count?;
        if files.len() > MAX_FILES {
            return Err(Violation::Files(files.len()));
        }
        if count == 0 {
            break;
        }
        bytes.extend_from_slice(&part[..count]);
    }
    Ok(bytes)
}

/// The next message; `None` at the end of the stream.
///
/// # Errors
/// The front end broke the protocol, or the connection failed.
pub(crate) async fn receive(socket: &Socket) -> Result<Option<Message>, Violation> {
    let mut files = Vec::new();
    let header = receive_all(socket, HEADER_BYTES, &mut files).await?;
    if header.is_empty() {
        return Ok(None);
    }
    let field = |at: usize| {
        let bytes = header.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map(u32::from_ne_bytes).ok_or(Violation::Truncated)
    };
    let (number, flags, size) = (field(0)?, field(4)?, field(8)?);
    let request = FrontendReq::try_from(number).map_err(|_| Violation::Unknown(number))?;
    let known = VhostUserHeaderFlag::VERSION.bits() | VhostUserHeaderFlag::NEED_REPLY.bits();
    if flags & VhostUserHeaderFlag::VERSION.bits() != VERSION || flags & !known != 0 {
        return Err(Violation::Flags(flags));
    }
    let size = size as usize;
    if size > MAX_MSG_SIZE {
        return Err(Violation::Size(request, size));
    }
    let body = receive_all(socket, size, &mut files).await?;
    if body.len() < size {
        return Err(Violation::Truncated);
    }
    let needs_reply = flags & VhostUserHeaderFlag::NEED_REPLY.bits() != 0;
    Ok(Some(Message { request, needs_reply, body, files }))
}

/// A value from its bytes; missing ones are zero.
fn value<T: ByteValued + Default>(bytes: &[u8]) -> T {
    let mut value = T::default();
    value.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
    value
}

impl Message {
    fn bad(&self) -> Violation {
        Violation::Size(self.request, self.body.len())
    }

    /// The body, which has nothing else.
    ///
    /// # Errors
    /// It has another length, or is invalid.
    pub(crate) fn body<T: ByteValued + Default + VhostUserMsgValidator>(
        &self,
    ) -> Result<T, Violation> {
        self.body_of(size_of::<T>())
    }

    /// The body, whose last bytes beyond `least` are padding that may be left out.
    ///
    /// # Errors
    /// As [`Self::body`].
    pub(crate) fn body_of<T: ByteValued + Default + VhostUserMsgValidator>(
        &self,
        least: usize,
    ) -> Result<T, Violation> {
        if self.body.len() < least || self.body.len() > size_of::<T>() {
            return Err(self.bad());
        }
        let value: T = value(&self.body);
        if value.is_valid() { Ok(value) } else { Err(Violation::Body(self.request)) }
    }

    /// A body of one number.
    ///
    /// # Errors
    /// It has another length.
    pub(crate) fn number(&self) -> Result<u64, Violation> {
        let bytes = self.body.as_slice().try_into().map_err(|_| self.bad())?;
        Ok(u64::from_ne_bytes(bytes))
    }

    /// A body that begins with `T`, and its rest.
    ///
    /// # Errors
    /// It is shorter, or invalid.
    pub(crate) fn body_and_rest<T: ByteValued + Default + VhostUserMsgValidator>(
        &self,
    ) -> Result<(T, &[u8]), Violation> {
        let (front, rest) = self.body.split_at_checked(size_of::<T>()).ok_or_else(|| self.bad())?;
        let value: T = value(front);
        if value.is_valid() { Ok((value, rest)) } else { Err(Violation::Body(self.request)) }
    }

    /// The one descriptor.
    ///
    /// # Errors
    /// There are more or less.
    pub(crate) fn file(self) -> Result<OwnedFd, Violation> {
        let count = self.files.len();
        let [file]: [OwnedFd; 1] = self.files.try_into().map_err(|_| Violation::Files(count))?;
        Ok(file)
    }

    /// At most one descriptor.
    ///
    /// # Errors
    /// There are more.
    pub(crate) fn maybe_file(mut self) -> Result<Option<OwnedFd>, Violation> {
        let file = self.files.pop();
        if self.files.is_empty() { Ok(file) } else { Err(Violation::Files(self.files.len() + 1)) }
    }

    /// A table of regions, each with its file.
    ///
    /// # Errors
    /// It is invalid.
    pub(crate) fn table(self) -> Result<Vec<(Region, OwnedFd)>, Violation> {
        let (head, rest): (VhostUserMemory, _) = self.body_and_rest()?;
        let count = head.num_regions as usize;
        let (entries, odd) = rest.as_chunks::<{ size_of::<VhostUserMemoryRegion>() }>();
        // User-mode Linux sends a table of two entries, of which the second one may be unused.
        let Some(used) = entries.get(..count).filter(|_| odd.is_empty()) else {
            return Err(self.bad());
        };
        let regions: Vec<Region> = used.iter().map(|bytes| region(&value(bytes))).collect();
        if self.files.len() != count {
            return Err(Violation::Files(self.files.len()));
        }
        Ok(regions.into_iter().zip(self.files).collect())
    }

    /// One region.
    ///
    /// # Errors
    /// It is invalid.
    pub(crate) fn region(&self) -> Result<Region, Violation> {
        Ok(region(&*self.body::<VhostUserSingleMemoryRegion>()?))
    }
}

fn region(region: &VhostUserMemoryRegion) -> Region {
    Region {
        guest: region.guest_phys_addr,
        user: region.user_addr,
        size: region.memory_size,
        offset: region.mmap_offset,
    }
}

fn message(request: u32, flags: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
    for field in [request, VERSION | flags, body.len() as u32] {
        bytes.extend_from_slice(&field.to_ne_bytes());
    }
    bytes.extend_from_slice(body);
    bytes
}

/// The answer to a request.
pub(crate) fn reply(request: FrontendReq, body: &[u8]) -> Vec<u8> {
    message(request.into(), VhostUserHeaderFlag::REPLY.bits(), body)
}

/// Whether the answer to a request has a body of its own, so that it cannot say that it failed.
pub(crate) fn has_body(request: FrontendReq) -> bool {
    matches!(
        request,
        FrontendReq::GET_FEATURES
            | FrontendReq::GET_PROTOCOL_FEATURES
            | FrontendReq::GET_QUEUE_NUM
            | FrontendReq::GET_VRING_BASE
            | FrontendReq::GET_CONFIG
            | FrontendReq::GET_INFLIGHT_FD
            | FrontendReq::GET_MAX_MEM_SLOTS
            | FrontendReq::GET_STATUS
            | FrontendReq::GET_SHARED_OBJECT
            | FrontendReq::GET_SHMEM_CONFIG
            | FrontendReq::SET_DEVICE_STATE_FD
            | FrontendReq::CHECK_DEVICE_STATE
            | FrontendReq::POSTCOPY_ADVISE
            | FrontendReq::SET_LOG_BASE
    )
}

/// Tells the front end that the configuration space has changed. No answer is wanted.
pub(crate) fn config_changed() -> Vec<u8> {
    message(BackendReq::CONFIG_CHANGE_MSG.into(), 0, &[])
}
