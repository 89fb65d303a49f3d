//! The comments that LVM writes after values in backup files; they are derived from the values.

use super::dates;
use super::tree::{Node, Scalar, Section};

/// The position of an entry, and the inputs of its comment.
pub(super) struct Place<'a> {
    /// The sections around it with their names, the volume group first.
    pub(super) path: &'a [(&'a str, &'a Section)],
    /// Seconds that local time is ahead of UTC.
    pub(super) utc_offset: i32,
}

/// The comment for `key` at `place`; `None` if LVM writes none.
pub(super) fn comment(place: &Place<'_>, key: &str, node: &Node) -> Option<String> {
    let scalar = node.as_scalar()?;
    let sectors = |sectors: Option<u64>| sectors.map(size);
    match place.path {
        [_] => match key {
            "extent_size" => sectors(unsigned(scalar)),
            "format" => Some("# informational".into()),
            _ => None,
        },
        [(_, group), ("physical_volumes", _), _] => match key {
            "device" => Some("# Hint only".into()),
            "dev_size" | "ba_size" => sectors(unsigned(scalar)),
            "pe_count" => sectors(extents(group, scalar)),
            _ => None,
        },
        [_, (kind, _), _] => match (*kind, key) {
            ("logical_volumes" | "historical_logical_volumes", "creation_time")
            | ("historical_logical_volumes", "removal_time") => {
                Some(format!("# {}", dates::stamp(unsigned(scalar)?, place.utc_offset)))
            }
            ("logical_volumes", "read_ahead") if scalar.as_int() == Some(-1) => {
                Some("# None".into())
            }
            _ => None,
        },
        [(_, group), ("logical_volumes", _), _, (_, segment)] => {
            let kind = segment.str("type").unwrap_or_default();
            let kind = kind.split('+').next().unwrap_or_default();
            match (kind, key) {
                (_, "extent_count" | "reshape_count") | ("mirror", "extents_moved") => {
                    sectors(extents(group, scalar))
                }
                ("striped", "stripe_count") => {
                    (scalar.as_int() == Some(1)).then(|| "# linear".into())
                }
                ("striped", "stripe_size") | ("thin-pool", "chunk_size") => {
                    sectors(unsigned(scalar))
                }
                ("vdo-pool", "header_size") => sectors(unsigned(scalar)),
                ("vdo-pool", "virtual_extents") => sectors(extents(group, scalar)),
                (
                    "vdo-pool",
                    "block_map_cache_size_mb" | "index_memory_size_mb" | "slab_size_mb",
                ) => sectors(unsigned(scalar)?.checked_mul(2048)),
                _ => None,
            }
        }
        _ => None,
    }
}

fn unsigned(scalar: &Scalar) -> Option<u64> {
    scalar.as_int()?.try_into().ok()
}

/// The sectors of a number of extents.
fn extents(group: &Section, scalar: &Scalar) -> Option<u64> {
    let extent_size: u64 = group.int("extent_size")?.try_into().ok()?;
    unsigned(scalar)?.checked_mul(extent_size)
}

/// A size in the format of LVM's comments: `# 4 Megabytes`. The next unit is used only above 1024
/// of a unit, so 1 MiB is 1024 kilobytes.
fn size(sectors: u64) -> String {
    const UNITS: [&str; 6] =
        ["Kilobytes", "Megabytes", "Gigabytes", "Terabytes", "Petabytes", "Exabytes"];
    let mut amount = sectors as f64 / 2.0;
    let mut unit = 0;
    while amount > 1024.0 && unit < UNITS.len() - 1 {
        amount /= 1024.0;
        unit += 1;
    }
    format!("# {} {}", general(amount), UNITS[unit])
}

/// C's `%g`, for the possible sizes: zero, or from 0.5 to 16384.
fn general(amount: f64) -> String {
    let rounded = format!("{amount:.5e}");
    let exponent = rounded.split_once('e').and_then(|(_, exponent)| exponent.parse().ok());
    let exponent: usize = exponent.unwrap_or(0);
    let decimals = if amount < 1.0 && amount > 0.0 { 6 } else { 5_usize.saturating_sub(exponent) };
    let text = format!("{amount:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').into() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_as_printf_does() {
        for (sectors, text) in [
            (0, "# 0 Kilobytes"),
            (1, "# 0.5 Kilobytes"),
            (128, "# 64 Kilobytes"),
            (2048, "# 1024 Kilobytes"),
            (2049, "# 1.00049 Megabytes"),
            (8192, "# 4 Megabytes"),
            (1_000_000, "# 488.281 Megabytes"),
            (2_047_998, "# 999.999 Megabytes"),
            (2_097_151, "# 1024 Megabytes"),
            (2_097_153, "# 1 Gigabytes"),
            (7_814_037_168, "# 3.63869 Terabytes"),
        ] {
            assert_eq!(size(sectors), text, "{sectors} sectors");
        }
    }
}
