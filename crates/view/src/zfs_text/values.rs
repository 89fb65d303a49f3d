//! Values of properties as `zpool` and `zfs` print them.

use ashlar_md::ondisk::text::CTime;

/// Properties of datasets whose value is in bytes.
const DATASET_SIZES: [&str; 18] = [
    "available",
    "logicalreferenced",
    "logicalused",
    "quota",
    "recordsize",
    "referenced",
    "refquota",
    "refreservation",
    "reservation",
    "special_small_blocks",
    "used",
    "usedbychildren",
    "usedbydataset",
    "usedbyrefreservation",
    "usedbysnapshots",
    "volblocksize",
    "volsize",
    "written",
];

/// Properties of pools whose value is in bytes. zpool prints it without a unit below 1K.
const POOL_SIZES: [&str; 16] = [
    "allocated",
    "available",
    "bclonesaved",
    "bcloneused",
    "dedup_table_quota",
    "dedup_table_size",
    "dedupsaved",
    "dedupused",
    "free",
    "freeing",
    "leaked",
    "maxblocksize",
    "maxdnodesize",
    "size",
    "usable",
    "used",
];

/// Properties of pools whose value is in bytes, with `-` instead of 0.
const POOL_EXTRAS: [&str; 2] = ["checkpoint", "expandsize"];

/// For these properties of datasets, zero is shown as `none`.
const NONE_IS_ZERO: [&str; 4] = ["quota", "refquota", "refreservation", "reservation"];

/// A number of bytes in the largest unit that fits, with three digits, like libzfs's `zfs_nicebytes`.
pub fn nice_bytes(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "K", "M", "G", "T", "P", "E"];
    let index = (bytes.max(1).ilog2() / 10) as usize;
    let unit = UNITS[index];
    if bytes & ((1 << (10 * index)) - 1) == 0 {
        return format!("{}{unit}", bytes >> (10 * index));
    }
    let value = bytes as f64 / (1_u64 << (10 * index)) as f64;
    let digits = [2, 1, 0].map(|places| format!("{value:.places$}{unit}"));
    let fits = digits.iter().find(|text| text.len() <= 5);
    fits.unwrap_or(&digits[2]).clone()
}

/// A number like libzfs's `zfs_nicenum`.
fn nice_number(number: u64) -> String {
    match number {
        0..1024 => number.to_string(),
        1024.. => nice_bytes(number),
    }
}

/// Whether a property's column is right-aligned.
pub fn is_number(name: &str) -> bool {
    let sizes = [&DATASET_SIZES[..], &POOL_SIZES, &POOL_EXTRAS];
    sizes.iter().any(|sizes| sizes.contains(&name))
        || is_ratio(name)
        || matches!(name, "capacity" | "fragmentation" | "copies" | "guid")
}

fn is_ratio(name: &str) -> bool {
    matches!(name, "bcloneratio" | "compressratio" | "dedupratio" | "refcompressratio")
}

/// The value of a pool's property for people, from its value for programs.
pub fn pool_value(name: &str, value: &str) -> String {
    // `class_log_size` is the `size` of the log devices.
    let of_class = name.strip_prefix("class_").and_then(|class| class.rsplit('_').next());
    let name = of_class.unwrap_or(name);
    match value.parse::<u64>() {
        Ok(0) if name == "dedup_table_quota" => "none".to_owned(),
        Ok(number) if POOL_SIZES.contains(&name) => nice_number(number),
        Ok(number) if POOL_EXTRAS.contains(&name) => nice_bytes(number),
        Ok(number) if matches!(name, "capacity" | "fragmentation") => format!("{number}%"),
        Err(_) if is_ratio(name) && value != "-" => format!("{value}x"),
        Ok(_) | Err(_) => value.to_owned(),
    }
}

/// The value of a dataset's property for people, from its value for programs.
pub fn dataset_value(name: &str, value: &str) -> String {
    let Ok(number) = value.parse::<u64>() else {
        return if is_ratio(name) && value != "-" { format!("{value}x") } else { value.to_owned() };
    };
    match name {
        _ if NONE_IS_ZERO.contains(&name) && number == 0 => "none".to_owned(),
        _ if DATASET_SIZES.contains(&name) => nice_bytes(number),
        "creation" => {
            let text = CTime(number).to_string();
            // `Sun Nov 22 13:27:00 2026` without the seconds.
            let (start, end) = text.split_at(text.len().saturating_sub(8));
            format!("{start}{}", &end[end.len().min(3)..])
        }
        _ => value.to_owned(),
    }
}

/// Pairs of short and full names of properties. Columns may be requested by either.
pub struct ShortNames(&'static [(&'static str, &'static str)]);

impl ShortNames {
    /// The full name of a property.
    pub fn full<'a>(&self, name: &'a str) -> &'a str {
        self.0.iter().find(|(short, _)| *short == name).map_or(name, |(_, full)| full)
    }

    /// The short name of a property, or its full name if it has none.
    pub fn short<'a>(&self, name: &'a str) -> &'a str {
        let full = self.full(name);
        self.0.iter().find(|(_, known)| *known == full).map_or(full, |(short, _)| short)
    }
}

/// The short names that zpool's columns have.
pub const POOL_NAMES: ShortNames = ShortNames(&[
    ("alloc", "allocated"),
    ("bclone_ratio", "bcloneratio"),
    ("bclone_saved", "bclonesaved"),
    ("bclone_used", "bcloneused"),
    ("cap", "capacity"),
    ("ckpoint", "checkpoint"),
    ("ddtquota", "dedup_table_quota"),
    ("ddtsize", "dedup_table_size"),
    ("dedup", "dedupratio"),
    ("expand", "autoexpand"),
    ("expandsz", "expandsize"),
    ("frag", "fragmentation"),
    ("listsnaps", "listsnapshots"),
    ("rdonly", "readonly"),
    ("replace", "autoreplace"),
]);

/// The short names that zfs's columns have.
pub const DATASET_NAMES: ShortNames = ShortNames(&[
    ("avail", "available"),
    ("compress", "compression"),
    ("lrefer", "logicalreferenced"),
    ("lused", "logicalused"),
    ("ratio", "compressratio"),
    ("refer", "referenced"),
    ("refreserv", "refreservation"),
    ("reserv", "reservation"),
    ("volblock", "volblocksize"),
]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_libzfss() {
        for (bytes, text) in [
            (0, "0B"),
            (512, "512B"),
            (1024, "1K"),
            (1536, "1.50K"),
            (10 << 20, "10M"),
            ((10 << 20) + 1, "10.0M"),
            ((100 << 20) + 1, "100M"),
            ((1000 << 20) + 1, "1000M"),
            (1 << 40, "1T"),
            (u64::MAX, "16.0E"),
        ] {
            assert_eq!(nice_bytes(bytes), text);
        }
    }

    #[test]
    fn values_are_zfss() {
        for (name, value, text) in [
            ("refreservation", "0", "none"),
            ("used", "0", "0B"),
            ("volsize", "10485760", "10M"),
            ("compressratio", "1.00", "1.00x"),
            ("compression", "lz4", "lz4"),
            ("creation", "1000000000", "Sun Sep  9 01:46 2001"),
            ("com.example:ratio", "half", "half"),
            ("com.example:number", "007", "007"),
        ] {
            assert_eq!(dataset_value(name, value), text, "{name}={value}");
        }
    }

    #[test]
    fn values_are_zpools() {
        for (name, value, text) in [
            ("size", "10485760", "10M"),
            ("freeing", "0", "0"),
            ("leaked", "512", "512"),
            ("capacity", "7", "7%"),
            ("fragmentation", "-", "-"),
            ("dedupratio", "1.00", "1.00x"),
            ("checkpoint", "-", "-"),
            ("checkpoint", "512", "512B"),
            ("dedup_table_quota", "0", "none"),
            ("dedup_table_quota", "auto", "auto"),
            ("dedup_table_quota", "1048576", "1M"),
            ("class_special_size", "1048576", "1M"),
            ("class_special_fragmentation", "3", "3%"),
            ("ashift", "12", "12"),
            ("guid", "12345678901234567890", "12345678901234567890"),
            ("com.example:ratio", "half", "half"),
            ("comment", "007", "007"),
        ] {
            assert_eq!(pool_value(name, value), text, "{name}={value}");
        }
    }
}
