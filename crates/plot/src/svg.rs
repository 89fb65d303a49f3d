//! The picture: for each device a band of charts over one axis of time.

use std::ops::Range;

use crate::Plot;
use crate::device::{Column, DISCARD, Depth, Device, READ, WRITE};
use crate::draw::{Canvas, Steps, at, escape};
use crate::heading::heading;
use crate::scale::{self, byte_unit, round_up, short, ticks, time_unit};
use crate::side::{Decades, power, side};
use crate::style;

/// The whole picture.
pub(crate) const WIDTH: f64 = 960.0;
/// The charts over time.
const LEFT: f64 = 66.0;
const RIGHT: f64 = 620.0;
/// From the bottom of a chart to the top of the next, where its heading is.
const GAP: f64 = 28.0;

/// The names and classes of the kinds of I/O.
pub(crate) const KINDS: [(&str, &str); 3] =
    [("read", "read"), ("write", "write"), ("discard", "discard")];

/// A chart: its place, and what its height means.
pub(crate) struct Chart {
    pub(crate) top: f64,
    pub(crate) bottom: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Chart {
    pub(crate) fn y(&self, value: f64) -> f64 {
        let part = (value.clamp(self.low, self.high) - self.low) / (self.high - self.low);
        self.bottom - part * (self.bottom - self.top)
    }
}

/// The axis of time.
struct Times {
    column_ns: f64,
    duration_ns: f64,
    /// The last column.
    last: u16,
}

impl Times {
    fn x(&self, ns: f64) -> f64 {
        LEFT + (ns / self.duration_ns).min(1.0) * (RIGHT - LEFT)
    }

    /// How wide a column is.
    fn column_width(&self) -> f64 {
        (self.column_ns / self.duration_ns * (RIGHT - LEFT)).min(RIGHT - LEFT)
    }

    fn column(&self, index: u16) -> Range<f64> {
        let from = f64::from(index) * self.column_ns;
        self.x(from)..self.x(from + self.column_ns)
    }
}

/// The picture as an element.
pub(crate) fn picture(plot: &Plot, facts: &[(&str, String)]) -> String {
    let times = Times {
        column_ns: (1_u64 << plot.shift) as f64,
        duration_ns: plot.duration_ns.max(1) as f64,
        last: (plot.duration_ns >> plot.shift) as u16,
    };
    let mut canvas = Canvas::default();
    let layers = plot.layers();
    let mut y = heading(&mut canvas, plot, facts);
    for (number, device) in &layers {
        canvas.open(&format!("{} ({number})", device.name));
        canvas.text((12.0, y + 14.0), "b", &format!("{} ({number})", device.name));
        canvas.text((WIDTH - 12.0, y + 14.0), "d e", &totals(device));
        y = band(&mut canvas, &times, device, y + 24.0);
        canvas.close();
    }
    let names: Vec<_> = layers.iter().map(|(_, device)| device.name.as_str()).collect();
    let height = at(y);
    let description = format!(
        "Offsets, throughput, completions, latencies and queue depth over {}. {}",
        scale::time(plot.duration_ns),
        layers
            .iter()
            .map(|(_, device)| format!("{}: {}.", device.name, totals(device)))
            .collect::<Vec<_>>()
            .join(" ")
    );
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" role=\"img\" aria-labelledby=\"title desc\">\n\
         <title id=\"title\">I/O of {}</title>\n<desc id=\"desc\">{}</desc>\n\
         <style>{}</style>\n<rect class=\"paper\" width=\"{WIDTH}\" height=\"{height}\"/>\n{}</svg>\n",
        escape(&names.join(", ")),
        escape(&description),
        style::PICTURE,
        canvas.out
    )
}

/// What a device did, in words.
fn totals(device: &Device) -> String {
    let counted = |count: u64, one: &str, many: &str| {
        format!("{} {}", scale::grouped(count), if count == 1 { one } else { many })
    };
    let words = [("read", "reads"), ("write", "writes"), ("discard", "discards")];
    let kinds = device.done.iter().zip(words).filter(|(amount, _)| amount.count > 0);
    let mut all: Vec<String> = kinds
        .map(|(amount, (one, many))| {
            format!("{} in {}", scale::bytes(amount.bytes), counted(amount.count, one, many))
        })
        .collect();
    let others = [(device.flushes, "flush", "flushes"), (device.merges, "merge", "merges")];
    let others = others.into_iter().filter(|(count, ..)| *count > 0);
    all.extend(others.map(|(count, one, many)| counted(count, one, many)));
    if all.is_empty() { "nothing completed".to_owned() } else { all.join(", ") }
}

/// The charts of a device; returns where they end.
fn band(canvas: &mut Canvas, times: &Times, device: &Device, top: f64) -> f64 {
    let columns = filled(device, times.last);
    let mut y = top + 16.0;
    let mut next = |height: f64| {
        let top = y;
        y += height + GAP;
        (top, top + height)
    };
    let charts = [112.0, 52.0, 52.0, 84.0, 40.0].map(&mut next);
    time_axis(canvas, times, &charts);
    let [first, second, third, fourth, last] = charts;
    offsets(canvas, times, device, first);
    rates(canvas, times, &columns, second);
    completions(canvas, times, &columns, third, device.merges > 0);
    latencies(canvas, times, device, fourth);
    depth(canvas, times, &columns, last, device);
    side(canvas, device, first);
    last.1 + 62.0
}

/// All columns up to the last of the trace; one without events has the depths at the end of the
/// previous one.
fn filled(device: &Device, last: u16) -> Vec<Column> {
    let mut all: Vec<Column> = Vec::new();
    let after = |before: Option<&Column>| {
        let depths = before.map(|it| it.depths.map(|it| Depth { most: it.last, last: it.last }));
        Column { depths: depths.unwrap_or_default(), ..Column::default() }
    };
    for (at, column) in &device.columns {
        let quiet = after(all.last());
        all.resize(usize::from(*at), quiet);
        all.push(column.clone());
    }
    let quiet = after(all.last());
    all.resize(usize::from(last) + 1, quiet);
    all
}

/// Draws the frame, the heading, and the labels of the vertical axis with its grid.
fn frame(canvas: &mut Canvas, chart: &Chart, heading: &str, labels: &[(f64, String)]) {
    canvas.text((LEFT, chart.top - 7.0), "d", heading);
    let mut grid = format!("M{} {}H{}", at(LEFT), at(chart.bottom), at(RIGHT));
    for (value, label) in labels {
        let y = chart.y(*value);
        grid += &format!("M{} {}H{}", at(LEFT), at(y), at(RIGHT));
        canvas.text((LEFT - 7.0, y + 4.5), "n e", label);
    }
    canvas.path("grid", &grid);
}

fn offsets(canvas: &mut Canvas, times: &Times, device: &Device, (top, bottom): (f64, f64)) {
    let (low, high) = device.marks.range().unwrap_or((0, 8));
    let (low, high) = (low as f64 * 512.0, high as f64 * 512.0);
    let (name, size) = byte_unit(high);
    let chart = Chart { top, bottom, low, high };
    let steps = ticks(low / size, high / size, 4);
    // A narrow range far from the start needs more digits than the usual three.
    let digits = match steps[..] {
        [first, second, ..] => (-(second - first).log10().floor()).clamp(0.0, 6.0) as usize,
        [..] => 0,
    };
    let labels: Vec<_> =
        steps.iter().map(|value| (value * size, format!("{value:.digits$}"))).collect();
    frame(canvas, &chart, &format!("offset on the device, {name}: where I/O was queued"), &labels);
    let row = (bottom - top) / ((high - low) / (device.marks.row_sectors() as f64 * 512.0));
    // In units of columns and rows the numbers are short: there are many of them.
    canvas.scale((LEFT, bottom), (times.column_width(), -row));
    for kind in [DISCARD, READ, WRITE] {
        let (mut path, mut pen) = (String::new(), (0, 0));
        for (index, column, count) in device.marks.runs(kind) {
            let (x, y) = (i64::from(column), index as i64);
            path += &format!("m{} {}h{count}", x - pen.0, y - pen.1);
            pen = (x + i64::from(count), y);
        }
        canvas.path(&format!("mark {}", KINDS[kind].1), &path);
    }
    canvas.close();
    let mut path = String::new();
    for (index, _) in device.columns.iter().filter(|(_, column)| column.flushes > 0) {
        path += &format!("M{} {}v7", at(times.column(*index).start), at(bottom));
    }
    canvas.path("flush", &path);
}

/// A line for each kind that has any of it.
fn kinds(
    canvas: &mut Canvas,
    times: &Times,
    chart: &Chart,
    columns: &[Column],
    value: impl Fn(&Column, usize) -> f64,
) {
    for kind in [DISCARD, READ, WRITE] {
        if columns.iter().any(|column| value(column, kind) > 0.0) {
            line(canvas, times, chart, columns, KINDS[kind].1, |column| value(column, kind));
        }
    }
}

fn line(
    canvas: &mut Canvas,
    times: &Times,
    chart: &Chart,
    columns: &[Column],
    class: &str,
    value: impl Fn(&Column) -> f64,
) {
    let mut steps = Steps::default();
    for (index, column) in (0..).zip(columns) {
        let place = times.column(index);
        steps.add(place.start, place.end, chart.y(value(column)));
    }
    canvas.path(&format!("l {class}"), &steps.path());
}

/// The largest value of all columns, at least 1.
fn largest(columns: &[Column], value: impl Fn(&Column, usize) -> f64) -> f64 {
    let all = columns.iter().flat_map(|column| (0..3).map(|kind| value(column, kind)));
    all.fold(0.0, f64::max)
}

fn rates(canvas: &mut Canvas, times: &Times, columns: &[Column], (top, bottom): (f64, f64)) {
    let seconds = times.column_ns / 1e9;
    let rate = |column: &Column, kind: usize| column.done[kind].bytes as f64 / seconds;
    let most = largest(columns, rate);
    let (name, size) = byte_unit(most);
    let high = round_up(most / size);
    let chart = Chart { top, bottom, low: 0.0, high };
    let labels = [0.0, high / 2.0, high].map(|value| (value, short(value)));
    frame(canvas, &chart, &format!("throughput, {name} per second"), &labels);
    kinds(canvas, times, &chart, columns, |column, kind| rate(column, kind) / size);
}

fn completions(
    canvas: &mut Canvas,
    times: &Times,
    columns: &[Column],
    (top, bottom): (f64, f64),
    has_merges: bool,
) {
    let seconds = times.column_ns / 1e9;
    let rate = |column: &Column, kind: usize| column.done[kind].count as f64 / seconds;
    let merges = |column: &Column| column.merges as f64 / seconds;
    let most = columns.iter().map(merges).fold(largest(columns, rate), f64::max);
    let high = round_up(most);
    let chart = Chart { top, bottom, low: 0.0, high };
    let labels = [0.0, high / 2.0, high].map(|value| (value, scale::count(value)));
    let what = if has_merges {
        "I/Os completed, and merged, per second"
    } else {
        "I/Os completed per second"
    };
    frame(canvas, &chart, what, &labels);
    if has_merges {
        line(canvas, times, &chart, columns, "merge", merges);
    }
    kinds(canvas, times, &chart, columns, rate);
}

/// The distribution of the latencies of each column, as marks that are darker where there are more.
fn latencies(canvas: &mut Canvas, times: &Times, device: &Device, (top, bottom): (f64, f64)) {
    let measured =
        || device.columns.iter().filter_map(|(at, column)| Some((*at, column.q2c.as_ref()?)));
    let decades = Decades::of(measured().map(|(_, it)| it));
    let (from, to) = decades.octaves();
    let per_octave = 2_f64.log10();
    let chart =
        Chart { top, bottom, low: f64::from(from) * per_octave, high: f64::from(to) * per_octave };
    let step = if decades.high - decades.low > 4.0 { 2 } else { 1 };
    let exponents = (decades.low as i32..=decades.high as i32).step_by(step).map(f64::from);
    let labels: Vec<_> = exponents.map(|exponent| (exponent, power(exponent))).collect();
    frame(
        canvas,
        &chart,
        "latency, logarithmic: from queued to completed (Q2C), of the I/O that ended",
        &labels,
    );
    let cells: Vec<(u16, Vec<u64>)> =
        measured().map(|(at, it)| (at, it.half_octaves(from, to))).collect();
    let most = cells.iter().flat_map(|(_, counts)| counts).copied().max().unwrap_or(0);
    let row = (bottom - top) / f64::from(2 * (to - from));
    canvas.scale((LEFT, bottom), (times.column_width(), -row));
    for level in 1..=LEVELS {
        let (mut path, mut pen) = (String::new(), (0, 0));
        for index in 0..2 * (to - from) as usize {
            for (at, _) in cells.iter().filter(|(_, counts)| darkness(counts[index], most) == level)
            {
                let (x, y) = (i64::from(*at), index as i64);
                path += &format!("m{} {}h1", x - pen.0, y - pen.1);
                pen = (x + 1, y);
            }
        }
        canvas.path(&format!("mark late h{level}"), &path);
    }
    canvas.close();
}

/// The levels of darkness.
const LEVELS: u32 = 4;

/// How dark a mark is that stands for `count` of at most `most` I/Os: 0 for nothing, by the logarithm.
fn darkness(count: u64, most: u64) -> u32 {
    if count == 0 || most <= 1 {
        return if count == 0 { 0 } else { LEVELS };
    }
    let part = (count as f64).ln() / (most as f64).ln();
    1 + (part * f64::from(LEVELS - 1)).round() as u32
}

fn depth(
    canvas: &mut Canvas,
    times: &Times,
    columns: &[Column],
    (top, bottom): (f64, f64),
    device: &Device,
) {
    let which = device.depth();
    let most = columns.iter().map(|column| column.depths[which].most).max().unwrap_or(0);
    let high = round_up(f64::from(most.max(1)));
    let chart = Chart { top, bottom, low: 0.0, high };
    let labels = [0.0, high].map(|value| (value, scale::count(value)));
    let what = match device.has_driver {
        true => "queue depth: the most requests that the driver had at once",
        false => "queue depth: the most I/Os under way at once",
    };
    frame(canvas, &chart, what, &labels);
    line(canvas, times, &chart, columns, "late", |column| f64::from(column.depths[which].most));
}

/// The labels below the last chart, and the grid of all.
fn time_axis(canvas: &mut Canvas, times: &Times, charts: &[(f64, f64)]) {
    let bottom = charts.last().map_or(0.0, |(_, bottom)| *bottom);
    let (name, size) = time_unit(times.duration_ns);
    let mut grid = String::new();
    for value in ticks(0.0, times.duration_ns / size, 8) {
        let x = times.x(value * size);
        for (top, bottom) in charts {
            grid += &format!("M{} {}V{}", at(x), at(*top), at(*bottom));
        }
        canvas.text((x, bottom + 18.0), "n m", &short(value));
    }
    canvas.path("grid", &grid);
    let title = format!("time since the first event, {name}");
    canvas.text(((LEFT + RIGHT) / 2.0, bottom + 35.0), "d m", &title);
}
