//! A trace that a daemon streams, as its client sees it.

use std::future::Future;
use std::io;
use std::net::Shutdown;
use std::path::PathBuf;
use std::pin::pin;

use ashlar_block::disk::DeviceNumber;
use ashlar_control::error::{Error, Result};
use ashlar_control::varlink::{Frames, Reply};
use ashlar_engine::net::Socket;
use ashlar_engine::timeout;
use ashlar_plot::trace::binary::{Decoder, PlacedItem};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::future::{Either, select};
use serde_json::json;

use crate::client::{Client, PATIENCE, understand};
use crate::interface::{Trace, TraceReply, TracedDevice};

/// A connection on which the daemon streams a trace.
pub struct TraceStream {
    socket: Socket,
    frames: Frames,
    path: PathBuf,
    devices: Vec<(DeviceNumber, String)>,
    decoder: Decoder,
    lost: u64,
    is_over: bool,
}

impl TraceStream {
    /// Starts a trace. From now on the connection is used only for it.
    ///
    /// # Errors
    /// It was refused.
    pub fn begin(client: Client, at: &Trace) -> Result<Self> {
        let (first, socket, frames, path) = client.into_replies("Trace", json!(at))?;
        let TraceReply { devices, .. } = first;
        let number = |TracedDevice { name, major, minor }| (DeviceNumber { major, minor }, name);
        Ok(Self {
            socket,
            frames,
            path,
            devices: devices.into_iter().map(number).collect(),
            decoder: Decoder::default(),
            lost: 0,
            is_over: false,
        })
    }

    /// The traced devices.
    pub fn devices(&self) -> &[(DeviceNumber, String)] {
        &self.devices
    }

    /// How many events were lost so far, because they came faster than they were read.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// The items that arrived since the last call; `None` at the end of the trace, which the daemon reports, or when the
    /// daemon ends. When `stop` ends (which consumes it), this asks the daemon for the rest.
    ///
    /// # Errors
    /// The connection failed, or the daemon uses another protocol.
    pub async fn next(
        &mut self,
        stop: &mut Option<impl Future + Unpin>,
    ) -> Result<Option<Vec<PlacedItem>>> {
        while !self.is_over {
            let message = self.frames.next_message().map_err(|error| self.failed(error))?;
            if let Some(message) = message {
                let reply: Reply =
                    serde_json::from_slice(&message).map_err(|error| self.failed(error))?;
                self.is_over = !reply.continues;
                return self.decode(&understand(&self.path, reply)?).map(Some);
            }
            let receive = pin!(self.socket.recv(vec![0; 1 << 16]));
            let received = match stop.take() {
                None => timeout(PATIENCE, receive).await,
                Some(waiting) => match select(receive, waiting).await {
                    Either::Left((received, waiting)) => {
                        *stop = Some(waiting);
                        Some(received)
                    }
                    Either::Right((_, receive)) => {
                        match self.socket.shutdown(Shutdown::Write).await {
                            // If the daemon has already ended, receiving notices it.
                            Ok(()) => {}
                            Err(error) if error.kind() == io::ErrorKind::NotConnected => {}
                            Err(error) => return Err(self.failed(error)),
                        }
                        timeout(PATIENCE, receive).await
                    }
                },
            };
            match received {
                Some((Ok(0), _)) | None => self.is_over = true,
                Some((Ok(len), bytes)) => self.frames.push(&bytes[..len]),
                Some((Err(error), _)) => return Err(self.failed(error)),
            }
        }
        Ok(None)
    }

    fn decode(&mut self, reply: &TraceReply) -> Result<Vec<PlacedItem>> {
        let bad = |error: &dyn std::fmt::Display| {
            Error::plain("the daemon's answer was not understood", error)
        };
        self.lost = reply.lost;
        self.decoder.push(&STANDARD.decode(&reply.records).map_err(|error| bad(&error))?);
        let mut items = Vec::new();
        while let Some(placed) = self.decoder.take().map_err(|error| bad(&error))? {
            items.push(placed);
        }
        Ok(items)
    }

    fn failed(&self, why: impl std::fmt::Display) -> Error {
        Error::new("cannot talk to the daemon", self.path.display(), why)
    }
}
