//! Hedged reads: a read that a member has not answered within a bound is also made from another copy, and the client gets the data
//! of whichever member answers first.
//!
//! Off by default ([`Members::read_hedge_us`]): the slower read continues, so a hedged read needs memory of its own, whose
//! data is copied, and it adds load where members are slow because they are busy.
//!
//! [`Members::read_hedge_us`]: crate::membership::slots::Members::read_hedge_us

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use ashlar_block::buffer::scatter;
use ashlar_block::{Bio, Buffer, LocalFuture, Segments, Status};
use futures_util::future::{Either, ready, select};

use super::mirror::Mirrored;
use crate::membership::slots::Index;

/// The member that failed, and why; `None` if no single copy has all that is asked for.
type Failure = Option<(Index, Status)>;

type Answer = Result<Buffer, Failure>;

impl Mirrored {
    /// Reads what a bio asks for within one chunk, and, if that takes longer than the bound, from another copy, too.
    ///
    /// # Errors
    /// Neither copy was read: the failure of the last one.
    pub(super) async fn read_hedged(&self, bio: &Bio) -> Result<(), Failure> {
        let bound = Duration::from_micros(self.core.members.read_hedge_us().into());
        let first = Rc::new(Cell::new(None));
        let early = self.read_aside(bio, None, Rc::clone(&first));
        let answer = match select(early, self.core.runtime.sleep(bound)).await {
            Either::Left((answer, _)) => answer,
            Either::Right(((), early)) if first.get().is_some() => {
                let late = self.read_aside(bio, first.get(), Rc::default());
                self.first_answer(early, late).await
            }
            // It waits for the barrier, as another one would.
            Either::Right(((), early)) => early.await,
        };
        scatter(answer?.as_slice(), &bio.segments);
        Ok(())
    }

    /// The data of whichever read ends first with data. A failure of the other one is noted.
    async fn first_answer(
        &self,
        early: LocalFuture<'static, Answer>,
        late: LocalFuture<'static, Answer>,
    ) -> Answer {
        let (answer, rest) = select(early, late).await.factor_first();
        if answer.is_ok() {
            self.note_later(rest);
            return answer;
        }
        let other = rest.await;
        match (answer, other) {
            // There was no other copy.
            (answer @ Err(Some(_)), Err(None)) => answer,
            (answer, other) => {
                self.note_later(ready(answer));
                other
            }
        }
    }

    /// Reads from a copy into memory of its own: the best one, or the best of a member other than `but`. Says in `chosen` which
    /// member that is, once it is known.
    fn read_aside(
        &self,
        bio: &Bio,
        but: Option<Index>,
        chosen: Rc<Cell<Option<Index>>>,
    ) -> LocalFuture<'static, Answer> {
        // Without the client's memory: the client may use it again before this read ends.
        let mut bio = Bio { segments: Segments::new(), ..*bio };
        let mirror = self.me();
        Box::pin(async move {
            let mirror = mirror.ok_or(None)?;
            // The client's read may end before this one, so each has a pass.
            let _pass = mirror.core.barrier.wait_read(bio.sector, bio.len).await;
            let copy = mirror.best_copy(bio.sector, bio.len, but).ok_or(None)?;
            chosen.set(Some(copy.index));
            let failed = |status| Some((copy.index, status));
            let buffer = Buffer::try_alloc(bio.len.bytes() as usize);
            let mut buffer = buffer.ok_or(failed(Status::Resource))?;
            bio.segments.push(buffer.whole());
            mirror.read_copy(&bio, copy).await.map_err(failed)?;
            drop(bio);
            Ok(buffer)
        })
    }

    /// Waits in a task for a read that the client no longer needs, and notes its failure.
    fn note_later(&self, read: impl Future<Output = Answer> + 'static) {
        let Some(mirror) = self.me() else { return };
        self.core.runtime.spawn(Box::pin(async move {
            if let Err(Some((index, status))) = read.await
                && status.is_retryable_elsewhere()
            {
                let (Ok(()) | Err(_)) = mirror.core.note_error(index, status).await;
            }
        }));
    }
}
