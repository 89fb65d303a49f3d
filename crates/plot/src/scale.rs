//! Axes and their labels.

/// Steps of a linear axis from `low` to `high`: round numbers, at most `most` of them apart from the
/// first.
pub(crate) fn ticks(low: f64, high: f64, most: usize) -> Vec<f64> {
    let step = round_up((high - low) / most.max(1) as f64);
    let first = (low / step).ceil() as i64;
    let last = (high / step + 1e-9).floor() as i64;
    (first..=last).map(|n| n as f64 * step).collect()
}

/// The next number of the form 1, 2 or 5 times a power of ten.
pub(crate) fn round_up(value: f64) -> f64 {
    if value <= 0.0 || !value.is_finite() {
        return 1.0;
    }
    let power = 10_f64.powf(value.log10().floor());
    let rounded = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * power >= value * 0.999_999);
    rounded.unwrap_or(10.0) * power
}

/// A unit, and how many of the smallest it is.
pub(crate) type Unit = (&'static str, f64);

const BYTES: [Unit; 6] = [
    ("B", 1.0),
    ("KiB", 1024.0),
    ("MiB", 1_048_576.0),
    ("GiB", 1_073_741_824.0),
    ("TiB", 1_099_511_627_776.0),
    ("PiB", 1_125_899_906_842_624.0),
];
const TIMES: [Unit; 4] = [("ns", 1.0), ("\u{b5}s", 1e3), ("ms", 1e6), ("s", 1e9)];
const COUNTS: [Unit; 3] = [("", 1.0), ("k", 1e3), ("M", 1e6)];

fn unit(of: &[Unit], value: f64) -> Unit {
    of.iter().rev().find(|(_, size)| value >= *size).or(of.first()).copied().unwrap_or(("", 1.0))
}

/// The unit for amounts of data up to `value` bytes.
pub(crate) fn byte_unit(value: f64) -> Unit {
    unit(&BYTES, value)
}

/// The unit for times up to `value` nanoseconds.
pub(crate) fn time_unit(value: f64) -> Unit {
    unit(&TIMES, value)
}

/// A number with at most three digits behind the point, as few as it needs.
pub(crate) fn short(value: f64) -> String {
    let digits = match value.abs() {
        value if value >= 100.0 => 0,
        value if value >= 10.0 => 1,
        value if value >= 1.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

fn with(units: &[Unit], value: f64) -> String {
    let (name, size) = unit(units, value);
    let blank =
        if name.is_empty() || name.len() == 1 && size > 1.0 && name != "s" { "" } else { " " };
    format!("{}{blank}{name}", short(value / size))
}

/// Bytes with their unit.
pub(crate) fn bytes(value: u64) -> String {
    with(&BYTES, value as f64)
}

/// Nanoseconds with a unit.
pub(crate) fn time(ns: u64) -> String {
    with(&TIMES, ns as f64)
}

/// A count, short.
pub(crate) fn count(value: f64) -> String {
    with(&COUNTS, value)
}

/// A whole number with its thousands apart.
pub(crate) fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_have_their_unit() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(time(12_345), "12.3 \u{b5}s");
        assert_eq!(time(2_000_000_000), "2 s");
        assert_eq!(count(12_300.0), "12.3k");
        assert_eq!(count(7.0), "7");
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn steps_are_round_and_within_the_axis() {
        assert_eq!(ticks(0.0, 10.0, 5), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(ticks(3.0, 9.0, 3), [4.0, 6.0, 8.0]);
        assert_eq!([0.0, 0.7, 1.0, 3.0, 60.0].map(round_up), [1.0, 1.0, 1.0, 5.0, 100.0]);
    }
}
