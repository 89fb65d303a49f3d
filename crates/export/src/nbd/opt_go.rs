//! `NBD_OPT_GO` and `NBD_OPT_INFO`: information about an export, and the way into transmission.

use super::info::find;
use super::option::{Negotiation, Outcome};
use ashlar_nbd::wire::{Fields, INFO_EXPORT, REP_ERR_INVALID, REP_ERR_UNKNOWN, REP_INFO, string};

/// Name and item list of a request; `None` if the lengths do not match or the name is not a valid string.
fn parse(data: &[u8]) -> Option<(&str, &[u8])> {
    let mut fields = Fields(data);
    let name = string(fields.counted()?)?;
    let count = fields.u16()?;
    let items = fields.rest();
    (items.len() == 2 * usize::from(count)).then_some((name, items))
}

/// Sends the items; `Ok` is the export's index.
fn inform(negotiation: &mut Negotiation<'_>, data: &[u8]) -> Result<usize, Outcome> {
    let Some((name, items)) = parse(data) else {
        return Err(negotiation.replies.refuse(REP_ERR_INVALID, "malformed request"));
    };
    let Some(index) = find(negotiation.exports, name) else {
        return Err(negotiation.replies.refuse(REP_ERR_UNKNOWN, "no such export"));
    };
    let (export, structured) = (&negotiation.exports[index], negotiation.agreed.structured);
    // EXPORT is mandatory. The others follow in the order of their first mention, each once: a list full of repetitions
    // must not be answered with 30,000 descriptions.
    let mut told = vec![INFO_EXPORT];
    let asked = items.chunks_exact(2).map(|item| u16::from_be_bytes([item[0], item[1]]));
    negotiation.replies.send(REP_INFO, &export.item(INFO_EXPORT, structured).unwrap_or_default());
    for kind in asked {
        if told.contains(&kind) {
            continue;
        }
        if let Some(item) = export.item(kind, structured) {
            told.push(kind);
            negotiation.replies.send(REP_INFO, &item);
        }
    }
    negotiation.replies.ack();
    Ok(index)
}

pub(crate) fn answer_info(negotiation: &mut Negotiation<'_>, data: &[u8]) -> Outcome {
    inform(negotiation, data).map_or_else(|refused| refused, |_| Outcome::Answered)
}

pub(crate) fn answer_go(negotiation: &mut Negotiation<'_>, data: &[u8]) -> Outcome {
    inform(negotiation, data).map_or_else(|refused| refused, Outcome::Chosen)
}
