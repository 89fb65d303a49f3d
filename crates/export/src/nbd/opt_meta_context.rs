//! `NBD_OPT_LIST_META_CONTEXT` and `NBD_OPT_SET_META_CONTEXT`.

use super::context::MetaContext;
use super::info::find;
use super::option::{Negotiation, Outcome};
use ashlar_nbd::wire::{Fields, REP_ERR_INVALID, REP_ERR_UNKNOWN, REP_META_CONTEXT, string};

/// Export name and queries of a request.
fn parse(data: &[u8]) -> Option<(&str, Vec<&str>)> {
    let mut fields = Fields(data);
    let name = string(fields.counted()?)?;
    let count = fields.u32()?;
    let mut queries = Vec::new();
    // Each query takes at least four bytes, so the data bounds the loop whatever `count` says.
    for _ in 0..count {
        queries.push(string(fields.counted()?)?);
    }
    fields.rest().is_empty().then_some((name, queries))
}

fn send_context(negotiation: &mut Negotiation<'_>, id: u32, context: &MetaContext) {
    let payload = [&id.to_be_bytes(), context.name().as_bytes()].concat();
    negotiation.replies.send(REP_META_CONTEXT, &payload);
}

/// Parses the request and finds its export.
fn begin<'a>(
    negotiation: &mut Negotiation<'_>,
    data: &'a [u8],
) -> Result<(usize, Vec<&'a str>), Outcome> {
    let Some((name, queries)) = parse(data) else {
        return Err(negotiation.replies.refuse(REP_ERR_INVALID, "malformed request"));
    };
    match find(negotiation.exports, name) {
        Some(index) => Ok((index, queries)),
        None => Err(negotiation.replies.refuse(REP_ERR_UNKNOWN, "no such export")),
    }
}

pub(crate) fn answer_list(negotiation: &mut Negotiation<'_>, data: &[u8]) -> Outcome {
    let (index, queries) = match begin(negotiation, data) {
        Ok(begun) => begun,
        Err(refused) => return refused,
    };
    for context in negotiation.exports[index].changes.listed(&queries) {
        // The identifier is reserved in this reply.
        send_context(negotiation, 0, &context);
    }
    negotiation.replies.ack();
    Outcome::Answered
}

pub(crate) fn answer_set(negotiation: &mut Negotiation<'_>, data: &[u8]) -> Outcome {
    // Replaces the previous selection, even on failure.
    negotiation.agreed.contexts_of = None;
    if !negotiation.agreed.structured {
        return negotiation.replies.refuse(REP_ERR_INVALID, "negotiate structured replies first");
    }
    let (index, queries) = match begin(negotiation, data) {
        Ok(begun) => begun,
        Err(refused) => return refused,
    };
    let contexts = negotiation.exports[index].changes.selected(&queries);
    for (id, context) in (1..).zip(&contexts) {
        send_context(negotiation, id, context);
    }
    negotiation.agreed.contexts_of = Some((index, contexts));
    negotiation.replies.ack();
    Outcome::Answered
}
