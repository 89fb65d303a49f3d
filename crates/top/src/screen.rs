//! The live table as cells of a terminal.

use ashlar_view::graph::wrapped;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};

use crate::columns::{Column, cell, fitting};
use crate::head::{self, Tone};
use crate::keys::BINDINGS;
use crate::rates::{DeviceRates, Interval};
use crate::view::{Row, View};

/// The indentation of a device below another one, in columns.
const INDENT: usize = 2;
/// The least height of the table, with its headings.
const LEAST_LINES: u16 = 4;

/// The styles.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Theme {
    has_colours: bool,
}

impl Theme {
    /// With colours, or with bold and reversed text only.
    pub(crate) const fn new(has_colours: bool) -> Self {
        Self { has_colours }
    }

    fn coloured(self, colour: Color) -> Style {
        if self.has_colours { Style::new().fg(colour) } else { Style::new() }
    }

    fn of(self, tone: Tone) -> Style {
        match tone {
            Tone::Title => Style::new().add_modifier(Modifier::BOLD),
            Tone::Plain => Style::new(),
            Tone::Bad => self.coloured(Color::Red).add_modifier(Modifier::BOLD),
            Tone::Work => self.coloured(Color::Green),
        }
    }

    fn bar(self) -> Style {
        if self.has_colours {
            Style::new().fg(Color::Black).bg(Color::Green)
        } else {
            Style::new().add_modifier(Modifier::REVERSED)
        }
    }

    fn selected(self) -> Style {
        if self.has_colours {
            Style::new().fg(Color::Black).bg(Color::Cyan)
        } else {
            Style::new().add_modifier(Modifier::REVERSED)
        }
    }
}

/// Lines of a terminal, from above.
struct Lines<'a> {
    buffer: &'a mut Buffer,
    area: Rect,
    next: u16,
}

impl Lines<'_> {
    fn left(&self) -> u16 {
        self.area.height.saturating_sub(self.next)
    }

    /// Writes a line, if there is one left, and styles all of it.
    fn put(&mut self, text: &str, style: Style) {
        if self.left() > 0 {
            let (x, y) = (self.area.x, self.area.y + self.next);
            self.buffer.set_style(Rect { x, y, width: self.area.width, height: 1 }, style);
            self.buffer.set_stringn(x, y, text, self.area.width.into(), style);
            self.next += 1;
        }
    }
}

/// Draws everything; returns the number of lines of the table, for the keys that move by pages.
pub(crate) fn draw(
    buffer: &mut Buffer,
    view: &mut View,
    interval: Option<&Interval>,
    theme: Theme,
) -> usize {
    let whole = buffer.area;
    let inner = Rect { height: whole.height.saturating_sub(1), ..whole };
    let mut lines = Lines { buffer, area: inner, next: 0 };
    let mut height = 0;
    match interval {
        _ if view.has_help => help(&mut lines, theme),
        Some(interval) => height = table(&mut lines, view, interval, theme),
        None => lines.put("waiting for the second sample", Style::new()),
    }
    let last = Rect { y: whole.y + inner.height, height: whole.height.min(1), ..whole };
    footer(&mut Lines { buffer, area: last, next: 0 }, view, theme);
    height
}

fn help(lines: &mut Lines<'_>, theme: Theme) {
    lines.put("ashlar top: what the devices of a daemon do", theme.of(Tone::Title));
    for binding in BINDINGS.iter().filter(|binding| !binding.help.is_empty()) {
        lines.put(&format!("{:>9}  {}", binding.names, binding.help), Style::new());
    }
    let more = [
        "",
        "RD-MB/S, WR-MB/S: millions of bytes in each second. QUEUE: requests under way.",
        "P50, P99: the time that 50 and 99 of 100 requests did not exceed; > is more.",
        "MERGE: the share that was merged into others. BUSY: the share of the time with",
        "requests under way, added up over the daemon's threads.",
    ];
    for line in more {
        lines.put(line, Style::new());
    }
}

fn table(lines: &mut Lines<'_>, view: &mut View, interval: &Interval, theme: Theme) -> usize {
    let width = usize::from(lines.area.width);
    for (tone, text) in head::lines(interval) {
        for line in continued(&text, width) {
            if lines.left() > LEAST_LINES {
                lines.put(&line, theme.of(tone));
            }
        }
    }
    let devices = &interval.devices;
    let rows = view.rows(devices);
    let longest = rows
        .iter()
        .map(|row| row.depth * INDENT + Column::Device.text(&devices[row.index]).chars().count());
    let columns = fitting(width, longest.max().unwrap_or(0));
    let heading = columns.iter().map(|(column, width)| cell(*column, *width, column.heading()));
    let heading = heading.collect::<Vec<_>>().join(" ");
    lines.put(&heading, theme.bar());
    if let Some(last) = lines.next.checked_sub(1) {
        mark_sorted(lines, &columns, view.sort, last, theme);
    }
    let height = usize::from(lines.left());
    let Some(selected) = view.selected_line(devices, &rows) else {
        let why = if devices.is_empty() { "there are no devices" } else { "no device is shown" };
        lines.put(why, Style::new());
        return height;
    };
    let first = view.first_line(selected, rows.len(), height);
    for (line, row) in rows.iter().enumerate().skip(first).take(height) {
        let style = match line == selected {
            true => theme.selected(),
            false if devices[row.index].state != "answering" => theme.of(Tone::Bad),
            false => Style::new(),
        };
        lines.put(&line_of(&devices[row.index], *row, &columns), style);
    }
    height
}

/// A text in lines of this width: what does not fit follows, indented.
fn continued(text: &str, width: usize) -> Vec<String> {
    if text.chars().count() <= width {
        return vec![text.to_owned()];
    }
    let words: Vec<&str> = text.split(' ').collect();
    let mut lines = wrapped(&words, width.saturating_sub(INDENT));
    for line in lines.iter_mut().skip(1) {
        line.insert_str(0, &" ".repeat(INDENT));
    }
    lines
}

/// Shows by which column the table is sorted.
fn mark_sorted(
    lines: &mut Lines<'_>,
    columns: &[(Column, usize)],
    sort: Column,
    line: u16,
    theme: Theme,
) {
    let mut x = 0;
    for (column, width) in columns {
        if *column == sort {
            let style = match theme.has_colours {
                true => theme.selected(),
                false => Style::new().add_modifier(Modifier::UNDERLINED),
            };
            let (x, width) = (u16::try_from(x).unwrap_or(u16::MAX), *width as u16);
            let area = Rect { x, y: lines.area.y + line, width, height: 1 };
            lines.buffer.set_style(area.intersection(lines.area), style);
        }
        x += width + 1;
    }
}

fn line_of(device: &DeviceRates, row: Row, columns: &[(Column, usize)]) -> String {
    let cells = columns.iter().map(|(column, width)| {
        let mut text = column.text(device);
        if *column == Column::Device {
            text.insert_str(0, &" ".repeat(row.depth * INDENT));
        }
        cell(*column, *width, &text)
    });
    cells.collect::<Vec<_>>().join(" ")
}

fn footer(lines: &mut Lines<'_>, view: &View, theme: Theme) {
    if let Some((prompt, text)) = &view.prompt {
        return lines.put(&format!("{}: {text}_", prompt.word()), theme.bar());
    }
    let mut states = vec![format!("{:.1} s", view.delay.as_secs_f64())];
    states.extend(view.is_paused.then(|| "paused".to_owned()));
    states.extend(view.is_inverted.then(|| "inverted".to_owned()));
    states.extend(view.hides_idle.then(|| "no idle devices".to_owned()));
    states.extend((!view.filter.is_empty()).then(|| format!("filter: {}", view.filter)));
    let mut text = format!("[{}]", states.join(", "));
    // A label that is cut would name another key.
    for label in BINDINGS.iter().map(|binding| binding.label).filter(|label| !label.is_empty()) {
        if text.chars().count() + 2 + label.len() <= usize::from(lines.area.width) {
            text += "  ";
            text += label;
        }
    }
    lines.put(&text, theme.bar());
}
