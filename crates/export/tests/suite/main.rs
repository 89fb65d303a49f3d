//! Integration tests of NBD and FUSE, in one program: a module for each subject.

mod common;
mod fuse_mount;
mod nbd_interop;
