//! The device against a client library, against a client that breaks every rule, and across restarts.

mod driver;
mod frontend;
mod hostile;
mod requests;
mod restart;
mod server;
mod virtio;
