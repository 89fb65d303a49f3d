//! The control socket of a daemon: the messages on it, the client that sends calls, and the server that answers them.
//!
//! # Theory
//!
//! [`interface`] has the methods' parameters and answers as data. A [`client::Client`] calls them, one after the other; a
//! [`trace_stream::TraceStream`] is a connection that a trace has taken over. [`varlink_server`] accepts connections and passes each call
//! to an [`varlink_server::Interface`], which is the daemon, or a process that scrubs.
//!
//! States of a connection: new, without a place ([`connection_slots`]); idle; in a call; ended by its peer, by a newcomer, or after a while.
//!
//! Invariants: [`access`] alone says who may call, from what the kernel says of the peer. A peer that sends invalid messages loses only its
//! own connection. A client opens and passes only disks that its user named in that call ([`passed_files`]).
//!
//! Ordering: a connection has one call at a time; its replies come in the order of the calls. A client that finds its idle connection
//! closed makes a new one, but only to the same process.
//!
//! Assumed: the daemon's main thread does no slow work, so a client may limit the time that it waits. Nothing here opens a disk: a program
//! gives its clients a function that does ([`client::Lend`]).

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod access;
pub mod client;
pub mod connection_slots;
mod control_path;
pub mod disk_path;
pub mod interface;
pub mod passed_files;
pub mod stop;
pub mod trace_stream;
pub mod varlink_server;
