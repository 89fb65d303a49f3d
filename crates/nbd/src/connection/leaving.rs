//! The end of a connection that is no longer needed.

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ashlar_block::patience;
use ashlar_block::sync::until;
use ashlar_engine::ChunkList;
use futures_util::future::select;
use rustix::net::Shutdown as Direction;

use super::{Command, Connection, State, header};
use crate::network::Network;
use crate::session::Session;
use crate::stream::Stream;
use crate::wire::{CMD_BLOCK_STATUS, CMD_DISC, CMD_FLUSH, CMD_READ};

/// How long a connection that leaves waits for the answers of its server.
const PATIENCE: Duration = Duration::from_secs(5);

impl<N: Network> Connection<N> {
    /// Makes it one of a session's connections, which end together, and leave once the disk is no longer used.
    pub(crate) fn join(self: &Rc<Self>, session: Arc<Session>) {
        let (Ok(()) | Err(_)) = self.session.set(Arc::clone(&session));
        // One that ended before tells nothing of what the session's connections have acknowledged.
        if !self.is_open() {
            return;
        }
        self.counted.replace(Some(session.departure().count()));
        let this = Rc::clone(self);
        N::spawn(async move {
            let begun = || session.departure().begun();
            select(pin!(session.ended()), pin!(begun())).await;
            if !session.departure().has_begun() {
                this.drain();
                select(pin!(this.closed()), pin!(begun())).await;
            }
            session.end();
            this.leave().await;
        });
    }

    /// Waits until the server has answered what was sent, tells it that nothing more comes, and ends the connection. Begin nothing more
    /// after this. A server that answers nothing keeps the connection only if it may still execute changes: then it has to close it.
    pub(crate) async fn leave(&self) {
        self.is_leaving.set(true);
        let farewell = async {
            until(&self.idle, || self.is_idle() || self.is_closed()).await;
            if self.is_open() {
                let leave = header(&Command::new(CMD_DISC, 0, 0), 0);
                let (Ok(()) | Err(_)) = self.stream.send(ChunkList::of(leave)).await.0;
            }
        };
        select(pin!(farewell), pin!(patience::wait(PATIENCE, N::sleep))).await;
        if self.owes_changes() {
            tracing::warn!(
                "an NBD server has not answered writes of a disk that was removed: its export cannot be \
                 opened again before the server has closed the connection"
            );
            self.drain();
            self.closed().await;
        }
        self.close();
    }

    /// Whether all commands have been answered.
    fn is_idle(&self) -> bool {
        self.pending.borrow().is_empty() && !self.is_receiving.get()
    }

    /// Wakes the task that leaves, once all commands have been answered.
    pub(super) fn note_answer(&self) {
        if self.is_leaving.get() && self.is_idle() {
            self.idle.notify(usize::MAX);
        }
    }

    /// Whether the server may execute a change that it has not answered.
    fn owes_changes(&self) -> bool {
        let is_change = |kind| !matches!(kind, CMD_READ | CMD_FLUSH | CMD_BLOCK_STATUS);
        self.pending.borrow().values().any(|pending| is_change(pending.command.kind))
    }

    /// Sends no more commands, and fails those that were not sent. Those that wait for replies still get them, until the server
    /// has closed its end.
    pub(crate) fn drain(&self) {
        if self.is_open() {
            self.end(State::Draining);
            self.stream.end(Direction::Write);
        }
    }

    /// Returns once the connection has ended.
    pub(crate) async fn closed(&self) {
        until(&self.ended, || self.is_closed()).await;
    }
}
