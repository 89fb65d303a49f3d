//! The picture: for each device a band of charts over one axis of time, and its latencies beside them.

use std::ops::Range;

use crate::Plot;
use crate::device::{Column, DISCARD, Depth, Device, READ, WRITE};
use crate::draw::{Canvas, Steps, at, escape};
use crate::latency::Latencies;
use crate::scale::{self, byte_unit, round_up, short, ticks, time_unit};
use crate::style;

/// The whole picture, and the charts over time in it.
const WIDTH: f64 = 960.0;
const LEFT: f64 = 66.0;
const RIGHT: f64 = 620.0;
/// The charts beside them.
const SIDE_LEFT: f64 = 694.0;
const SIDE_RIGHT: f64 = 926.0;
/// Where the first band begins.
const TOP: f64 = 74.0;
/// From the bottom of a chart to the top of the next, where its heading is.
const GAP: f64 = 28.0;

/// The names and classes of the kinds of I/O.
const KINDS: [(&str, &str); 3] = [("read", "read"), ("write", "write"), ("discard", "discard")];

/// A chart: its place, and what its height means.
struct Chart {
    top: f64,
    bottom: f64,
    low: f64,
    high: f64,
}

impl Chart {
    fn y(&self, value: f64) -> f64 {
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

    fn column(&self, index: u16) -> Range<f64> {
        let from = f64::from(index) * self.column_ns;
        self.x(from)..self.x(from + self.column_ns)
    }
}

/// The picture as an element.
pub(crate) fn picture(plot: &Plot) -> String {
    let times = Times {
        column_ns: (1_u64 << plot.shift) as f64,
        duration_ns: plot.duration_ns.max(1) as f64,
        last: (plot.duration_ns >> plot.shift) as u16,
    };
    let mut canvas = Canvas::default();
    let layers = plot.layers();
    let mut y = TOP;
    for (number, device) in &layers {
        canvas.open(&format!("{} ({number})", device.name));
        canvas.text((12.0, y + 14.0), "b", &device.name);
        canvas.text((RIGHT, y + 14.0), "d e", &totals(device));
        y = band(&mut canvas, &times, device, y + 24.0);
        canvas.close();
    }
    let lost: u64 = plot.summary.totals().iter().map(|totals| totals.lost).sum();
    heading(&mut canvas, plot, lost);
    let names: Vec<_> = layers.iter().map(|(_, device)| device.name.as_str()).collect();
    let height = at(y.max(TOP + 20.0));
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
    let kinds = device.done.iter().zip(["read", "written", "discarded"]);
    let mut all: Vec<String> = kinds
        .filter(|(amount, _)| amount.count > 0)
        .map(|(amount, verb)| {
            format!("{} {verb} by {}", scale::bytes(amount.bytes), scale::grouped(amount.count))
        })
        .collect();
    for (count, what) in [(device.flushes, "flushes"), (device.merges, "merges")] {
        if count > 0 {
            all.push(format!("{} {what}", scale::grouped(count)));
        }
    }
    if all.is_empty() { "nothing completed".to_owned() } else { all.join(", ") }
}

fn heading(canvas: &mut Canvas, plot: &Plot, lost: u64) {
    canvas.text((12.0, 28.0), "h", "I/O over time");
    let mut words = format!("{} traced", scale::time(plot.duration_ns));
    if lost > 0 {
        words += &format!(", {} events lost", scale::grouped(lost));
    }
    let hidden = plot.summary.totals().len().saturating_sub(plot.devices.len());
    if hidden > 0 {
        words += &format!(", {hidden} more devices");
    }
    canvas.text((WIDTH - 12.0, 28.0), "d e", &words);
    let mut x = 12.0;
    let all = KINDS.iter().map(|(name, class)| (*name, format!("l {class}")));
    let others = [("merge", "l merge".to_owned()), ("flush", "flush".to_owned())];
    for (name, class) in all.chain(others) {
        let y = 49.0;
        let path = match name {
            "flush" => format!("M{} {}v9", at(x + 10.0), at(y - 5.0)),
            _ => format!("M{} {}h20", at(x), at(y)),
        };
        canvas.path(&class, &path);
        canvas.text((x + 26.0, y + 4.5), "", name);
        x += 40.0 + 8.0 * name.len() as f64 + 12.0;
    }
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
    let charts = [112.0, 52.0, 52.0, 64.0, 40.0].map(&mut next);
    time_axis(canvas, times, &charts);
    let [first, second, third, fourth, last] = charts;
    offsets(canvas, times, device, first);
    rates(canvas, times, &columns, second);
    completions(canvas, times, &columns, third, device.merges > 0);
    latencies(canvas, times, device, fourth);
    depth(canvas, times, &columns, last, device);
    side(canvas, device, first);
    last.1 + 40.0
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
    frame(canvas, &chart, &format!("offset, {name}"), &labels);
    let row = (bottom - top) / ((high - low) / (device.marks.row_sectors() as f64 * 512.0));
    let column = (times.column_ns / times.duration_ns * (RIGHT - LEFT)).min(RIGHT - LEFT);
    // In units of columns and rows the numbers are short: there are many of them.
    canvas.scale((LEFT, bottom), (column, -row));
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
    frame(canvas, &chart, &format!("throughput, {name}/s"), &labels);
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
    let what =
        if has_merges { "completions and merges per second" } else { "completions per second" };
    frame(canvas, &chart, what, &labels);
    if has_merges {
        line(canvas, times, &chart, columns, "merge", merges);
    }
    kinds(canvas, times, &chart, columns, rate);
}

/// The powers of ten around all durations, as exponents.
fn decades<'a>(all: impl Iterator<Item = &'a Latencies>) -> (f64, f64) {
    let (mut low, mut high) = (u64::MAX, 0);
    for it in all {
        low = low.min(it.min_ns().unwrap_or(u64::MAX));
        high = high.max(it.max_ns());
    }
    if low > high {
        return (3.0, 6.0);
    }
    let (low, high) = (low.max(1) as f64, high.max(1) as f64);
    let (from, to) = (low.log10().floor(), high.log10().ceil());
    (from, to.max(from + 1.0))
}

/// The label of a power of ten of nanoseconds.
fn power(exponent: f64) -> String {
    scale::time(10_f64.powf(exponent) as u64)
}

fn latencies(canvas: &mut Canvas, times: &Times, device: &Device, (top, bottom): (f64, f64)) {
    let measured = || device.columns.values().filter_map(|column| column.q2c.as_ref());
    let (low, high) = decades(measured());
    let chart = Chart { top, bottom, low, high };
    let step = if high - low > 4.0 { 2 } else { 1 };
    let exponents = (low as i32..=high as i32).step_by(step).map(f64::from);
    let labels: Vec<_> = exponents.map(|exponent| (exponent, power(exponent))).collect();
    frame(canvas, &chart, "latency, from queued to completed (Q2C)", &labels);
    let mut x = RIGHT - 168.0;
    let quantiles =
        [("max", "l late max", 1000), ("p99", "l late p99", 990), ("p50", "l late", 500)];
    for (name, class, thousandths) in quantiles {
        canvas.path(class, &format!("M{} {}h20", at(x), at(top - 11.0)));
        canvas.text((x + 24.0, top - 7.0), "d", name);
        x += 58.0;
        let mut steps = Steps::default();
        for (index, column) in &device.columns {
            if let Some(q2c) = &column.q2c {
                let place = times.column(*index);
                let y = chart.y((q2c.quantile_ns(thousandths).max(1) as f64).log10());
                steps.add(place.start, place.end, y);
            }
        }
        canvas.path(class, &steps.path());
    }
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
        true => "requests at the driver, at most",
        false => "I/O under way, at most",
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
    canvas.text((RIGHT + 12.0, bottom + 18.0), "d", name);
}

/// The distribution of the latencies, and their numbers.
fn side(canvas: &mut Canvas, device: &Device, (top, bottom): (f64, f64)) {
    let parts = &device.parts;
    let rows = [
        ("Q2C", "l late", &parts.q2c),
        ("Q2D", "l late q2d", &parts.q2d),
        ("D2C", "l late d2c", &parts.d2c),
    ];
    let shown: Vec<_> = rows.into_iter().filter(|(_, _, it)| it.count() > 0).collect();
    canvas.text((SIDE_LEFT, top - 7.0), "d", "share of I/O by latency, %");
    let (low, high) = decades(shown.iter().map(|(_, _, it)| *it));
    // Halves of octaves, two beyond each end.
    let octave = |exponent: f64| exponent / 2_f64.log10();
    let (from, to) = (octave(low).floor() as u32, (octave(high).ceil() as u32).clamp(1, 41));
    let x = |octaves: f64| {
        let part = (octaves - octave(low)) / (octave(high) - octave(low));
        SIDE_LEFT + part.clamp(0.0, 1.0) * (SIDE_RIGHT - SIDE_LEFT)
    };
    let shares: Vec<Vec<f64>> = shown
        .iter()
        .map(|(_, _, it)| {
            let all = it.half_octaves(from, to.max(from + 1));
            all.iter().map(|count| 100.0 * *count as f64 / it.count() as f64).collect()
        })
        .collect();
    let most = shares.iter().flatten().copied().fold(0.0, f64::max);
    let chart = Chart { top, bottom, low: 0.0, high: round_up(most).min(100.0) };
    let mut grid = format!("M{} {}H{}", at(SIDE_LEFT), at(bottom), at(SIDE_RIGHT));
    for value in [chart.high / 2.0, chart.high] {
        let y = chart.y(value);
        grid += &format!("M{} {}H{}", at(SIDE_LEFT), at(y), at(SIDE_RIGHT));
        canvas.text((SIDE_LEFT - 5.0, y + 4.5), "n e", &short(value));
    }
    let step = ((high - low) as usize).div_ceil(4).max(1);
    for exponent in (low as i32..=high as i32).step_by(step) {
        let place = x(octave(f64::from(exponent)));
        grid += &format!("M{} {}V{}", at(place), at(top), at(bottom + 4.0));
        canvas.text((place, bottom + 18.0), "n m", &power(f64::from(exponent)));
    }
    canvas.path("grid", &grid);
    for ((_, class, _), shares) in shown.iter().zip(&shares) {
        let mut steps = Steps::default();
        for (index, share) in (0..).zip(shares) {
            let left = f64::from(from) + f64::from(index) / 2.0;
            steps.add(x(left), x(left + 0.5), chart.y(*share));
        }
        canvas.path(class, &steps.path());
    }
    let columns = [SIDE_LEFT + 86.0, SIDE_LEFT + 140.0, SIDE_LEFT + 197.0, WIDTH - 12.0];
    let mut y = bottom + 52.0;
    for (x, heading) in columns.iter().zip(["mean", "p50", "p99", "max"]) {
        canvas.text((*x, y), "d e", heading);
    }
    for (name, class, it) in &shown {
        y += 20.0;
        canvas.path(class, &format!("M{} {}h20", at(SIDE_LEFT - 26.0), at(y - 4.5)));
        canvas.text((SIDE_LEFT, y), "", name);
        let numbers = [it.mean_ns(), it.quantile_ns(500), it.quantile_ns(990), it.max_ns()];
        for (x, ns) in columns.iter().zip(numbers) {
            canvas.text((*x, y), "n e", &compact(ns));
        }
    }
}

/// A duration with two or three digits: there are four in a row.
fn compact(ns: u64) -> String {
    let (name, size) = time_unit(ns as f64);
    let value = ns as f64 / size;
    let digits = usize::from(value < 10.0 && size > 1.0);
    format!("{value:.digits$} {name}")
}
