//! What stands beside the charts over time: how the latencies are spread, and their percentiles.

use crate::device::Device;
use crate::draw::{Canvas, Steps, at};
use crate::latency::Latencies;
use crate::scale::{self, grouped, round_up, short, time_unit};
use crate::svg::{Chart, WIDTH};

/// The chart of the distribution.
const LEFT: f64 = 694.0;
const RIGHT: f64 = 926.0;
/// The table below it, with the right edges of its columns.
const TABLE_LEFT: f64 = 652.0;
const EDGES: [f64; 3] = [792.0, 870.0, WIDTH - 12.0];
/// From row to row.
const LINE: f64 = 18.0;

/// The percentiles of latencies: their names, and the share of the I/O in parts of a thousand.
pub(crate) const QUANTILES: [(&str, u64); 5] =
    [("p50", 500), ("p90", 900), ("p99", 990), ("p99.9", 999), ("max", 1000)];

/// What the parts of a latency are.
const MEANINGS: [&str; 3] = [
    "Q2C: from queued to completed",
    "Q2D: from queued to sent to the driver",
    "D2C: in the driver and in the disk",
];

/// The powers of ten around durations in nanoseconds, as exponents.
pub(crate) struct Decades {
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Decades {
    /// Those around all of these; from 1 us to 1 ms if nothing was measured.
    pub(crate) fn of<'a>(all: impl Iterator<Item = &'a Latencies>) -> Self {
        let (mut low, mut high) = (u64::MAX, 0);
        for it in all {
            low = low.min(it.min_ns().unwrap_or(u64::MAX));
            high = high.max(it.max_ns());
        }
        if low > high {
            return Self { low: 3.0, high: 6.0 };
        }
        let (low, high) =
            ((low.max(1) as f64).log10().floor(), (high.max(1) as f64).log10().ceil());
        Self { low, high: high.max(low + 1.0) }
    }

    /// The powers of two around them.
    pub(crate) fn octaves(&self) -> (u32, u32) {
        let octave = |exponent: f64| exponent / 2_f64.log10();
        let (from, to) = (octave(self.low).floor() as u32, octave(self.high).ceil() as u32);
        (from.min(40), to.clamp(from.min(40) + 1, 41))
    }
}

/// The label of a power of ten of nanoseconds.
pub(crate) fn power(exponent: f64) -> String {
    scale::time(10_f64.powf(exponent) as u64)
}

/// A part of the latencies of a device: its name, its stroke, and how long it took.
type Part<'a> = (&'static str, &'static str, &'a Latencies);

/// The distribution of the latencies, and below it their percentiles.
pub(crate) fn side(canvas: &mut Canvas, device: &Device, (top, bottom): (f64, f64)) {
    let parts = &device.parts;
    let all = [
        ("Q2C", "l late", &parts.q2c),
        ("Q2D", "l late q2d", &parts.q2d),
        ("D2C", "l late d2c", &parts.d2c),
    ];
    let shown: Vec<Part<'_>> = all.into_iter().filter(|(_, _, it)| it.count() > 0).collect();
    distribution(canvas, &shown, (top, bottom));
    percentiles(canvas, &shown, bottom + 64.0);
}

/// How the latencies are spread: the share of the I/O in each half of an octave.
fn distribution(canvas: &mut Canvas, shown: &[Part<'_>], (top, bottom): (f64, f64)) {
    canvas.text((LEFT, top - 7.0), "d", "share of the I/O by its latency, %");
    let decades = Decades::of(shown.iter().map(|(_, _, it)| *it));
    let (from, to) = decades.octaves();
    // Of powers of ten, between which the powers of two are.
    let x = |exponent: f64| {
        let part = (exponent - decades.low) / (decades.high - decades.low);
        LEFT + part.clamp(0.0, 1.0) * (RIGHT - LEFT)
    };
    let shares = |it: &Latencies| -> Vec<f64> {
        let all = it.half_octaves(from, to);
        all.iter().map(|count| 100.0 * *count as f64 / it.count() as f64).collect()
    };
    let shares: Vec<Vec<f64>> = shown.iter().map(|(_, _, it)| shares(it)).collect();
    let most = shares.iter().flatten().copied().fold(0.0, f64::max);
    let chart = Chart { top, bottom, low: 0.0, high: round_up(most).min(100.0) };
    let mut grid = format!("M{} {}H{}", at(LEFT), at(bottom), at(RIGHT));
    for value in [0.0, chart.high / 2.0, chart.high] {
        let y = chart.y(value);
        grid += &format!("M{} {}H{}", at(LEFT), at(y), at(RIGHT));
        canvas.text((LEFT - 5.0, y + 4.5), "n e", &short(value));
    }
    let step = ((decades.high - decades.low) as usize).div_ceil(4).max(1);
    for exponent in (decades.low as i32..=decades.high as i32).step_by(step).map(f64::from) {
        let place = x(exponent);
        grid += &format!("M{} {}V{}", at(place), at(top), at(bottom + 4.0));
        canvas.text((place, bottom + 18.0), "n m", &power(exponent));
    }
    canvas.path("grid", &grid);
    canvas.text(((LEFT + RIGHT) / 2.0, bottom + 35.0), "d m", "latency, logarithmic");
    for ((_, class, _), shares) in shown.iter().zip(&shares) {
        let mut steps = Steps::default();
        for (index, share) in (0..).zip(shares) {
            let octave = f64::from(from) + f64::from(index) / 2.0;
            let [left, right] = [octave, octave + 0.5].map(|octave| x(octave * 2_f64.log10()));
            steps.add(left, right, chart.y(*share));
        }
        canvas.path(class, &steps.path());
    }
}

/// The percentiles in a table, and what its columns mean.
fn percentiles(canvas: &mut Canvas, shown: &[Part<'_>], mut y: f64) {
    if shown.is_empty() {
        return canvas.text((TABLE_LEFT, y), "d", "no latencies: no I/O has both Q and C");
    }
    canvas.text((TABLE_LEFT, y), "d", "percentiles");
    for ((name, class, _), edge) in shown.iter().zip(EDGES) {
        canvas.path(class, &format!("M{} {}h20", at(edge - 56.0), at(y - 4.5)));
        canvas.text((edge, y), "e", name);
    }
    let mut row = |name: &str, cell: &dyn Fn(&Latencies) -> String| {
        y += LINE;
        canvas.text((TABLE_LEFT, y), "", name);
        for ((_, _, it), edge) in shown.iter().zip(EDGES) {
            canvas.text((edge, y), "n e", &cell(it));
        }
    };
    for (name, thousandths) in QUANTILES {
        row(name, &|it| compact(it.quantile_ns(thousandths)));
    }
    row("mean", &|it| compact(it.mean_ns()));
    row("I/Os", &|it| grouped(it.count()));
    y += LINE / 2.0;
    for meaning in MEANINGS.iter().take(shown.len()) {
        y += LINE;
        canvas.text((TABLE_LEFT, y), "d", meaning);
    }
    canvas.text((TABLE_LEFT, y + LINE), "d", "p99: 99 of 100 I/Os took at most so long");
}

/// A duration with two or three digits: there are three in a row.
fn compact(ns: u64) -> String {
    let (name, size) = time_unit(ns as f64);
    let value = ns as f64 / size;
    let digits = usize::from(value < 10.0 && size > 1.0);
    format!("{value:.digits$} {name}")
}
