//! Integration tests of the engine, in one program: one module per subject.

mod files;
mod foreign;
mod reactor;
mod silent;
mod slabs;
mod sockets;
