//! Integration tests of the engine, in one program: a module for each subject.

mod files;
mod modelled;
mod reactor;
mod slabs;
mod sockets;
