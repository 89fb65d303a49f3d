//! `NBD_OPT_EXPORT_NAME`: the old way into transmission, which has no error reply.

use super::info::find;
use super::option::{Negotiation, Outcome};
use ashlar_nbd::wire::string;

/// Zero bytes after the answer, unless both sides agreed to omit them.
const RESERVED: usize = 124;

pub(crate) fn answer(negotiation: &mut Negotiation<'_>, data: &[u8]) -> Outcome {
    let Some(index) = string(data).and_then(|name| find(negotiation.exports, name)) else {
        return Outcome::Ended;
    };
    let export = &negotiation.exports[index];
    let out = &mut negotiation.replies.out;
    out.extend(export.size.to_be_bytes());
    out.extend(export.transmission_flags(negotiation.agreed.structured).to_be_bytes());
    if !negotiation.agreed.no_zeroes {
        out.extend([0; RESERVED]);
    }
    Outcome::Chosen(index)
}
