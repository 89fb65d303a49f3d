//! What the table shows, and how keys change it.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::Options;
use crate::columns::Column;
use crate::keys::{Command, command};
use crate::rates::{DeviceRates, Interval};

/// The shortest and the longest time between samples.
pub(crate) const DELAYS: (Duration, Duration) =
    (Duration::from_millis(100), Duration::from_secs(3600));

/// What the program does after a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// It draws.
    Draw,
    /// It changes the sampling interval, and draws.
    Pace(Duration),
    /// It ends.
    Quit,
}

/// A line that the user types.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Prompt {
    Filter,
    Search,
    Delay,
}

impl Prompt {
    /// The word before the text.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Filter => "Filter",
            Self::Search => "Search",
            Self::Delay => "Seconds between samples",
        }
    }
}

/// A line of the table: a device, by its index, and how many devices it is below.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Row {
    pub(crate) index: usize,
    pub(crate) depth: usize,
}

/// See the module text.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) sort: Column,
    pub(crate) is_inverted: bool,
    pub(crate) is_tree: bool,
    pub(crate) hides_idle: bool,
    pub(crate) is_paused: bool,
    pub(crate) has_help: bool,
    pub(crate) delay: Duration,
    pub(crate) filter: String,
    /// The line being typed.
    pub(crate) prompt: Option<(Prompt, String)>,
    /// The name of the selected device, and the line that it was in.
    selected: Option<String>,
    selected_line: usize,
    /// The first line that is shown.
    first: usize,
}

impl View {
    pub(crate) fn new(options: &Options) -> Self {
        Self {
            sort: options.sort,
            is_inverted: false,
            is_tree: false,
            hides_idle: false,
            is_paused: false,
            has_help: false,
            delay: options.delay,
            filter: options.filter.clone(),
            prompt: None,
            selected: None,
            selected_line: 0,
            first: 0,
        }
    }

    /// The lines of the table.
    pub(crate) fn rows(&self, devices: &[DeviceRates]) -> Vec<Row> {
        let mut order: Vec<usize> = (0..devices.len()).collect();
        order.sort_by(|one, other| {
            let order = self.sort.order(&devices[*one], &devices[*other]);
            if self.is_inverted { order.reverse() } else { order }
        });
        let mut rows = if self.is_tree {
            tree(devices, &order)
        } else {
            order.into_iter().map(|index| Row { index, depth: 0 }).collect()
        };
        rows.retain(|row| {
            let device = &devices[row.index];
            matches(device, &self.filter) && !(self.hides_idle && device.is_idle())
        });
        rows
    }

    /// The line that is selected.
    pub(crate) fn selected_line(&self, devices: &[DeviceRates], rows: &[Row]) -> Option<usize> {
        let selected = self.selected.as_ref();
        let found = rows.iter().position(|row| Some(&devices[row.index].name) == selected);
        // When a device disappears, the selection stays on its line.
        found.or_else(|| Some(self.selected_line.min(rows.len().checked_sub(1)?)))
    }

    /// The first line to show in `height` lines: the selected one is among them.
    pub(crate) fn first_line(&mut self, selected: usize, rows: usize, height: usize) -> usize {
        let most = rows.saturating_sub(height);
        let least = (selected + 1).saturating_sub(height);
        self.first = self.first.clamp(least, selected.max(least)).min(most.max(least));
        self.first
    }

    fn select(&mut self, devices: &[DeviceRates], rows: &[Row], line: usize) {
        let line = line.min(rows.len().saturating_sub(1));
        self.selected = rows.get(line).map(|row| devices[row.index].name.clone());
        self.selected_line = line;
    }

    /// Handles a key. `height` is the number of lines of the table.
    pub(crate) fn key(
        &mut self,
        key: KeyEvent,
        interval: Option<&Interval>,
        height: usize,
    ) -> Outcome {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            let ends = key.code == KeyCode::Char('c');
            return if ends { Outcome::Quit } else { Outcome::Draw };
        }
        // Terminals send Alt as an Esc before the key, so an Esc that is followed by a key at once is taken for Alt.
        if key.modifiers.contains(KeyModifiers::ALT) {
            self.key(KeyEvent::from(KeyCode::Esc), interval, height);
            return self.key(KeyEvent::from(key.code), interval, height);
        }
        let devices = interval.map_or(&[][..], |interval| &interval.devices);
        if let Some((prompt, text)) = self.prompt.take() {
            return self.typed(prompt, text, key.code, devices);
        }
        command(key.code).map_or(Outcome::Draw, |command| self.obey(command, devices, height))
    }

    fn obey(&mut self, command: Command, devices: &[DeviceRates], height: usize) -> Outcome {
        let rows = self.rows(devices);
        let line = self.selected_line(devices, &rows).unwrap_or(0);
        let page = height.max(1);
        match command {
            Command::Quit => return Outcome::Quit,
            Command::Help => self.has_help = !self.has_help,
            Command::Leave if self.has_help => self.has_help = false,
            Command::Leave => self.filter.clear(),
            Command::Search => self.prompt = Some((Prompt::Search, String::new())),
            Command::Filter => self.prompt = Some((Prompt::Filter, self.filter.clone())),
            Command::Delay => self.prompt = Some((Prompt::Delay, String::new())),
            Command::Tree => self.is_tree = !self.is_tree,
            Command::SortNext => self.sort = self.sort.neighbour(true),
            Command::SortPrevious => self.sort = self.sort.neighbour(false),
            Command::Invert => self.is_inverted = !self.is_inverted,
            Command::Pause => self.is_paused = !self.is_paused,
            Command::Idle => self.hides_idle = !self.hides_idle,
            Command::Slower => return self.pace(self.delay.mul_f64(1.5)),
            Command::Faster => return self.pace(self.delay.div_f64(1.5)),
            Command::Up => self.select(devices, &rows, line.saturating_sub(1)),
            Command::Down => self.select(devices, &rows, line + 1),
            Command::PageUp => self.select(devices, &rows, line.saturating_sub(page)),
            Command::PageDown => self.select(devices, &rows, line + page),
            Command::Home => self.select(devices, &rows, 0),
            Command::End => self.select(devices, &rows, rows.len()),
        }
        Outcome::Draw
    }

    fn pace(&mut self, delay: Duration) -> Outcome {
        let (least, most) = DELAYS;
        // Whole tenths of a second, as they are shown.
        let tenths = (delay.as_secs_f64() * 10.0).round().max(1.0);
        self.delay = Duration::from_secs_f64(tenths / 10.0).clamp(least, most);
        Outcome::Pace(self.delay)
    }

    /// A key while a line is typed.
    fn typed(
        &mut self,
        prompt: Prompt,
        mut text: String,
        code: KeyCode,
        devices: &[DeviceRates],
    ) -> Outcome {
        if code == KeyCode::Enter {
            let delay = text.parse().ok().filter(|_| prompt == Prompt::Delay);
            let delay = delay.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
            return delay.map_or(Outcome::Draw, |delay| self.pace(delay));
        }
        if code == KeyCode::Esc {
            if prompt == Prompt::Filter {
                self.filter.clear();
            }
            return Outcome::Draw;
        }
        if let KeyCode::Char(c) = code {
            text.push(c);
        } else if code == KeyCode::Backspace {
            text.pop();
        }
        match prompt {
            Prompt::Filter => self.filter.clone_from(&text),
            Prompt::Search => self.find(&text, devices, code == KeyCode::F(3)),
            Prompt::Delay => {}
        }
        self.prompt = Some((prompt, text));
        Outcome::Draw
    }

    /// Selects the device with `text` in its name, from the selected one on, or behind it.
    fn find(&mut self, text: &str, devices: &[DeviceRates], behind: bool) {
        let rows = self.rows(devices);
        let line = self.selected_line(devices, &rows).unwrap_or(0) + usize::from(behind);
        let all = (line..rows.len()).chain(0..line.min(rows.len()));
        let found = all.into_iter().find(|line| {
            let device = &devices[rows[*line].index];
            [device.title(), &device.name].iter().any(|name| has(name, text))
        });
        if let Some(found) = found {
            self.select(devices, &rows, found);
        }
    }
}

/// Whether a text contains another one, ignoring case.
fn has(text: &str, part: &str) -> bool {
    text.to_lowercase().contains(&part.to_lowercase())
}

/// Whether a device matches a filter.
pub(crate) fn matches(device: &DeviceRates, filter: &str) -> bool {
    let DeviceRates { name, kind, usage, .. } = device;
    [name.as_str(), device.title(), kind, usage].iter().any(|text| has(text, filter))
}

/// Devices below those that are made of them; one with several above it is below the first of them.
fn tree(devices: &[DeviceRates], order: &[usize]) -> Vec<Row> {
    let places: HashMap<&str, usize> =
        devices.iter().enumerate().map(|(index, device)| (device.name.as_str(), index)).collect();
    let lower: HashSet<&str> =
        devices.iter().flat_map(|device| &device.below).map(String::as_str).collect();
    let mut position = vec![0; devices.len()];
    for (place, index) in order.iter().enumerate() {
        position[*index] = place;
    }
    let tops = order.iter().filter(|index| !lower.contains(devices[**index].name.as_str()));
    // What is to be listed, the next one last.
    let mut left: Vec<Row> = tops.rev().map(|index| Row { index: *index, depth: 0 }).collect();
    let (mut rows, mut seen) = (Vec::new(), HashSet::new());
    while let Some(row) = left.pop() {
        if !seen.insert(row.index) {
            continue;
        }
        let below = devices[row.index].below.iter();
        let mut below: Vec<usize> =
            below.filter_map(|name| places.get(name.as_str()).copied()).collect();
        below.sort_unstable_by_key(|index| std::cmp::Reverse(position[*index]));
        left.extend(below.into_iter().map(|index| Row { index, depth: row.depth + 1 }));
        rows.push(row);
    }
    rows
}
