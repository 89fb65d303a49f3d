//! What a daemon, its clients and the program around both have in common: failures, messages, and the program's side of a daemon.
//!
//! # Theory
//!
//! An [`error::Error`] is what a program prints before it ends. [`varlink`] turns the calls and replies of a control socket into bytes
//! and back. A [`console::Console`] is how a daemon reaches the user of the program that runs it.
//!
//! Invariants: nothing here opens a file or a socket, prints, or knows a block device. So what only prints is built and tested
//! without the layers. A failure has one text; who adds advice or another exit code does not change it. A message is read whole or not
//! at all, and a stream with one that is too long has ended.
//!
//! Ordering: replies have the order of their calls; the messages of one reply follow each other. A console's log is opened before it
//! is handed over.
//!
//! Assumed: peers may send anything, and text that comes from them is not yet fit for a terminal.

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod console;
pub mod error;
pub mod varlink;
