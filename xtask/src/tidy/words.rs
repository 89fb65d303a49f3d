//! Phrases that read as translated: in messages, help, comments and documents the actor does something, in the field's terms.

use super::{File, Finding, Tree};

/// A phrase, and what to write. A phrase stands between letters, digits and underscores of other words.
const PHRASES: &[(&str, &str)] = &[
    ("does without", "say what is missing or not used"),
    ("do without", "say what is missing or not used"),
    ("is none", "there is no X, or name what is missing"),
    ("are none", "there are no X, or name what is missing"),
    ("even so", "nevertheless, or say what happens"),
    ("in good order", "complete, healthy, consistent"),
    ("goes on", "continues"),
    ("go on", "continue"),
    ("going on", "in progress"),
    ("has not what", "lacks, does not have"),
    ("what it has", "name it"),
    ("what they have", "name it"),
    ("is told", "the actor reports, says, passes"),
    ("are told", "the actor reports, says, passes"),
    ("gives up", "releases, cancels, detaches, stops trying"),
    ("give up", "release, cancel, detach, stop trying"),
    ("given up", "released, cancelled, detached, abandoned"),
    ("lets go", "releases"),
    ("let go of", "release"),
    ("leaves behind", "leaves"),
    ("left behind", "left"),
    ("forced end", "forced shutdown"),
    ("by force", "with --force, forcibly"),
    ("takes out", "extracts"),
    ("take out", "extract"),
    ("taken out", "extracted"),
];

/// Nouns before which `is no` is right: "there is no", "is no longer".
const AFTER_NO: &[&str] =
    &["longer", "more", "less", "fewer", "better", "worse", "other", "one", "need", "reason"];

/// Files that quote: this rule, and texts of other programs.
const QUOTING: &[&str] = &["xtask/src/tidy/words.rs", "LICENSE-APACHE", "LICENSE-MIT"];

/// No phrase of the list, and no "X is no Y", in Rust, documents and scripts.
pub(crate) fn plain(tree: &Tree) -> Vec<Finding> {
    let is_text = |file: &&File| {
        let of_kind = [".rs", ".md", ".sh", ".toml"].iter().any(|kind| file.path.ends_with(kind));
        of_kind && !QUOTING.contains(&file.path.as_str())
    };
    let mut found = Vec::new();
    for file in tree.files.iter().filter(is_text) {
        for (index, line) in file.text.lines().enumerate() {
            let lower = line.to_ascii_lowercase();
            for (phrase, instead) in PHRASES {
                if has_phrase(&lower, phrase) {
                    let message = format!("\"{phrase}\" reads as translated: {instead}");
                    found.push(Finding::error(&file.path, index + 1, message));
                }
            }
            if let Some(noun) = is_no(&lower) {
                let message = format!("\"is no {noun}\" reads as translated: is not a {noun}");
                found.push(Finding::error(&file.path, index + 1, message));
            }
        }
    }
    found
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn has_phrase(line: &str, phrase: &str) -> bool {
    line.match_indices(phrase).any(|(at, _)| {
        !line[..at].ends_with(is_word) && !line[at + phrase.len()..].starts_with(is_word)
    })
}

/// The word behind an `is no` that says what something is not; `there is no` says what is missing.
fn is_no(line: &str) -> Option<&str> {
    line.match_indices("is no ").find_map(|(at, found)| {
        let before = line[..at].trim_end();
        let rest = &line[at + found.len()..];
        let noun = &rest[..rest.find(|c: char| !is_word(c)).unwrap_or(rest.len())];
        let is_right =
            line[..at].ends_with(is_word) || before.ends_with("there") || AFTER_NO.contains(&noun);
        (!is_right && !noun.is_empty()).then_some(noun)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(text: &str) -> usize {
        plain(&Tree::of(&[("a.rs", text)])).len()
    }

    #[test]
    fn phrases_are_found_as_words() {
        assert_eq!(messages("// The disk Goes on without it."), 1);
        assert_eq!(messages("// a logo goes online; forgives up"), 0);
        assert_eq!(messages("// there is none, and it does without"), 2);
    }

    #[test]
    fn what_something_is_not_is_found_and_what_is_missing_is_not() {
        assert_eq!(messages("// a file is no block device"), 1);
        assert_eq!(messages("// there is no file; it is no longer there; this no one"), 0);
    }
}
