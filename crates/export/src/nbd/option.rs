//! Options: their table, and the replies to them.
//!
//! One row for each known option; all others are answered `ERR_UNSUP` (including `PEEK_EXPORT` and
//! `EXTENDED_HEADERS`: a client continues without them). The table names the file of each option, and these use the types here, so that they all
//! lead to each other.

use super::context::MetaContext;
use super::handshake::{Event, TlsPolicy};
use super::info::ExportInfo;
use super::{
    opt_abort, opt_export_name, opt_go, opt_list, opt_meta_context, opt_starttls,
    opt_structured_reply,
};
use ashlar_nbd::wire::{
    OPT_ABORT, OPT_EXPORT_NAME, OPT_GO, OPT_SET_META_CONTEXT, OPT_STARTTLS, OPT_STRUCTURED_REPLY,
    REP_ACK, REP_ERR_INVALID, REP_ERR_POLICY, REP_ERR_TLS_REQD, REP_ERR_UNSUP, REP_FLAG_ERROR,
    REP_MAGIC,
};

/// What an option's data may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Data {
    /// Must be empty: otherwise `ERR_INVALID`.
    None,
    /// Accepted and ignored.
    Ignored,
    /// Parsed by the option.
    Parsed,
}

/// The effect of an option on the negotiation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// Answered: the client may send another option.
    Answered,
    /// Transmission of this export (an index) begins.
    Chosen(usize),
    /// The handshake of TLS begins.
    TlsAgreed,
    /// The session ends.
    Ended,
}

/// What the client has agreed to so far.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Agreement {
    pub(crate) fixed_newstyle: bool,
    pub(crate) no_zeroes: bool,
    pub(crate) structured: bool,
    /// The export for which the last `SET_META_CONTEXT` selected contexts, and these.
    pub(crate) contexts_of: Option<(usize, Vec<MetaContext>)>,
}

/// The context for answering an option.
pub(crate) struct Negotiation<'a> {
    pub(crate) exports: &'a [ExportInfo],
    pub(crate) agreed: &'a mut Agreement,
    /// Whether TLS may begin; `None` if it has.
    pub(crate) tls: Option<TlsPolicy>,
    pub(crate) replies: Replies<'a>,
}

/// The output for the replies to one option.
pub(crate) struct Replies<'a> {
    pub(crate) option: u32,
    pub(crate) out: &'a mut Vec<u8>,
}

impl Replies<'_> {
    /// Writes a reply of type `kind`. Payloads are strings of the protocol and fixed fields, so their length is far
    /// below 32 bits.
    pub(crate) fn send(&mut self, kind: u32, payload: &[u8]) {
        self.out.extend(REP_MAGIC.to_be_bytes());
        self.out.extend(self.option.to_be_bytes());
        self.out.extend(kind.to_be_bytes());
        self.out.extend((payload.len() as u32).to_be_bytes());
        self.out.extend(payload);
    }

    /// Writes the reply that ends a successful option.
    pub(crate) fn ack(&mut self) {
        self.send(REP_ACK, &[]);
    }

    /// Writes an error with a message for a person; the negotiation continues.
    pub(crate) fn refuse(&mut self, kind: u32, message: &str) -> Outcome {
        debug_assert!(kind & REP_FLAG_ERROR != 0);
        self.send(kind, message.as_bytes());
        Outcome::Answered
    }
}

/// A known option.
pub(crate) struct Row {
    pub(crate) number: u32,
    pub(crate) word: &'static str,
    pub(crate) data: Data,
    pub(crate) answer: fn(&mut Negotiation<'_>, &[u8]) -> Outcome,
    pub(crate) effect: &'static str,
}

/// The known options, by number.
pub(crate) const TABLE: &[Row] = &[
    Row {
        number: OPT_EXPORT_NAME,
        word: "EXPORT_NAME",
        data: Data::Parsed,
        answer: opt_export_name::answer,
        effect: "transmission, or the connection is closed if there is no such export",
    },
    Row {
        number: OPT_ABORT,
        word: "ABORT",
        data: Data::Ignored,
        answer: opt_abort::answer,
        effect: "ACK, then the connection is closed",
    },
    Row {
        number: 3,
        word: "LIST",
        data: Data::None,
        answer: opt_list::answer,
        effect: "SERVER for each export, with its description, then ACK",
    },
    Row {
        number: OPT_STARTTLS,
        word: "STARTTLS",
        data: Data::None,
        answer: opt_starttls::answer,
        effect: "ACK, then the handshake of TLS; what was agreed before it is forgotten",
    },
    Row {
        number: 6,
        word: "INFO",
        data: Data::Parsed,
        answer: opt_go::answer_info,
        effect: "INFO for EXPORT and each known item asked for, then ACK",
    },
    Row {
        number: OPT_GO,
        word: "GO",
        data: Data::Parsed,
        answer: opt_go::answer_go,
        effect: "as INFO, then transmission",
    },
    Row {
        number: OPT_STRUCTURED_REPLY,
        word: "STRUCTURED_REPLY",
        data: Data::None,
        answer: opt_structured_reply::answer,
        effect: "ACK; READ is answered in chunks",
    },
    Row {
        number: 9,
        word: "LIST_META_CONTEXT",
        data: Data::Parsed,
        answer: opt_meta_context::answer_list,
        effect: "META_CONTEXT for each context asked for, by its name or its namespace, then ACK",
    },
    Row {
        number: OPT_SET_META_CONTEXT,
        word: "SET_META_CONTEXT",
        data: Data::Parsed,
        answer: opt_meta_context::answer_set,
        effect: "selects the contexts asked for by name, after STRUCTURED_REPLY only",
    },
];

/// Refuses an option that comes in plain text where TLS is required; `None` for the options that are answered.
pub(crate) fn refuse_plain(replies: &mut Replies<'_>) -> Option<Event> {
    match replies.option {
        OPT_ABORT | OPT_STARTTLS => None,
        // It has no error reply.
        OPT_EXPORT_NAME => Some(Event::Ended),
        _ => {
            replies.refuse(REP_ERR_TLS_REQD, "TLS is required");
            Some(Event::Answered)
        }
    }
}

/// Refuses an option that would begin transmission, because the most clients allowed are connected; `None` for other
/// options.
pub(crate) fn refuse_full(replies: &mut Replies<'_>) -> Option<Event> {
    match replies.option {
        OPT_EXPORT_NAME => Some(Event::Ended),
        OPT_GO => {
            replies.refuse(REP_ERR_POLICY, "the maximum number of clients is connected");
            Some(Event::Answered)
        }
        _ => None,
    }
}

/// Answers option `negotiation.replies.option` with `data`.
pub(crate) fn answer(negotiation: &mut Negotiation<'_>, data: &[u8]) -> Outcome {
    let Some(row) = TABLE.iter().find(|row| row.number == negotiation.replies.option) else {
        return negotiation.replies.refuse(REP_ERR_UNSUP, "option not supported");
    };
    if row.data == Data::None && !data.is_empty() {
        return negotiation.replies.refuse(REP_ERR_INVALID, "this option takes no data");
    }
    (row.answer)(negotiation, data)
}
