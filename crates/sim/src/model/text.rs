//! The notation of models: `gp2:3000iops,latency=2ms`.
//!
//! A preset, and after a colon the changes to it. Sizes are powers of 1024 (`256K`, `250M`), times have
//! a unit (`600us`, `1.5ms`).

use std::fmt;
use std::str::FromStr;

use ashlar_block::size::Notation;
use ashlar_block::{Sector, Sectors};
use thiserror::Error;

use super::{IopsCap, MAX_PARALLELISM, MS, Model, SECOND, US, Unreadable};

/// The presets, by name.
pub const PRESETS: [(&str, Model); 6] = [
    ("nvme", Model::nvme()),
    ("sata-ssd", Model::sata_ssd()),
    ("hdd", Model::hdd()),
    ("hdd-5400", Model::hdd_5400()),
    ("gp2", Model::cloud_gp2(3000)),
    ("custom", Model::instant()),
];

/// Examples of adjustments after a preset.
pub const EXAMPLES: &str = "3000iops, burst=16, unit=256K, read=600us, write=900us, latency=1ms, \
                            flush=1ms, discard=1ms, bandwidth=250M, parallelism=64, jitter=10%, \
                            unreadable=1M+4K";

/// The longest time of a command.
const MAX_NS: u64 = 60 * SECOND;
/// Most I/Os per second of a cap.
const MAX_IOPS: u64 = SECOND;
/// The largest variation, in percent.
const MAX_JITTER: u64 = 1000;

/// A model and the text that it was parsed from, as which it prints.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedModel {
    text: String,
    /// The model.
    pub model: Model,
    /// The sectors that cannot be read.
    pub unreadable: Vec<Unreadable>,
}

/// Why a text is not a model.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ModelError {
    /// Not one of [`PRESETS`].
    #[error(
        "there is no device model `{0}`: there are {presets}, each with adjustments as in \
         gp2:3000iops,latency=2ms",
        presets = presets()
    )]
    Preset(String),
    /// Not one of [`EXAMPLES`].
    #[error("a device model has no `{0}`: there are {EXAMPLES}")]
    Adjustment(String),
    /// An impossible value.
    #[error("`{value}` is not possible for {key}: {wanted}")]
    Value {
        /// The adjustment.
        key: String,
        /// The value.
        value: String,
        /// What is accepted.
        wanted: &'static str,
    },
    /// Part of a cap, but there is no cap.
    #[error("{0} belongs to a cap on I/Os: give one before it, as in 3000iops,{0}=16")]
    NoCap(String),
}

fn presets() -> String {
    PRESETS.map(|(name, _)| name).join(", ")
}

impl NamedModel {
    /// Whether `text` begins like a model: with a preset, alone or before a colon.
    pub fn begins(text: &str) -> bool {
        let preset = text.split(':').next().unwrap_or(text);
        PRESETS.iter().any(|(name, _)| *name == preset)
    }
}

impl fmt::Display for NamedModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for NamedModel {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        let (preset, adjustments) = match text.split_once(':') {
            Some((preset, adjustments)) => (preset, Some(adjustments)),
            None => (text, None),
        };
        let found = PRESETS.iter().find(|(name, _)| *name == preset);
        let (_, model) = *found.ok_or_else(|| ModelError::Preset(preset.to_owned()))?;
        let mut named = Self { text: text.to_owned(), model, unreadable: Vec::new() };
        for adjustment in adjustments.into_iter().flat_map(|all| all.split(',')) {
            adjust(&mut named, adjustment)?;
        }
        Ok(named)
    }
}

/// Applies one adjustment.
fn adjust(named: &mut NamedModel, text: &str) -> Result<(), ModelError> {
    let model = &mut named.model;
    let (key, value) = match (text.split_once('='), text.strip_suffix("iops")) {
        (Some(pair), _) => pair,
        (None, Some(count)) => ("iops", count),
        (None, None) => return Err(ModelError::Adjustment(text.to_owned())),
    };
    let bad = |wanted| ModelError::Value { key: key.to_owned(), value: value.to_owned(), wanted };
    let nanoseconds = || {
        time(value)
            .ok_or_else(|| bad("a time of at most a minute, in s, ms, us or ns, as in 1.5ms"))
    };
    let cap = |model: &mut Model, set: fn(&mut IopsCap, u64), value: u64| match &mut model.iops_cap
    {
        Some(cap) => {
            set(cap, value);
            Ok(())
        }
        None => Err(ModelError::NoCap(key.to_owned())),
    };
    match key {
        "iops" => {
            let wanted = "a number of I/Os in a second, from 1 to 1000000000";
            let per_second = number(value, 1, MAX_IOPS).ok_or_else(|| bad(wanted))?;
            let default =
                IopsCap { per_second, burst: IopsCap::BURST, unit_bytes: IopsCap::UNIT_BYTES };
            model.iops_cap.get_or_insert(default).per_second = per_second;
        }
        "burst" => {
            let count =
                number(value, 1, MAX_IOPS).ok_or_else(|| bad("a number of I/Os, at least 1"))?;
            cap(model, |cap, count| cap.burst = count, count)?;
        }
        "unit" => {
            let bytes = size(value).ok_or_else(|| bad("a size in bytes, or with K, M, G"))?;
            cap(model, |cap, bytes| cap.unit_bytes = bytes, bytes)?;
        }
        "read" => model.read_ns = nanoseconds()?,
        "write" => model.write_ns = nanoseconds()?,
        "latency" => (model.read_ns, model.write_ns) = (nanoseconds()?, nanoseconds()?),
        "flush" => model.flush_ns = nanoseconds()?,
        "discard" => model.discard_ns = nanoseconds()?,
        "bandwidth" => {
            let wanted = "bytes in a second, or with K, M, G";
            model.bytes_per_second = size(value).ok_or_else(|| bad(wanted))?;
        }
        "parallelism" => {
            let count = number(value, 1, MAX_PARALLELISM as u64);
            model.parallelism =
                count.ok_or_else(|| bad("a number of commands, 1 to 1024"))? as usize;
        }
        "jitter" => {
            let percent = value.strip_suffix('%').and_then(|n| number(n, 0, MAX_JITTER));
            model.jitter_percent = percent.ok_or_else(|| bad("0% to 1000%"))?;
        }
        "unreadable" => {
            let wanted = "a place and a length in bytes, multiples of 512, as in 1M+4K";
            named.unreadable.push(sectors(value).ok_or_else(|| bad(wanted))?);
        }
        _ => return Err(ModelError::Adjustment(key.to_owned())),
    }
    Ok(())
}

fn number(text: &str, min: u64, max: u64) -> Option<u64> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|n| digits && (min..=max).contains(n))
}

/// Bytes, not zero.
fn size(text: &str) -> Option<u64> {
    Notation::BANDWIDTH.parse(text).ok().filter(|bytes| *bytes > 0)
}

/// Sectors: where they begin, and how many bytes they have.
fn sectors(text: &str) -> Option<Unreadable> {
    let (start, len) = text.split_once('+')?;
    let start = if start == "0" { 0 } else { size(start)? };
    let len = size(len)?;
    let end = start.checked_add(len)?;
    let is_whole = start.is_multiple_of(512) && end.is_multiple_of(512);
    is_whole.then_some(Unreadable { start: Sector(start / 512), len: Sectors(len / 512) })
}

/// Nanoseconds.
fn time(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "s" => SECOND,
        "ms" => MS,
        "us" => US,
        "ns" => 1,
        _ => return None,
    };
    let (whole, part) = digits.split_once('.').unwrap_or((digits, "0"));
    // Nine digits are nanoseconds of a second; more would be meaningless.
    let of = 10_u64.checked_pow(u32::try_from(part.len()).ok().filter(|len| *len <= 9)?)?;
    let part = number(part, 0, of)? * unit / of;
    let ns = number(whole, 0, MAX_NS)?.checked_mul(unit)?.checked_add(part)?;
    (ns <= MAX_NS).then_some(ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(text: &str) -> Model {
        text.parse::<NamedModel>().unwrap().model
    }

    #[test]
    fn presets_are_what_their_names_say() {
        assert_eq!(model("nvme"), Model::nvme());
        assert_eq!(model("sata-ssd"), Model::sata_ssd());
        assert_eq!(model("hdd"), Model::hdd());
        assert_eq!(model("hdd-5400"), Model::hdd_5400());
        assert_eq!(model("gp2"), Model::cloud_gp2(3000));
        assert_eq!(model("gp2:16000iops"), Model::cloud_gp2(16_000));
        assert_eq!(model("custom"), Model::instant());
    }

    #[test]
    fn every_adjustment_changes_its_own_figure() {
        let all = "custom:500iops,burst=3,unit=16K,read=1.5ms,write=900us,flush=2s,discard=7ns,\
                   bandwidth=250M,parallelism=64,jitter=10%";
        let expected = Model {
            parallelism: 64,
            read_ns: 1_500_000,
            write_ns: 900_000,
            flush_ns: 2_000_000_000,
            discard_ns: 7,
            discard_ns_per_mib: 0,
            bytes_per_second: 250 << 20,
            jitter_percent: 10,
            tail: None,
            seek: None,
            iops_cap: Some(IopsCap { per_second: 500, burst: 3, unit_bytes: 16 << 10 }),
        };
        assert_eq!(model(all), expected);
        assert_eq!(all.parse::<NamedModel>().unwrap().to_string(), all);
        let slow = model("nvme:latency=1ms");
        assert_eq!(slow, Model { read_ns: MS, write_ns: MS, ..Model::nvme() });
        assert_eq!(model("hdd:iops=90").iops_cap.unwrap().per_second, 90);
        assert_eq!(model("custom:read=0s,read=60s").read_ns, MAX_NS);
    }

    #[test]
    fn each_range_that_cannot_be_read_counts() {
        let named: NamedModel = "nvme:unreadable=0+512,read=1ms,unreadable=1M+4K".parse().unwrap();
        let range = |start, len| Unreadable { start: Sector(start), len: Sectors(len) };
        assert_eq!(named.unreadable, [range(0, 1), range(2048, 8)]);
        assert_eq!(named.model, Model { read_ns: MS, ..Model::nvme() });
    }

    #[test]
    fn examples_are_all_taken() {
        let examples = EXAMPLES.replace(", ", ",");
        assert!(format!("custom:{examples}").parse::<NamedModel>().is_ok());
    }

    #[test]
    fn what_is_no_model_is_told_what_there_is() {
        let cases = [
            (
                "floppy",
                "no device model `floppy`: there are nvme, sata-ssd, hdd, hdd-5400, gp2, custom",
            ),
            ("", "no device model ``"),
            ("gp3:3000iops", "no device model `gp3`"),
            ("gp2:", "has no ``: there are 3000iops"),
            ("gp2:fast", "has no `fast`"),
            ("gp2:size=1", "has no `size`"),
            ("gp2:3000iops,", "has no ``"),
            ("gp2:0iops", "`0` is not possible for iops"),
            ("gp2:-1iops", "`-1` is not possible for iops"),
            ("gp2:+1iops", "`+1` is not possible for iops"),
            ("nvme:burst=4", "burst belongs to a cap on I/Os"),
            ("nvme:unit=4K", "unit belongs to a cap on I/Os"),
            ("gp2:unit=0", "`0` is not possible for unit"),
            ("gp2:unit=4KiB", "`4KiB` is not possible"),
            ("hdd:read=5", "`5` is not possible for read: a time"),
            ("hdd:read=61s", "`61s` is not possible"),
            ("hdd:read=1.0000000001s", "not possible"),
            ("hdd:read=.5ms", "`.5ms` is not possible"),
            ("hdd:read=1..5ms", "not possible"),
            ("hdd:read=99999999999999999999s", "not possible"),
            ("hdd:flush=\u{e9}s", "not possible"),
            ("nvme:bandwidth=0", "not possible for bandwidth"),
            ("nvme:bandwidth=99999999999999G", "not possible for bandwidth"),
            ("nvme:parallelism=1025", "1 to 1024"),
            ("nvme:jitter=5", "0% to 1000%"),
            ("nvme:unreadable=4K", "a place and a length"),
            ("nvme:unreadable=4K+0", "not possible for unreadable"),
            ("nvme:unreadable=100+512", "not possible for unreadable"),
        ];
        for (text, expected) in cases {
            let error = text.parse::<NamedModel>().unwrap_err().to_string();
            assert!(error.contains(expected), "{text:?}: {error}");
        }
    }

    #[test]
    fn a_model_is_told_from_a_path_by_its_preset() {
        for text in ["hdd", "gp2:3000iops", "custom:read=1ms", "gp2:nonsense"] {
            assert!(NamedModel::begins(text), "{text}");
        }
        for text in ["disk.img", "./hdd", "hdd.img", "ram:1G", ""] {
            assert!(!NamedModel::begins(text), "{text}");
        }
    }
}
