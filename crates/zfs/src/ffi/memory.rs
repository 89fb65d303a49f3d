//! The one copy of the data: between the segments of a request, in the client process's memory, and
//! buffers here.
//!
//! Written data is copied from the memory that the client process shares ([`SharedMemory`]), and all data of a client that
//! passes windows is copied from and to these. Other read data, and data in memory that is not shared, is moved by the kernel (process_vm_writev(2),
//! process_vm_readv(2)): a call takes [`IOV_MAX`] ranges of each side and moves as much as the
//! shorter side holds. Each list is walked once, whatever its length: the time of a request is
//! linear in its segments and its buffers.

use rustix::io::Errno;

use super::shared_memory::SharedMemory;
use crate::protocol::RemoteSegment;

/// Maximum ranges per side in a call: the kernel's UIO_MAXIOV.
const IOV_MAX: usize = 1024;

/// The process whose memory contains a request's segments.
///
/// The calls that move data identify a process only by its PID, and after a process has exited
/// another one may get its PID. So the only peers are this process, and its parent as long as it is
/// the parent: when the parent exits, this process gets another one (getppid(2)). The check takes
/// less than a tenth of a microsecond. It runs *after* data was read, which was then certainly the
/// parent's, and *before* data is written: the PID would have to be freed and reused between two
/// system calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    /// `None`: its data are in shared memory only.
    process: Option<Process>,
    /// Its memory that is mapped here.
    shared: Option<SharedMemory>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Process {
    pid: libc::pid_t,
    is_parent: bool,
}

impl Peer {
    /// The process with this PID: this one, or its parent. The parent must permit this process to
    /// read and write its memory (ptrace(2), access mode).
    ///
    /// # Errors
    /// ESRCH: it is neither.
    pub fn process(pid: i32) -> Result<Self, Errno> {
        let is_parent = pid != std::process::id().cast_signed();
        let process = Process { pid, is_parent };
        process.check()?;
        Ok(Self { process: Some(process), shared: None })
    }

    /// This process.
    pub fn this() -> Self {
        let pid = std::process::id().cast_signed();
        Self { process: Some(Process { pid, is_parent: false }), shared: None }
    }

    /// A process whose data are in this memory, and nowhere else.
    pub fn behind(window: SharedMemory) -> Self {
        Self { process: None, shared: Some(window) }
    }

    /// This peer, with the memory that it shares.
    pub fn with_shared(self, shared: Option<SharedMemory>) -> Self {
        Self { shared, ..self }
    }
}

impl Process {
    /// Checks that it is still the same process.
    fn check(self) -> Result<(), Errno> {
        if self.is_parent && std::os::unix::process::parent_id().cast_signed() != self.pid {
            return Err(Errno::SRCH);
        }
        Ok(())
    }
}

/// The direction of the data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    /// From the peer to here: a write.
    FromPeer,
    /// From here to the peer: a read.
    ToPeer,
}

/// An incomplete copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ShortCopy {
    /// Bytes moved, from the start.
    pub(crate) moved_bytes: u64,
    /// EFAULT if the peer does not have this memory, ESRCH if it has exited, EPERM if it does not
    /// permit access.
    pub(crate) errno: Errno,
}

/// The segments of a request, with the current position.
#[derive(Debug)]
pub struct Segments {
    peer: Peer,
    /// The rest: ranges of the peer's memory, never dereferenced here.
    ranges: Ranges,
}

/// A list of ranges, with the current position.
#[derive(Debug, Default)]
struct Ranges {
    list: Vec<libc::iovec>,
    /// The first range that is not used up; its base and length describe the rest of it.
    first: usize,
}

// SAFETY: the addresses are plain numbers in this process; only the kernel dereferences them.
unsafe impl Send for Segments {}

impl Ranges {
    fn advance(&mut self, mut bytes: usize) {
        while let Some(range) = self.list.get_mut(self.first) {
            if bytes < range.iov_len {
                range.iov_base = range.iov_base.wrapping_byte_add(bytes);
                range.iov_len -= bytes;
                return;
            }
            bytes -= range.iov_len;
            self.first += 1;
        }
    }

    /// The rest of the list.
    fn rest(&self) -> &[libc::iovec] {
        &self.list[self.first..]
    }

    /// The ranges of one call.
    fn window(&self) -> &[libc::iovec] {
        let rest = self.rest();
        &rest[..rest.len().min(IOV_MAX)]
    }
}

impl Segments {
    /// Segments in the memory of `peer`.
    pub fn new(peer: Peer, segments: impl IntoIterator<Item = RemoteSegment>) -> Self {
        let list = segments.into_iter().map(|segment| libc::iovec {
            iov_base: std::ptr::without_provenance_mut(
                usize::try_from(segment.address).unwrap_or(usize::MAX),
            ),
            iov_len: usize::try_from(segment.len_bytes).unwrap_or(usize::MAX),
        });
        let ranges = Ranges { list: list.collect(), first: 0 };
        Self { peer, ranges }
    }

    /// Moves data between the next bytes of the segments and `local`, until `local` is used up.
    ///
    /// # Errors
    /// The peer's memory is not accessible; reports the bytes moved before.
    pub(crate) fn transfer(
        &mut self,
        local: &mut LocalRanges<'_>,
        direction: Direction,
    ) -> Result<(), ShortCopy> {
        if let Some(shared) = self.peer.shared
            && (direction == Direction::FromPeer || shared.is_writable())
        {
            let find = |range: &libc::iovec| {
                shared.find(range.iov_base.addr() as u64, range.iov_len as u64)
            };
            if self.ranges.rest().iter().all(|range| find(range).is_some()) {
                return self.copy(local, direction, find);
            }
        }
        let Some(peer) = self.peer.process else {
            return Err(ShortCopy { moved_bytes: 0, errno: Errno::FAULT });
        };
        let mut moved_bytes = 0;
        while local.left_bytes > 0 {
            let refused = |errno| ShortCopy { moved_bytes, errno };
            match direction {
                Direction::FromPeer => {}
                Direction::ToPeer => peer.check().map_err(refused)?,
            }
            let (ours, theirs) = (local.ranges.window(), self.ranges.window());
            // SAFETY: the local ranges are exclusively borrowed memory for the lifetime of `local`;
            // the kernel checks the peer's. The peer may be this process (tests): then its segments
            // are memory that the request's caller shares for it.
            let done = unsafe { call(direction, peer.pid, ours, theirs) };
            match direction {
                Direction::FromPeer => peer.check().map_err(refused)?,
                Direction::ToPeer => {}
            }
            let failure = match usize::try_from(done) {
                Ok(0) => Some(Errno::FAULT),
                Ok(bytes) => {
                    local.ranges.advance(bytes);
                    local.left_bytes -= bytes as u64;
                    self.ranges.advance(bytes);
                    moved_bytes += bytes as u64;
                    None
                }
                Err(_) => Some(last_errno()),
            };
            if let Some(errno) = failure {
                return Err(ShortCopy { moved_bytes, errno });
            }
        }
        Ok(())
    }

    /// Copies from or to shared memory; `find` returns the address of a range.
    fn copy(
        &mut self,
        local: &mut LocalRanges<'_>,
        direction: Direction,
        find: impl Fn(&libc::iovec) -> Option<*mut u8>,
    ) -> Result<(), ShortCopy> {
        let mut moved_bytes = 0;
        while local.left_bytes > 0 {
            let ends = (self.ranges.rest().first(), local.ranges.rest().first());
            let (Some(theirs), Some(ours)) = ends else {
                return Err(ShortCopy { moved_bytes, errno: Errno::FAULT });
            };
            let Some(shared) = find(theirs) else {
                return Err(ShortCopy { moved_bytes, errno: Errno::FAULT });
            };
            let bytes = theirs.iov_len.min(ours.iov_len);
            let local_bytes = ours.iov_base.cast::<u8>();
            let (from, to) = match direction {
                Direction::FromPeer => (shared, local_bytes),
                Direction::ToPeer => (local_bytes, shared),
            };
            // SAFETY: the shared memory is mapped for reading, and for writing if it is written; the local range is
            // exclusively borrowed memory for the lifetime of `local`, outside of that mapping. The
            // lender neither changes nor reads the bytes until the request has ended; if it does, the
            // result is a mixture of both, as for a device that is written from a changing buffer.
            unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
            local.ranges.advance(bytes);
            local.left_bytes -= bytes as u64;
            self.ranges.advance(bytes);
            moved_bytes += bytes as u64;
        }
        Ok(())
    }
}

/// One system call. Returns the bytes moved, or -1 and errno.
///
/// # Safety
/// `ours` is valid memory that no other code uses; so is `theirs` if the process is this one.
unsafe fn call(
    direction: Direction,
    pid: libc::pid_t,
    ours: &[libc::iovec],
    theirs: &[libc::iovec],
) -> libc::ssize_t {
    let (ours_len, theirs_len) = (ours.len() as libc::c_ulong, theirs.len() as libc::c_ulong);
    let (ours, theirs) = (ours.as_ptr(), theirs.as_ptr());
    // SAFETY: guaranteed by the caller.
    unsafe {
        match direction {
            Direction::FromPeer => {
                libc::process_vm_readv(pid, ours, ours_len, theirs, theirs_len, 0)
            }
            Direction::ToPeer => {
                libc::process_vm_writev(pid, ours, ours_len, theirs, theirs_len, 0)
            }
        }
    }
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Ranges of this process's memory, in data order.
#[derive(Debug, Default)]
pub(crate) struct LocalRanges<'a> {
    ranges: Ranges,
    left_bytes: u64,
    memory: std::marker::PhantomData<&'a mut [u8]>,
}

impl LocalRanges<'_> {
    /// An empty list with room for `ranges`.
    pub(crate) fn with_capacity(ranges: usize) -> Self {
        Self { ranges: Ranges { list: Vec::with_capacity(ranges), first: 0 }, ..Self::default() }
    }

    /// Adds a range.
    ///
    /// # Safety
    /// The memory is valid for reads and writes, and no other code uses it while this exists.
    pub(crate) unsafe fn push(&mut self, base: *mut u8, len_bytes: usize) {
        self.left_bytes += len_bytes as u64;
        self.ranges.list.push(libc::iovec { iov_base: base.cast(), iov_len: len_bytes });
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::NonNull;

    use ashlar_engine::memfd::Memfd;
    use ashlar_engine::slabs::Slabs;

    use super::super::shared_memory::Window;
    use super::*;

    fn segments_of(memory: &mut [u8], lengths: impl Iterator<Item = usize>) -> Vec<RemoteSegment> {
        let mut rest = memory;
        let mut segments = Vec::new();
        for length in lengths {
            let (head, tail) = rest.split_at_mut(length);
            segments.push(RemoteSegment {
                address: head.as_mut_ptr() as u64,
                len_bytes: length as u64,
            });
            rest = tail;
        }
        assert!(rest.is_empty());
        segments
    }

    /// More ranges than fit in a call, with lengths that never end at the same byte.
    #[test]
    fn ranges_of_both_sides_may_be_cut_anywhere() {
        let total = 3000 * 7 + 5;
        let mut theirs: Vec<u8> = (0..total).map(|at| (at % 251) as u8).collect();
        let expected = theirs.clone();
        let mut ours = vec![0_u8; total];
        let segments = segments_of(&mut theirs, std::iter::repeat_n(7, 3000).chain([5]));
        for piece in [1_usize, 3, 512, 4096, total] {
            ours.fill(0);
            let mut segments = Segments::new(Peer::this(), segments.iter().copied());
            // In two transfers, as for a request with more than one transaction.
            for half in ours.chunks_mut(total / 2 + 1) {
                let mut local = LocalRanges::default();
                for range in half.chunks_mut(piece) {
                    // SAFETY: pieces of a vector that lives longer and is not used until the transfer has ended.
                    unsafe { local.push(range.as_mut_ptr(), range.len()) };
                }
                segments.transfer(&mut local, Direction::FromPeer).unwrap();
            }
            assert!(ours == expected, "pieces of {piece} bytes");
        }
    }

    #[test]
    fn what_was_moved_before_a_fault_is_told() {
        let mut good = [7_u8; 4096];
        let mut segments = segments_of(&mut good, [4096].into_iter());
        segments.push(RemoteSegment { address: 8, len_bytes: 4096 });
        let mut ours = [0_u8; 8192];
        let mut local = LocalRanges::default();
        // SAFETY: an array that lives longer and is not used until the transfer has ended.
        unsafe { local.push(ours.as_mut_ptr(), ours.len()) };
        let short = Segments::new(Peer::this(), segments.iter().copied())
            .transfer(&mut local, Direction::FromPeer)
            .unwrap_err();
        let expected = ShortCopy { moved_bytes: 4096, errno: Errno::FAULT };
        assert_eq!(short, expected);
        assert!(ours[..4096].iter().all(|byte| *byte == 7));
    }

    /// At addresses that are unmapped in this process: the data can only come from the mapping.
    #[test]
    fn what_is_lent_is_copied_from_its_mapping() {
        const THEIRS: u64 = 0x1000;
        let (slabs, shared) = Slabs::shared(&[4096, 8192], 64 << 10, 0).unwrap();
        let len_bytes = shared.len_bytes;
        let expected: Vec<u8> = (0..8192_u32).map(|at| (at % 251) as u8).collect();
        let block = slabs.take(8192).unwrap();
        // SAFETY: a block of that length, owned by this test.
        unsafe { block.copy_from_nonoverlapping(NonNull::from(&expected[0]), expected.len()) };
        let address = THEIRS + (block.addr().get() as u64 - shared.address);
        assert_eq!(SharedMemory::map(&shared.file, THEIRS, len_bytes + 1), Err(Errno::INVAL));
        assert_eq!(SharedMemory::map(&shared.file, u64::MAX, len_bytes), Err(Errno::INVAL));
        let peer = Peer::this()
            .with_shared(Some(SharedMemory::map(&shared.file, THEIRS, len_bytes).unwrap()));

        // Two pieces in reverse order, copied to pieces of other lengths.
        let shared = [(address + 4096, 4096), (address, 4096)]
            .map(|(address, len_bytes)| RemoteSegment { address, len_bytes });
        let mut ours = vec![0_u8; 8192];
        let moved = |list: &[RemoteSegment], ours: &mut [u8]| {
            let mut local = LocalRanges::default();
            for range in ours.chunks_mut(3000) {
                // SAFETY: pieces of a vector that lives longer and is not used until the transfer has ended.
                unsafe { local.push(range.as_mut_ptr(), range.len()) };
            }
            Segments::new(peer, list.iter().copied()).transfer(&mut local, Direction::FromPeer)
        };
        moved(&shared, &mut ours).unwrap();
        assert!(ours[..4096] == expected[4096..] && ours[4096..] == expected[..4096]);

        // Fewer bytes than requested.
        let short = ShortCopy { moved_bytes: 4096, errno: Errno::FAULT };
        assert_eq!(moved(&shared[..1], &mut ours), Err(short));
        // Not all of it is shared: the kernel moves it, and finds no memory.
        let nothing = ShortCopy { moved_bytes: 0, errno: Errno::FAULT };
        for address in [0, THEIRS - 512, THEIRS + len_bytes - 3584, THEIRS + len_bytes] {
            let list = [RemoteSegment { address, len_bytes: 4096 }];
            assert_eq!(moved(&list, &mut ours), Err(nothing), "{address:#x}");
        }
    }

    /// Not another process, whatever it permits; and not a former parent, whichever process has its PID now.
    #[test]
    fn nobody_is_a_peer_but_this_process_and_its_parent() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert_eq!(Peer::process(child.id().cast_signed()), Err(Errno::SRCH));
        let parent = std::os::unix::process::parent_id().cast_signed();
        let of = |pid| Peer { process: Some(Process { pid, is_parent: true }), shared: None };
        assert_eq!(Peer::process(parent), Ok(of(parent)));
        assert_eq!(Peer::process(std::process::id().cast_signed()), Ok(Peer::this()));

        // As if the parent had exited, and the child had its PID now.
        let gone = of(child.id().cast_signed());
        let mut ours = [0_u8; 512];
        for direction in [Direction::FromPeer, Direction::ToPeer] {
            let mut local = LocalRanges::default();
            // SAFETY: an array that lives longer and is not used until the transfer has ended.
            unsafe { local.push(ours.as_mut_ptr(), ours.len()) };
            let segment = RemoteSegment { address: 4096, len_bytes: 512 };
            let short = Segments::new(gone, [segment]).transfer(&mut local, direction);
            assert_eq!(short, Err(ShortCopy { moved_bytes: 0, errno: Errno::SRCH }));
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Data go both ways through a window, and nowhere else.
    #[test]
    fn a_peer_behind_a_window_is_reached_through_it_only() {
        const LEN: usize = 64 << 10;
        let Memfd { memory, file, address } = Memfd::new(c"window", LEN).unwrap();
        let window = Window::map(&file, address, LEN as u64).unwrap();
        let peer = Peer::behind(window.memory());
        let moved = |address: u64, ours: &mut [u8], direction| {
            let mut local = LocalRanges::default();
            // SAFETY: memory that lives longer and is not used until the transfer has ended.
            unsafe { local.push(ours.as_mut_ptr(), ours.len()) };
            let segment = RemoteSegment { address, len_bytes: ours.len() as u64 };
            Segments::new(peer, [segment]).transfer(&mut local, direction)
        };
        let theirs = memory.segment(4096..4096 + 777).unwrap();
        theirs.copy_from(&[5; 777]);
        let mut ours = [0; 777];
        assert_eq!(moved(address + 4096, &mut ours, Direction::FromPeer), Ok(()));
        assert_eq!(ours, [5; 777]);
        ours.fill(9);
        assert_eq!(moved(address + 4096, &mut ours, Direction::ToPeer), Ok(()));
        let mut seen = [0; 777];
        theirs.copy_to(&mut seen);
        assert_eq!(seen, [9; 777]);
        let nothing = ShortCopy { moved_bytes: 0, errno: Errno::FAULT };
        let outside = [0, address - 1, address + LEN as u64 - 776, ours.as_ptr() as u64];
        for (address, direction) in outside
            .into_iter()
            .flat_map(|address| [(address, Direction::FromPeer), (address, Direction::ToPeer)])
        {
            assert_eq!(moved(address, &mut ours, direction), Err(nothing), "{address:#x}");
        }
        // Memory whose file the other side could shorten would end this process.
        let plain = rustix::fs::memfd_create(c"plain", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&plain, LEN as u64).unwrap();
        assert_eq!(Window::map(&plain, address, LEN as u64).unwrap_err(), Errno::PERM);
    }
}
