//! What tests of the FUSE mount share.

pub(crate) mod mounted;
pub(crate) mod ram;
