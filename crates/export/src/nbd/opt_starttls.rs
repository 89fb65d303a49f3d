//! `NBD_OPT_STARTTLS`: TLS from now on.

use super::handshake::TlsPolicy;
use super::option::{Negotiation, Outcome};
use ashlar_nbd::wire::{REP_ERR_INVALID, REP_ERR_POLICY};

pub(crate) fn answer(negotiation: &mut Negotiation<'_>, _empty: &[u8]) -> Outcome {
    match negotiation.tls {
        None => negotiation.replies.refuse(REP_ERR_INVALID, "TLS has begun already"),
        Some(TlsPolicy::Off) => {
            negotiation.replies.refuse(REP_ERR_POLICY, "the server offers no TLS")
        }
        Some(TlsPolicy::On | TlsPolicy::Require) => {
            negotiation.replies.ack();
            Outcome::TlsAgreed
        }
    }
}
