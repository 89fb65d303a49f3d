//! `NBD_OPT_ABORT`: the client ends the handshake.

use super::option::{Negotiation, Outcome};

pub(crate) fn answer(negotiation: &mut Negotiation<'_>, _ignored: &[u8]) -> Outcome {
    negotiation.replies.ack();
    Outcome::Ended
}
