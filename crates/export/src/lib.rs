//! export

pub mod fuse;
pub mod nbd;
pub mod stream;
