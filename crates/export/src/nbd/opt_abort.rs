//! `NBD_OPT_ABORT`: the client ends the handshake.

use super::option::{Haggle, Outcome};

pub(crate) fn answer(haggle: &mut Haggle<'_>, _ignored: &[u8]) -> Outcome {
    haggle.replies.ack();
    Outcome::Ended
}
