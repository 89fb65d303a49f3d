//! `NBD_OPT_LIST_META_CONTEXT` and `NBD_OPT_SET_META_CONTEXT`; `base:allocation` is the only context.

use super::block_status::CONTEXT_ID;
use super::info::find;
use super::option::{Negotiation, Outcome};
use ashlar_nbd::wire::{
    ALLOCATION_CONTEXT, Fields, REP_ERR_INVALID, REP_ERR_UNKNOWN, REP_META_CONTEXT, string,
};

/// The wildcard that `LIST` must know and `SET` must ignore.
const BASE_NAMESPACE: &str = "base:";

/// Export name and queries of a request. Of the queries only their number, and whether they select a context of ours,
/// is kept.
struct Queries<'a> {
    name: &'a str,
    count: u32,
    wildcard: bool,
    allocation: bool,
}

fn parse(data: &[u8]) -> Option<Queries<'_>> {
    let mut fields = Fields(data);
    let name = string(fields.counted()?)?;
    let count = fields.u32()?;
    let mut queries = Queries { name, count, wildcard: false, allocation: false };
    // Each query takes at least four bytes, so the data bounds the loop whatever `count` says.
    for _ in 0..count {
        let query = string(fields.counted()?)?;
        queries.wildcard |= query == BASE_NAMESPACE;
        queries.allocation |= query == ALLOCATION_CONTEXT;
    }
    fields.rest().is_empty().then_some(queries)
}

fn send_context(negotiation: &mut Negotiation<'_>, id: u32) {
    let mut context = id.to_be_bytes().to_vec();
    context.extend(ALLOCATION_CONTEXT.as_bytes());
    negotiation.replies.send(REP_META_CONTEXT, &context);
}

/// Parses the request and finds its export.
fn begin<'a>(
    negotiation: &mut Negotiation<'_>,
    data: &'a [u8],
) -> Result<(usize, Queries<'a>), Outcome> {
    let Some(queries) = parse(data) else {
        return Err(negotiation.replies.refuse(REP_ERR_INVALID, "malformed request"));
    };
    match find(negotiation.exports, queries.name) {
        Some(index) => Ok((index, queries)),
        None => Err(negotiation.replies.refuse(REP_ERR_UNKNOWN, "no such export")),
    }
}

pub(crate) fn answer_list(negotiation: &mut Negotiation<'_>, data: &[u8]) -> Outcome {
    let (_, queries) = match begin(negotiation, data) {
        Ok(begun) => begun,
        Err(refused) => return refused,
    };
    if queries.count == 0 || queries.wildcard || queries.allocation {
        // The identifier is reserved in this reply.
        send_context(negotiation, 0);
    }
    negotiation.replies.ack();
    Outcome::Answered
}

pub(crate) fn answer_set(negotiation: &mut Negotiation<'_>, data: &[u8]) -> Outcome {
    // Replaces the previous selection, even on failure.
    negotiation.agreed.allocation_of = None;
    if !negotiation.agreed.structured {
        return negotiation.replies.refuse(REP_ERR_INVALID, "negotiate structured replies first");
    }
    let (index, queries) = match begin(negotiation, data) {
        Ok(begun) => begun,
        Err(refused) => return refused,
    };
    if queries.allocation {
        negotiation.agreed.allocation_of = Some(index);
        send_context(negotiation, CONTEXT_ID);
    }
    negotiation.replies.ack();
    Outcome::Answered
}
