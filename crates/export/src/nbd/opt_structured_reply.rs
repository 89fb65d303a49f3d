//! `NBD_OPT_STRUCTURED_REPLY`: replies in chunks from now on.

use super::option::{Haggle, Outcome};

pub(crate) fn answer(haggle: &mut Haggle<'_>, _empty: &[u8]) -> Outcome {
    haggle.agreed.structured = true;
    haggle.replies.ack();
    Outcome::Answered
}
