//! Shared by the tests of the FUSE mount.

pub(crate) mod mounted;
pub(crate) mod ram;
