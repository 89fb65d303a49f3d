//! Runs of a simulation: the seeds to run, and the first that fails.

use std::cell::Cell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

/// The seeds that the user wants to run, from environment variables: `ASHLAR_SEED=n` is one seed (to
/// reproduce a failure), `ASHLAR_SEEDS=n` the first n, `ASHLAR_SEEDS=a..b` those from a up to b
/// (excluded).
pub fn wanted(variable: impl Fn(&str) -> Option<String>) -> Option<Range<u64>> {
    let number = |text: &str| text.parse::<u64>().ok();
    if let Some(one) = variable("ASHLAR_SEED").as_deref().and_then(number) {
        return Some(one..one + 1);
    }
    let text = variable("ASHLAR_SEEDS")?;
    match text.split_once("..") {
        None => Some(0..number(&text)?),
        Some((from, to)) => Some(number(from)?..number(to)?),
    }
}

/// Prints on standard error how to reproduce a run, if it is dropped during a panic.
pub struct RunReminder(String);

impl RunReminder {
    /// The run of `what` with this seed.
    pub fn new(what: impl ToString, seed: u64) -> Self {
        Self(format!("{}: try ASHLAR_SEED={seed}", what.to_string()))
    }
}

impl Drop for RunReminder {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the run's seed: {}", self.0);
        }
    }
}

thread_local! {
    static EXPECTED: Cell<bool> = const { Cell::new(false) };
}

/// Suppresses the messages of expected panics.
fn keep_quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !EXPECTED.get() {
                usual(info);
            }
        }));
    });
}

/// The first seed below `bound` whose run panics, and the beginning of its message: for rules that are
/// broken on purpose.
pub fn first_failure(bound: u64, run: impl Fn(u64)) -> Option<(u64, String)> {
    const SHOWN: usize = 300;
    keep_quiet();
    (0..bound).find_map(|seed| {
        EXPECTED.set(true);
        let ended = catch_unwind(AssertUnwindSafe(|| run(seed)));
        EXPECTED.set(false);
        let why = ended.err()?;
        let text = why.downcast_ref::<String>().map_or("", String::as_str);
        Some((seed, text.chars().take(SHOWN).collect()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_what_the_environment_says() {
        let with = |one: Option<&str>, many: Option<&str>| {
            wanted(|name| if name == "ASHLAR_SEED" { one } else { many }.map(str::to_owned))
        };
        assert_eq!(with(None, None), None);
        assert_eq!(with(None, Some("7")), Some(0..7));
        assert_eq!(with(None, Some("3..9")), Some(3..9));
        assert_eq!(with(Some("5"), Some("3..9")), Some(5..6));
        assert_eq!(with(None, Some("many")), None);
    }

    #[test]
    fn the_first_run_that_fails_is_found() {
        let found = first_failure(9, |seed| assert!(seed < 3, "seed {seed} fails"));
        assert_eq!(found, Some((3, "seed 3 fails".to_owned())));
        assert_eq!(first_failure(3, |_| ()), None);
    }
}
