//! Values of properties as `zpool` and `zfs` print them, and their tables.

use ashlar_md::ondisk::text::CTime;

/// Properties whose value is in bytes.
const SIZES: [&str; 27] = [
    "allocated",
    "available",
    "bcloneused",
    "bclonesaved",
    "checkpoint",
    "expandsize",
    "free",
    "freeing",
    "leaked",
    "logicalreferenced",
    "logicalused",
    "quota",
    "recordsize",
    "referenced",
    "refquota",
    "refreservation",
    "reservation",
    "size",
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

/// For these, zero is shown as `none`.
const NONE_IS_ZERO: [&str; 4] = ["quota", "refquota", "refreservation", "reservation"];

/// A number of bytes in the largest unit that fits, with three digits, like libzfs's `zfs_nicebytes`.
pub(crate) fn nice_bytes(bytes: u64) -> String {
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

/// Whether a property's column is right-aligned.
fn is_number(name: &str) -> bool {
    SIZES.contains(&name)
        || name.ends_with("ratio")
        || matches!(name, "capacity" | "fragmentation" | "copies" | "guid")
}

/// A property's value for people, from its value for programs.
pub(crate) fn shown(name: &str, value: &str) -> String {
    let Ok(number) = value.parse::<u64>() else {
        return if name.ends_with("ratio") && value != "-" {
            format!("{value}x")
        } else {
            value.to_owned()
        };
    };
    match name {
        _ if NONE_IS_ZERO.contains(&name) && number == 0 => "none".to_owned(),
        "checkpoint" | "expandsize" if number == 0 => "-".to_owned(),
        _ if SIZES.contains(&name) => nice_bytes(number),
        "capacity" | "fragmentation" => format!("{number}%"),
        "creation" => {
            let text = CTime(number).to_string();
            // `Sun Nov 22 13:27:00 2026` without the seconds.
            let (start, end) = text.split_at(text.len().saturating_sub(8));
            format!("{start}{}", &end[end.len().min(3)..])
        }
        _ => number.to_string(),
    }
}

/// A column: its heading, and whether it is right-aligned.
pub(crate) struct Column {
    pub(crate) heading: String,
    pub(crate) right: bool,
}

/// Pairs of short and full names of properties. Columns may be requested by either.
pub(crate) struct ShortNames(pub(crate) &'static [(&'static str, &'static str)]);

impl ShortNames {
    /// The full name of a property.
    pub(crate) fn full<'a>(&self, name: &'a str) -> &'a str {
        self.0.iter().find(|(short, _)| *short == name).map_or(name, |(_, full)| full)
    }

    /// The columns of these properties; their headings are the short names.
    pub(crate) fn columns(&self, names: &[String]) -> Vec<Column> {
        let column = |name: &String| {
            let full = self.full(name);
            let short =
                self.0.iter().find(|(_, known)| *known == full).map_or(full, |(short, _)| short);
            Column { heading: short.to_uppercase(), right: is_number(full) }
        };
        names.iter().map(column).collect()
    }
}

/// A table: values separated by tabs for programs, else columns with headings.
pub(crate) fn table(columns: &[Column], rows: &[Vec<String>], for_programs: bool) -> String {
    if for_programs {
        return rows.iter().map(|row| row.join("\t") + "\n").collect();
    }
    let heading: Vec<String> = columns.iter().map(|column| column.heading.clone()).collect();
    let width = |index: usize| {
        let cells = rows.iter().map(|row| row[index].chars().count());
        cells.chain([heading[index].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(columns).zip(&widths).map(|((cell, column), width)| {
            if column.right { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    std::iter::once(&heading).chain(rows).map(line).collect()
}

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
        assert_eq!(shown("refreservation", "0"), "none");
        assert_eq!(shown("volsize", "10485760"), "10M");
        assert_eq!(shown("compressratio", "1.00"), "1.00x");
        assert_eq!(shown("capacity", "7"), "7%");
        assert_eq!(shown("compression", "lz4"), "lz4");
        assert_eq!(shown("creation", "1000000000"), "Sun Sep  9 01:46 2001");
        assert_eq!(shown("checkpoint", "-"), "-");
    }

    #[test]
    fn a_table_has_columns_or_tabs() {
        let columns = [("NAME", false), ("USED", true)];
        let columns = columns.map(|(heading, right)| Column { heading: heading.to_owned(), right });
        let rows = [
            vec!["tank/vol".to_owned(), "1K".to_owned()],
            vec!["t".to_owned(), "10.0M".to_owned()],
        ];
        assert_eq!(table(&columns, &rows, true), "tank/vol\t1K\nt\t10.0M\n");
        let text = "NAME       USED\ntank/vol     1K\nt         10.0M\n";
        assert_eq!(table(&columns, &rows, false), text);
    }
}
