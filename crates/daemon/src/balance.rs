//! Has arrays read from their near members.

use std::sync::Arc;
use std::time::Duration;

use ashlar_engine::sleep;
use ashlar_stack::assemble::Stack;

/// How often.
const INTERVAL: Duration = Duration::from_secs(1);

/// Balances the reads of all arrays, forever.
pub(crate) async fn balance_reads(stack: Arc<Stack>) {
    loop {
        for volume in stack.arrays.running() {
            volume.view.balance_reads();
        }
        sleep(INTERVAL).await;
    }
}
