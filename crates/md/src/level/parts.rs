//! Bios that are sent to several members together, and their results.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use ashlar_block::{BioResult, IoFuture};
use smallvec::SmallVec;

use crate::membership::slots::Index;

/// Results from members.
pub(crate) type Answers = SmallVec<[(Index, BioResult); 4]>;

/// A bio to a member, or its result.
enum MemberBio<'a> {
    InFlight(IoFuture<'a>),
    Ended(BioResult),
}

/// Bios to members. Large, so they stay where they are made.
#[derive(Default)]
pub(crate) struct Parts<'a>(SmallVec<[(Index, MemberBio<'a>); 4]>);

impl<'a> Parts<'a> {
    /// Waits until all have ended.
    pub(crate) async fn end(&mut self) {
        poll_fn(|cx| {
            let mut poll = Poll::Ready(());
            for (_, part) in &mut self.0 {
                let MemberBio::InFlight(io) = part else { continue };
                match Pin::new(io).poll(cx) {
                    Poll::Ready(result) => *part = MemberBio::Ended(result),
                    Poll::Pending => poll = Poll::Pending,
                }
            }
            poll
        })
        .await;
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds a bio that was sent.
    pub(crate) fn push(&mut self, index: Index, io: IoFuture<'a>) {
        self.0.push((index, MemberBio::InFlight(io)));
    }

    /// The results so far.
    pub(crate) fn results(&self) -> impl Iterator<Item = (Index, BioResult)> {
        self.0.iter().filter_map(|(index, part)| match part {
            MemberBio::Ended(result) => Some((*index, *result)),
            MemberBio::InFlight(_) => None,
        })
    }
}

impl<'a> FromIterator<(Index, IoFuture<'a>)> for Parts<'a> {
    fn from_iter<I: IntoIterator<Item = (Index, IoFuture<'a>)>>(all: I) -> Self {
        Self(all.into_iter().map(|(index, io)| (index, MemberBio::InFlight(io))).collect())
    }
}

/// Waits for all results.
pub(crate) async fn gather(mut parts: Parts<'_>) -> Answers {
    parts.end().await;
    parts.results().collect()
}
