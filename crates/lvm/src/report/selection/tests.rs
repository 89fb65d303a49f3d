//! Selections of a row with a value of each kind.

use super::*;
use crate::report::{Kind, Of, Section};

/// A row with a value of each kind.
struct Sample;

impl Row for Sample {
    const SECTIONS: &'static [Section<Self>] =
        &[Section { title: "Samples", prefix: "s", fields: FIELDS }];
}

const fn field(kind: Kind, name: &'static str, get: fn(&Sample) -> Value) -> Field<Sample> {
    Field { of: Of::Row, name, heading: name, kind, about: "", get }
}

const FIELDS: &[Field<Sample>] = &[
    field(Kind::Text, "s_name", |_| Value::Text("lin".into())),
    field(Kind::Text, "s_part", |_| Value::Hidden("leg_0".into())),
    field(Kind::Number, "s_count", |_| Value::Number(62)),
    field(Kind::Size, "s_size", |_| Value::Size(ashlar_block::Sectors(64 << 11))),
    field(Kind::Percent, "s_used", |_| Value::Percent(crate::report::Percent::of(1, 8))),
    field(Kind::Percent, "s_lost", |_| Value::Percent(None)),
    field(Kind::List, "s_tags", |_| Value::List(vec!["one".into(), "two".into()])),
    field(Kind::List, "s_bare", |_| Value::List(Vec::new())),
];

fn selects(text: &str) -> bool {
    Selection::<Sample>::parse("s", text)
        .unwrap_or_else(|error| panic!("{text}: {error}"))
        .selects(&Sample)
}

#[test]
fn conditions_hold_as_in_lvm() {
    for text in [
        "",
        "s_name=lin",
        " S_Name = 'lin' ",
        "name=lin",
        "s_name!=LIN",
        "s_name=~^l || s_name=x",
        "s_name=~\"^l\"",
        "s_name=~(in|on)",
        "s_name!~^i",
        "s_part=leg_0",
        "s_name=x#s_name=lin&&count=62",
        "!(s_name=x)",
        "!(!((s_name=lin)))",
        "s_count=62.9",
        "s_count!=undef",
        "s_count>61,s_count<63",
        "s_size=64",
        "s_size=64m",
        "s_size=67.108864M",
        "s_size=131072s",
        "s_size>=65536k && s_size<.1g",
        "s_used=12.5",
        "s_used>12%",
        "s_tags=one",
        "s_tags={one}",
        "s_tags=[two , one]",
        "s_tags={'one'||x}",
        "s_tags=[x#one]",
        "s_tags!=[one]",
        "s_bare=''",
        "s_bare={}",
        "s_bare=[]",
    ] {
        assert!(selects(text), "{text}");
    }
    for text in [
        "s_name=LIN",
        "s_name==lin",
        "s_name=lin]",
        "s_part='[leg_0]'",
        "s_name=lin && s_name=x",
        "s_count=undefined",
        "s_count>=-1",
        "s_size=64M",
        "s_used=12",
        "s_lost=0",
        "s_lost!=0",
        "s_tags=x",
        "s_tags=[one]",
        "s_tags={one,}",
        "s_tags=[one,two,two]",
        "s_tags=[]",
        "s_bare=one",
    ] {
        assert!(!selects(text), "{text}");
    }
}

#[test]
fn mistakes_are_told_in_lvms_words() {
    for (text, said) in [
        ("x=1", "at 'x=1': Unrecognised selection field: x"),
        ("s_name", "at 's_name': Unrecognised comparison operator: "),
        ("s_name=a b", "at 'b': Expecting logical operator"),
        ("s_name=a)", "at ')': Expecting logical operator"),
        ("s_name=a &&", "at '': Expecting field name"),
        ("(s_name=a b", "right parenthesis expected at 'b'"),
        ("!s_name=a", "left parenthesis expected at 's_name=a'"),
        ("s_name>a", "only with number, size, time or percent fields: s_name>a"),
        ("s_name since 2020", "only with time fields"),
        ("s_name='a", "Missing end quote. Failed to parse string value"),
        ("s_name=~{a", "Failed to parse regex value for selection field s_name."),
        ("s_name=~'('", "failed to create regex matcher for selection field s_name"),
        ("s_size=~6", "incompatible comparison type for selection field s_size"),
        ("s_size=x", "Failed to parse numeric value for selection field s_size."),
        ("s_size=-1", "Failed to parse numeric value"),
        ("s_size=1%", "Found percent value but size value expected"),
        ("s_size=1q", "at 'q': Expecting logical operator"),
        ("s_count=1k", "Found size unit specifier but numeric value expected"),
        ("s_count=99999999999999999999", "99999999999999999999 out of supported range"),
        ("s_count=18446744073709551615", "found in selection is reserved."),
        ("s_used=1k", "Found size unit specifier but percent value expected"),
        ("s_used=100.5", "100.5 out of supported range"),
        ("s_tags={a", "Invalid operator in selection list."),
        ("s_tags={a,", "Missing list end for selection field s_tags"),
        ("s_tags={a]", "List ended with incorrect character, expecting '}'."),
        ("s_tags={a,b#c}", "Only one type of logical operator allowed"),
    ] {
        let error = Selection::<Sample>::parse("s", text).err().map(|error| error.to_string());
        assert!(error.as_ref().is_some_and(|error| error.contains(said)), "{text}: {error:?}");
    }
    let deep = "(".repeat(100_000);
    assert!(Selection::<Sample>::parse("s", &deep).is_err());
}

/// The words that selections consist of, and others.
const WORDS: &[&str] = &[
    "s_name", "s_size", "s_tags", "s_used", "s_count", "x", "=", "!=", "=~", "!~", ">", "<=", "&&",
    "||", ",", "#", "!", "(", ")", "[", "]", "{", "}", "'", "\"", "1", "64m", ".", "%", "-1",
    "undef", " ", "\\", "*", "^", "|", "\u{e9}", "\u{2003}", "since",
];

#[test]
fn no_text_makes_the_parser_panic() {
    let mut state: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut valid = 0;
    for _ in 0..30_000 {
        let mut text = String::new();
        loop {
            // The generator of Marsaglia's xorshift.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let Some(word) = WORDS.get((state % (WORDS.len() as u64 + 3)) as usize) else { break };
            text.push_str(word);
        }
        if let Ok(selection) = Selection::<Sample>::parse("s", &text) {
            selection.selects(&Sample);
            valid += 1;
        }
    }
    assert!(valid > 1_000, "{valid}");
}
