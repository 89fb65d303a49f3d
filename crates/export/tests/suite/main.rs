//! Integration tests of NBD and FUSE, in one program: one module per subject.

mod common;
mod fuse_mount;
mod nbd_interop;
