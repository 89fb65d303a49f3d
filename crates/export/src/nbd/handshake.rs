//! The handshake: fixed newstyle negotiation as a state table.
//!
//! Bytes in, bytes out, no I/O. [`Handshake::step`] takes at most one message from the input, so that between two reads
//! the server writes at most the answer to one option.

use super::context::MetaContext;
use super::info::ExportInfo;
use super::option::{self, Agreement, Negotiation, Outcome, Replies};
use ashlar_nbd::wire::{
    FLAG_FIXED_NEWSTYLE, FLAG_NO_ZEROES, Fields, INIT_PASSWD, OPT_EXPORT_NAME, OPTS_MAGIC,
    REP_ERR_TOO_BIG,
};

/// Longest option data that is parsed, bytes. An input buffer must hold this and a header.
pub const MAX_OPTION_DATA: u32 = 64 << 10;
/// Longest option data that is skipped to answer `ERR_TOO_BIG`; longer data closes the connection.
pub const MAX_OPTION_SKIP: u32 = 1 << 20;
/// Options after which a client that never starts transmission is dropped, besides [`OPTIONS_PER_EXPORT`].
pub const MAX_OPTIONS: u32 = 1024;
/// Further options for each export: a client that lists the exports may ask about each of them.
pub const OPTIONS_PER_EXPORT: u32 = 8;
/// Bytes of an option's header.
pub const OPTION_HEADER_LEN: usize = 16;
/// The longest input that [`Handshake::step`] may need in one piece.
pub const MAX_MESSAGE: usize = OPTION_HEADER_LEN + MAX_OPTION_DATA as usize;

/// The state of the negotiation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// The greeting was sent; the client's flags are next.
    ClientFlags,
    /// An option is next.
    Options,
    /// The data of an option that is too long are being skipped.
    Skipping,
    /// The handshake of TLS is next.
    Tls,
    /// An export was chosen.
    Transmission,
    /// The connection is to be closed.
    Closed,
}

/// An event of the negotiation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// Client flags, all known.
    Flags,
    /// Client flags that were not offered.
    UnknownFlags,
    /// Input that does not begin like an option.
    BadMagic,
    /// An option other than `EXPORT_NAME` from a client without fixed newstyle.
    NotFixed,
    /// An option after [`MAX_OPTIONS`] others, and [`OPTIONS_PER_EXPORT`].
    TooMany,
    /// Option data longer than [`MAX_OPTION_DATA`].
    TooLong,
    /// Option data longer than [`MAX_OPTION_SKIP`], or a long one for `EXPORT_NAME`.
    FarTooLong,
    /// The data of a long option were skipped.
    Skipped,
    /// An option was answered, with success or an error.
    Answered,
    /// `STARTTLS` was agreed to.
    TlsAgreed,
    /// The handshake of TLS has succeeded.
    Secured,
    /// An option chose an export.
    Chosen,
    /// An option ended the session: `ABORT`, or an unknown `EXPORT_NAME`.
    Ended,
}

/// The negotiation: state, event, next state. No other combination occurs.
pub const TABLE: &[(State, Event, State)] = &[
    (State::ClientFlags, Event::Flags, State::Options),
    (State::ClientFlags, Event::UnknownFlags, State::Closed),
    (State::Options, Event::BadMagic, State::Closed),
    (State::Options, Event::NotFixed, State::Closed),
    (State::Options, Event::TooMany, State::Closed),
    (State::Options, Event::TooLong, State::Skipping),
    (State::Options, Event::FarTooLong, State::Closed),
    (State::Options, Event::Answered, State::Options),
    (State::Options, Event::TlsAgreed, State::Tls),
    (State::Tls, Event::Secured, State::Options),
    (State::Options, Event::Chosen, State::Transmission),
    (State::Options, Event::Ended, State::Closed),
    (State::Skipping, Event::Skipped, State::Options),
];

/// Whether clients may or must use TLS.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum TlsPolicy {
    /// They may not.
    #[default]
    Off,
    /// They may.
    On,
    /// They must: all other options are refused before it.
    Require,
}

/// The states as a Markdown table, for the format's document.
pub fn state_table() -> String {
    let row = |(state, event, next): &(State, Event, State)| {
        format!("| {state:?} | {event:?} | {next:?} |\n")
    };
    let head = "| state | event | next |\n|---|---|---|\n";
    std::iter::once(head.to_owned()).chain(TABLE.iter().map(row)).collect()
}

/// The known options as a Markdown table, for the format's document.
pub fn option_table() -> String {
    let row = |row: &option::Row| {
        format!("| {} | {} | {:?} | {} |\n", row.number, row.word, row.data, row.effect)
    };
    let head = "| type | option | data | effect |\n|---|---|---|---|\n";
    std::iter::once(head.to_owned()).chain(option::TABLE.iter().map(row)).collect()
}

/// What was agreed, once transmission begins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Session {
    /// Index of the export in the slice given to [`Handshake::step`].
    pub export: usize,
    /// Whether replies are structured.
    pub structured: bool,
    /// The contexts of which `BLOCK_STATUS` tells, in the order of their identifiers, from 1 on.
    pub contexts: Vec<MetaContext>,
}

/// The result of [`Handshake::step`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// More input is needed; only skipped bytes were taken.
    Incomplete,
    /// One message was taken; call again.
    Taken,
    /// Send the output; the handshake of TLS begins with the next byte that is received after that. Call [`Handshake::secured`] if it
    /// succeeds, else close. What the client has sent before it saw the output is not part of TLS, nor of what follows.
    Tls,
    /// Send the output; transmission begins with the next byte.
    Transmission(Session),
    /// Send the output, then close. The event says why.
    Closed(Event),
}

/// A negotiation with one client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Handshake {
    state: State,
    agreed: Agreement,
    tls: TlsPolicy,
    is_secure: bool,
    /// Whether no other client may enter transmission.
    is_full: bool,
    was_refused: bool,
    options: u32,
    /// The option being skipped, and how many of its bytes are left.
    skipping: (u32, u32),
}

impl Default for Handshake {
    fn default() -> Self {
        Self::new(TlsPolicy::Off)
    }
}

impl Handshake {
    /// A new negotiation: send [`Self::greeting`], then feed [`Self::step`].
    pub fn new(tls: TlsPolicy) -> Self {
        Self {
            state: State::ClientFlags,
            agreed: Agreement::default(),
            tls,
            is_secure: false,
            is_full: false,
            was_refused: false,
            options: 0,
            skipping: (0, 0),
        }
    }

    /// The server's first message.
    pub fn greeting() -> [u8; 18] {
        let mut greeting = [0; 18];
        greeting[..8].copy_from_slice(&INIT_PASSWD.to_be_bytes());
        greeting[8..16].copy_from_slice(&OPTS_MAGIC.to_be_bytes());
        greeting[16..].copy_from_slice(&(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES).to_be_bytes());
        greeting
    }

    /// The state of the negotiation.
    pub fn state(&self) -> State {
        self.state
    }

    /// Sets whether, from now on, no other client may enter transmission.
    pub fn set_full(&mut self, is_full: bool) {
        self.is_full = is_full;
    }

    /// Whether the client has chosen an export when there was no room.
    pub fn was_refused(&self) -> bool {
        self.was_refused
    }

    /// The handshake of TLS has succeeded: what was agreed in plain text counts no more, since anyone may have said it. The client's flags stay:
    /// they say only which form messages have.
    pub fn secured(&mut self) {
        let Agreement { fixed_newstyle, no_zeroes, .. } = self.agreed;
        self.agreed = Agreement { fixed_newstyle, no_zeroes, ..Agreement::default() };
        self.is_secure = true;
        self.enter(Event::Secured);
    }

    /// Takes at most one message from the front of `input`, appends the answer to `out` and returns how many bytes were
    /// taken. `exports` must stay the same in all calls.
    pub fn step(
        &mut self,
        input: &[u8],
        exports: &[ExportInfo],
        out: &mut Vec<u8>,
    ) -> (usize, Step) {
        match self.state {
            State::ClientFlags => self.client_flags(input),
            State::Options => self.option(input, exports, out),
            State::Skipping => self.skip(input, out),
            State::Tls | State::Transmission | State::Closed => (0, Step::Incomplete),
        }
    }

    fn enter(&mut self, event: Event) -> Step {
        let row = TABLE.iter().find(|(state, on, _)| *state == self.state && *on == event);
        debug_assert!(row.is_some(), "{event:?} cannot happen in {:?}", self.state);
        self.state = row.map_or(State::Closed, |(_, _, next)| *next);
        if self.state == State::Closed { Step::Closed(event) } else { Step::Taken }
    }

    fn client_flags(&mut self, input: &[u8]) -> (usize, Step) {
        let Some(flags) = Fields(input).u32() else { return (0, Step::Incomplete) };
        let (fixed, no_zeroes) = (u32::from(FLAG_FIXED_NEWSTYLE), u32::from(FLAG_NO_ZEROES));
        self.agreed.fixed_newstyle = flags & fixed != 0;
        self.agreed.no_zeroes = flags & no_zeroes != 0;
        let known = flags & !(fixed | no_zeroes) == 0;
        (4, self.enter(if known { Event::Flags } else { Event::UnknownFlags }))
    }

    fn option(&mut self, input: &[u8], exports: &[ExportInfo], out: &mut Vec<u8>) -> (usize, Step) {
        let mut fields = Fields(input);
        let Some(magic) = fields.u64() else { return (0, Step::Incomplete) };
        if magic != OPTS_MAGIC {
            return (8, self.enter(Event::BadMagic));
        }
        let (Some(option), Some(len)) = (fields.u32(), fields.u32()) else {
            return (0, Step::Incomplete);
        };
        if let Some(event) = self.veto(option, len, exports) {
            self.skipping = (option, len);
            return (OPTION_HEADER_LEN, self.enter(event));
        }
        let Some(data) = fields.bytes(len) else { return (0, Step::Incomplete) };
        let taken = OPTION_HEADER_LEN + data.len();
        self.options += 1;
        let mut replies = Replies { option, out };
        if self.tls == TlsPolicy::Require
            && !self.is_secure
            && let Some(event) = option::refuse_plain(&mut replies)
        {
            return (taken, self.enter(event));
        }
        if self.is_full
            && let Some(event) = option::refuse_full(&mut replies)
        {
            self.was_refused = true;
            return (taken, self.enter(event));
        }
        let tls = if self.is_secure { None } else { Some(self.tls) };
        let mut negotiation = Negotiation { exports, agreed: &mut self.agreed, tls, replies };
        let step = match option::answer(&mut negotiation, data) {
            Outcome::Answered => self.enter(Event::Answered),
            Outcome::Ended => self.enter(Event::Ended),
            Outcome::TlsAgreed => {
                self.enter(Event::TlsAgreed);
                Step::Tls
            }
            Outcome::Chosen(export) => {
                self.enter(Event::Chosen);
                let Agreement { structured, contexts_of, .. } = &self.agreed;
                let contexts = contexts_of.as_ref().filter(|(of, _)| *of == export);
                let contexts = contexts.map(|(_, contexts)| contexts.clone());
                let (structured, contexts) = (*structured, contexts.unwrap_or_default());
                Step::Transmission(Session { export, structured, contexts })
            }
        };
        (taken, step)
    }

    /// Why an option is rejected without parsing its data, if it is.
    fn veto(&self, option: u32, len: u32, exports: &[ExportInfo]) -> Option<Event> {
        let most = exports.len() as u64 * u64::from(OPTIONS_PER_EXPORT) + u64::from(MAX_OPTIONS);
        let export_name = option == OPT_EXPORT_NAME;
        if !self.agreed.fixed_newstyle && !export_name {
            Some(Event::NotFixed)
        } else if u64::from(self.options) >= most {
            Some(Event::TooMany)
        } else if len > MAX_OPTION_SKIP || len > MAX_OPTION_DATA && export_name {
            Some(Event::FarTooLong)
        } else if len > MAX_OPTION_DATA {
            Some(Event::TooLong)
        } else {
            None
        }
    }

    fn skip(&mut self, input: &[u8], out: &mut Vec<u8>) -> (usize, Step) {
        let (option, left) = self.skipping;
        let taken = input.len().min(left as usize);
        self.skipping.1 = left - taken as u32;
        if self.skipping.1 > 0 {
            return (taken, Step::Incomplete);
        }
        self.options += 1;
        Replies { option, out }.refuse(REP_ERR_TOO_BIG, "option data too long");
        (taken, self.enter(Event::Skipped))
    }
}

#[cfg(test)]
#[path = "handshake_tests.rs"]
mod tests;
