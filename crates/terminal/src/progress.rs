//! The progress of long work: a bar on a terminal, lines at intervals elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use ashlar_control::error::Result;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::{is_quiet, print, tell};

/// Shows the progress of long work.
pub struct ProgressDisplay(Form);

enum Form {
    Bar(ProgressBar),
    Lines { json: bool, interval: Duration, last: Option<Instant> },
}

/// The progress at one moment.
pub struct Moment {
    /// The work.
    pub title: String,
    /// How much of it is done, in parts of 1000.
    pub parts: u64,
    /// The progress in words.
    pub words: String,
    /// The progress as JSON.
    pub json: serde_json::Value,
}

/// A bar of 1000 parts on standard error; `None` if that is not a terminal.
pub fn bar() -> Option<ProgressBar> {
    if is_quiet() || !std::io::stderr().is_terminal() {
        return None;
    }
    let bar = ProgressBar::with_draw_target(Some(1000), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{prefix} [{bar:30}] {msg}");
    // If the style cannot be parsed, indicatif's default is used.
    if let Ok(style) = style {
        bar.set_style(style.progress_chars("=>."));
    }
    Some(bar)
}

impl ProgressDisplay {
    /// A bar on a terminal; elsewhere, and if `json` is set, a line every `interval`.
    pub fn new(json: bool, interval: Duration) -> Self {
        match bar().filter(|_| !json) {
            Some(bar) => Self(Form::Bar(bar)),
            None => Self(Form::Lines { json, interval, last: None }),
        }
    }

    /// Prints the first line after one interval: work that ends earlier prints only its result.
    pub fn patient(json: bool, interval: Duration) -> Self {
        let mut display = Self::new(json, interval);
        if let Form::Lines { last, .. } = &mut display.0 {
            *last = Some(Instant::now());
        }
        display
    }

    /// Shows the current progress.
    ///
    /// # Errors
    /// Standard output failed.
    pub fn show(&mut self, moment: &Moment) -> Result<()> {
        match &mut self.0 {
            Form::Bar(bar) => {
                bar.set_prefix(moment.title.clone());
                bar.set_position(moment.parts);
                bar.set_message(moment.words.clone());
                bar.tick();
            }
            Form::Lines { json, interval, last } => {
                if last.is_some_and(|last| last.elapsed() < *interval) {
                    return Ok(());
                }
                *last = Some(Instant::now());
                match json {
                    true => print(&format!("{}\n", moment.json))?,
                    false => tell(&format!("{} {}\n", moment.title, moment.words))?,
                }
            }
        }
        Ok(())
    }

    /// Prints other output while a bar is shown.
    pub fn beside<T>(&self, print: impl FnOnce() -> T) -> T {
        match &self.0 {
            Form::Bar(bar) => bar.suspend(print),
            Form::Lines { .. } => print(),
        }
    }

    /// Prints the result.
    ///
    /// # Errors
    /// Standard output failed.
    pub fn end(self, words: String, json: &serde_json::Value) -> Result<()> {
        match self.0 {
            Form::Bar(bar) => {
                bar.finish_and_clear();
                tell(&(words + "\n"))
            }
            Form::Lines { json: false, .. } => tell(&(words + "\n")),
            Form::Lines { json: true, .. } => print(&format!("{json}\n")),
        }
    }
}

/// `1:02:03`, or `2:03` below an hour.
pub fn clock(seconds: u64) -> String {
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 {
        format!("{hours}:{minutes:02}:{seconds:02}")
    } else {
        format!("{minutes}:{seconds:02}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_has_hours_only_if_there_are_any() {
        assert_eq!(clock(59), "0:59");
        assert_eq!(clock(3723), "1:02:03");
    }
}
