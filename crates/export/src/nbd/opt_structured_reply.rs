//! `NBD_OPT_STRUCTURED_REPLY`: replies in chunks from now on.

use super::option::{Negotiation, Outcome};

pub(crate) fn answer(negotiation: &mut Negotiation<'_>, _empty: &[u8]) -> Outcome {
    negotiation.agreed.structured = true;
    negotiation.replies.ack();
    Outcome::Answered
}
