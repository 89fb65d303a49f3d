//! Commits: the writes of the image's changes to the members.

use std::sync::Arc;

use ashlar_block::BioResult;
use event_listener::listener;
use futures_util::future::join_all;

use super::transactions::{Run, Tid};
use super::{Bitmap, Store};

/// What a task that waits for a transaction does next.
enum NextStep<'a> {
    Done(BioResult),
    Wait,
    Commit(Committer<'a>),
}

/// The task that commits. Dropping this ends the commit.
struct Committer<'a> {
    bitmap: &'a Bitmap,
    runs: Arc<[Run]>,
    result: Option<BioResult>,
}

impl Committer<'_> {
    async fn run(mut self, store: &dyn Store) {
        let writes = self.runs.iter().map(|run| store.write(run.offset as u64, &run.bytes));
        let results = join_all(writes).await;
        self.result = Some(results.into_iter().collect());
    }
}

impl Drop for Committer<'_> {
    fn drop(&mut self) {
        self.bitmap.transactions().end_commit(self.result);
        self.bitmap.commit_ended.notify(usize::MAX);
    }
}

impl Bitmap {
    /// Waits until a transaction is committed; starts the commit if no other runs.
    pub(super) async fn wait_commit(&self, of: Tid, store: &dyn Store) -> BioResult {
        loop {
            // Listen before the check, so that a landing after the check is noticed.
            listener!(self.commit_ended => commit_ended);
            match self.next_step(of) {
                NextStep::Done(result) => return result,
                NextStep::Wait => commit_ended.await,
                NextStep::Commit(committer) => committer.run(store).await,
            }
        }
    }

    fn next_step(&self, of: Tid) -> NextStep<'_> {
        let mut transactions = self.transactions();
        match transactions.result(of) {
            Some(result) => NextStep::Done(result),
            None if transactions.is_committing() => NextStep::Wait,
            None => NextStep::Commit(Committer {
                bitmap: self,
                runs: transactions.start_commit(),
                result: None,
            }),
        }
    }
}
