//! A page of metrics: rows, each a metric of all subjects of a kind, and their text.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode_registry;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

/// Names and values of labels.
pub(super) type Labels = Vec<(&'static str, String)>;

/// A value at this moment.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Value {
    /// A whole number.
    Whole(u64),
    /// Any number.
    Real(f64),
    /// How many things were of a size up to each bound but above the one before, and the sum of all sizes. The last bound is infinite.
    Histogram { sum: f64, buckets: Vec<(f64, u64)> },
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Whole(number)
    }
}

impl From<usize> for Value {
    fn from(number: usize) -> Self {
        Self::Whole(number as u64)
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Self {
        Self::Whole(flag.into())
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Self {
        Self::Real(number)
    }
}

impl Value {
    /// Counters, too, are written in the way of gauges: the encoder would add `_total` to their names, but only to those of the samples, as
    /// OpenMetrics wants it and Prometheus's own format does not.
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        match self {
            Self::Whole(number) => encoder.encode_gauge(number),
            Self::Real(number) => encoder.encode_gauge(number),
            Self::Histogram { sum, buckets } => {
                let count = buckets.iter().map(|(_, count)| count).sum();
                encoder.encode_histogram::<NoLabelSet>(*sum, count, buckets, None)
            }
        }
    }
}

/// The values that a metric has for one subject.
pub(super) enum Values {
    /// It does not apply.
    None,
    /// One.
    One(Value),
    /// One for each value of a further label.
    By(&'static str, Vec<(&'static str, Value)>),
}

impl Values {
    /// A value if there is one.
    pub(super) fn some(value: Option<impl Into<Value>>) -> Self {
        value.map_or(Self::None, |value| Self::One(value.into()))
    }

    /// 1 for the state with the name `now`, and 0 for the others, so that a query finds each of them at any time.
    pub(super) fn states<T: Copy>(
        label: &'static str,
        all: &[T],
        now: &str,
        name: impl Fn(T) -> &'static str,
    ) -> Self {
        Self::By(
            label,
            all.iter().map(|state| (name(*state), (name(*state) == now).into())).collect(),
        )
    }
}

/// A metric.
pub(super) struct Row<T> {
    pub(super) name: &'static str,
    pub(super) kind: MetricType,
    pub(super) help: &'static str,
    values: fn(&T) -> Values,
}

impl<T> Row<T> {
    /// A number that only grows while the daemon runs.
    pub(super) const fn counter(
        name: &'static str,
        help: &'static str,
        values: fn(&T) -> Values,
    ) -> Self {
        Self { name, kind: MetricType::Counter, help, values }
    }

    /// A number of the moment.
    pub(super) const fn gauge(
        name: &'static str,
        help: &'static str,
        values: fn(&T) -> Values,
    ) -> Self {
        Self { name, kind: MetricType::Gauge, help, values }
    }

    /// Counters by sizes.
    pub(super) const fn histogram(
        name: &'static str,
        help: &'static str,
        values: fn(&T) -> Values,
    ) -> Self {
        Self { name, kind: MetricType::Histogram, help, values }
    }
}

/// What metrics tell of.
pub(super) trait Subject: Sized + 'static {
    /// Its metrics.
    const ROWS: &'static [Row<Self>];

    /// The labels that tell it from others of its kind.
    fn labels(&self) -> Labels;
}

/// Writes all metrics of these subjects. One without a value is left out.
pub(super) fn encode_all<T: Subject>(
    encoder: &mut DescriptorEncoder<'_>,
    subjects: &[T],
) -> fmt::Result {
    for row in T::ROWS {
        let mut samples: Vec<(Labels, Value)> = Vec::new();
        for subject in subjects {
            match (row.values)(subject) {
                Values::None => {}
                Values::One(value) => samples.push((subject.labels(), value)),
                Values::By(label, values) => {
                    samples.extend(values.into_iter().map(|(of, value)| {
                        let mut labels = subject.labels();
                        labels.push((label, of.to_owned()));
                        (labels, value)
                    }))
                }
            }
        }
        if samples.is_empty() {
            continue;
        }
        let mut metric = encoder.encode_descriptor(row.name, row.help, None, row.kind)?;
        if let [(labels, value)] = samples.as_slice()
            && labels.is_empty()
        {
            value.encode(metric)?;
            continue;
        }
        for (labels, value) in &samples {
            value.encode(metric.encode_family(labels)?)?;
        }
    }
    Ok(())
}

/// The text of a page, in version 0.0.4 of Prometheus's format.
///
/// # Errors
/// Only after a defect: memory accepts all text.
pub(super) fn text(page: impl Collector) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(page));
    let mut text = String::new();
    encode_registry(&mut text, &registry)?;
    Ok(text)
}
