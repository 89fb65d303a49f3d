//! What a ring posts (`struct io_uring_cqe` of the kernel's `include/uapi/linux/io_uring.h`).

/// A completion, as the kernel posted it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    /// The entry's user data.
    pub(crate) user_data: u64,
    /// Result, or minus an errno.
    pub(crate) result: i32,
    /// `IORING_CQE_F_*`.
    pub(crate) flags: u32,
}

impl Completion {
    /// One without flags.
    pub(super) fn new(user_data: u64, result: i32) -> Self {
        Self { user_data, result, flags: 0 }
    }
}
