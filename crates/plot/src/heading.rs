//! The heading of the picture: what was traced, when and where, and how the charts are read.

use unicode_width::UnicodeWidthStr;

use crate::device::{DISCARD, READ, WRITE};
use crate::draw::{Canvas, at};
use crate::scale::{grouped, time};
use crate::svg::KINDS;
use crate::{Branch, Plot};

/// Where lines begin, and where their values begin.
const LEFT: f64 = 12.0;
const VALUES: f64 = 92.0;
/// From line to line.
const LINE: f64 = 19.0;
/// The indentation of a device below another one.
const INDENT: f64 = 22.0;
/// The most characters of a line, in the font of commands, and the most lines of a fact.
const LETTERS: usize = 112;
const LINES: usize = 4;

/// How the charts are read.
const READING: [&str; 3] = [
    "Each device has a band of charts. Their x is the time since the first event, in steps of",
    "All scales are linear, except those of latencies. Throughput, completions and latencies are counted when I/O ends.",
    "A device that receives I/O from another one is below it; its offsets are its own.",
];

/// Draws the heading, with facts that the caller knows; returns where it ends.
pub(crate) fn heading(canvas: &mut Canvas, plot: &Plot, facts: &[(&str, String)]) -> f64 {
    let tree = plot.tree();
    let names: Vec<&str> = plot.layers().iter().map(|(_, device)| device.name.as_str()).collect();
    let mut y = 28.0;
    let mut title = lines(&format!("I/O of {}", names.join(", ")), 84);
    for line in title.drain(..) {
        canvas.text((LEFT, y), "h", &line);
        y += 25.0;
    }
    y -= 2.0;
    let own = [("Trace", sums(plot))];
    for (name, value) in facts.iter().chain(&own) {
        canvas.text((LEFT, y), "d", name);
        let class = if *name == "Command" { "c" } else { "" };
        for line in lines(value, LETTERS) {
            canvas.text((VALUES, y), class, &line);
            y += LINE;
        }
    }
    if !tree.is_empty() {
        canvas.text((LEFT, y), "d", "Devices");
        y = devices(canvas, plot, &tree, y);
    }
    canvas.text((LEFT, y), "d", "Reading");
    let step = time(1 << plot.shift);
    for (index, line) in READING.iter().enumerate() {
        let line = if index == 0 { format!("{line} {step}.") } else { (*line).to_owned() };
        canvas.text((VALUES, y), "", &line);
        y += LINE;
    }
    legend(canvas, y);
    y + 30.0
}

/// How long the trace is, and what the picture does not show.
fn sums(plot: &Plot) -> String {
    let totals = plot.summary.totals();
    let events: u64 = totals.iter().map(|totals| totals.events).sum();
    let lost: u64 = totals.iter().map(|totals| totals.lost).sum();
    let mut words = format!("{}, {} events", time(plot.duration_ns), grouped(events));
    if lost > 0 {
        words += &format!(", {} events lost", grouped(lost));
    }
    let hidden = totals.len().saturating_sub(plot.devices.len());
    if hidden > 0 {
        words += &format!(", {hidden} more devices");
    }
    words
}

/// The tree of the devices, with branches.
fn devices(canvas: &mut Canvas, plot: &Plot, tree: &[Branch], mut y: f64) -> f64 {
    let mut branches = String::new();
    // Where the line of the last device of each depth is.
    let mut above: Vec<f64> = Vec::new();
    for Branch { index, depth, untraced } in tree {
        let (number, device) = &plot.devices[*index];
        let x = VALUES + INDENT * *depth as f64;
        above.truncate(*depth);
        if let Some(parent) = above.last() {
            let corner = x - INDENT + 6.0;
            branches +=
                &format!("M{} {}V{}H{}", at(corner), at(parent + 4.0), at(y - 4.5), at(x - 3.0));
        }
        above.push(y);
        let mut text = format!("{} ({number})", device.name);
        if !untraced.is_empty() {
            let all: Vec<String> = untraced.iter().map(ToString::to_string).collect();
            text += &format!(", below {}, not traced", all.join(", "));
        }
        canvas.text((x, y), "", &text);
        y += LINE;
    }
    canvas.path("branch", &branches);
    y
}

/// The meaning of colours and strokes.
fn legend(canvas: &mut Canvas, y: f64) {
    canvas.text((LEFT, y), "d", "Legend");
    let mut x = VALUES;
    let all = [READ, WRITE, DISCARD].map(|kind| (KINDS[kind].0, format!("l {}", KINDS[kind].1)));
    let others = [("merge into a request", "l merge".to_owned()), ("flush", "flush".to_owned())];
    for (name, class) in all.into_iter().chain(others) {
        let (path, width) = match name {
            "flush" => (format!("M{} {}v10", at(x + 2.0), at(y - 9.0)), 6.0),
            _ => (format!("M{} {}h20", at(x), at(y - 4.5)), 20.0),
        };
        canvas.path(&class, &path);
        canvas.text((x + width + 5.0, y), "", name);
        x += width + 5.0 + 7.4 * name.len() as f64 + 14.0;
    }
    canvas.text((x, y), "", "latency of few");
    x += 100.0;
    for level in 1..=4 {
        canvas.path(&format!("swatch late h{level}"), &format!("M{} {}h14", at(x), at(y - 4.5)));
        x += 14.0;
    }
    canvas.text((x + 5.0, y), "", "and of many I/Os");
}

/// The text in lines of at most `most` characters, broken at blanks where there are any; at most [`LINES`] of them.
fn lines(text: &str, most: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let letters: Vec<char> = word.chars().collect();
        for part in letters.chunks(most).map(String::from_iter) {
            match lines.last_mut() {
                Some(line) if line.is_empty() => *line = part,
                Some(line) if line.width() + 1 + part.width() <= most => {
                    line.push(' ');
                    line.push_str(&part);
                }
                Some(_) | None => lines.push(part),
            }
        }
    }
    if lines.len() > LINES {
        lines.truncate(LINES);
        lines[LINES - 1] += " ...";
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_commands_are_broken_between_words() {
        assert_eq!(lines("ashlar trace -w 5 md0", 12), ["ashlar trace", "-w 5 md0"]);
        assert_eq!(lines("a 123456789 b", 4), ["a", "1234", "5678", "9 b"]);
        assert_eq!(lines("", 4), [""]);
        assert_eq!(lines(&"x ".repeat(100), 3)[3], "x x ...");
    }
}
