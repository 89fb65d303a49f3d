//! Members whose bad block log is invalid: which of their blocks are bad is unknown.
//!
//! Such a member is left out of an array that is only read, or started without it, because the others have its data. If the array
//! has not enough members then, the log is what keeps the data away: the error names it. `--force` reads the member as if the log
//! listed nothing. Blocks that it listed have an older content then, as after mdadm's `--update=force-no-bbl`.

use super::{AssembleError, Options, Plan, plan_members};
use crate::ondisk::bad_block_log::BadBlockLogError;
use crate::probe::Candidate;

/// What becomes of members with invalid logs.
#[derive(Default)]
pub(super) struct InvalidLogs {
    /// They are used as if their logs listed nothing.
    pub(super) are_ignored: bool,
    /// The first member that was left out, and what is wrong with its log.
    pub(super) left_out: Option<(String, BadBlockLogError)>,
}

/// Plans an array that has one map; members with invalid logs are used only if it cannot start without them.
pub(super) async fn plan_array(
    candidates: Vec<Candidate>,
    notes: Vec<String>,
    options: &Options,
) -> Result<Plan, AssembleError> {
    let mut logs = InvalidLogs::default();
    let planned = plan_members(candidates.clone(), notes.clone(), options, &mut logs).await;
    match (planned, logs.left_out.take()) {
        (Err(AssembleError::NotEnough { .. }), Some((path, why)))
            if options.force && options.read_only =>
        {
            logs.are_ignored = true;
            let mut plan = plan_members(candidates, notes, options, &mut logs).await?;
            plan.notes.push(format!(
                "{path} is read although its bad block log is invalid ({why}): blocks that it listed have an older content"
            ));
            Ok(plan)
        }
        (Err(AssembleError::NotEnough { .. }), Some((path, why))) => {
            Err(AssembleError::BadBlocks { path, why })
        }
        (planned, _) => planned,
    }
}
