//! The handshake, option by option, from a client's view.

use super::super::info::BlockSize;
use super::*;
use crate::nbd::context::ChangeMaps;
use crate::nbd::testing::Chance;
use ashlar_nbd::wire::{
    FLAG_HAS_FLAGS, FLAG_SEND_DF, INFO_BLOCK_SIZE, INFO_DESCRIPTION, INFO_EXPORT, INFO_NAME,
    OPT_ABORT, OPT_SET_META_CONTEXT, OPT_STARTTLS, REP_ACK, REP_ERR_INVALID, REP_ERR_POLICY,
    REP_ERR_TLS_REQD, REP_ERR_UNKNOWN, REP_ERR_UNSUP, REP_INFO, REP_MAGIC, REP_META_CONTEXT,
    REP_SERVER,
};

const OPT_LIST: u32 = 3;
const OPT_INFO: u32 = 6;
const OPT_GO: u32 = 7;
const OPT_STRUCTURED_REPLY: u32 = 8;
const OPT_LIST_META_CONTEXT: u32 = 9;
const OPT_EXTENDED_HEADERS: u32 = 11;

fn exports() -> Vec<ExportInfo> {
    let block_size = BlockSize::with_preferred(4096);
    let export = |name: &str, description: &str| ExportInfo {
        name: name.into(),
        description: description.into(),
        size: 0x0102_0304,
        flags: FLAG_HAS_FLAGS,
        block_size,
        changes: ChangeMaps::default(),
    };
    vec![export("md0", "raid10"), export("vg/lv", "")]
}

struct Client {
    handshake: Handshake,
    exports: Vec<ExportInfo>,
}

type Answers = Vec<(u32, Vec<u8>)>;

impl Client {
    /// A client that has sent its flags.
    fn with_flags(flags: u32) -> Self {
        let mut client = Self { handshake: Handshake::new(TlsPolicy::Off), exports: exports() };
        let (taken, _) =
            client.handshake.step(&flags.to_be_bytes(), &client.exports, &mut Vec::new());
        assert_eq!(taken, 4);
        client
    }

    fn new() -> Self {
        Self::with_flags(3)
    }

    fn raw(&mut self, option: u32, data: &[u8]) -> (Step, Vec<u8>) {
        let mut message = OPTS_MAGIC.to_be_bytes().to_vec();
        message.extend(option.to_be_bytes());
        message.extend((data.len() as u32).to_be_bytes());
        message.extend(data);
        let mut out = Vec::new();
        // Every proper prefix is incomplete and changes nothing.
        for cut in [0, 7, 8, 12, 15, message.len() - 1] {
            if cut < message.len() {
                let before = self.handshake.clone();
                let step = self.handshake.step(&message[..cut], &self.exports, &mut out);
                assert_eq!((step, &self.handshake), ((0, Step::Incomplete), &before));
            }
        }
        let (taken, step) = self.handshake.step(&message, &self.exports, &mut out);
        assert_eq!(taken, message.len());
        (step, out)
    }

    /// Sends an option and parses the replies.
    fn ask(&mut self, option: u32, data: &[u8]) -> (Step, Answers) {
        let (step, out) = self.raw(option, data);
        let mut fields = Fields(&out);
        let mut answers = Vec::new();
        while let Some(magic) = fields.u64() {
            assert_eq!(magic, REP_MAGIC);
            assert_eq!(fields.u32(), Some(option));
            let kind = fields.u32().unwrap();
            answers.push((kind, fields.counted().unwrap().to_vec()));
        }
        assert!(fields.rest().is_empty());
        (step, answers)
    }

    /// Sends an option that gets one reply and returns its type.
    fn ask_one(&mut self, option: u32, data: &[u8]) -> u32 {
        let (step, answers) = self.ask(option, data);
        assert_eq!((step, answers.len()), (Step::Taken, 1));
        answers[0].0
    }
}

fn counted(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u32).to_be_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes
}

fn go(name: &str, items: &[u16]) -> Vec<u8> {
    let mut data = counted(name);
    data.extend((items.len() as u16).to_be_bytes());
    items.iter().for_each(|item| data.extend(item.to_be_bytes()));
    data
}

fn contexts(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = counted(name);
    data.extend((queries.len() as u32).to_be_bytes());
    queries.iter().for_each(|query| data.extend(counted(query)));
    data
}

#[test]
fn the_greeting_offers_fixed_newstyle_without_zeroes() {
    assert_eq!(&Handshake::greeting()[..16], b"NBDMAGICIHAVEOPT");
    assert_eq!(Handshake::greeting()[16..], [0, 3]);
}

#[test]
fn every_set_of_known_client_flags_is_accepted_and_no_other() {
    for flags in (0..8_u32).chain((3..32).map(|bit| 1 << bit)) {
        let mut handshake = Handshake::new(TlsPolicy::Off);
        let (_, step) = handshake.step(&flags.to_be_bytes(), &[], &mut Vec::new());
        let expected = if flags < 4 { Step::Taken } else { Step::Closed(Event::UnknownFlags) };
        assert_eq!(step, expected, "flags {flags:#x}");
    }
}

#[test]
fn export_name_answers_size_and_flags_with_zeroes_only_if_wanted() {
    for (flags, zeroes) in [(0, 124), (1, 124), (2, 0), (3, 0)] {
        let (step, out) = Client::with_flags(flags).raw(OPT_EXPORT_NAME, b"vg/lv");
        let session = Session { export: 1, structured: false, contexts: Vec::new() };
        assert_eq!(step, Step::Transmission(session));
        assert_eq!(out[..10], [0, 0, 0, 0, 1, 2, 3, 4, 0, 1]);
        assert_eq!(out[10..], vec![0; zeroes]);
    }
}

#[test]
fn export_name_for_no_export_closes_without_a_byte() {
    for name in [&b"nope"[..], b"", b"md0\0", &[0xff], &[b'a'; 5000]] {
        let (step, out) = Client::new().raw(OPT_EXPORT_NAME, name);
        assert_eq!((step, out.len()), (Step::Closed(Event::Ended), 0));
    }
}

#[test]
fn a_client_without_fixed_newstyle_may_only_name_its_export() {
    let mut client = Client::with_flags(0);
    let mut message = OPTS_MAGIC.to_be_bytes().to_vec();
    message.extend([0, 0, 0, 3, 0, 0, 0, 0]);
    let (_, step) = client.handshake.step(&message, &client.exports, &mut Vec::new());
    assert_eq!(step, Step::Closed(Event::NotFixed));
}

#[test]
fn list_tells_names_and_descriptions() {
    let (step, answers) = Client::new().ask(OPT_LIST, &[]);
    assert_eq!(step, Step::Taken);
    let mut first = counted("md0");
    first.extend(b"raid10");
    let expected = vec![(REP_SERVER, first), (REP_SERVER, counted("vg/lv")), (REP_ACK, vec![])];
    assert_eq!(answers, expected);
}

#[test]
fn options_without_data_refuse_data() {
    for option in [OPT_LIST, OPT_STRUCTURED_REPLY] {
        assert_eq!(Client::new().ask_one(option, &[0]), REP_ERR_INVALID);
    }
}

#[test]
fn abort_is_acknowledged_whatever_comes_with_it() {
    for data in [&b""[..], b"bye"] {
        let (step, answers) = Client::new().ask(OPT_ABORT, data);
        assert_eq!((step, answers), (Step::Closed(Event::Ended), vec![(REP_ACK, vec![])]));
    }
}

/// A client of a server with this policy.
fn with_tls(tls: TlsPolicy) -> Client {
    let mut client = Client::new();
    client.handshake.tls = tls;
    client
}

#[test]
fn tls_that_is_switched_off_is_refused_by_policy_and_haggling_goes_on() {
    let mut client = with_tls(TlsPolicy::Off);
    assert_eq!(client.ask_one(OPT_STARTTLS, b""), REP_ERR_POLICY);
    assert!(matches!(client.ask(OPT_GO, &go("md0", &[])).0, Step::Transmission(_)));
}

#[test]
fn without_tls_nothing_else_is_answered_where_it_is_required() {
    let mut client = with_tls(TlsPolicy::Require);
    let options = [OPT_LIST, OPT_INFO, OPT_GO, OPT_STRUCTURED_REPLY, OPT_EXTENDED_HEADERS, 99];
    for option in options.into_iter().chain([OPT_LIST_META_CONTEXT, OPT_SET_META_CONTEXT]) {
        assert_eq!(client.ask_one(option, b""), REP_ERR_TLS_REQD, "{option}");
    }
    let (step, answers) = client.ask(OPT_ABORT, b"");
    assert_eq!((step, answers), (Step::Closed(Event::Ended), vec![(REP_ACK, vec![])]));
    let mut client = with_tls(TlsPolicy::Require);
    let (step, answers) = client.ask(1, b"md0");
    assert_eq!((step, answers), (Step::Closed(Event::Ended), vec![]));
}

#[test]
fn tls_begins_after_its_ack_once_and_then_all_is_answered() {
    for policy in [TlsPolicy::On, TlsPolicy::Require] {
        let mut client = with_tls(policy);
        assert_eq!(client.ask_one(OPT_STARTTLS, b"data"), REP_ERR_INVALID);
        let (step, answers) = client.ask(OPT_STARTTLS, b"");
        assert_eq!((step, answers), (Step::Tls, vec![(REP_ACK, vec![])]));
        // Until it has succeeded nothing is read.
        let before = client.handshake.clone();
        let step = client.handshake.step(&[0; 64], &client.exports, &mut Vec::new());
        assert_eq!((step, &client.handshake), ((0, Step::Incomplete), &before));
        client.handshake.secured();
        assert_eq!(client.ask_one(OPT_STARTTLS, b""), REP_ERR_INVALID);
        assert!(matches!(client.ask(OPT_GO, &go("md0", &[])).0, Step::Transmission(_)));
    }
}

#[test]
fn what_was_agreed_in_plain_text_is_forgotten_with_tls() {
    let mut client = with_tls(TlsPolicy::On);
    assert_eq!(client.ask_one(OPT_STRUCTURED_REPLY, b""), REP_ACK);
    let asked = contexts("md0", &["base:allocation"]);
    assert_eq!(client.ask(OPT_SET_META_CONTEXT, &asked).1.last().unwrap().0, REP_ACK);
    assert_eq!(client.ask(OPT_STARTTLS, b"").0, Step::Tls);
    client.handshake.secured();
    assert_eq!(client.ask_one(OPT_SET_META_CONTEXT, &asked), REP_ERR_INVALID);
    let (step, _) = client.ask(OPT_GO, &go("md0", &[]));
    let plain = Session { export: 0, structured: false, contexts: Vec::new() };
    assert_eq!(step, Step::Transmission(plain));
}

#[test]
fn the_form_of_messages_stays_with_tls() {
    let mut client = with_tls(TlsPolicy::On);
    assert_eq!(client.ask(OPT_STARTTLS, b"").0, Step::Tls);
    client.handshake.secured();
    let (step, out) = client.raw(1, b"md0");
    assert!(matches!(step, Step::Transmission(_)));
    assert_eq!(out.len(), 10, "the zeroes that the client does not want");
}

#[test]
fn extended_headers_and_unknown_options_are_unsupported_and_haggling_goes_on() {
    let mut client = Client::new();
    for option in [0, 4, OPT_EXTENDED_HEADERS, 12, u32::MAX] {
        assert_eq!(client.ask_one(option, b"data"), REP_ERR_UNSUP);
    }
    assert!(matches!(client.ask(OPT_GO, &go("md0", &[])).0, Step::Transmission(_)));
}

#[test]
fn info_tells_each_known_item_once_and_the_export_always() {
    let asked = [INFO_NAME, INFO_NAME, 99, INFO_BLOCK_SIZE, INFO_DESCRIPTION, INFO_EXPORT];
    let (step, answers) = Client::new().ask(OPT_INFO, &go("md0", &asked));
    assert_eq!(step, Step::Taken);
    let (last, infos) = answers.split_last().unwrap();
    assert_eq!(last, &(REP_ACK, vec![]));
    assert!(infos.iter().all(|(kind, _)| *kind == REP_INFO));
    let kinds: Vec<u8> = infos.iter().map(|(_, item)| item[1]).collect();
    assert_eq!(kinds, [0, 1, 3, 2]);
    assert_eq!(infos[0].1, [0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 0, 1]);
    assert_eq!(infos[1].1, *b"\0\x01md0");
    assert_eq!(infos[2].1, [0, 3, 0, 0, 0, 1, 0, 0, 16, 0, 2, 0, 0, 0]);
    assert_eq!(infos[3].1, *b"\0\x02raid10");
}

#[test]
fn go_enters_transmission_with_what_was_agreed() {
    let mut client = Client::new();
    assert_eq!(client.ask_one(OPT_STRUCTURED_REPLY, &[]), REP_ACK);
    let (step, answers) = client.ask(OPT_GO, &go("md0", &[]));
    let session = Session { export: 0, structured: true, contexts: Vec::new() };
    assert_eq!(step, Step::Transmission(session));
    assert_eq!(answers.len(), 2);
    // SEND_DF is set because replies are structured.
    assert_eq!(answers[0].1[10..], (FLAG_HAS_FLAGS | FLAG_SEND_DF).to_be_bytes());
    assert_eq!(client.handshake.state(), State::Transmission);
}

#[test]
fn an_unknown_export_can_be_asked_for_again() {
    let mut client = Client::new();
    assert_eq!(client.ask_one(OPT_GO, &go("nope", &[])), REP_ERR_UNKNOWN);
    // With two exports there is no default.
    assert_eq!(client.ask_one(OPT_INFO, &go("", &[])), REP_ERR_UNKNOWN);
    client.exports.truncate(1);
    assert!(matches!(client.ask(OPT_GO, &go("", &[])).0, Step::Transmission(_)));
}

#[test]
fn a_malformed_go_is_invalid_at_every_cut_and_with_every_surplus() {
    let good = go("md0", &[1, 2]);
    for option in [OPT_GO, OPT_INFO] {
        for cut in 0..good.len() {
            assert_eq!(Client::new().ask_one(option, &good[..cut]), REP_ERR_INVALID, "cut {cut}");
        }
        let mut surplus = good.clone();
        surplus.push(0);
        assert_eq!(Client::new().ask_one(option, &surplus), REP_ERR_INVALID);
        assert_eq!(Client::new().ask_one(option, &go("md0\0", &[])), REP_ERR_INVALID);
    }
}

#[test]
fn contexts_are_listed_for_no_query_the_wildcard_and_the_name() {
    let listed = |queries: &[&str]| {
        let (step, mut answers) =
            Client::new().ask(OPT_LIST_META_CONTEXT, &contexts("md0", queries));
        assert_eq!(step, Step::Taken);
        assert_eq!(answers.pop(), Some((REP_ACK, vec![])));
        answers
    };
    let allocation = vec![(REP_META_CONTEXT, b"\0\0\0\0base:allocation".to_vec())];
    for queries in
        [&[][..], &["base:"], &["base:allocation"], &["x-y:z", "base:", "base:allocation"]]
    {
        assert_eq!(listed(queries), allocation, "{queries:?}");
    }
    for queries in [&["qemu:"][..], &["base:other"], &["base"], &[""]] {
        assert_eq!(listed(queries), vec![], "{queries:?}");
    }
}

#[test]
fn a_context_is_selected_only_by_its_name_and_after_structured_replies() {
    let select = |client: &mut Client, queries: &[&str]| {
        client.ask(OPT_SET_META_CONTEXT, &contexts("md0", queries)).1
    };
    let mut client = Client::new();
    assert_eq!(select(&mut client, &["base:allocation"])[0].0, REP_ERR_INVALID);
    assert_eq!(client.ask_one(OPT_STRUCTURED_REPLY, &[]), REP_ACK);
    for queries in [&[][..], &["base:"], &["qemu:allocation-depth"]] {
        assert_eq!(select(&mut client, queries), vec![(REP_ACK, vec![])]);
    }
    let selected = (REP_META_CONTEXT, b"\0\0\0\x01base:allocation".to_vec());
    assert_eq!(select(&mut client, &["base:allocation"]), vec![selected, (REP_ACK, vec![])]);
}

#[test]
fn a_selection_holds_for_its_export_until_the_next_attempt() {
    let chosen = |last: &[u8], name: &str| {
        let mut client = Client::new();
        client.ask(OPT_STRUCTURED_REPLY, &[]);
        client.ask(OPT_SET_META_CONTEXT, &contexts("md0", &["base:allocation"]));
        if !last.is_empty() {
            client.ask(OPT_SET_META_CONTEXT, last);
        }
        let Step::Transmission(session) = client.ask(OPT_GO, &go(name, &[])).0 else { panic!() };
        !session.contexts.is_empty()
    };
    assert!(chosen(&[], "md0"));
    assert!(!chosen(&[], "vg/lv"), "another export");
    assert!(!chosen(&contexts("md0", &[]), "md0"), "replaced by nothing");
    assert!(!chosen(&contexts("nope", &["base:allocation"]), "md0"), "replaced by a failure");
    assert!(!chosen(b"garbage", "md0"), "replaced by garbage");
}

#[test]
fn a_malformed_context_request_is_invalid_at_every_cut() {
    let good = contexts("md0", &["base:allocation", "x:"]);
    for cut in 0..good.len() {
        assert_eq!(
            Client::new().ask_one(OPT_LIST_META_CONTEXT, &good[..cut]),
            REP_ERR_INVALID,
            "cut {cut}"
        );
    }
    // Four billion queries are announced, but only two are present.
    let mut many = good;
    many[7..11].fill(0xff);
    assert_eq!(Client::new().ask_one(OPT_LIST_META_CONTEXT, &many), REP_ERR_INVALID);
}

#[test]
fn a_long_option_is_skipped_in_any_pieces_and_refused() {
    let mut client = Client::new();
    let len = MAX_OPTION_DATA + 1;
    let mut message = OPTS_MAGIC.to_be_bytes().to_vec();
    message.extend(OPT_LIST.to_be_bytes());
    message.extend(len.to_be_bytes());
    message.resize(message.len() + len as usize, 0);
    let (mut out, mut at) = (Vec::new(), 0);
    while client.handshake.state() != State::Options || at == 0 {
        let end = message.len().min(at + 10_007);
        at += client.handshake.step(&message[at..end], &client.exports, &mut out).0;
    }
    assert_eq!(at, message.len());
    assert_eq!(out[12..16], REP_ERR_TOO_BIG.to_be_bytes());
    assert_eq!(client.ask_one(OPT_STRUCTURED_REPLY, &[]), REP_ACK);
}

#[test]
fn absurd_lengths_and_a_long_export_name_close() {
    for (option, len) in
        [(OPT_GO, MAX_OPTION_SKIP + 1), (OPT_EXPORT_NAME, MAX_OPTION_DATA + 1), (99, u32::MAX)]
    {
        let mut client = Client::new();
        let mut message = OPTS_MAGIC.to_be_bytes().to_vec();
        message.extend(option.to_be_bytes());
        message.extend(len.to_be_bytes());
        let (_, step) = client.handshake.step(&message, &client.exports, &mut Vec::new());
        assert_eq!(step, Step::Closed(Event::FarTooLong));
    }
}

#[test]
fn what_is_no_option_closes_as_soon_as_it_is_seen() {
    let mut client = Client::new();
    let (_, step) = client.handshake.step(b"GET / HT", &client.exports, &mut Vec::new());
    assert_eq!(step, Step::Closed(Event::BadMagic));
    assert_eq!(
        client.handshake.step(b"TP/1.1", &client.exports, &mut Vec::new()),
        (0, Step::Incomplete)
    );
}

#[test]
fn haggling_ends_some_time() {
    let mut client = Client::new();
    for _ in 0..MAX_OPTIONS + OPTIONS_PER_EXPORT * client.exports.len() as u32 {
        assert_eq!(client.ask_one(77, &[]), REP_ERR_UNSUP);
    }
    let mut message = OPTS_MAGIC.to_be_bytes().to_vec();
    message.extend([0; 8]);
    let (_, step) = client.handshake.step(&message, &client.exports, &mut Vec::new());
    assert_eq!(step, Step::Closed(Event::TooMany));
}

#[test]
fn the_table_has_one_next_state_for_each_pair_and_reaches_every_state() {
    let mut reached = vec![State::ClientFlags];
    for (i, (state, event, next)) in TABLE.iter().enumerate() {
        assert!(reached.contains(state), "{state:?} is not reached before it is left");
        assert!(TABLE[..i].iter().all(|(s, e, _)| (s, e) != (state, event)));
        reached.push(*next);
    }
    for state in [State::Options, State::Skipping, State::Transmission, State::Closed] {
        assert!(reached.contains(&state));
    }
}

#[test]
fn random_bytes_behind_good_beginnings_never_panic_and_answers_are_bounded() {
    let exports = exports();
    for seed in 1..4000_u64 {
        let chance = Chance::new(seed);
        let policies = [TlsPolicy::Off, TlsPolicy::On, TlsPolicy::Require];
        let mut handshake = Handshake::new(policies[seed as usize % 3]);
        let mut input = vec![0, 0, 0, 3];
        for _ in 0..chance.below(8) {
            input.extend(OPTS_MAGIC.to_be_bytes());
            input.extend((chance.below(13) as u32).to_be_bytes());
            let data = match chance.below(3) {
                0 => go("md0", &[chance.below(5) as u16]),
                1 => contexts("md0", &["base:allocation"]),
                _ => (0..chance.below(40)).map(|_| chance.below(256) as u8).collect(),
            };
            let lie = if chance.below(10) == 0 { chance.below(1 << 21) } else { data.len() as u64 };
            input.extend((lie as u32).to_be_bytes());
            input.extend(data);
        }
        let (mut at, mut visible) = (0, 0);
        loop {
            let mut out = Vec::new();
            let (taken, step) = handshake.step(&input[at..visible], &exports, &mut out);
            at += taken;
            assert!(at <= visible && out.len() < 1024);
            match step {
                Step::Taken => assert!(taken > 0),
                Step::Tls => handshake.secured(),
                Step::Transmission(_) | Step::Closed(_) => break,
                Step::Incomplete if visible == input.len() => break,
                Step::Incomplete => {
                    visible = input.len().min(visible + 1 + chance.below(64) as usize)
                }
            }
        }
    }
}

#[test]
fn the_document_shows_the_states_and_the_options() {
    let document = include_str!("../../../../docs/formats/nbd.md");
    for table in [state_table(), option_table()] {
        assert!(document.contains(&table), "docs/formats/nbd.md should contain:\n{table}");
    }
}
