//! `NBD_OPT_LIST`: the names of the exports, and their descriptions for people.

use super::option::{Negotiation, Outcome};
use ashlar_nbd::wire::REP_SERVER;

pub(crate) fn answer(negotiation: &mut Negotiation<'_>, _empty: &[u8]) -> Outcome {
    for export in negotiation.exports {
        let name = export.name.as_bytes();
        // A string of the protocol: at most 4096 bytes.
        let mut server = (name.len() as u32).to_be_bytes().to_vec();
        server.extend(name);
        server.extend(export.description.as_bytes());
        negotiation.replies.send(REP_SERVER, &server);
    }
    negotiation.replies.ack();
    Outcome::Answered
}
