//! The fields of a submission entry, as the kernel lays them out (`struct io_uring_sqe` of `include/uapi/linux/io_uring.h`).

use std::os::fd::{BorrowedFd, RawFd};

use io_uring::squeue;

/// The offset "at the file's position", for streams.
pub(crate) const STREAM: u64 = u64::MAX;

/// A submission entry, read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sqe {
    pub(super) opcode: u8,
    pub(super) fd: RawFd,
    /// The offset, or the length of a socket's address.
    pub(super) offset: u64,
    /// An address, or the user data of an operation to cancel.
    pub(super) address: u64,
    /// A number of bytes or of pieces, or the mode of fallocate(2).
    pub(super) len: u32,
    /// The flags of the operation: `RWF_*`, `MSG_*`, `SOCK_*`, or the events of poll(2).
    pub(super) flags: u32,
    pub(super) user_data: u64,
}

impl Sqe {
    pub(super) fn read(entry: &squeue::Entry) -> Self {
        const { assert!(size_of::<squeue::Entry>() == 64) };
        // SAFETY: the type is transparent for the kernel's struct of 64 bytes of integers, all of which are initialized.
        let bytes: [u8; 64] = unsafe { std::mem::transmute_copy(entry) };
        let field = |at: usize, len: usize| {
            let mut value = [0; 8];
            value[..len].copy_from_slice(&bytes[at..at + len]);
            // The fields are in the machine's order; shorter ones are at the start of the value on little-endian machines.
            if cfg!(target_endian = "big") {
                value.rotate_left(len)
            }
            u64::from_ne_bytes(value)
        };
        Self {
            opcode: bytes[0],
            fd: field(4, 4) as u32 as RawFd,
            offset: field(8, 8),
            address: field(16, 8),
            len: field(24, 4) as u32,
            flags: field(28, 4) as u32,
            user_data: field(32, 8),
        }
    }

    /// Its descriptor.
    ///
    /// # Safety
    /// The entry's descriptor is open while the operation is in flight.
    pub(super) unsafe fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the caller's promise.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }

    /// Its memory.
    pub(super) fn memory<T>(&self) -> *mut T {
        std::ptr::with_exposed_provenance_mut(self.address as usize)
    }
}

#[cfg(test)]
mod tests {
    use io_uring::{opcode, types};

    use super::*;

    #[test]
    fn fields_are_where_the_kernel_reads_them() {
        let mut memory = [0_u8; 8];
        let at = memory.as_mut_ptr();
        let entry = opcode::Read::new(types::Fd(7), at, 8).offset(1 << 40).rw_flags(3).build();
        let sqe = Sqe::read(&entry.user_data(0xdead_beef_0000_0001));
        assert_eq!((sqe.opcode, sqe.fd, sqe.offset), (opcode::Read::CODE, 7, 1 << 40));
        assert_eq!((sqe.memory(), sqe.len, sqe.flags), (at, 8, 3));
        assert_eq!(sqe.user_data, 0xdead_beef_0000_0001);
        let entry = opcode::Fallocate::new(types::Fd(3), 5 << 40).offset(9).mode(2).build();
        let sqe = Sqe::read(&entry);
        assert_eq!((sqe.address, sqe.offset, sqe.len), (5 << 40, 9, 2));
        let sqe = Sqe::read(&opcode::PollAdd::new(types::Fd(1), 0x1_0001).build());
        assert_eq!((sqe.opcode, sqe.flags), (opcode::PollAdd::CODE, 0x1_0001));
        let sqe = Sqe::read(&opcode::Shutdown::new(types::Fd(1), 2).build());
        assert_eq!(sqe.len, 2);
        let sqe = Sqe::read(&opcode::AsyncCancel::new(77).build());
        assert_eq!(sqe.address, 77);
    }
}
